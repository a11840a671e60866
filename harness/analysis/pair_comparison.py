"""Compares any two conditions: of one run or two, or of two sample logs of any lm-eval task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas

from harness.analysis.result_tables import Leaderboard, make_leaderboard, records
from harness.analysis.sample_scores import TABLE_NUMBERS
from harness.analysis.verdicts import estimate_sample
from harness.constants import FEWEST_DRAWS, POWER, JsonObject
from harness.errors import ComparisonError, ConfigError, RunError, list_first, list_near
from harness.experiment.conditions import POSITIVE_CONTROL
from harness.runs.joined_runs import list_receipts, stack
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
    def read(cls, name: str, metric: str | None = None, columns: str | None = None) -> Side:
        """Read a side.

        Args:
            name: A run, a log or a table; `RUN:CONDITION` for a condition other than the
                run's baseline.
            metric: Of a log of another task: see `Run.load`.
            columns: Of a table: see `Run.load`.

        Raises:
            RunError: there is no such run, or no such condition in it, or a table has several.
        """
        # a path or a condition may contain a colon too, so the longest path that exists counts
        ends = [len(name), *(match.start() for match in re.finditer(":", name))]
        existing_ends = [end for end in ends if Path(name[:end]).exists()]
        end = max(existing_ends, default=ends[-1])
        path, condition = name[:end], name[end + 1 :]
        try:
            run = Run.load(path, metric=metric, columns=columns)
            samples = run.samples
        except RunError:
            if not Path(path).exists() or condition:
                raise
            # a log whose task names no condition gets the name `log`
            run, condition = Run.load({"log": path}, metric=metric), "log"
            samples = run.samples
        conditions = list(samples["condition"].unique())
        if not condition:
            condition = run.baseline if run.baseline in conditions else conditions[0]
            if run.is_table and len(conditions) > 1:
                raise RunError(
                    f"{path} has the conditions {list_first(conditions, 6)}: name one, as "
                    f"{path}:{condition}."
                )
        samples = samples[samples["condition"] == condition]
        if samples.empty:
            near = list_near(condition, conditions)
            raise RunError(f"{run.name} has no condition {condition!r}: expected one of {near}.")
        file = Path(path).resolve()
        # The only condition of a log or table is called `log` or after its file: naming it again
        # would say nothing.
        is_file = condition in ("log", file.stem)
        name = file.name if is_file else f"{file.name}:{condition}"
        return cls(name=name, samples=samples, run=run)


def compare_pair(
    old: Side,
    new: Side,
    score: str | None = None,
    *,
    common: bool = False,
) -> Leaderboard:
    """All tables of `new` against `old`, paired by problem; with the noise if both were run twice.

    The positive control of the old side's run counts if this side is the run's baseline, and so do
    the looks at growing runs.

    Args:
        old: The side that is the baseline.
        new: The other side.
        score: See `baseline_comparison.Design`.
        common: See `make_leaderboard`.

    Raises:
        ComparisonError: a side is given twice, or has other problems, numbers of samples or
            graders.
    """
    _refuse_incomparable(old, new)
    names = [old.name, new.name]
    if old.name == new.name:
        names = [old.run.name, new.run.name]
    samples = {names[0]: old.samples, names[1]: new.samples}
    reference_conditions: dict[str, JsonObject] = {}
    # the positive control shows whether a change from its run's baseline would be seen
    if (old.samples["condition"] == old.run.baseline).all():
        for name, fields in old.run.reference_conditions.items():
            if fields["kind"] == POSITIVE_CONTROL:
                reference_conditions[name] = dict(fields)
                samples[name] = old.run.samples[old.run.samples["condition"] == name]
    joined_frame = stack([frame.assign(condition=name) for name, frame in samples.items()])
    about: JsonObject = {
        "source": "pair",
        "model": joined_frame["model"].iloc[0],
        "baseline": names[0],
        "reference_conditions": reference_conditions,
        "looks": max(side.run.about.get("looks", 1) for side in (old, new)),
        "greedy": old.run.about.get("greedy"),
        "receipts": list_receipts([old.run, new.run]),
    }
    run = Run(name=" ".join(names), about=about, read=lambda: joined_frame)
    return make_leaderboard([run], score=score, common=common)


def _refuse_incomparable(old: Side, new: Side) -> None:
    """Refuse a side that is given twice, and sides with other graders."""
    if old.name == new.name and old.run.name == new.run.name:
        raise ComparisonError(f"{old.name} is given twice.")
    graders = [side.run.about.get("grader_version") for side in (old, new)]
    # logs of other tasks have no grader of ours
    if all(graders) and graders[0] != graders[1]:
        raise ComparisonError(
            f"Graders {graders[0]} and {graders[1]} cannot be compared: `mless regrade` the older "
            "run."
        )


def check_not_worse(board: Leaderboard, points: float) -> tuple[str, str]:
    """Judge whether the second side loses less than `points`.

    Returns:
        `not worse`, `worse` (significantly), or `not shown`; and a sentence that explains it.

    Raises:
        ConfigError: the points are out of range, or it is unknown whether higher scores are
            better.
    """
    if board.score in TABLE_NUMBERS:
        raise ConfigError("--not-worse-by: it is unknown whether higher scores are better.")
    if not 0 < points < 100:
        raise ConfigError(f"--not-worse-by: expected points above 0 and below 100, got {points:g}.")
    (row,) = [row for row in records(board.comparison) if row["role"] == "tested"]
    name = row["condition"]
    if row["verdict"] == "unmeasured":
        return "not shown", f"Not shown: {row['unmeasured']}."
    # at a further look the interval of equivalence is the wider one, as looks share alpha
    lower_end = min(row["low"], row["equivalence_low"])
    low = f"{lower_end:+.1f}"
    margin = f"{points:g} {'point' if points == 1 else 'points'}"
    if lower_end > -points:
        return "not worse", f"{name} loses less than {margin}: the interval's lower end is {low}."
    if row["verdict"] == "worse":
        difference = f"{row['difference']:+.1f} points"
        return "worse", f"{name} is worse: {difference}, p {row['p_adjusted']:.3g}."
    sample = f"{estimate_sample(row, points, row['problems'], sides=1):,} problems"
    if row["draws"] >= FEWEST_DRAWS:  # new draws of examples lengthen the interval too
        sample += ", and as many times the draws of examples,"
    return "not shown", (
        f"Not shown: the interval's lower end is {low}. If both are equally accurate, about "
        f"{sample} would show that {name} loses less than {margin} ({100 * POWER:.0f} % power); "
        f"here are {row['problems']:,}."
    )
