"""Where prompts come from: a run of ours, lm-eval's sample logs, or a dataset and conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import ConfigError, RunError
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.documents import Model, build_checked_prompts, document_prompt
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, Segment
from harness.experiment.rewordings import is_edit
from harness.runs.find_filler import insert, split_plain
from harness.runs.folder import JOURNAL, RECEIPT, read_prompts, read_samples, read_scores
from harness.runs.journal import is_stored
from harness.runs.lm_eval_logs import LoggedSample, SampleLog, find_logs, read_log
from harness.runs.records import Sample
from harness.runs.run_prompts import Problem, RunPrompt
from harness.runs.sample_frame import read_receipt

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
        PromptMismatchError: a prompt is not the one that was hashed, or two conditions differ by more than a filler.
    """
    if isinstance(path, Mapping):
        named = {condition: read_log(Path(log), metric=metric) for condition, log in path.items()}
        return _from_logs(", ".join(f"{condition}={log}" for condition, log in path.items()), named, layout)
    folder = Path(path)
    if any(is_stored(folder / name) for name in (RECEIPT, JOURNAL)):
        return _from_run(folder, layout)
    files = find_logs(folder) if folder.is_dir() else [folder]
    if not files:
        raise RunError(
            f"{folder} holds neither a run ({RECEIPT}) nor sample logs (samples_*.jsonl). Expected the --output of "
            "`mless run`, or the --output_path of `lm_eval --log_samples`."
        )
    return _from_logs(str(path), [read_log(file, metric=metric) for file in files], layout)


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
    model = Model(name=name, tokenizer=tokenizer, context_length=None)
    rows: dict[str, list[RunPrompt]] = {}
    for built in build_checked_prompts(dataset, conditions, chosen, model, instruction=instruction):
        for problem, one in zip(dataset.problems, built.prompts, strict=True):
            rows.setdefault(problem.id, []).append(
                RunPrompt(
                    condition=built.condition.name,
                    layout=str(chosen),
                    problem_id=problem.id,
                    text=one.text,
                    sha256=one.sha256,
                    token_sha256=one.token_sha256,
                    segments=one.prompt.segments,
                    system_size=one.prompt.system_size,
                    target=problem.answer,
                )
            )
    return Source(
        name=f"{dataset.name} ({dataset.source})",
        kind="dataset",
        model=tokenizer.name_or_path or None,
        layout=str(chosen),
        conditions=tuple(condition.name for condition in conditions),
        problems=tuple(
            Problem(id=p.id, subject=p.subject, level=p.level, prompts={r.condition: r for r in rows[p.id]})
            for p in dataset.problems
        ),
        fingerprint={"dataset": dataset.name, "dataset_sha256": dataset.sha256},
    )


def _from_run(folder: Path, layout: str | None) -> Source:
    receipt = read_receipt(folder)
    rows = read_prompts(folder)
    chosen = _choose_layout(folder, (row["layout"] for row in rows), layout)
    # the prompt null's edits are no conditions, and their other instruction could not be aligned
    rows = [row for row in rows if row["layout"] == chosen and not is_edit(row["condition"])]
    if chosen == Layout.CHAT and any(row["prompt_token_sha256"] is None for row in rows):
        raise RunError(
            f"{folder}: its chat prompts were templated by a server whose tokenizer was not known, so the text that "
            "the model got is not recorded. Run it again with `model.arguments.tokenizer` named."
        )
    scores = read_scores(folder)
    samples: dict[tuple[str, str], list[Sample]] = {}
    for sample in read_samples(folder):
        if sample.replicate == 0:  # the one that tables compare; others measure noise
            samples.setdefault((sample.task, sample.problem_id), []).append(sample)
    found: list[tuple[str, int, RunPrompt]] = []
    for row in rows:
        doc, condition = row["doc"], row["condition"]
        repeats = sorted(samples.get((row["task"], doc["id"]), []), key=lambda sample: sample.sample_index)
        if not repeats or any(sample.key not in scores for sample in repeats):
            raise RunError(
                f"{folder}: the {'score' if repeats else 'sample'} of problem {doc['id']}, {row['task']}, is missing. "
                "Run `mless regrade` on the folder, or restore its files."
            )
        prompt = document_prompt(doc)
        run_prompt = RunPrompt(
            condition=condition,
            layout=chosen,
            problem_id=doc["id"],
            text=row["prompt"],
            sha256=row["prompt_sha256"],
            token_sha256=row["prompt_token_sha256"],
            segments=prompt.segments,
            system_size=prompt.system_size,
            completions=tuple(sample.completion for sample in repeats),
            verdicts=tuple(scores[sample.key].verdict for sample in repeats),
            answers=tuple(scores[sample.key].answer for sample in repeats),
            target=doc["answer"],
        )
        found.append((doc["subject"], doc["level"], run_prompt))
    arguments = receipt["config"]["model"]["arguments"]
    return Source(
        name=str(folder),
        kind="run",
        model=next((arguments[name] for name in ("pretrained", "model", "tokenizer") if arguments.get(name)), None),
        layout=chosen,
        conditions=tuple(dict.fromkeys(row["condition"] for row in rows)),
        problems=_problems(found),
        metric="verdict",
        fingerprint={name: receipt.get(name) for name in ("created", "model", "engine", "grader_version")},
    )


def _from_logs(name: str, logs: Mapping[str, SampleLog] | Sequence[SampleLog], layout: str | None) -> Source:
    """One source of several logs: each is one condition, named by the user or by its documents."""
    read = list(logs.values()) if isinstance(logs, Mapping) else list(logs)
    pairs = logs.items() if isinstance(logs, Mapping) else ((None, log) for log in logs)
    arms = [(given or own, of, log, rows) for given, log in pairs for (own, of), rows in log.arms.items()]
    chosen = _choose_layout(name, (of for _, of, _, _ in arms), layout)
    by_condition: dict[str, list[LoggedSample]] = {}
    files: dict[str, Path] = {}
    for condition, of, log, rows in arms:
        if of != chosen or is_edit(condition or ""):
            continue
        if condition is None:
            raise RunError(
                f"{log.path} is a log of another task: its documents name no condition. Say which log is which "
                "condition, as wo=FILE mless=FILE."
            )
        if condition in files:
            raise RunError(
                f"{name} holds two logs of condition {condition!r}: {files[condition]} and {log.path}. Name one log "
                f"a condition, as {condition}=FILE."
            )
        by_condition[condition], files[condition] = rows, log.path
    baseline = BASELINE if BASELINE in by_condition else next(iter(by_condition))
    places = {condition: place for place, condition in enumerate((baseline, *named_conditions()))}
    order = sorted(by_condition, key=lambda condition: places.get(condition, len(places)))
    found: list[tuple[str, int, RunPrompt]] = []
    plain = {sample.problem_id: sample for sample in by_condition[baseline]}
    for condition in order:
        for sample in by_condition[condition]:
            segments = sample.segments
            if segments is None:
                base = plain.get(sample.problem_id)
                if base is None:
                    raise RunError(
                        f"{files[condition]}: problem {sample.problem_id} is not in {files[baseline]}, so its filler "
                        "cannot be found. Expected logs of the same problems."
                    )
                segments = split_plain(base.text, base.doc)
                if sample is not base:
                    what = f"Problem {sample.problem_id}, {baseline} against {condition}"
                    segments = insert(segments, sample.text, what=what)
            found.append((sample.subject, sample.level, _run_prompt(sample, condition, segments)))
    metrics = dict.fromkeys(log.metric for log in read if log.metric)
    return Source(
        name=name,
        kind="log",
        model=next((log.model for log in read if log.model), None),
        layout=chosen,
        conditions=tuple(order),
        problems=_problems(found),
        metric=", ".join(metrics) or None,
        fingerprint={"logs": {condition: path.name for condition, path in files.items()}},
    )


def _run_prompt(sample: LoggedSample, condition: str, segments: tuple[Segment, ...]) -> RunPrompt:
    """The prompt under the name that its condition has in the source."""
    return RunPrompt(
        condition=condition,
        layout=sample.layout,
        problem_id=sample.problem_id,
        text=sample.text,
        sha256=sample.sha256,
        token_sha256=sample.token_sha256,
        segments=segments,
        system_size=sample.system_size,
        completions=sample.completions,
        verdicts=sample.verdicts,
        answers=sample.answers,
        target=sample.target,
    )


def _choose_layout(where: str | Path, found: Iterable[str], wanted: str | None) -> str:
    layouts = list(dict.fromkeys(found))
    if wanted is None and len(layouts) == 1:
        return layouts[0]
    if wanted not in layouts:
        asked = "and none was chosen" if wanted is None else f"not {wanted}"
        raise ConfigError(f"{where} holds the layouts {', '.join(layouts)}, {asked}. Choose one with --layout.")
    return wanted


def _problems(rows: Iterable[tuple[str, int, RunPrompt]]) -> tuple[Problem, ...]:
    """Problems of subjects, levels and prompts, in the order in which each was first met."""
    heads: dict[str, tuple[str, int]] = {}
    prompts: dict[str, dict[str, RunPrompt]] = {}
    for subject, level, prompt in rows:
        heads.setdefault(prompt.problem_id, (subject, level))
        prompts.setdefault(prompt.problem_id, {})[prompt.condition] = prompt
    return tuple(
        Problem(id=problem_id, subject=subject, level=level, prompts=prompts[problem_id])
        for problem_id, (subject, level) in heads.items()
    )
