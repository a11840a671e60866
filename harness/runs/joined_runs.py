"""Which runs may stand in one table, and how they become one: by models or by conditions.

A function whose name ends with `obstacle`, `differences` or `disagreement` returns the reason for a
refusal, or an empty text if there is none.
Runs of several models agree in problems, versions and, per model, settings. Logs and tables of
other harnesses become the conditions of one run.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas
from pandas.api.types import union_categoricals

from harness.constants import SCORE_COLUMN, JsonObject
from harness.errors import ComparisonError, ConfigError, list_first
from harness.runs.journal import list_shared_differences
from harness.runs.run_paths import locate_runs
from harness.runs.run_reader import HASH_KEY, VERSION_NAMES, Run

_PERMITTED_CHANGE_PATTERN = re.compile(r"(greedy|model|prompts|versions)[.:]")
"""Facts in which runs of a model may differ: they follow from others, or change no sample."""
_FACT_NAMES = (
    *VERSION_NAMES,
    "model",
    "model_sha256",
    "engine",
    "greedy",
    "sampling",
    "versions",
    "seed",
)
"""Facts besides the settings."""
_CONFOUNDING_SETTING_PATTERN = re.compile(
    r"([\w-]+\.)*(greedy|(num_)?fewshot(_seed)?|examples|max_(gen_toks|(new_)?tokens)|\w+_limit)\b"
)
"""Settings in which a difference would count as an effect: sampling, examples and limits."""
_SEED_CHANGE_PATTERN = re.compile(r"([\w-]+\.)*(seed|random_seed)\b")


def load_runs(
    names: Sequence[str], *, metrics: Sequence[str | None], columns: str | None, pool: bool = False
) -> list[Run]:
    """The runs that the user names: see `run_paths.locate_runs` and `Run.load`.

    Args:
        names: Their paths.
        metrics: See `Run.load`; with several, the samples have a column `metric`.
        columns: See `Run.load`.
        pool: Whether runs that differ only in their seed are one; then samples are numbered on.

    Raises:
        HarnessError: they cannot be read, or tables among them cannot be conditions of one run.
    """
    if len(metrics) > 1:
        return [_join_metrics(names, metrics, columns, pool=pool)]
    runs = [Run.load(path, metric=metrics[0], columns=columns) for path in locate_runs(names)]
    if len(runs) > 1 and (pool or any(run.is_table for run in runs)):
        return [_merge_runs(runs, pool=pool)]
    return runs


def _join_metrics(
    names: Sequence[str], metrics: Sequence[str | None], columns: str | None, *, pool: bool
) -> Run:
    """The runs that the user names, read by each metric, as one run with a column `metric`.

    Raises:
        ConfigError: a metric is named twice, its scores are numbers, or there are several runs.
    """
    runs = []
    for metric in metrics:
        runs += load_runs(names, metrics=[metric], columns=columns, pool=pool)
    has_numeric_scores = any(
        not run.samples.get(SCORE_COLUMN, run.samples["correct"]).isin([0, 1]).all() for run in runs
    )
    # with one run for each metric, there are as many runs as different metrics
    if has_numeric_scores or len(runs) != len({*metrics}):
        raise ConfigError(
            "Several --metric: expected different metrics of right and wrong samples, and the "
            "conditions of one model. Use a command for each metric."
        )
    frames = [run.samples.assign(metric=metric) for run, metric in zip(runs, metrics, strict=True)]
    return replace(
        runs[0],
        about=runs[0].about | {"metric": ", ".join(map(str, metrics)), "by": ["metric"]},
        read=lambda: stack_samples(frames),
    )


def _merge_runs(runs: Sequence[Run], *, pool: bool) -> Run:
    """One run with the conditions of all.

    Two runs may share a condition only if they are pooled; its samples are then numbered on.
    """
    receipts = list_comparable_receipts(runs)
    for old_run, new_run in combinations(runs, 2):
        if old_run.name == new_run.name:
            raise ComparisonError(f"{old_run.name} is given twice.")
        new_conditions = new_run.samples["condition"].unique()
        shared_conditions = [
            name for name in old_run.samples["condition"].unique() if name in new_conditions
        ]
        if not shared_conditions:
            continue
        reason = "--pool joins runs that differ in their seed alone"
        if pool:
            reason = _find_pooling_obstacle(old_run, new_run)
        if reason:
            raise ComparisonError(
                f"{old_run.name} and {new_run.name} both have the condition "
                f"{shared_conditions[0]}: {reason}."
            )
    samples = stack_samples([run.samples for run in runs])
    samples["sample_index"] = samples.groupby(
        ["condition", "problem_id", "replicate", "draw"], observed=True
    ).cumcount()
    return Run(
        name=" ".join(run.name for run in runs),
        about=runs[0].about | {"receipts": receipts},
        receipt=runs[0].receipt,
        read=lambda: samples,
    )


def _find_pooling_obstacle(old_run: Run, new_run: Run) -> str:
    """Why the samples of two runs may not be pooled; empty if they may.

    The runs must differ in their seed, if it is known, and in nothing else.
    """
    changes = _list_changes(old_run, new_run)
    other_changes = [change for change in changes if not _SEED_CHANGE_PATTERN.match(change)]
    # with the same seed, the second run would only repeat the samples of the first
    has_seed = any(run.about.get("seed") is not None for run in (old_run, new_run))
    if has_seed and other_changes == changes:
        return "their seed is the same"
    return "; ".join(other_changes)


def stack_samples(frames: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """The samples of several runs, each of one model, in one frame with one model and layout.

    Missing columns for draws, scores, clusters and questions are filled up.

    Raises:
        ComparisonError: a frame has several models.
    """
    for frame in frames:
        if frame["model"].nunique() > 1:
            model_names = ", ".join(frame["model"].astype(str).unique())
            raise ComparisonError(
                f"A table of the models {model_names} cannot be joined with others: give it alone, "
                "or a table for each model."
            )
    scored_frames = [
        frame.assign(
            draw=frame.get("draw", 1), **{SCORE_COLUMN: frame.get(SCORE_COLUMN, frame["correct"])}
        )
        for frame in frames
    ]
    samples = pandas.concat(scored_frames, ignore_index=True).astype({"problem_id": str})
    clusters, questions = (
        samples.get(name, samples["problem_id"]).astype(str) for name in ("cluster", "question")
    )
    # Where a table names no cluster, its column has the question. If another table names a cluster
    # of the problem, all rows of the problem get the first such name.
    named_clusters = clusters.where(clusters != questions)
    first_named_clusters = named_clusters.groupby(samples["problem_id"]).transform("first")
    samples["cluster"] = first_named_clusters.fillna(clusters)
    for name in ("model", "layout"):
        samples[name] = " / ".join(samples[name].astype(str).unique())
    return samples


def list_comparable_receipts(runs: Iterable[Run]) -> list[JsonObject]:
    """The receipts of runs whose conditions may be compared, with remarks on their differences.

    Raises:
        ComparisonError: two of them are copies, have different problems, examples or limits, or one
            is greedy.
    """
    run_by_name = {run.name: run for run in runs}
    for old_run, new_run in combinations(run_by_name.values(), 2):
        if reason := _find_comparison_obstacle(old_run, new_run):
            raise ComparisonError(
                f"{new_run.name} cannot be compared with {old_run.name}: {reason}."
            )
    first_run, *other_runs = run_by_name.values()
    receipts = [*first_run.receipts]
    for run in other_runs:
        remarks = [*run.about.get("remarks", ()), *_list_changes(first_run, run)]
        receipts += [receipt | {"remarks": remarks} for receipt in run.receipts]
    return receipts


def _find_comparison_obstacle(old_run: Run, new_run: Run) -> str:
    """Why the conditions of two runs may not be compared; empty if they may.

    Obstacles are other problems, a change of a confounding setting, or a file that is a copy of the
    other. Files with any change of settings are not copies, so only runs without one are checked.
    """
    if reason := _describe_problem_differences(old_run, new_run):
        return reason
    if changes := _list_changes(old_run, new_run):
        # changes of other settings are permitted; `list_comparable_receipts` remarks on them
        return "; ".join(filter(_CONFOUNDING_SETTING_PATTERN.match, changes))
    runs = (old_run, new_run)
    # only files can be copies of each other: the files of folders are not read
    if not all(Path(run.name).is_file() for run in runs):
        return ""
    # Different runs may give the same answers, but not with the same settings. Inspect's logs have
    # an id of their evaluation, which a copy keeps.
    old_content, new_content = (
        run.about.get("evaluation") or sorted(Path(run.name).read_bytes().splitlines())
        for run in runs
    )
    return "their content is the same" if old_content == new_content else ""


def _list_changes(old_run: Run, new_run: Run) -> list[str]:
    """The known facts in which two runs differ, each with both values: `seed: 1 -> 2`."""
    settings_of_runs = []
    for run in (old_run, new_run):
        about = run.about
        known_facts = {name: about[name] for name in _FACT_NAMES if about.get(name) is not None}
        settings = (about.get("settings") or {}) | known_facts
        if prompts_sha256 := about.get("prompts_sha256"):
            settings["prompts"] = prompts_sha256[:8]
        if run.receipt:  # logs and tables do not name their examples
            settings["examples"] = run.receipt.get("examples")
        settings_of_runs.append(settings)
    return list_shared_differences(*settings_of_runs)


def join_samples(runs: Sequence[Run]) -> pandas.DataFrame:
    """The samples of all runs in one frame.

    Raises:
        ComparisonError: a run is given twice, two runs are of different problems, task or grader
            versions, or two runs share a model's label and differ in more than the condition.
    """
    for old_run, new_run in combinations(runs, 2):
        if Path(new_run.name).resolve() == Path(old_run.name).resolve():
            raise ComparisonError(f"{new_run.name} is given twice.")
        if reason := _describe_disagreement(old_run, new_run):
            raise ComparisonError(
                f"{new_run.name} cannot be compared with {old_run.name}: {reason}. "
                "Use a separate command for each."
            )
    if len(runs) == 1:
        return runs[0].samples
    # a run with a single draw of examples has no column `draw`
    frames = [run.samples.assign(draw=run.samples.get("draw", 1)) for run in runs]
    joined_columns = {}
    for name in frames[0].columns:
        columns_of_runs = [frame[name] for frame in frames]
        if isinstance(columns_of_runs[0].dtype, pandas.CategoricalDtype):
            # from columns with different categories `concat` makes objects, which take far more
            # memory
            joined_columns[name] = pandas.Series(
                union_categoricals(columns_of_runs, ignore_order=True)
            )
        else:
            joined_columns[name] = pandas.concat(columns_of_runs, ignore_index=True)
    return pandas.DataFrame(joined_columns)


def _describe_problem_differences(old_run: Run, new_run: Run) -> str:
    """How the problems or endpoints of two runs differ.

    Empty if they are the same, as far as is known.
    """
    if old_run.endpoint != new_run.endpoint:
        return f"another endpoint: {old_run.endpoint} -> {new_run.endpoint}"
    old_dataset_sha256 = old_run.about.get("dataset")
    new_dataset_sha256 = new_run.about.get("dataset")
    if old_dataset_sha256 is not None and new_dataset_sha256 is not None:
        if old_dataset_sha256 == new_dataset_sha256:
            return ""
        return f"another dataset: {old_dataset_sha256[:12]} -> {new_dataset_sha256[:12]}"
    # Gold answers come before questions: `_describe_text_differences` permits other questions if
    # the gold answers agree.
    for role in ("cluster", HASH_KEY, "gold", "question"):
        if reason := _describe_text_differences(old_run, new_run, role):
            return reason
    are_only_numbered = old_run.about.get("is_index") and new_run.about.get("is_index")
    shared_roles = old_run.problems.keys() & new_run.problems
    if are_only_numbered and shared_roles <= {"cluster"} and old_run.name != new_run.name:
        return (
            "the items of both are only numbered, and the numbers may mean other items; if they "
            "are ids, type --columns item=COLUMN"
        )
    return ""


def _describe_text_differences(old_run: Run, new_run: Run, role: str) -> str:
    """How the texts of a role, such as `gold`, differ for problems that both runs have.

    Empty if they are the same, or if a run has no such texts.
    """
    old_texts = old_run.problems.get(role, {})
    new_texts = new_run.problems.get(role, {})
    shared_ids = [problem_id for problem_id in old_texts if problem_id in new_texts]
    if old_texts and new_texts and not shared_ids:
        return "they have no problem in common"
    changed_ids = [
        problem_id for problem_id in shared_ids if old_texts[problem_id] != new_texts[problem_id]
    ]
    if not changed_ids:
        return ""
    # If several gold answers agree and all questions differ, the problems are the same, and what
    # the runs call questions are their prompts. One gold answer alone may agree by chance.
    gold_by_id = new_run.problems.get("gold", {})
    shared_golds = {
        gold_by_id[problem_id]
        for problem_id in gold_by_id.keys() & old_run.problems.get("gold", {})
    }
    if role == "question" and changed_ids == shared_ids and len(shared_golds) > 1:
        return ""
    reason = f"different {role}s have the ids {list_first(changed_ids)}"
    if role == HASH_KEY:
        return reason
    first_changed_id = changed_ids[0]
    return f"{reason}: {old_texts[first_changed_id]!r:.60} and {new_texts[first_changed_id]!r:.60}"


def _describe_disagreement(old_run: Run, new_run: Run) -> str:
    """Why two runs may not stand in one table; empty if they may."""
    if reason := _describe_problem_differences(old_run, new_run):
        return reason
    changes = _list_changes(old_run, new_run)
    if old_run.about["model"] != new_run.about["model"]:
        # models may differ in all settings, but not in the versions and examples of their problems
        return "; ".join(
            change for change in changes if change.startswith((*VERSION_NAMES, "examples"))
        )
    return "; ".join(change for change in changes if not _PERMITTED_CHANGE_PATTERN.match(change))
