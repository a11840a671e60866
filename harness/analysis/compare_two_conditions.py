"""Two conditions that nobody planned to compare: of one run or two, or of two logs of any task of lm-eval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.special import ndtri

from harness.analysis.pool_models import FEWEST_DRAWS
from harness.analysis.result_tables import Leaderboard, make_leaderboard
from harness.constants import ALPHA, POWER
from harness.errors import ComparisonError, ConfigError, RunError, list_near
from harness.runs.find_lm_eval_files import find_log
from harness.runs.join_runs import describe_problem_differences
from harness.runs.read_runs import Run

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two.

    Attributes:
        name: What tables call it.
        samples: Its samples, replicates included.
        run: Where they are from.
    """

    name: str
    samples: pandas.DataFrame
    run: Run

    @classmethod
    def read(cls, named: str, metric: str | None = None) -> Side:
        """The side that is named.

        Args:
            named: A run or a sample log; `RUN:CONDITION` for another condition than its baseline.
            metric: Of a log of another task: see `read_lm_eval_logs.read_log`.

        Raises:
            RunError: there is none, or no such condition in it.
        """
        path, colon, condition = named.rpartition(":")
        if not colon or Path(named).exists():
            path, condition = named, ""
        try:
            run = Run.load(path, metric=metric)
            frame = run.samples
        except RunError:
            if not Path(path).exists() or condition:
                raise
            log = find_log(Path(path))  # of a task that names no condition
            run, condition = Run.load({"log": log}, metric=metric), "log"
            frame = run.samples
        there = list(frame["condition"].unique())
        chosen = condition or (run.baseline if run.baseline in there else there[0])
        if chosen not in there:
            raise RunError(
                f"{path} has no condition {chosen!r}: expected one of {list_near(chosen, there)}."
            )
        last = Path(path).resolve().name
        return cls(
            name=last if chosen == "log" else f"{last}:{chosen}",
            samples=frame[frame["condition"] == chosen],
            run=run,
        )


def compare_pair(old: Side, new: Side) -> Leaderboard:
    """All tables of the second side against the first, paired by problem; the noise too where both were run twice.

    Raises:
        ComparisonError: they are the same, of other problems, other numbers of samples, or other graders.
    """
    import pandas

    sides = (old, new)
    if old.name == new.name and old.run.name == new.run.name:
        raise ComparisonError(f"{old.name} is given twice.")
    if how := describe_problem_differences(old.run, new.run):
        raise ComparisonError(f"{new.run.name} cannot be compared with {old.run.name}: {how}.")
    graders = [
        str(side.run.about["grader_version"])
        for side in sides
        if side.run.about.get("grader_version")
    ]
    if len({*graders}) > 1:
        raise ComparisonError(
            f"Graders {' and '.join(graders)} cannot be compared: `mless regrade` the older run."
        )
    model = " / ".join(dict.fromkeys(str(side.run.about["model"]) for side in sides))
    names = [side.name if old.name != new.name else side.run.name for side in sides]
    frames = []
    for name, side in zip(names, sides, strict=True):
        ids, draws = side.samples["problem_id"].astype(str), side.samples.get("draw", 1)
        frames.append(
            side.samples.assign(
                model=model, layout="paired", condition=name, problem_id=ids, draw=draws
            )
        )
    joined = pandas.concat(frames, ignore_index=True)
    about = {"source": "pair", "model": model, "greedy": old.run.about.get("greedy")}
    run = Run(name=" ".join(names), about=about, read=lambda: joined, read_prompts=list)
    board = make_leaderboard([run], baseline=names[0])
    receipts = {side.run.name: {"name": side.run.name, **side.run.about} for side in sides}
    return replace(board, receipt=tuple(receipts.values()))


def check_not_worse(board: Leaderboard, points: float) -> tuple[int, str]:
    """The exit code of a gate in continuous integration, and a sentence that explains it.

    It is 0 if the second side is shown to lose less than `points`, 1 if it is significantly worse, and 3 if neither is
    shown.

    Raises:
        ConfigError: the points are out of range.
    """
    if not 0 < points < 100:
        raise ConfigError(f"--not-worse-by: expected points above 0 and below 100, got {points:g}.")
    (row,) = board.comparison[board.comparison["role"] != "baseline"].to_dict("records")
    name, low = row["condition"], f"{row['low']:+.1f}"
    margin = f"{points:g} {'point' if points == 1 else 'points'}"
    if row["low"] > -points and not row["unmeasured"]:
        return 0, f"{name} loses less than {margin}: the interval's lower end is {low}."
    if row["verdict"] == "worse":
        return 1, f"{name} is worse: {row['difference']:+.1f} points, p {row['p']:.3g}."
    if row["unmeasured"]:
        return 3, f"Not shown: {row['unmeasured']}."
    # the length of an interval falls with the root of the number of problems
    quantiles = 1 + float(ndtri(POWER) / ndtri(1 - ALPHA / 2))
    needed = math.ceil(
        row["problems"] * (quantiles * (row["difference"] - row["low"]) / points) ** 2
    )
    # beside problems, new draws of examples lengthen it
    draws = ", and as many times the draws of examples," if row["draws"] >= FEWEST_DRAWS else ""
    return 3, (
        f"Not shown: the interval's lower end is {low}. If both are equally accurate, about {needed:,} problems{draws} "
        f"would show that {name} loses less than {margin} ({100 * POWER:.0f} % power); here are {row['problems']:,}."
    )
