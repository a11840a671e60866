"""Journals changed by hand, with what the tables must say of each. Writes CONTROLS.md.

    python -m benchmarks.controls [--small]

A real run, tests/data/greedy_run, is copied, and completions of one condition are changed: another answer, no box, a
cut, a second box, a loop, an answer that only one grader lets pass, or nothing. Then it is graded again by the real
grader and read by the real reader. Table, mediators and audit must call what was changed by its name, and
nothing else. With --small only the first two changes are made, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.runs import ROOT, say
from harness.analysis.result_tables import make_leaderboard, records
from harness.execution.grade_again import regrade
from harness.grading import GRADERS
from harness.runs.read_runs import Run
from harness.runs.run_files import JOURNAL, read_identity, read_prompts, read_scores
from harness.runs.stored_files import expand

RUN = ROOT / "tests" / "data" / "greedy_run"
CONDITION, SHARE, SEED = "mless", 0.15, 7
GRADER_POINTS = 2
"""A grader whose difference is so many points from ours sees another one."""
BOX = re.compile(r"\\boxed\{(.*)\}")

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A change of a journal, and what must be found.

    Attributes:
        name: Its name.
        change: Changes a sample, given its gold answer.
        of: The conditions whose samples are changed.
        share: Of the problems.
        right: Whether samples that are right are changed; else those that are wrong. None: any.
        verdict: Of the condition, in the table.
        parts: Which of format and answer the difference comes from, in the mediators.
        states: Which shares of samples have grown by a point or more, in the mediators.
        graders: Who sees another difference than our grader, in the audit.
    """

    name: str
    change: Callable[[Sample, str], None]
    of: tuple[str, ...] = (CONDITION,)
    share: float = SHARE
    right: bool | None = True
    verdict: str = "worse"
    parts: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()


def _answer(sample: Sample, gold: str) -> None:
    sample["completion"] = BOX.sub(r"\\boxed{0.1234}", sample["completion"])


def _format(sample: Sample, gold: str) -> None:
    sample["completion"] = BOX.sub("as was to be found", sample["completion"])


def _cut(sample: Sample, gold: str) -> None:
    text = sample["completion"]
    sample |= {"completion": text[: text.rindex("\\boxed")], "finish_reason": "length"}


def _second_box(sample: Sample, gold: str) -> None:
    sample["completion"] += " But perhaps it is $\\boxed{0.1234}$."


def _loop(sample: Sample, gold: str) -> None:
    _cut(sample, gold)
    sample["completion"] += " We go on and on, since there is always more to say about it." * 20


def _part(sample: Sample, gold: str) -> None:
    """Wrong, and right by the study's rule, for which a part of the gold answer is enough."""
    sample["completion"] = BOX.sub(rf"\\boxed{{{_digit(gold)}}}", sample["completion"])


def _digit(gold: str) -> str:
    """The first digit of a gold answer that is more than this digit; empty if there is none."""
    found = re.search(r"\d", gold)
    return found[0] if found and gold != found[0] else ""


FORMAL = "worse (format)"
_WITHOUT_BOX = ("math_verify", "authors_rule")
CONTROLS = (
    Control(name="nothing", change=lambda sample, gold: None, verdict="equivalent"),
    Control(name="another answer", change=_answer, parts=("answer",)),
    # the study's rule lets an answer that is missing pass: nothing is a part of every gold answer
    Control(
        name="no box",
        change=_format,
        verdict=FORMAL,
        parts=("format",),
        states=("no_box",),
        graders=("authors_rule",),
    ),
    # math_verify reads the last number before the cut
    Control(
        name="a cut",
        change=_cut,
        verdict=FORMAL,
        parts=("format",),
        states=("truncated",),
        graders=_WITHOUT_BOX,
    ),
    Control(name="a second box", change=_second_box, parts=("answer",)),
    Control(
        name="a loop",
        change=_loop,
        verdict=FORMAL,
        parts=("format",),
        states=("truncated", "looping"),
        graders=_WITHOUT_BOX,
    ),
    Control(
        name="every answer of both sides cut off",
        change=_cut,
        of=("wo", CONDITION),
        share=2.0,  # of both sides
        right=None,
        verdict="unmeasured",
    ),
    Control(
        name="answers of the baseline cut off",
        change=_cut,
        of=("wo",),
        verdict="better (format)",
        parts=("format",),
        graders=_WITHOUT_BOX,
    ),
    Control(
        name="a part of the answer",
        change=_part,
        right=False,
        verdict="equivalent",
        graders=("authors_rule",),
    ),
)


def plant(control: Control, folder: Path) -> int:
    """Copy the run into a folder, change it and grade it again; returns how many samples were changed."""
    shutil.copytree(
        RUN, folder, ignore=shutil.ignore_patterns("samples_*", "results_*", "accuracy.*")
    )
    expand(folder)
    golds = {row.doc["id"]: row.doc["answer"] for row in read_prompts(folder)}
    verdicts = {key: score.verdict for key, score in read_scores(folder).items()}
    lines = (folder / JOURNAL).read_text(encoding="utf-8").splitlines()
    wanted = {True: ["correct"], False: ["incorrect"], None: ["correct", "incorrect"]}[
        control.right
    ]
    samples = [(place, json.loads(line)) for place, line in enumerate(lines)]
    tasks = {
        task for task, arm in read_identity(folder).arms.items() if arm.condition in control.of
    }
    fitting = [
        (place, sample)
        for place, sample in samples
        if sample.get("task") in tasks
        and verdicts[sample["key"]] in wanted
        and (control.right is not False or _digit(golds[sample["problem_id"]]))
        and "\\boxed" in sample["completion"]
    ]
    count = min(len(fitting), round(control.share * len(golds)))
    for place, sample in random.Random(SEED).sample(fitting, count):
        before = dict(sample)
        control.change(sample, golds[sample["problem_id"]])
        if sample != before:
            lines[place] = json.dumps(sample, ensure_ascii=False)
    (folder / JOURNAL).write_text("\n".join(lines) + "\n", encoding="utf-8")
    regrade(folder)
    return count


def find(folder: Path) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """What the tables say of the condition: verdict, parts, states and graders, as in `Control`."""
    board = make_leaderboard([Run.load(folder)])
    (row,) = (one for one in records(board.comparison) if one["condition"] == CONDITION)
    mediators = board.side_tables["mediators"].set_index("condition")
    audit = board.side_tables["audit"].set_index("condition").loc[CONDITION]
    change = mediators.loc[CONDITION]
    moved = {
        "format": row["difference"] - row["answered_difference"],
        "answer": row["answered_difference"],
    }
    parts = tuple(name for name, points in moved.items() if abs(points) >= 2)
    states = tuple(
        name
        for name in ("no_box", "truncated", "refused", "timed_out", "looping")
        if change[name] - mediators.loc["wo", name] >= 1
    )
    graders = tuple(
        name
        for name in GRADERS
        if abs(audit[f"{name}_difference"] - audit["ours_difference"]) >= GRADER_POINTS
    )
    said = f"{row['verdict']} (format)" if row["by_format"] else str(row["verdict"])
    return said, parts, states, graders


def main() -> None:
    """Plant every control and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.controls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--small", action="store_true", help="two controls, nothing written")
    small = parser.parse_args().small
    rows, missed = [], []
    for control in CONTROLS[:2] if small else CONTROLS:
        with tempfile.TemporaryDirectory(prefix="mless-controls-") as passing:
            folder = Path(passing) / "run"
            count = plant(control, folder)
            found = find(folder)
        expected = (control.verdict, control.parts, control.states, control.graders)
        rows.append(
            (control.name, str(count if control.name != "nothing" else 0), *map(_words, found))
        )
        if found != expected:
            missed.append(f"{control.name}: expected {expected}, got {found}")
        say(f"{control.name}: {found}")
    print(table(rows))
    if not small:
        path = Path(__file__).parent / "CONTROLS.md"
        facts = report.say_when(report.facts("make controls"), {})
        path.write_text(HEAD.format(facts=facts, share=100 * SHARE) + table(rows), encoding="utf-8")
    if missed:
        sys.exit("not called by its name: " + "; ".join(missed))


HEAD = """\
# Controls with known truth

Written by `make controls`. In a copy of [the greedy run](../tests/data/greedy_run) the completions of one condition
were changed for {share:.0f} percent of the problems, where a row says nothing else. Then the run was graded and read
again. A row must name what was changed and nothing else: verdict, part of the difference, shares that grew, and graders
that see another difference.

{facts}

"""


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as Markdown."""
    header = ("what was changed", "samples", "verdict", "by", "grew", "other graders")
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _words(found: str | Sequence[str]) -> str:
    return found if isinstance(found, str) else ", ".join(found) or "-"


if __name__ == "__main__":
    main()
