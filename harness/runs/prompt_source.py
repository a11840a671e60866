"""Where prompts come from: a run of ours, lm-eval's sample logs, or a dataset and conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import ConfigError, RunError
from harness.experiment.conditions import Condition, Placement, as_condition, named_conditions
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, refuse_other_text
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.read_run import read_run
from harness.runs.run import Run
from harness.runs.run_prompts import Problem, RunPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BASELINE = "wo"
"""The condition without a filler, where the user names none."""


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
        fingerprint: What identifies the source, as JSON: hashes, and the model's fingerprint where it was recorded.

    Raises:
        RunError: there is no problem, or two problems or conditions have one name.
    """

    name: str
    kind: Literal["run", "log", "dataset"]
    model: str | None
    layout: str
    conditions: tuple[str, ...]
    problems: tuple[Problem, ...]
    filled_answers: tuple[str, ...] = ()
    metric: str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.problems:
            raise RunError(f"{self.name} holds no problem in the layout {self.layout}. Check the path.")
        if len({problem.id for problem in self.problems}) < len(self.problems):
            raise RunError(f"{self.name}: two problems have one id. Expected one prompt a problem and condition.")
        if len(set(self.conditions)) < len(self.conditions):
            raise RunError(f"{self.name}: two conditions have one name, of {', '.join(self.conditions)}. Rename one.")

    @property
    def prompts_sha256(self) -> str:
        """Hash over the hashes of all prompts, in order."""
        hashes = (f"{p.id} {name} {prompt.sha256}" for p in self.problems for name, prompt in p.prompts.items())
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def read_source(
    path: str | Path | Mapping[str, str | Path], *, layout: str | None = None, metric: str | None = None
) -> Source:
    """The prompts of a run, exactly as they were run.

    Args:
        path: A run folder of ours; an lm-eval output folder or sample log of our tasks; or for any task a mapping of
            condition to sample log. There the condition without filler is `wo`, or the first if none is called so.
        layout: Which one, where there are several.
        metric: See `lm_eval_logs.read_log`.

    Raises:
        RunError: there is no run and no sample log, a file of it is damaged, or it does not say what was asked.
        PromptMismatchError: a prompt is not the one that was hashed.
    """
    named = {name: Path(log) for name, log in path.items()} if isinstance(path, Mapping) else Path(path)
    return source_of(read_run(named, metric=metric), layout=layout)


def source_of(run: Run, *, layout: str | None = None) -> Source:
    """The prompts of a run that has been read; as `read_source`."""
    asked = run.read_prompts()
    for one in asked:
        _refuse_unknown_text(one)
    chosen = _choose_layout(run.name, (one.layout for one in asked), layout)
    # of the yardsticks, rewordings and the control's prefix could not be aligned
    kinds = run.facts.get("yardsticks") or {}
    asked = [one for one in asked if one.layout == chosen and kinds.get(one.condition) in (None, "other filler")]
    conditions = list(dict.fromkeys(one.condition for one in asked))
    baseline = BASELINE if BASELINE in conditions else conditions[0]
    if run.is_logs:
        places = {condition: place for place, condition in enumerate((baseline, *named_conditions()))}
        conditions.sort(key=lambda condition: places.get(condition, len(places)))
        asked = sorted(asked, key=lambda one: conditions.index(one.condition))
    elif chosen == Layout.CHAT and any(one.token_sha256 is None for one in asked):
        raise RunError(
            f"{run.name}: its chat prompts were templated by a server whose tokenizer was not known, so the text that "
            "the model got is not recorded. Run it again with `model.arguments.tokenizer` named."
        )
    facts = {name: run.receipt.get(name) for name in ("created", "model", "engine", "grader_version")}
    stated = [as_condition(one) for one in run.receipt.get("config", {}).get("conditions", ())]
    problems = _problems(asked)
    logs = {one.condition: Path(one.where.rpartition(", line ")[0]).name for one in asked}
    return Source(
        name=run.name,
        kind="log" if run.is_logs else "run",
        model=run.model,
        layout=chosen,
        conditions=tuple(conditions),
        problems=problems,
        filled_answers=_filled_answers(stated),
        metric=run.metric,
        fingerprint={"logs": logs} if run.is_logs else facts,
    )


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
    name = tokenizer.name_or_path or "this model"
    model = ModelTokenizer(name=name, tokenizer=tokenizer)
    prompts = [
        RunPrompt(
            condition=built.condition.name,
            layout=str(chosen),
            problem_id=problem.id,
            subject=problem.subject,
            level=problem.level,
            text=one.text,
            sha256=one.sha256,
            token_sha256=one.token_sha256,
            segments=one.prompt.segments,
            system_size=one.prompt.system_size,
            target=problem.answer,
        )
        for built in build_checked_prompts(dataset.problems, conditions, chosen, model, instruction=instruction)
        for problem, one in zip(dataset.problems, built.prompts, strict=True)
    ]
    problems = _problems(prompts)
    return Source(
        name=f"{dataset.name} ({dataset.source})",
        kind="dataset",
        model=tokenizer.name_or_path or None,
        layout=str(chosen),
        conditions=tuple(condition.name for condition in conditions),
        problems=problems,
        filled_answers=_filled_answers(conditions),
        fingerprint={"dataset": dataset.name, "dataset_sha256": dataset.sha256},
    )


def _refuse_unknown_text(asked: RunPrompt) -> None:
    """Raise RunError if the text that the model got is not recorded, PromptMismatchError if it is another one."""
    if not asked.text:
        raise RunError(
            f"{asked.where}: the prompt was sent as chat messages, and the log does not hold the text that the server "
            "made of them. Run the task through a backend that templates by itself (hf, vllm, local-completions)."
        )
    refuse_other_text(asked.text, asked.sha256, asked.where)


def _choose_layout(where: str | Path, found: Iterable[str], wanted: str | None) -> str:
    layouts = list(dict.fromkeys(found))
    if wanted is None and len(layouts) == 1:
        return layouts[0]
    if wanted not in layouts:
        asked = "and none was chosen" if wanted is None else f"not {wanted}"
        raise ConfigError(
            f"{where} holds the layouts {', '.join(layouts)}, {asked}. Choose one by --layout, or by `layout` among a "
            "figure's prompts."
        )
    return wanted


def _problems(prompts: Iterable[RunPrompt]) -> tuple[Problem, ...]:
    """The prompts by problem, in the order in which each problem was first met."""
    found: dict[str, dict[str, RunPrompt]] = {}
    for prompt in prompts:
        found.setdefault(prompt.problem_id, {})[prompt.condition] = prompt
    problems = []
    for problem_id, by_condition in found.items():
        first = next(iter(by_condition.values()))
        problems.append(Problem(id=problem_id, subject=first.subject, level=first.level, prompts=by_condition))
    return tuple(problems)


def _filled_answers(conditions: Iterable[Condition]) -> tuple[str, ...]:
    """Conditions whose filler stands in the answer that the prompt begins."""
    return tuple(one.name for one in conditions if one.filler and one.placement is Placement.ANSWER)
