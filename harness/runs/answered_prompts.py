"""Problems with their prompts, as they were run or as a dataset and conditions make them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Placement
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, PromptSettings
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer, find_segments
from harness.runs.records import Prompt, Sample, Score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AnsweredPrompt(Prompt, kw_only=True):
    """A stored prompt with what came back.

    Attributes:
        graded_samples: Of the first replicate, in order; empty where nothing was generated.
    """

    graded_samples: tuple[tuple[Sample, Score], ...] = ()

    @property
    def completions(self) -> list[str]:
        """What the model wrote, one for each sample; empty where nothing was generated."""
        return [
            sample.completion for sample, _ in self.graded_samples if sample.completion is not None
        ]

    @property
    def verdicts(self) -> list[str]:
        """One for each sample; empty where nothing was graded."""
        return [score.verdict for _, score in self.graded_samples if score.verdict]

    @property
    def answers(self) -> list[str | None]:
        """One for each sample, None where a completion has none."""
        return [score.answer for _, score in self.graded_samples]

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Role and text of all that the model got, in order; what no segment covers is `template`."""
        requested = self.requested
        if not requested.segments:
            return [("prompt", self.prompt)] if self.prompt else []
        try:
            spans = find_segments(requested, self.prompt) if self.prompt else []
        except PromptMismatchError:  # a server's template, which was never seen here
            spans = []
        parts, position = [], 0
        for role, (start, end) in spans:
            parts += [
                ("template", self.prompt[position:start]),
                (str(role), self.prompt[start:end]),
            ]
            position = end
        return [part for part in (*parts, ("template", self.prompt[position:])) if part[1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem under every condition in which it was asked.

    Attributes:
        id: Unique within its source.
        subject, level: Empty and 0 where the source has none.
        cluster: What it counts as one with, such as itself with other examples; empty: it stands alone.
        prompts: By condition.
        outcome: Of a selected problem, from the criterion's baseline to its condition; None if nothing was graded.
        matched_to: Of a control, the id of the problem that it is matched to.
    """

    id: str
    subject: str
    level: int
    cluster: str = ""
    prompts: Mapping[str, AnsweredPrompt]
    outcome: str | None = None
    matched_to: str | None = None

    @property
    def is_control(self) -> bool:
        """Whether it did not flip, and was selected beside a problem that did."""
        return self.matched_to is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Problems and their prompts, in one layout.

    Attributes:
        name: The path or dataset, for people.
        kind: `run` (ours), `log` (lm-eval's) or `dataset` (nothing was run).
        model: Name or folder of the model that was run, or whose tokenizer built the prompts; None where unknown.
        layout: `raw`, `chat` or `as_published`.
        conditions: In the order in which tables show them.
        problems: In the source's order.
        filled_answers: Conditions whose filler stands in the answer that the prompt begins, where no segment says so.
        metric: What the verdicts were read from; None where there are none.
        changed: Conditions under which something was done to the model.

    Raises:
        RunError: there is no problem.
    """

    name: str
    kind: Literal["run", "log", "dataset"]
    model: str | None
    layout: str
    conditions: tuple[str, ...]
    problems: tuple[Problem, ...]
    filled_answers: tuple[str, ...] = ()
    metric: str | None = None
    changed: tuple[str, ...] = ()

    @property
    def prompts_sha256(self) -> str:
        """Hash over the hashes of all prompts, in order."""
        hashes = (
            f"{p.id} {name} {prompt.prompt_sha256}"
            for p in self.problems
            for name, prompt in p.prompts.items()
        )
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def build_source(
    dataset: Dataset,
    conditions: Sequence[Condition],
    tokenizer: PreTrainedTokenizerBase,
    layout: str,
    instruction: str | None = None,
) -> Source:
    """Prompts from a dataset and conditions, checked as those of a run are; nothing has answered them.

    Raises:
        PromptMismatchError: a prompt breaks a guarantee.
        ModelError: the layout is `chat` and the tokenizer has no chat template.
    """
    chosen = Layout(layout)
    model = ModelTokenizer(name=tokenizer.name_or_path or "this model", tokenizer=tokenizer)
    settings = PromptSettings(layout=chosen, instruction=instruction)
    prompts = [
        AnsweredPrompt(**structs.asdict(Prompt.of(dataset.source, arm, problem, built)))
        for arm in build_checked_prompts(dataset.problems, conditions, settings, model)
        for problem, built in zip(dataset.problems, arm.prompts, strict=True)
    ]
    return Source(
        name=f"{dataset.name} ({dataset.source})",
        kind="dataset",
        model=tokenizer.name_or_path or None,
        layout=str(chosen),
        conditions=tuple(condition.name for condition in conditions),
        problems=by_problem(prompts),
        filled_answers=filled_answers(conditions),
    )


def by_problem(prompts: Iterable[AnsweredPrompt]) -> tuple[Problem, ...]:
    """The prompts by problem, in the order in which each problem was first met."""
    by_id: dict[str, dict[str, AnsweredPrompt]] = {}
    for prompt in prompts:
        by_id.setdefault(prompt.problem_id, {})[prompt.condition] = prompt
    problems = []
    for problem_id, by_condition in by_id.items():
        doc = next(iter(by_condition.values())).doc
        cluster = doc.get("cluster") or doc["id"]
        problem = Problem(
            id=problem_id,
            subject=doc["subject"],
            level=doc["level"],
            cluster=cluster,
            prompts=by_condition,
        )
        problems.append(problem)
    return tuple(problems)


def filled_answers(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Conditions whose filler stands in the answer that the prompt begins."""
    return tuple(one.name for one in conditions if one.filler and one.placement is Placement.ANSWER)
