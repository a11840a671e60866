"""Change journals in known ways, and test how the tables describe them. Writes CONTROLS.md.

    python -m benchmarks.controls [--small]

In copies of a real run, tests/data/greedy_run, completions of one condition are changed: to another
answer, no box, a cut, a second box, a loop, an answer that only one grader accepts, or not at all.
Then they are graded and read as usual. Table, mediators and audit must name the change and nothing
else. With --small only the first two changes are made, and nothing is written.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import table
from benchmarks.runs import ROOT, make_parser, say
from harness.analysis.result_tables import list_rows, make_leaderboard
from harness.execution.regrading import regrade
from harness.grading import GRADERS
from harness.runs.run_files import JOURNAL, RunFiles
from harness.runs.run_reader import Run
from harness.runs.stored_files import unpack_files

RUN = ROOT / "tests" / "data" / "greedy_run"
CONDITION, SHARE, SEED = "mless", 0.15, 7
GRADER_POINTS = 2
"""A grader differs if its difference is this many points from that of mless."""
STATES = ("no_box", "truncated", "refused", "timed_out")
BOX = re.compile(r"\\boxed\{(.*)\}")

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A change of a journal, and its expected description.

    Attributes:
        name: Its name.
        change: Changes a sample, given its gold answer.
        of: The conditions whose samples are changed.
        share: The share of the problems.
        right: Whether right samples are changed, or wrong ones. None: any.
        verdict: The verdict of the condition, in the table.
        sources: Whether the difference is one of format or answer, in the mediators.
        states: The shares of samples that rise by a point or more, in the mediators.
        graders: The graders whose difference is not that of mless, in the audit.
    """

    name: str
    change: Callable[[Sample, str], None]
    of: tuple[str, ...] = (CONDITION,)
    share: float = SHARE
    right: bool | None = True
    verdict: str = "worse"
    sources: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()


def _replace_box(sample: Sample, text: str) -> None:
    sample["completion"] = BOX.sub(lambda _: text, sample["completion"])


def _answer(sample: Sample, gold: str) -> None:
    _replace_box(sample, r"\boxed{0.1234}")


def _format(sample: Sample, gold: str) -> None:
    _replace_box(sample, "as was to be found")


def _cut(sample: Sample, gold: str) -> None:
    text = sample["completion"]
    sample |= {"completion": text[: text.rindex("\\boxed")], "finish_reason": "length"}


def _second_box(sample: Sample, gold: str) -> None:
    sample["completion"] += " But perhaps it is $\\boxed{0.1234}$."


def _digit_alone(sample: Sample, gold: str) -> None:
    """Change to a wrong answer that the study's rule accepts, a part of the gold answer."""
    _replace_box(sample, rf"\boxed{{{_first_digit(gold)}}}")


def _first_digit(gold: str) -> str:
    """The first digit of a gold answer; empty if it has none, or is only this digit."""
    digit = re.search(r"\d", gold)
    return digit[0] if digit and gold != digit[0] else ""


_cut_off = partial(
    Control, change=_cut, sources=("format",), graders=("math_verify", "authors_rule")
)
"""math_verify reads the last number before a cut, and the study's rule accepts a missing answer,
because an empty text is a part of every gold answer."""
WORSE_BY_FORMAT = "worse (format)"
CONTROLS = (
    Control(name="nothing", change=lambda sample, gold: None, verdict="equivalent"),
    Control(name="another answer", change=_answer, sources=("answer",)),
    Control(
        name="no box",
        change=_format,
        verdict=WORSE_BY_FORMAT,
        sources=("format",),
        states=("no_box",),
        graders=("authors_rule",),
    ),
    _cut_off(name="a cut", verdict=WORSE_BY_FORMAT, states=("truncated",)),
    Control(name="a second box", change=_second_box, sources=("answer",)),
    Control(
        name="every answer of both sides cut off",
        change=_cut,
        of=("wo", CONDITION),
        share=2.0,  # of both sides
        right=None,
        verdict="unmeasured",
    ),
    _cut_off(name="answers of the baseline cut off", of=("wo",), verdict="better (format)"),
    Control(
        name="a part of the answer",
        change=_digit_alone,
        right=False,
        verdict="equivalent",
        graders=("authors_rule",),
    ),
)


def make_changed_run(control: Control, folder: Path) -> int:
    """Copy the run, change it and grade it again. Return the number of changed samples."""
    ignored = shutil.ignore_patterns("samples_*", "results_*", "accuracy.*")
    shutil.copytree(RUN, folder, ignore=ignored)
    unpack_files(folder)
    files = RunFiles(folder)
    golds = {row.doc["id"]: row.doc["answer"] for row in files.prompts}
    lines = (folder / JOURNAL).read_text(encoding="utf-8").splitlines()
    tasks = files.identity.tasks
    tasks = {name for name, task in tasks.items() if task.condition in control.of}

    def is_suitable(sample: Sample) -> bool:
        if sample.get("task") not in tasks or "\\boxed" not in sample["completion"]:
            return False
        verdict = files.scores[sample["key"]].verdict
        if control.right is None:
            return verdict in ("correct", "incorrect")
        if control.right:
            return verdict == "correct"
        return verdict == "incorrect" and bool(_first_digit(golds[sample["problem_id"]]))

    samples = [(index, json.loads(line)) for index, line in enumerate(lines)]
    suitable = [(index, sample) for index, sample in samples if is_suitable(sample)]
    count = min(len(suitable), round(control.share * len(golds)))
    for index, sample in random.Random(SEED).sample(suitable, count):
        control.change(sample, golds[sample["problem_id"]])
        lines[index] = json.dumps(sample, ensure_ascii=False)
    (folder / JOURNAL).write_text("\n".join(lines) + "\n", encoding="utf-8")
    regrade(RunFiles(folder))
    return count


def describe_run(folder: Path) -> tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Read verdict, sources, states and graders of the condition, as in `Control`."""
    board = make_leaderboard([Run.load(folder)])
    (row,) = (row for row in list_rows(board.comparison) if row["condition"] == CONDITION)
    mediators = board.side_tables["mediators"].set_index("condition")
    audit = board.side_tables["audit"].set_index("condition").loc[CONDITION]
    points = {
        "format": row["difference"] - row["answered_difference"],
        "answer": row["answered_difference"],
    }
    sources = tuple(name for name in points if abs(points[name]) >= 2)
    rises = mediators.loc[CONDITION, list(STATES)] - mediators.loc["wo", list(STATES)]
    states = tuple(name for name in STATES if rises[name] >= 1)
    difference = audit["by_mless_difference"]
    graders = tuple(
        name for name in GRADERS if abs(audit[f"{name}_difference"] - difference) >= GRADER_POINTS
    )
    verdict = f"{row['verdict']} (format)" if row["by_format"] else str(row["verdict"])
    return verdict, sources, states, graders


def main() -> None:
    """Test every control and write the page."""
    small = make_parser(__doc__).parse_args().small
    rows, missed = [], []
    for control in CONTROLS[:2] if small else CONTROLS:
        with tempfile.TemporaryDirectory(prefix="mless-controls-") as parent:
            folder = Path(parent) / "run"
            count = make_changed_run(control, folder)
            description = describe_run(folder)
        verdict, *names = description
        cells = [", ".join(group) or "-" for group in names]
        samples = count if control.name != "nothing" else 0
        rows.append((control.name, str(samples), verdict, *cells))
        expected = (control.verdict, control.sources, control.states, control.graders)
        if description != expected:
            missed.append(f"{control.name}: expected {expected}, got {description}")
        say(f"{control.name}: {description}")
    text = table(("change", "samples", "verdict", "by", "rising shares", "other graders"), rows)
    print(text)
    if not small:
        facts = report.describe_measurement(report.facts("make controls"), {})
        page = HEAD.format(facts=facts, share=100 * SHARE) + text
        Path(__file__).with_name("CONTROLS.md").write_text(page, encoding="utf-8")
    if missed:
        sys.exit("wrong descriptions: " + "; ".join(missed))


HEAD = """\
# Controls with known truth

Written by `make controls`. In copies of [the greedy run](../tests/data/greedy_run) the completions
of one condition were changed for {share:.0f} percent of the problems, if a row says nothing else,
and graded again. A row must name the change and nothing else: the verdict, whether the difference
is one of format or answer, the shares that rise, and the graders with another difference.

{facts}

"""

if __name__ == "__main__":
    main()
