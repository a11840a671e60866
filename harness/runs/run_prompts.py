"""A problem with its prompts as they were run: text, hash, segments, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import PromptMismatchError
from harness.experiment.documents import hash_problem
from harness.experiment.prompt import Prompt, Segment, refuse_other_text
from harness.experiment.tokens import find_segments
from harness.runs.records import Graded


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One prompt as it was recorded, with what came back.

    Attributes:
        where: File and line, for messages.
        problem_id: The document's own id, else its number.
        subject, level: Empty and 0 where the document has none.
        condition: None in a log of another task, until the user has named it.
        layout: What the prompt was made with.
        text, sha256, token_sha256: The prompt and its recorded hashes; empty text where only a server knew it.
        segments, system_size: See `harness.experiment.prompt.Prompt`; None where the document does not say.
        doc: The document.
        completions: What the model wrote, one a sample; empty where nothing was generated.
        verdicts: One a sample; empty where nothing was graded.
        answers: One a sample; None where a completion has none, empty where none were looked for.
        grades: Grades with the audit, one a sample, as a log of our tasks has them; empty elsewhere.
        completion_tokens: One a sample, where a log says.
        target: The gold answer.
    """

    where: str
    problem_id: str
    subject: str
    level: int
    condition: str | None
    layout: str
    text: str
    sha256: str
    token_sha256: str | None
    segments: tuple[Segment, ...] | None
    system_size: int
    doc: Mapping[str, Any]
    completions: tuple[str, ...]
    verdicts: tuple[str, ...]
    answers: tuple[str | None, ...]
    grades: tuple[Graded, ...] = ()
    completion_tokens: tuple[int | None, ...] = ()
    target: str | None

    @property
    def problem_sha256(self) -> str:
        """Hash of what is asked and its answer, whatever the condition."""
        return hash_problem(self.doc, self.target)

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Role and text of all that the model got, in order; what no segment covers is `template`."""
        if self.segments is None:
            return (("prompt", self.text),) if self.text else ()
        found, at = [], 0
        try:
            prompt = Prompt(segments=self.segments, system_size=self.system_size)
            spans = find_segments(prompt, self.text) if self.text else []
        except PromptMismatchError:  # a server's template, which was never seen here
            spans = []
        for role, (low, high) in spans:
            found += [("template", self.text[at:low]), (str(role), self.text[low:high])]
            at = high
        return tuple(part for part in (*found, ("template", self.text[at:])) if part[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrompt:
    """One problem's prompt under one condition, as it was run.

    Attributes:
        condition, layout, problem_id: Which.
        text: The very text that the model got, templated.
        sha256: Its hash as the run recorded it; lm-eval's `prompt_hash`.
        token_sha256: Hash of its token ids, where the run recorded one.
        segments: In order; joined they are the prompt before templating.
        system_size: How many leading segments belong to the system turn.
        completions: What the model wrote, one a sample, in the order of sampling; empty where nothing was generated.
        verdicts: One a sample; empty where nothing was graded.
        answers: One a sample; None where a completion has none, empty where none were looked for.
        target: The gold answer.

    Raises:
        PromptMismatchError: the text is not the one that was hashed.
    """

    condition: str
    layout: str
    problem_id: str
    text: str
    sha256: str
    segments: tuple[Segment, ...]
    system_size: int = 0
    token_sha256: str | None = None
    completions: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    answers: tuple[str | None, ...] = ()
    target: str | None = None

    def __post_init__(self) -> None:
        refuse_other_text(self.text, self.sha256, f"Problem {self.problem_id}, condition {self.condition!r}")

    @property
    def completion(self) -> str | None:
        """What the model wrote the first time."""
        return self.completions[0] if self.completions else None

    @property
    def answer(self) -> str | None:
        """The first sample's answer."""
        return self.answers[0] if self.answers else None

    @property
    def verdict(self) -> str | None:
        """The first sample's verdict."""
        return self.verdicts[0] if self.verdicts else None

    @property
    def prompt(self) -> Prompt:
        """The prompt before templating."""
        return Prompt(segments=self.segments, system_size=self.system_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem under every condition in which it was asked.

    Attributes:
        id: Unique within its source.
        subject, level: Empty and 0 where the source has none.
        prompts: By condition.
    """

    id: str
    subject: str
    level: int
    prompts: Mapping[str, RunPrompt]
