"""Problems with their prompts, as they were run or as a dataset and conditions make them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Placement
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, Prompt, Segment, document_prompt, make_document
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer, find_segments
from harness.runs.records import Sample, Score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrompt:
    """One problem's prompt under one condition, as it was run, with what came back.

    Two are equal if the same was asked and answered, wherever that was recorded.

    Attributes:
        where: File and line, for messages.
        problem_id: The document's own id, else its number; with the draw of examples (`ID#2`) where there are several.
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
    target: str | None = None

    @property
    def completion(self) -> str | None:
        """What the model wrote the first time."""
        return self.completions[0] if self.completions else None

    @property
    def prompt(self) -> Prompt:
        """The prompt before templating."""
        return Prompt(segments=self.segments, system_size=self.system_size)

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
        cluster: What it counts as one with, such as itself with other examples; empty: it stands alone.
        prompts: By condition.
    """

    id: str
    subject: str
    level: int
    cluster: str = ""
    prompts: Mapping[str, RunPrompt]


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
        hashes = (f"{p.id} {name} {prompt.sha256}" for p in self.problems for name, prompt in p.prompts.items())
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
    rows = [
        {
            "where": dataset.source,
            "condition": built.condition.name,
            "layout": str(chosen),
            "prompt": one.text,
            "prompt_sha256": one.sha256,
            "prompt_token_sha256": one.token_sha256,
            "doc": make_document(problem, one.prompt, built.condition, chosen),
        }
        for built in build_checked_prompts(dataset.problems, conditions, chosen, model, instruction=instruction)
        for problem, one in zip(dataset.problems, built.prompts, strict=True)
    ]
    return Source(
        name=f"{dataset.name} ({dataset.source})",
        kind="dataset",
        model=tokenizer.name_or_path or None,
        layout=str(chosen),
        conditions=tuple(condition.name for condition in conditions),
        problems=by_problem(answered_prompts(rows, [()] * len(rows))),
        filled_answers=filled_answers(conditions),
    )


def answered_prompts(
    rows: Iterable[Mapping[str, Any]], answered: Iterable[Iterable[tuple[Sample, Score]]]
) -> list[RunPrompt]:
    """Prompts with what came back the first time; further replicates measure noise.

    Args:
        rows: As of `prompts.jsonl`, each with its place as `where`.
        answered: Of each its samples and their scores.
    """
    found = []
    for row, pairs in zip(rows, answered, strict=True):
        repeats = sorted((one for one in pairs if not one[0].replicate), key=lambda one: one[0].sample_index)
        doc, prompt = row["doc"], document_prompt(row["doc"])
        found.append(
            RunPrompt(
                where=row["where"],
                problem_id=prompt_id(doc["id"], row.get("draw", 0)),
                subject=doc["subject"],
                level=doc["level"],
                condition=row["condition"],
                layout=row["layout"],
                text=row["prompt"],
                sha256=row["prompt_sha256"],
                token_sha256=row["prompt_token_sha256"],
                segments=prompt.segments,
                system_size=prompt.system_size,
                doc=doc,
                completions=tuple(sample.completion for sample, _ in repeats if sample.completion is not None),
                verdicts=tuple(score.verdict for _, score in repeats if score.verdict),
                answers=tuple(score.answer for _, score in repeats),
                target=doc["answer"],
            )
        )
    return found


def prompt_id(problem_id: str, draw: int) -> str:
    """What a problem is known by where it was asked with several draws of examples: `ID#2` with the second."""
    return f"{problem_id}#{draw}" if draw else problem_id


def by_problem(asked: Iterable[RunPrompt]) -> tuple[Problem, ...]:
    """The prompts by problem, in the order in which each problem was first met."""
    found: dict[str, dict[str, RunPrompt]] = {}
    for prompt in asked:
        found.setdefault(prompt.problem_id, {})[prompt.condition] = prompt
    problems = []
    for name, prompts in found.items():
        one = next(iter(prompts.values()))
        cluster = one.doc.get("cluster") or one.doc.get("id", "")
        problems.append(Problem(id=name, subject=one.subject, level=one.level, cluster=cluster, prompts=prompts))
    return tuple(problems)


def filled_answers(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Conditions whose filler stands in the answer that the prompt begins."""
    return tuple(one.name for one in conditions if one.filler and one.placement is Placement.ANSWER)
