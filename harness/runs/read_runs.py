"""One reader for all who read runs: where the named ones lie, and each as facts and frames.

A run is a folder of mless, or logs of lm-eval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harness.errors import ConfigError, RunError
from harness.experiment.conditions import Condition, contrast_name, find_baseline
from harness.experiment.expand_conditions import read_conditions
from harness.experiment.plan import hash_json
from harness.experiment.prompt import Layout, hash_problem, refuse_other_text
from harness.experiment.run_config import fixed_arguments
from harness.runs.answered_prompts import AnsweredPrompt, Source, by_problem, filled_answers
from harness.runs.find_lm_eval_files import find_logs
from harness.runs.journal import find_stored, hash_stored, is_stored
from harness.runs.read_lm_eval_logs import read_logs
from harness.runs.records import Prompt, Sample, Score
from harness.runs.run_folder import (
    JOURNAL,
    RECEIPT,
    SCORES,
    PromptIndex,
    read_identity,
    read_prompts,
    read_receipt,
    read_samples,
    read_scores,
)
from harness.runs.samples_frame import read_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run. What it is about and its outcomes are cheap; texts are read when they are asked for.

    Attributes:
        name: The path that it was read from.
        about: Its part of a table's receipt: model, dataset, task_version, grader_version, sampling and so on. What is
            not known is None, and then agrees with anything.
        problems: Of each problem's id the hash of what is asked and its answer (`prompt.hash_problem`).
        model: The name or folder that the model was loaded from; None where it is not known.
        receipt: A run folder's receipt, whole.
        metric: What the verdicts were read from; None where there are none.
        read: Makes `samples`, replicates and reference conditions included; with `texts=True` the columns of
            `harness.load_run`.
        read_prompts: Makes `prompts`.
    """

    name: str
    about: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    read: Callable[..., pandas.DataFrame]
    read_prompts: Callable[[], Sequence[AnsweredPrompt]]

    @classmethod
    def load(cls, path: Path | str | Mapping[str, str | Path], *, metric: str | None = None) -> Run:
        """Read a run.

        Args:
            path: A run folder; what `lm_eval --log_samples` wrote for our tasks, a folder or one file; or for
                any task a mapping of condition to sample log.
            metric: What in logs of other tasks says right or wrong; see `read_lm_eval_logs.read_log`.

        Raises:
            ConfigError: a metric was named for a run folder.
            RunError: there is no finished run there, or a file of it is missing, damaged or no sample log.
            ComparisonError: the logs are of several task versions or settings, or ask other problems under one id.
        """
        if isinstance(path, Mapping):
            name = " ".join(f"{condition}={file}" for condition, file in path.items())
            return cls(
                **read_logs(
                    name,
                    [(condition, Path(file)) for condition, file in path.items()],
                    metric=metric,
                )
            )
        path = Path(path)
        files = (
            find_logs(path)
            if path.is_dir()
            else [path]
            if path.exists() or path.suffix == ".jsonl"
            else []
        )
        if files and not any(is_stored(path / name) for name in (RECEIPT, JOURNAL)):
            return cls(**read_logs(str(path), [(None, file) for file in files], metric=metric))
        run = _read_folder(path)  # whose refusal says what was expected
        if metric not in (None, run.metric):
            raise ConfigError(
                f"--metric {metric}: {path} is a run of mless, whose verdicts are its own grader's."
            )
        return run

    @cached_property
    def samples(self) -> pandas.DataFrame:
        """One row per sample, with the columns of `samples_frame.read_frame` without texts.

        Raises:
            RunError: a file is missing or damaged, or a sample is missing, doubled or without a verdict.
        """
        return self.read()

    @cached_property
    def prompts(self) -> Sequence[AnsweredPrompt]:
        """Every prompt with what came back; of replicates only the first."""
        return self.read_prompts()

    @property
    def baseline(self) -> str:
        """The condition that its config compares the others with; `wo` of logs."""
        config = self.receipt.get("config", {})
        names = [
            one if isinstance(one, str) else one["name"] for one in config.get("conditions", ())
        ]
        return find_baseline(names, config.get("baseline"))

    @property
    def conditions(self) -> dict[str, Condition]:
        """All conditions of its config, by name. Logs record none."""
        return read_conditions(self.receipt["config"]) if self.receipt else {}

    @property
    def reference_conditions(self) -> Mapping[str, Mapping[str, Any]]:
        """The reference conditions, by name, each with its `Condition.reference`."""
        return self.about.get("reference_conditions") or {}

    @property
    def is_logs(self) -> bool:
        """Whether it is lm-eval's logs."""
        return bool(self.about["source"] == "lm-eval")


def read_source(
    path: str | Path | Mapping[str, str | Path],
    *,
    layout: str | None = None,
    metric: str | None = None,
) -> Source:
    """The prompts of a run, exactly as they were run: `source_of` what `Run.load` reads."""
    return source_of(Run.load(path, metric=metric), layout=layout)


def source_of(run: Run, *, layout: str | None = None) -> Source:
    """The prompts of a run, exactly as they were run.

    Args:
        run: The run.
        layout: Which one, where there are several.

    Raises:
        RunError: a file of the run is damaged, or does not hold the text that the model got.
        PromptMismatchError: a prompt is not the one that was hashed.
    """
    asked = run.prompts
    for one in asked:
        if not one.prompt:
            raise RunError(
                f"{one.task}: the prompt was sent as chat messages, and the text that the server made of them is not "
                "recorded. Run the task through a backend that templates by itself (hf, vllm, local-completions)."
            )
        refuse_other_text(one.prompt, one.prompt_sha256, one.task)
    layouts = list(dict.fromkeys(one.layout for one in asked))
    chosen = layout or (layouts[0] if len(layouts) == 1 else None)
    if chosen not in layouts:
        raise ConfigError(
            f"{run.name}: expected one of the layouts {', '.join(layouts)}, got {chosen}. Name one."
        )
    # tokens of another instruction, and of the positive control's prefix, could not be aligned
    asked = [
        one
        for one in asked
        if one.layout == chosen and one.condition not in run.reference_conditions
    ]
    if (
        not run.is_logs
        and chosen == Layout.CHAT
        and any(one.prompt_token_sha256 is None for one in asked)
    ):
        raise RunError(
            f"{run.name}: a server templated its chat prompts, so the text that the model got is not recorded. Run it "
            "again with `model.model_args.tokenizer` named."
        )
    conditions = [condition for condition in run.conditions.values() if condition.kind is None]
    return Source(
        name=run.name,
        kind="log" if run.is_logs else "run",
        model=run.model,
        layout=chosen,
        conditions=tuple(dict.fromkeys(one.condition for one in asked)),
        problems=by_problem(asked),
        changed=tuple(condition.name for condition in conditions if condition.intervention),
        filled_answers=filled_answers(conditions),
        metric=run.metric,
    )


def _read_folder(path: Path) -> Run:
    receipt, prompts = read_receipt(path), read_prompts(path)
    arguments = receipt["config"]["model"]["model_args"]
    identity, engine = read_identity(path), receipt["engine"]
    sampling = next(
        iter(identity.arms.values())
    ).sampling  # a config has one for all its conditions
    about = {
        "source": "run",
        "run": receipt["run"],
        "model": receipt["config"]["model"]["label"] or receipt["model"]["name"],
        "model_sha256": hash_json(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        "problems": receipt["problems"],
        "prompt_version": receipt["prompt_version"],
        "task_version": receipt["task_version"],
        "grader_version": receipt["grader_version"],
        "prompts_sha256": receipt["prompts_sha256"],
        "journal_sha256": hash_stored(path / JOURNAL),
        "scores_sha256": hash_stored(path / SCORES),
        "sampling": {
            **sampling.lm_eval(),
            **({"answer": "line"} if "answer" in identity.config else {}),
        },
        "settings": {
            "backend": receipt["config"]["model"]["backend"],
            "model_args": {name: str(value) for name, value in fixed_arguments(arguments).items()},
            "instruction": receipt["config"].get("instruction"),
            "seed": receipt["seed"],
            "limit": receipt.get("limit"),
            **({"fewshot": shown} if (shown := receipt["config"].get("fewshot")) else {}),
        },
        "greedy": sampling.greedy,
        "backend": receipt["engine"]["name"],
        "engine": " ".join(
            filter(None, [engine["name"], engine["version"], "on", engine["device"] or "unknown"])
        ),
        "contrasts": [contrast_name(*pair) for pair in identity.contrasts],
        "primary": identity.primary and contrast_name(*identity.primary),
        "reference_conditions": {
            name: condition.reference
            for name, condition in read_conditions(receipt["config"]).items()
            if condition.kind
        },
        "seed": receipt["seed"],
        "created": receipt["created"],
        "versions": receipt["versions"],
        "git_revision": receipt["git_revision"],
    }
    docs = {prompt.doc["id"]: prompt.doc for prompt in prompts}
    problems = {name: hash_problem(doc, doc["answer"]) for name, doc in docs.items()}
    return Run(
        name=str(path),
        about=about,
        problems=problems,
        model=next(
            (
                arguments[name]
                for name in ("pretrained", "model", "tokenizer")
                if arguments.get(name)
            ),
            None,
        ),
        receipt=receipt,
        metric="verdict",
        read=partial(read_frame, path, receipt, prompts),
        read_prompts=partial(_answered, path, receipt, prompts),
    )


def _answered(
    path: Path, receipt: Mapping[str, Any], prompts: Sequence[Prompt]
) -> list[AnsweredPrompt]:
    """The prompts with what came back the first time; further replicates measure noise.

    Raises:
        RunError: a sample or a score is missing.
    """
    samples, scores, places = list(read_samples(path)), read_scores(path), PromptIndex(prompts)
    read_frame(path, receipt, prompts, read=(samples, scores.values()))  # which misses no sample
    graded_samples: list[list[tuple[Sample, Score]]] = [[] for _ in prompts]
    for sample in sorted(samples, key=lambda sample: sample.sample_index):
        if sample.replicate == 0:
            graded_samples[places.find(sample)].append((sample, scores[sample.key]))
    return [
        AnsweredPrompt(**structs.asdict(prompt), graded_samples=tuple(pairs))
        for prompt, pairs in zip(prompts, graded_samples, strict=True)
    ]


RunPath = Path | dict[str, Path]
"""A run's folder or sample log, or the sample logs of one run by condition."""


def locate(runs: Sequence[str]) -> list[RunPath]:
    """The runs that are named.

    Args:
        runs: Run folders, folders that lm-eval wrote logs into, sample logs; a folder of these stands for all finished
            runs in it. `CONDITION=FILE` names a log's condition, and all that are named so are one run.

    Raises:
        ConfigError: a condition is named twice, or a name is no file name.
    """
    named: dict[str, Path] = {}
    found: list[RunPath] = []
    for run in runs:
        condition, equals, file = run.partition("=")
        try:
            if not equals or Path(run).exists():
                found += _runs_in(Path(run))
                continue
        except OSError as error:
            raise ConfigError(f"{run[:60]}: expected a run's path: {error.strerror}.") from None
        if condition in named:
            raise ConfigError(
                f"{run}: the condition {condition!r} has a log already, {named[condition]}."
            )
        named[condition] = Path(file)
    return [*found, named] if named else found


def locate_one(runs: Sequence[str]) -> RunPath:
    """The run that is named, for a command that takes one.

    Raises:
        ConfigError: there are several.
    """
    found = locate(runs)
    if len(found) != 1:
        raise ConfigError(f"Expected one run, got {len(found)}: {', '.join(map(str, found))}.")
    return found[0]


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the finished runs in a folder of runs. lm-eval makes one folder per model around its logs."""
    if not path.is_dir() or is_stored(path / JOURNAL) or _is_run(path):
        return [path]
    once: dict[Path, Path] = {}  # a link beside what it leads to is no second run
    for folder in _folders(path):
        inside = [folder] if _is_run(folder) else _folders(folder)
        for run in inside:
            if _is_run(run) and (run == folder or not (run / RECEIPT).exists()):
                once.setdefault(run.resolve(), run)
    return list(once.values()) or [path]  # whose reader says what was expected


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a finished run, or lm-eval's logs."""
    logged = find_stored(folder, "samples_*.jsonl")
    return (folder / RECEIPT).is_file() or (not is_stored(folder / JOURNAL) and bool(logged))


def _folders(path: Path) -> list[Path]:
    """What is in a folder, links last."""
    return sorted(
        (child for child in path.iterdir() if child.is_dir()),
        key=lambda child: (child.is_symlink(), child),
    )
