"""The reader of runs: it finds the runs that a user names, and reads each as facts and frames.

A run is a folder of mless, or logs of lm-eval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import pandas
from msgspec import structs

from harness.constants import JsonObject
from harness.errors import ConfigError, RunError
from harness.experiment.condition_entries import index_entries, read_conditions
from harness.experiment.conditions import (
    Condition,
    ReferenceConditions,
    contrast_name,
    find_baseline,
    index_interventions,
)
from harness.experiment.model_settings import label_model, select_fixed_arguments
from harness.experiment.plan import hash_json
from harness.experiment.prompts.prompt import Layout, hash_problem, refuse_other_text
from harness.runs.logs.harness_logs import (
    INSPECT,
    LIGHTEVAL,
    LM_EVAL,
    TABLE,
    find_kind,
    read_scores,
)
from harness.runs.logs.lm_eval_files import find_logs
from harness.runs.logs.lm_eval_logs import read_run_fields
from harness.runs.logs.score_tables import make_run_fields
from harness.runs.prompt_sources import (
    AnsweredPrompt,
    Source,
    group_by_problem,
    list_answer_filled_conditions,
)
from harness.runs.run_files import RunFiles
from harness.runs.run_paths import has_run_files
from harness.runs.samples_frame import read_frame

VERSION_NAMES = ("prompt_version", "task_version", "grader_version")
"""Versions of mless in which all runs of a table agree."""
HASH_KEY = "problem"
"""The key of `Run.problems` with hashes."""

_RECEIPT_FACTS = (
    "problems",
    *VERSION_NAMES,
    "prompts_sha256",
    "created",
    "versions",
    "git_revision",
    "added_tokens",  # only runs on servers have it
)
"""Facts that a table's receipt takes unchanged from the run's receipt."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run, or a log or table that is read as one.

    Its facts and outcomes are cheap; texts are read when they are needed.

    Attributes:
        name: The path that it was read from.
        about: Its facts in a table's receipt: model, dataset, task_version, grader_version,
            sampling and so on. None or missing: unknown, which agrees with any value.
        problems: What is known of each problem, by its id: under `HASH_KEY` the hash of problem and
            answer (`prompt.hash_problem`), or of a table `question`, `gold` and `cluster`.
        model: The name or folder that the model was loaded from; None where it is not known.
        model_arguments: The arguments that it was loaded with.
        receipt: The full receipt of a run folder; empty for logs and tables.
        metric: The metric of the verdicts; None without verdicts.
        read: Makes `samples`, with repeat runs and reference conditions.
        read_prompts: Makes `prompts`; by default there are none.

    Example:
        >>> run = mless.Run.load("results/example")
        >>> run.about["primary"]
        'mless - wo'
        >>> prompt = run.prompts[0]
        >>> prompt.condition, prompt.problem_id, prompt.prompt[:20]
        ('wo', '8x3#1', 'Answer the question.')
    """

    name: str
    about: JsonObject
    problems: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    model: str | None = None
    model_arguments: JsonObject = field(default_factory=dict)
    receipt: JsonObject = field(default_factory=dict)
    metric: str | None = None
    read: Callable[..., pandas.DataFrame]
    read_prompts: Callable[[], Sequence[AnsweredPrompt]] = list

    @classmethod
    def load(
        cls,
        path: Path | str | pandas.DataFrame | Mapping[str, str | Path],
        *,
        metric: str | None = None,
        columns: str | None = None,
    ) -> Run:
        """Read a run.

        Args:
            path: A run folder; the output of `lm_eval --log_samples` for our tasks, a folder or a
                file; for any task a mapping of condition to sample log; a log of Inspect or
                lighteval; or a table of scores, as a file or frame. A mapping also names the
                condition of a single one of these.
            metric: The metric that gives the verdicts in logs of other tasks; see
                `sample_log.read_log` and `harness_logs.read_scores`.
            columns: The columns of a table by role: `item=ID,score=correct`.

        Raises:
            ConfigError: a metric was named for a run folder.
            RunError: there is no finished run, or a file of it is missing, damaged or not a sample
                log.
            ComparisonError: the logs are of several task versions or settings, or have different
                problems under one id.
        """
        if isinstance(path, pandas.DataFrame):
            return cls(**make_run_fields("frame", "frame", read_scores(path, metric, columns)))
        if isinstance(path, Mapping):
            run_name = " ".join(f"{condition}={file}" for condition, file in path.items())
            conditions_and_files = [(condition, Path(file)) for condition, file in path.items()]
        elif Path(path).is_dir():
            return cls._of_folder(Path(path), metric)
        else:
            run_name = str(path)
            conditions_and_files = [("", Path(path))]
        if not conditions_and_files:
            raise ConfigError("Expected a log for each condition, got none.")
        # A single file may be of any kind. Several files can only be logs of lm-eval.
        condition, file = conditions_and_files[0]
        if len(conditions_and_files) == 1 and find_kind(file) != LM_EVAL:
            table = read_scores(file, metric, columns)
            return cls(**make_run_fields(str(file), condition or file.stem, table))
        return cls(**read_run_fields(run_name, conditions_and_files, metric))

    @classmethod
    def _of_folder(cls, folder: Path, metric: str | None) -> Run:
        """The run of a folder of mless, or of a folder of lm-eval's logs."""
        # a run of mless may hold lm-eval's logs too, but then its own files count
        log_paths = [] if has_run_files(folder) else find_logs(folder)
        if log_paths:
            return cls(**read_run_fields(str(folder), [("", path) for path in log_paths], metric))
        run = cls.of(RunFiles(folder))
        if metric not in (None, run.metric):
            raise ConfigError(
                f"--metric {metric}: {folder} is a run of mless, which has verdicts instead of "
                "metrics."
            )
        return run

    @classmethod
    def of(cls, files: RunFiles) -> Run:
        """The finished run of a folder.

        Raises:
            RunError: as `load`.
        """
        receipt = files.receipt
        model_arguments = receipt["config"]["model"]["model_args"]
        # all conditions have the same problem and answer, so a document of any of them will do
        doc_by_id = {prompt.doc["id"]: prompt.doc for prompt in files.prompts}
        hash_by_problem_id = {
            problem_id: hash_problem(doc, doc["answer"]) for problem_id, doc in doc_by_id.items()
        }
        # of a served model only the tokenizer may be here, so its name is the last choice
        model_names = [model_arguments.get(name) for name in ("pretrained", "model", "tokenizer")]
        return cls(
            name=str(files.path),
            about=_describe_folder(files),
            problems={HASH_KEY: hash_by_problem_id},
            model=next(filter(None, model_names), None),
            model_arguments=model_arguments,
            receipt=receipt,
            metric="verdict",
            read=partial(read_frame, files),
            read_prompts=partial(_read_answered_prompts, files),
        )

    @cached_property
    def samples(self) -> pandas.DataFrame:
        """One row per sample, with the columns of `samples_frame.make_frame`.

        Raises:
            RunError: a file is missing or damaged, or a sample is missing, doubled or without a
                verdict.
        """
        return self.read()

    @cached_property
    def prompts(self) -> Sequence[AnsweredPrompt]:
        """Every prompt with its graded samples, without those of repeat runs."""
        return self.read_prompts()

    @property
    def baseline(self) -> str:
        """The baseline of its config, or of two sides that are compared; `wo` for logs."""
        return find_baseline(
            [name for name, condition in self.conditions.items() if not condition.kind],
            self.receipt.get("config", self.about).get("baseline"),
        )

    @property
    def conditions(self) -> dict[str, Condition]:
        """All conditions of its config, by name. Logs record none."""
        return read_conditions(self.receipt["config"]) if self.receipt else {}

    @property
    def reference_conditions(self) -> ReferenceConditions:
        """The reference conditions, by name, each with its `Condition.reference_fields`."""
        return self.about.get("reference_conditions") or {}

    @property
    def endpoint(self) -> str:
        """What it measures; see `RunConfig`."""
        return str(self.about.get("endpoint", "accuracy"))

    @property
    def is_table(self) -> bool:
        """Whether it has only scores, without prompts."""
        return self.about.get("source") in (TABLE, INSPECT, LIGHTEVAL)

    @property
    def receipts(self) -> Sequence[JsonObject]:
        """The receipts of the runs that it was made of, or its own."""
        return self.about.get("receipts") or ({"name": self.name, **self.about},)


def source_of(run: Run, *, layout: str | None = None) -> Source:
    """The prompts of a run, exactly as they were run.

    Args:
        run: The run.
        layout: The layout to read, where there are several.

    Raises:
        ConfigError: the run has no such layout, or several and none is named.
        RunError: a file of the run is damaged, or does not hold the text that the model got.
        PromptMismatchError: a prompt is not the prompt that was hashed.
    """
    _refuse_unrecorded_prompts(run)
    layouts = list(dict.fromkeys(prompt.layout for prompt in run.prompts))
    if layout is None and len(layouts) == 1:
        layout = layouts[0]
    if layout not in layouts:
        raise ConfigError(
            f"{run.name}: expected --layout, or `layout` in a config, to be one of "
            f"{', '.join(layouts)}, got {layout}."
        )
    # reference conditions have other instructions and answer prefixes, whose tokens have no
    # counterpart in the baseline
    compared_prompts = [
        prompt
        for prompt in run.prompts
        if prompt.layout == layout and prompt.condition not in run.reference_conditions
    ]
    compared_conditions = [
        condition for condition in run.conditions.values() if condition.kind is None
    ]
    return Source(
        name=run.name,
        kind="run" if run.receipt else "log",
        model=run.model,
        layout=layout,
        conditions=tuple(dict.fromkeys(prompt.condition for prompt in compared_prompts)),
        problems=group_by_problem(compared_prompts),
        interventions=index_interventions(compared_conditions),
        answer_filled_conditions=list_answer_filled_conditions(compared_conditions),
        metric=run.metric,
        model_arguments=run.model_arguments,
        is_vllm=bool(run.receipt) and run.receipt["config"]["model"]["backend"] == "vllm",
        fingerprint=run.receipt.get("model", {}),
    )


def _refuse_unrecorded_prompts(run: Run) -> None:
    """Refuse a run if it does not hold the text that the model got, or this text was changed."""
    for prompt in run.prompts:
        is_server_chat = prompt.layout == Layout.CHAT and prompt.prompt_token_sha256 is None
        # a log has no receipt and no hashes of tokens, but it holds the text that was sent
        if not prompt.prompt or (is_server_chat and run.receipt):
            raise RunError(
                f"{prompt.task}: the server applied its chat template, and the text of the prompt "
                "is not recorded. Use a backend that applies the template itself (hf, vllm), or "
                "set model.model_args.tokenizer."
            )
        refuse_other_text(prompt.prompt, prompt.prompt_sha256, prompt.task)


def _describe_folder(files: RunFiles) -> JsonObject:
    """The facts of a run folder for a table's receipt (see `Run.about`).

    They say in this order what ran, how it was generated, and what the run was planned to compare.
    """
    receipt = files.receipt
    identity = files.identity
    config = receipt["config"]
    return {
        "source": "run",
        "run": config["name"],
        "model": config["model"]["label"] or label_model(receipt["model"]["name"]),
        "model_sha256": hash_json(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        **{name: receipt[name] for name in _RECEIPT_FACTS if name in receipt},
        "seed": config["seed"],
        "journal_sha256": files.journal.sha256,
        "scores_sha256": files.scores_journal.sha256,
        "endpoint": config.get("endpoint", "accuracy"),
        **_describe_generation(files),
        "contrasts": [contrast_name(*contrast) for contrast in identity.contrasts],
        "looks": identity.looks,
        "primary": identity.primary and contrast_name(*identity.primary),
        "reference_conditions": {
            name: condition.reference_fields
            for name, condition in read_conditions(config).items()
            if condition.kind
        },
    }


def _describe_generation(files: RunFiles) -> JsonObject:
    """The facts of a run folder that say how its completions were generated."""
    # all tasks of a run have the same sampling, so any task will do
    task = next(iter(files.identity.tasks.values()))
    sampling = task.sampling.lm_eval_arguments()
    # the identity names the form of answers only if it is not the default, a box
    if "answer" in files.identity.config:
        sampling["answer"] = "line"
    engine = files.receipt["engine"]
    engine_facts = [engine["name"], engine["version"], "on", engine["device"] or "unknown"]
    return {
        "sampling": sampling,
        "settings": _describe_settings(files.receipt),
        "greedy": task.sampling.is_greedy,
        "backend": engine["name"],
        "engine": " ".join(filter(None, engine_facts)),
    }


def _describe_settings(receipt: JsonObject) -> JsonObject:
    """The settings of a run folder in which runs of the same model should agree."""
    config = receipt["config"]
    settings = {
        "backend": config["model"]["backend"],
        "model_args": {
            name: str(value)
            for name, value in select_fixed_arguments(config["model"]["model_args"]).items()
        },
        "instruction": config.get("instruction"),
        "seed": config["seed"],
        "limit": receipt.get("limit"),
    }
    if fewshot := config.get("fewshot"):
        settings["fewshot"] = fewshot
    # all sessions have the same model, so any session that records it will do
    for session in receipt.get("sessions", ()):
        served_model = (session.get("engine") or {}).get("served") or {}
        if "root" in served_model:
            settings["served_root"] = served_model["root"]
    if fresh_by_condition := {
        name: entry["fresh"]
        for name, entry in index_entries(config["conditions"]).items()
        if "fresh" in entry
    }:
        settings["fresh"] = fresh_by_condition
    return settings


def _read_answered_prompts(files: RunFiles) -> list[AnsweredPrompt]:
    """The prompts with the samples of the first run; repeat runs measure noise.

    Raises:
        RunError: a sample or a score is missing.
    """
    answered_prompts = []
    for prompt, graded_samples in zip(files.prompts, files.graded_samples_of_prompts, strict=True):
        first_run_samples = [
            (sample, score) for sample, score in graded_samples if not sample.replicate
        ]
        # the journal has them in the order in which they finished
        first_run_samples.sort(key=lambda graded_sample: graded_sample[0].sample_index)
        answered_prompts.append(
            AnsweredPrompt(**structs.asdict(prompt), graded_samples=tuple(first_run_samples))
        )
    return answered_prompts
