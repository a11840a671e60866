"""Two conditions that nobody planned to compare: of one run or two, or of two logs of any task of lm-eval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.leaderboard import Leaderboard, make_leaderboard
from harness.analysis.tests import fewest_problems
from harness.constants import PASSED, Gate
from harness.errors import ComparisonError, RunError, list_first
from harness.runs.lm_eval_files import one_log
from harness.runs.read import Run
from harness.runs.same_settings import other_problems

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
            metric: Of a log of another task: see `lm_eval_logs.read_log`.

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
            log = one_log(Path(path))  # of a task that names no condition
            run, condition = Run.load({"log": log}, metric=metric), "log"
            frame = run.samples
        there = list(frame["condition"].unique())
        chosen = condition or (run.baseline if run.baseline in there else there[0])
        if chosen not in there:
            raise RunError(f"{path} has no condition {chosen!r}: expected one of {list_first(there, 6)}.")
        last = Path(path).resolve().name
        return cls(
            name=last if chosen == "log" else f"{last}:{chosen}",
            samples=frame[frame["condition"] == chosen],
            run=run,
        )


def compare_pair(old: Side, new: Side, *, margin: float | None = None) -> Leaderboard:
    """All tables of the second side against the first, paired by problem; the noise too where both were run twice.

    Raises:
        ComparisonError: they are the same, of other problems, other numbers of samples, or other graders.
        ConfigError: a margin out of range.
    """
    import pandas

    sides = (old, new)
    if old.name == new.name and old.run.name == new.run.name:
        raise ComparisonError(f"{old.name} is given twice.")
    if how := other_problems(old.run, new.run):
        raise ComparisonError(f"{new.run.name} cannot be compared with {old.run.name}: {how}.")
    graders = [str(side.run.about["grader_version"]) for side in sides if side.run.about.get("grader_version")]
    if len({*graders}) > 1:
        raise ComparisonError(f"Graders {' and '.join(graders)} cannot be compared: `mless regrade` the older run.")
    model = " / ".join(dict.fromkeys(str(side.run.about["model"]) for side in sides))
    names = [side.name if old.name != new.name else side.run.name for side in sides]
    frames = []
    for name, side in zip(names, sides, strict=True):
        ids, draws = side.samples["problem_id"].astype(str), side.samples.get("draw", 1)
        frames.append(side.samples.assign(model=model, layout="paired", condition=name, problem_id=ids, draw=draws))
    joined = pandas.concat(frames, ignore_index=True)
    about = {"source": "pair", "model": model, "greedy": old.run.about.get("greedy")}
    run = Run(name=" ".join(names), about=about, read=lambda: joined, read_prompts=list)
    board = make_leaderboard([run], baseline=names[0], margin=margin)
    receipts = {side.run.name: {"name": side.run.name, **side.run.about} for side in sides}
    return replace(board, receipt=tuple(receipts.values()))


def check_gate(board: Leaderboard, gate: Gate) -> tuple[int, str]:
    """The exit code of a comparison, and a sentence: 0 if it passes the gate, 1 if not, 3 if it cannot be judged."""
    (row,) = board.comparison[board.comparison["baseline"] != board.comparison["condition"]].to_dict("records")
    if gate == "worse":
        if row["verdict"] == "unmeasured":
            return 3, f"cannot be judged: {row['unmeasured']}"
        return int(row["verdict"] == "worse"), f"{row['condition']} is {row['verdict']}"
    needed = fewest_problems(row["margin"] / 100)
    reason = row["unmeasured"] or (f"{row['n']} problems, and equivalence needs {needed}" if row["n"] < needed else "")
    if reason and row["verdict"] not in PASSED:
        return 3, f"cannot be judged: {reason}"
    word = "equivalent" if row["within_margin"] else "not equivalent"
    return int(not row["within_margin"]), f"{row['condition']} is {word} within a margin of {row['margin']:g}"
