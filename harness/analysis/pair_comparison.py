"""Compares any two conditions: of one run or two, or of two sample logs of any lm-eval task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas

from harness.analysis.result_tables import Leaderboard, list_conditions, list_rows, make_leaderboard
from harness.analysis.sample_scores import TABLE_NUMBERS
from harness.analysis.verdicts import estimate_sample
from harness.constants import FEWEST_DRAWS, POWER, JsonObject
from harness.errors import ComparisonError, ConfigError, RunError, list_first, list_near
from harness.experiment.conditions import POSITIVE_CONTROL
from harness.runs.joined_runs import list_comparable_receipts, stack_samples
from harness.runs.run_reader import Run


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two conditions.

    Attributes:
        name: The side's name in tables.
        samples: The side's samples, including repeat runs.
        run: The run or log that has these samples.
    """

    name: str
    samples: pandas.DataFrame
    run: Run

    @classmethod
    def read(cls, side_text: str, metric: str | None = None, columns: str | None = None) -> Side:
        """Read a side.

        Args:
            side_text: A run, a log or a table; `RUN:CONDITION` for a condition other than the
                run's baseline.
            metric: Of a log of another task: see `Run.load`.
            columns: Of a table: see `Run.load`.

        Raises:
            RunError: there is no such run, or no such condition in it, or a table has several.
        """
        path, named_condition = _split_condition(side_text)
        try:
            run = Run.load(path, metric=metric, columns=columns)
            conditions = list_conditions(run)
        except RunError:
            if named_condition or not Path(path).exists():
                raise
            # A log whose task names no condition can only be read under a name that is given, here
            # `log`. Any other file is refused again.
            run = Run.load({"log": path}, metric=metric)
            conditions = list_conditions(run)
        condition = named_condition or _choose_condition(run, path, conditions)
        samples = run.samples[run.samples["condition"] == condition]
        if samples.empty:
            raise RunError(
                f"{run.name} has no condition {condition!r}: expected one of "
                f"{list_near(condition, conditions)}."
            )
        full_path = Path(path).resolve()
        # The only condition of a log or table has the name `log` or that of its file, which says
        # nothing beside the file's name.
        is_default_name = condition in ("log", full_path.stem)
        side_name = full_path.name if is_default_name else f"{full_path.name}:{condition}"
        return cls(name=side_name, samples=samples, run=run)


def _choose_condition(run: Run, path: str, conditions: list[str]) -> str:
    """The run's baseline, or its first condition if it has no samples of the baseline.

    Raises:
        RunError: it is a table with several conditions: tables do not tell which is the baseline.
    """
    likely_condition = run.baseline if run.baseline in conditions else conditions[0]
    if run.is_table and len(conditions) > 1:
        raise RunError(
            f"{path} has the conditions {list_first(conditions, 6)}: name one, as "
            f"{path}:{likely_condition}."
        )
    return likely_condition


def _split_condition(side_text: str) -> tuple[str, str]:
    """The path and the condition in `RUN:CONDITION`; "" stands for a condition that is not named.

    A path or a condition may contain a colon too, so the longest path that exists counts. If none
    exists, the path ends at the last colon.
    """
    path_ends = [len(side_text), *(match.start() for match in re.finditer(":", side_text))]
    existing_ends = [path_end for path_end in path_ends if Path(side_text[:path_end]).exists()]
    path_end = max(existing_ends, default=path_ends[-1])
    return side_text[:path_end], side_text[path_end + 1 :]


def compare_pair(
    old_side: Side, new_side: Side, score: str | None = None, *, common: bool = False
) -> Leaderboard:
    """All tables of the new side against the old one, paired by problem.

    If both sides have repeat runs, the tables show the noise. The old run's positive control counts
    if the old side is the baseline of its run. The looks at growing runs always count.

    Args:
        old_side: The side that is the baseline.
        new_side: The other side.
        score: See `baseline_comparison.Design`.
        common: See `make_leaderboard`.

    Raises:
        ComparisonError: a side is given twice, or has other problems, numbers of samples or
            graders.
    """
    _refuse_incomparable(old_side, new_side)
    old_run = old_side.run
    runs = [old_run, new_side.run]
    side_names = [old_side.name, new_side.name]
    if old_side.name == new_side.name:
        # such sides are of different runs: see `_refuse_incomparable`
        side_names = [run.name for run in runs]
    frame_by_condition = {side_names[0]: old_side.samples, side_names[1]: new_side.samples}
    positive_controls = _find_positive_controls(old_side)
    for name in positive_controls:
        frame_by_condition[name] = old_run.samples[old_run.samples["condition"] == name]
    joined_frame = stack_samples(
        [samples.assign(condition=name) for name, samples in frame_by_condition.items()]
    )
    about: JsonObject = {
        "source": "pair",
        "model": joined_frame["model"].iloc[0],
        "baseline": side_names[0],
        "reference_conditions": positive_controls,
        "looks": max(run.about.get("looks", 1) for run in runs),
        "greedy": old_run.about.get("greedy"),
        "receipts": list_comparable_receipts(runs),
    }
    joined_run = Run(name=" ".join(side_names), about=about, read=lambda: joined_frame)
    return make_leaderboard([joined_run], score=score, common=common)


def _find_positive_controls(side: Side) -> dict[str, JsonObject]:
    """The positive controls of a side's run; none if the side is not the run's baseline.

    They show whether a change from this baseline would be seen.
    """
    if (side.samples["condition"] != side.run.baseline).any():
        return {}
    return {
        name: dict(fields)
        for name, fields in side.run.reference_conditions.items()
        if fields["kind"] == POSITIVE_CONTROL
    }


def _refuse_incomparable(old_side: Side, new_side: Side) -> None:
    """Refuse a side that is given twice, and sides with other graders."""
    if old_side.name == new_side.name and old_side.run.name == new_side.run.name:
        raise ComparisonError(f"{old_side.name} is given twice.")
    grader_versions = [side.run.about.get("grader_version") for side in (old_side, new_side)]
    # logs of other tasks were graded by lm-eval, so they have no version of our grader
    if all(grader_versions) and grader_versions[0] != grader_versions[1]:
        raise ComparisonError(
            f"Graders {grader_versions[0]} and {grader_versions[1]} cannot be compared: "
            "`mless regrade` the older run."
        )


def check_not_worse(board: Leaderboard, margin: float) -> tuple[str, str]:
    """Judge whether the new side loses less than a margin, in points, compared with the old one.

    Returns:
        `not worse`, `worse` (significantly), or `not shown`; and a sentence that explains it.

    Raises:
        ConfigError: the points are out of range, or it is unknown whether higher scores are
            better.
    """
    if board.score in TABLE_NUMBERS:
        raise ConfigError("--not-worse-by: it is unknown whether higher scores are better.")
    if not 0 < margin < 100:
        raise ConfigError(f"--not-worse-by: expected points above 0 and below 100, got {margin:g}.")
    (row,) = [row for row in list_rows(board.comparison) if row["role"] == "tested"]
    condition = row["condition"]
    if row["verdict"] == "unmeasured":
        return "not shown", f"Not shown: {row['unmeasured']}."
    # The interval of equivalence is the wider one for a run that grew after its table was printed,
    # because all looks at this run share alpha.
    lower_end = min(row["low"], row["equivalence_low"])
    margin_text = f"{margin:g} {'point' if margin == 1 else 'points'}"
    if lower_end > -margin:
        return "not worse", (
            f"{condition} loses less than {margin_text}: the interval's lower end is "
            f"{lower_end:+.1f}."
        )
    if row["verdict"] == "worse":
        return "worse", (
            f"{condition} is worse: {row['difference']:+.1f} points, p {row['p_adjusted']:.3g}."
        )
    needed_problems_text = (
        f"{estimate_sample(row, margin, row['problems'], side_count=1):,} problems"
    )
    # from this number of draws on, the interval is for new draws, which must grow in number too
    if row["draws"] >= FEWEST_DRAWS:
        needed_problems_text += ", and as many times the draws of examples,"
    return "not shown", (
        f"Not shown: the interval's lower end is {lower_end:+.1f}. If both are equally accurate, "
        f"about {needed_problems_text} would show that {condition} loses less than {margin_text} "
        f"({100 * POWER:.0f} % power); here are {row['problems']:,}."
    )
