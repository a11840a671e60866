"""A problem with its prompts as they were run: text, hash, segments, and what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.experiment.prompt import Prompt, Segment, refuse_other_text


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
