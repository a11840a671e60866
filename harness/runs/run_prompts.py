"""A problem with its prompts as they were run: text, hash, segments, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.errors import PromptMismatchError
from harness.experiment.prompt import Prompt, Segment, hash_problem
from harness.experiment.tokenizer import find_segments
from harness.runs.records import Graded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrompt:
    """One problem's prompt under one condition, as it was run, with what came back.

    Two are equal if the same was asked and answered, wherever that was recorded.

    Attributes:
        where: File and line, for messages.
        problem_id: The document's own id, else its number.
        subject, level: Empty and 0 where the document has none.
        condition: Empty in a log of another task, until the user has named it.
        layout: How the prompt was made.
        text: What the model got, templated; empty where only a server knew it.
        sha256: The text's hash as the run recorded it; lm-eval's `prompt_hash`.
        token_sha256: Hash of its token ids, where the run recorded one.
        segments: In order; joined they are the prompt before templating. Empty where the document does not name them.
        system_size: How many leading segments belong to the system turn.
        doc: The document.
        completions: What the model wrote, one for each sample in order; empty where nothing was generated.
        verdicts: One for each sample; empty where nothing was graded.
        answers: One for each sample, None where a completion has none; empty where none were looked for.
        grades: Grades with the audit, one for each sample, as a log of our tasks has them; empty elsewhere.
        completion_tokens: One for each sample, where a log has them.
        target: The gold answer.
    """

    where: str = field(default="", compare=False)
    problem_id: str
    subject: str = ""
    level: int = 0
    condition: str
    layout: str
    text: str
    sha256: str
    token_sha256: str | None = None
    segments: tuple[Segment, ...]
    system_size: int = 0
    doc: Mapping[str, Any] = field(default_factory=dict)
    completions: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    answers: tuple[str | None, ...] = ()
    grades: tuple[Graded, ...] = field(default=(), compare=False)
    completion_tokens: tuple[int | None, ...] = field(default=(), compare=False)
    target: str | None = None

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

    @property
    def problem_sha256(self) -> str:
        """Hash of what is asked and its answer, whatever the condition."""
        return hash_problem(self.doc, self.target)

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Role and text of all that the model got, in order; what no segment covers is `template`."""
        if not self.segments:
            return (("prompt", self.text),) if self.text else ()
        found, at = [], 0
        try:
            spans = find_segments(self.prompt, self.text) if self.text else []
        except PromptMismatchError:  # a server's template, which was never seen here
            spans = []
        for role, (low, high) in spans:
            found += [("template", self.text[at:low]), (str(role), self.text[low:high])]
            at = high
        return tuple(part for part in (*found, ("template", self.text[at:])) if part[1])


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
