"""Which runs may stand in one table, and how they become one: by models or by conditions.

Runs of several models agree in problems, versions and, per model, settings. Logs and tables of
other harnesses become the conditions of one run.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas
from pandas.api.types import union_categoricals

from harness.constants import SCORE_COLUMN, JsonObject
from harness.errors import ComparisonError, ConfigError, list_first
from harness.runs.journal import describe_differences
from harness.runs.run_paths import locate
from harness.runs.run_reader import HASH, VERSIONS, Run

_OF_CONDITIONS = re.compile(r"(greedy|model|prompts|versions)[.:]")
"""Facts in which runs of a model may differ: they follow from others, or change no sample."""
_FACTS = (*VERSIONS, "model", "model_sha256", "engine", "greedy", "sampling", "versions", "seed")
"""Facts besides the settings."""
_PAIRED_FACTS = re.compile(
    r"([\w-]+\.)*(greedy|(num_)?fewshot(_seed)?|examples|max_(gen_toks|(new_)?tokens)|\w+_limit)\b"
)
"""Settings in which a difference would count as an effect: sampling, examples and limits."""
_SEED = re.compile(r"([\w-]+\.)*(seed|random_seed)\b")


def load_runs(
    names: Sequence[str],
    *,
    metrics: Sequence[str | None] = (None,),
    columns: str | None = None,
    pool: bool = False,
) -> list[Run]:
    """The runs that the user names: see `run_paths.locate` and `Run.load`.

    Args:
        names: Their paths.
        metrics: See `Run.load`; with several, the samples have a column `metric`.
        columns: See `Run.load`.
        pool: Whether runs that differ only in their seed are one; then samples are numbered on.

    Raises:
        HarnessError: they cannot be read, or tables among them cannot be conditions of one run.
    """
    if len(metrics) > 1:
        by_metric = [
            load_runs(names, metrics=[name], columns=columns, pool=pool) for name in metrics
        ]
        runs = [loaded_runs[0] for loaded_runs in by_metric]
        has_numbers = any(
            not run.samples.get(SCORE_COLUMN, run.samples["correct"]).isin([0, 1]).all()
            for run in runs
        )
        if len({*metrics}) < len(metrics) or has_numbers or len(by_metric[0]) > 1:
            raise ConfigError(
                "Several --metric: expected different metrics of right and wrong samples, and the "
                "conditions of one model. Use a command for each metric."
            )
        frames = [run.samples.assign(metric=name) for run, name in zip(runs, metrics, strict=True)]
        about = {**runs[0].about, "metric": ", ".join(map(str, metrics)), "by": ["metric"]}
        return [replace(runs[0], about=about, read=lambda: stack(frames))]
    runs = [Run.load(path, metric=metrics[0], columns=columns) for path in locate(names)]
    if len(runs) > 1 and (pool or any(run.is_table for run in runs)):
        return [_merge(runs, pool=pool)]
    return runs


def _merge(runs: Sequence[Run], *, pool: bool) -> Run:
    """One run with the conditions of all."""
    receipts = list_receipts(runs)
    for old, new in combinations(runs, 2):
        if old.name == new.name:
            raise ComparisonError(f"{old.name} is given twice.")
        conditions = [run.samples["condition"].unique() for run in (old, new)]
        shared_conditions = [name for name in conditions[0] if name in conditions[1]]
        if not shared_conditions:
            continue
        reason = "" if pool else "--pool joins runs that differ in their seed alone"
        changes = _list_changes(old, new)
        is_seeded = any(run.about.get("seed") is not None for run in (old, new))
        if is_seeded and not any(map(_SEED.match, changes)):
            reason = reason or "their seed is the same"
        reason = reason or "; ".join(line for line in changes if not _SEED.match(line))
        if reason:
            raise ComparisonError(
                f"{old.name} and {new.name} both have the condition {shared_conditions[0]}: "
                f"{reason}."
            )
    samples = stack([run.samples for run in runs])
    names = ["condition", "problem_id", "replicate", "draw"]
    samples["sample_index"] = samples.groupby(names, observed=True).cumcount()
    return Run(
        name=" ".join(run.name for run in runs),
        about={**runs[0].about, "receipts": receipts},
        receipt=runs[0].receipt,
        read=lambda: samples,
    )


def stack(frames: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """The samples of several conditions as those of one model and layout."""
    scored_frames = [
        frame.assign(
            **{
                "draw": frame.get("draw", 1),
                SCORE_COLUMN: frame.get(SCORE_COLUMN, frame["correct"]),
            }
        )
        for frame in frames
    ]
    for frame in frames:
        if frame["model"].nunique() > 1:
            models = ", ".join(frame["model"].astype(str).unique())
            raise ComparisonError(
                f"A table of the models {models} cannot be joined with others: give it alone, or "
                "a table for each model."
            )
    samples = pandas.concat(scored_frames, ignore_index=True).astype({"problem_id": str})
    # a problem has the cluster that one of the tables names; otherwise its question is its cluster
    clusters, questions = (
        samples.get(name, samples["problem_id"]).astype(str) for name in ("cluster", "question")
    )
    named = clusters.where(clusters != questions)
    named = named.groupby(samples["problem_id"]).transform("first")
    samples["cluster"] = named.fillna(clusters)
    for name in ("model", "layout"):
        samples[name] = " / ".join(samples[name].astype(str).unique())
    return samples


def list_receipts(runs: Iterable[Run]) -> list[JsonObject]:
    """The receipts of runs whose conditions are compared, with remarks on their differences.

    Raises:
        ComparisonError: two of them are copies, have different problems, examples or limits, or one
            is greedy.
    """
    runs_by_name = {run.name: run for run in runs}
    for old, new in combinations(runs_by_name.values(), 2):
        changes = _list_changes(old, new)
        reason = describe_problem_differences(old, new)
        reason = reason or "; ".join(filter(_PAIRED_FACTS.match, changes))
        files = Path(old.name), Path(new.name)
        # with different settings equal answers do not show that a file is a copy
        if not (reason or changes) and all(map(Path.is_file, files)):
            ids = [run.about.get("evaluation") for run in (old, new)]
            lines = [sorted(path.read_bytes().splitlines()) for path in files]
            is_copy = ids[0] == ids[1] if any(ids) else lines[0] == lines[1]
            reason = "their content is the same" if is_copy else ""
        if reason:
            raise ComparisonError(f"{new.name} cannot be compared with {old.name}: {reason}.")
    first, *other_runs = runs_by_name.values()
    receipts = [dict(receipt) for receipt in first.receipts]
    for run in other_runs:
        remarks = [*run.about.get("remarks", ()), *_list_changes(first, run)]
        receipts += [{**receipt, "remarks": remarks} for receipt in run.receipts]
    return receipts


def _list_changes(old: Run, new: Run) -> list[str]:
    """The known facts in which two runs differ."""
    facts = []
    for run in (old, new):
        about = run.about
        known_facts = {name: about[name] for name in _FACTS if about.get(name) is not None}
        settings = {**(about.get("settings") or {}), **known_facts}
        if sha256 := about.get("prompts_sha256"):
            settings["prompts"] = sha256[:8]
        if run.receipt:  # others do not name their examples
            settings["examples"] = run.receipt.get("examples")
        facts.append(settings)
    return [*filter(None, describe_differences(*facts).split("; "))]


def join(runs: Sequence[Run]) -> pandas.DataFrame:
    """The samples of all runs in one frame.

    Raises:
        ComparisonError: a run is given twice, two runs are of different problems, task or grader
            versions, or two runs share a model's label and differ in more than the condition.
    """
    for index, later in enumerate(runs):
        for earlier in runs[:index]:
            if Path(later.name).resolve() == Path(earlier.name).resolve():
                raise ComparisonError(f"{later.name} is given twice.")
            if reason := _describe_disagreement(earlier, later):
                raise ComparisonError(
                    f"{later.name} cannot be compared with {earlier.name}: {reason}. "
                    "Use a separate command for each."
                )
    if len(runs) == 1:
        return runs[0].samples
    # a run with a single draw of examples has no column `draw`
    frames = [run.samples.assign(draw=run.samples.get("draw", 1)) for run in runs]
    joined: dict[str, Any] = {}
    for name in frames[0].columns:
        columns = [frame[name] for frame in frames]
        if isinstance(columns[0].dtype, pandas.CategoricalDtype):
            # `concat` would make objects of columns whose categories differ, which take far more
            # memory
            joined[name] = pandas.Series(union_categoricals(columns, ignore_order=True))
        else:
            joined[name] = pandas.concat(columns, ignore_index=True)
    return pandas.DataFrame(joined)


def describe_problem_differences(old: Run, new: Run) -> str:
    """How the problems or endpoints of two runs differ.

    Empty if they are the same, as far as is known.
    """
    if old.endpoint != new.endpoint:
        return f"another endpoint: {old.endpoint} -> {new.endpoint}"
    old_dataset, new_dataset = old.about.get("dataset"), new.about.get("dataset")
    if old_dataset is not None and new_dataset is not None:
        if old_dataset == new_dataset:
            return ""
        return f"another dataset: {old_dataset[:12]} -> {new_dataset[:12]}"
    golds: set[str] = set()
    roles = [
        role
        for role in ("cluster", HASH, "gold", "question")
        if role in old.problems.keys() & new.problems
    ]
    for role in roles:
        old_texts, new_texts = old.problems[role], new.problems[role]
        shared_ids = [name for name in old_texts if name in new_texts]
        if old_texts and new_texts and not shared_ids:
            return "they have no problem in common"
        changed_ids = [name for name in shared_ids if old_texts[name] != new_texts[name]]
        # if all texts differ and the gold answers agree, these are prompts of the same problems
        if len(golds) > 1 and len(changed_ids) == len(shared_ids):
            continue
        if changed_ids:
            reason = f"different {role}s have the ids {list_first(changed_ids)}"
            texts = old_texts[changed_ids[0]], new_texts[changed_ids[0]]
            return reason if role == HASH else f"{reason}: {texts[0]!r:.60} and {texts[1]!r:.60}"
        if role == "gold":
            golds = {old_texts[name] for name in shared_ids}
    are_numbers = old.about.get("is_index") and new.about.get("is_index")
    if are_numbers and not {*roles} - {"cluster"} and old.name != new.name:
        return (
            "the items of both are only numbered, and the numbers may mean other items; if they "
            "are ids, type --columns item=COLUMN"
        )
    return ""


def _describe_disagreement(old: Run, new: Run) -> str:
    """Why two runs may not stand in one table; empty if they may."""
    if reason := describe_problem_differences(old, new):
        return reason
    changes = [line for line in _list_changes(old, new) if not _OF_CONDITIONS.match(line)]
    if old.about["model"] != new.about["model"]:
        changes = [line for line in changes if line.startswith((*VERSIONS, "examples"))]
    return "; ".join(changes)
