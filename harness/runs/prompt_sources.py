"""A `Source`: the problems that commands select, show and probe, with their prompts and samples.

Each problem has a prompt under every condition. `run_reader.source_of` makes a source of a run or
of lm-eval's logs, whose prompts have samples with verdicts. `build_source` makes one of a dataset,
for a probe without a run; nothing was generated for its prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from harness.constants import JsonObject
from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, FilledCondition, Placement
from harness.experiment.intervention_settings import Intervention
from harness.experiment.problems import Dataset
from harness.experiment.prompts.chat_template import find_segments
from harness.experiment.prompts.checked_prompts import build_checked_prompts
from harness.experiment.prompts.prompt import Layout, PromptSettings, hash_text
from harness.experiment.prompts.tokenizer import ModelTokenizer
from harness.runs.records import GradedSample, StoredPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AnsweredPrompt(StoredPrompt, kw_only=True):
    """A stored prompt with its samples.

    Attributes:
        graded_samples: Those of the first run, in order; empty if nothing was generated.
        surroundings: The text of a log's prompt besides its document's, without blanks. None: it
            is unknown which text is the document's.
        problem_sha256: Hash of a log's problem (`prompt.hash_problem`); empty for a run of mless.
    """

    surroundings: str | None = None
    problem_sha256: str = ""
    graded_samples: tuple[GradedSample, ...] = ()

    def has_id(self, problem_id: str) -> bool:
        """Whether it names the problem, with the draw of examples (`ID#2`) or without (`ID`)."""
        return problem_id in (self.problem_id, self.doc.get("id"))

    @property
    def completions(self) -> list[str]:
        """The completion of each sample; empty where nothing was generated."""
        return [
            sample.completion for sample, _ in self.graded_samples if sample.completion is not None
        ]

    @property
    def verdicts(self) -> list[str]:
        """The verdict of each sample; empty where nothing was graded."""
        return [score.verdict for _, score in self.graded_samples if score.verdict]

    @property
    def roles_and_texts(self) -> list[tuple[str, str]]:
        """The full prompt in pieces, each with its role; text outside all segments is `template`.

        It is empty where the text is not recorded. A prompt without segments is one piece with the
        role `prompt`.
        """
        requested_prompt = self.requested_prompt
        if not self.prompt:
            return []
        if not requested_prompt.segments:
            return [("prompt", self.prompt)]
        try:
            spans = find_segments(requested_prompt, self.prompt)
        except PromptMismatchError:
            # a server's template may change segments; then the whole text is `template`
            spans = []
        roles_and_texts = []
        previous_end = 0
        for role, (start, end) in spans:
            roles_and_texts += [
                ("template", self.prompt[previous_end:start]),
                (str(role), self.prompt[start:end]),
            ]
            previous_end = end
        roles_and_texts.append(("template", self.prompt[previous_end:]))
        return [(role, text) for role, text in roles_and_texts if text]


@dataclass(frozen=True, kw_only=True)
class AnsweredProblem:
    """A problem under all conditions in which the model got it.

    Attributes:
        id: Unique within its source.
        subject, level: Empty and 0 where the source has none.
        cluster: The name of its cluster, such as the same problem with several draws of examples.
        prompts: By condition.
        outcome: The outcome of a selected problem under the criterion's baseline and condition;
            None if nothing was graded.
        is_control: Whether the problem did not flip (change its outcome between the two), and was
            selected to match one that did.
    """

    id: str
    subject: str
    level: int
    cluster: str = ""
    prompts: Mapping[str, AnsweredPrompt]
    outcome: str | None = None
    is_control: bool = False

    def has_id(self, problem_id: str) -> bool:
        """As `AnsweredPrompt.has_id`, of any of its prompts."""
        return any(prompt.has_id(problem_id) for prompt in self.prompts.values())


@dataclass(frozen=True, kw_only=True)
class Source:
    """Problems and their prompts, in one layout.

    Attributes:
        name: The path or dataset, for messages.
        kind: `run` (ours), `log` (lm-eval's) or `dataset` (nothing was run).
        model: Name or folder of the model that was run, or whose tokenizer built the prompts; None
            where it is not known.
        layout: `raw`, `chat` or `as_published`.
        conditions: In the order of tables.
        problems: In the source's order.
        answer_filled_conditions: Those whose filler stands in the answer that the prompt begins,
            so that no segment marks it.
        metric: The metric of the verdicts; None without verdicts.
        interventions: What is done to the model while it generates, by condition.
        model_arguments: The arguments of the model that was run.
        is_vllm: Whether mless ran the model in vLLM, whose arguments these are.
        fingerprint: The identity of the model that was run, as in a receipt.
    """

    name: str
    kind: Literal["run", "log", "dataset"]
    model: str | None
    layout: str
    conditions: tuple[str, ...]
    problems: tuple[AnsweredProblem, ...]
    answer_filled_conditions: tuple[str, ...] = ()
    metric: str | None = None
    interventions: Mapping[str, tuple[Intervention, ...]] = field(default_factory=dict)
    model_arguments: JsonObject = field(default_factory=dict)
    is_vllm: bool = False
    fingerprint: JsonObject = field(default_factory=dict)

    @property
    def prompts_sha256(self) -> str:
        """Hash over the hashes of all prompts, in order."""
        return hash_text(
            "\n".join(
                f"{problem.id} {condition} {prompt.prompt_sha256}"
                for problem in self.problems
                for condition, prompt in problem.prompts.items()
            )
        )


def build_source(
    dataset: Dataset,
    conditions: Sequence[Condition],
    tokenizer: PreTrainedTokenizerBase,
    layout: str,
) -> Source:
    """Prompts of a dataset and conditions with the same checks as in a run, but without samples.

    Raises:
        PromptMismatchError: a prompt breaks a guarantee.
        ModelError: the layout is `chat` and the tokenizer has no chat template.
    """
    model_tokenizer = ModelTokenizer(
        name=tokenizer.name_or_path or "this model", tokenizer=tokenizer
    )
    prompts = []
    for condition_prompts in build_checked_prompts(
        dataset.problems, conditions, PromptSettings(layout=Layout(layout)), model_tokenizer
    ):
        prompts += [
            AnsweredPrompt.of(dataset.source, condition_prompts, problem, built_prompt)
            for problem, built_prompt in zip(
                dataset.problems, condition_prompts.prompts, strict=True
            )
        ]
    return Source(
        name=f"{dataset.name} ({dataset.source})",
        kind="dataset",
        model=tokenizer.name_or_path or None,
        layout=layout,
        conditions=tuple(condition.name for condition in conditions),
        problems=group_by_problem(prompts),
        answer_filled_conditions=list_answer_filled_conditions(conditions),
    )


def group_by_problem(prompts: Iterable[AnsweredPrompt]) -> tuple[AnsweredProblem, ...]:
    """The prompts by problem, in the order of each problem's first prompt."""
    prompts_by_problem_id: dict[str, dict[str, AnsweredPrompt]] = {}
    for prompt in prompts:
        prompts_by_problem_id.setdefault(prompt.problem_id, {})[prompt.condition] = prompt
    problems = []
    for problem_id, prompt_by_condition in prompts_by_problem_id.items():
        # the problem's fields are the same under all conditions, so any document will do
        first_prompt = next(iter(prompt_by_condition.values()))
        doc = first_prompt.doc
        problems.append(
            AnsweredProblem(
                id=problem_id,
                subject=doc["subject"],
                level=doc["level"],
                cluster=first_prompt.cluster,
                prompts=prompt_by_condition,
            )
        )
    return tuple(problems)


def list_answer_filled_conditions(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Conditions whose filler stands in the answer that the prompt begins."""
    return tuple(
        condition.name
        for condition in conditions
        if isinstance(condition, FilledCondition) and condition.placement is Placement.ANSWER
    )
