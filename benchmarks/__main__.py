"""Run benchmarks one after another, each in a fresh process, and write RESULTS.md from their figures.

    python -m benchmarks [--small] [grading] [tables] [probe] [stock] [engine]
    python -m benchmarks --shape NAME [NAME ...] -- engine

Without names all are run. Figures of those not run now stay from the last time. With --small everything is short and
goes to results/bench-small: it shows that the benchmarks work, and says nothing of speed. With --shape the engine's
benchmark uses models of these sizes, on a GPU, and writes engine-shapes.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.runs import ROOT, say, work_folder, write_json

MINUTES = {"grading": 1, "tables": 3, "probe": 24, "stock": 9, "engine": 10}
"""In their order, with about how long each takes on two cores."""

FIGURES = Path(__file__).resolve().parent / "figures"
"""What the page is made of, committed with it: measuring one again leaves the others as they are."""


def main() -> None:
    """Run what was asked for and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(MINUTES)}; default all"
    )
    parser.add_argument("--small", action="store_true", help="short, to see that everything works")
    parser.add_argument(
        "--shape", nargs="+", default=[], help="sizes in shapes.yaml, for the engine benchmark"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in MINUTES]:
        parser.error(f"no benchmark {unknown[0]!r}; expected any of {', '.join(MINUTES)}")
    folder = work_folder(True) if arguments.small else FIGURES
    for name in arguments.names or MINUTES:
        say(
            f"{name}: about {'a minute or two' if arguments.small else f'{MINUTES[name]} minutes on two cores'}"
        )
        shapes = arguments.shape if name == "engine" else []
        path = folder / (f"{name}-shapes.json" if shapes else f"{name}.json")
        run(name, path, small=arguments.small, shapes=shapes)
    paths = [folder / f"{name}.json" for name in (*MINUTES, "engine-shapes")]
    sections = [json.loads(path.read_text("utf-8")) for path in paths if path.is_file()]
    page = (folder if arguments.small else FIGURES.parent) / "RESULTS.md"
    title = "Benchmarks, cut short: no measure of speed" if arguments.small else "Benchmark results"
    page.write_text(report.page(title, sections, "make bench"), encoding="utf-8")
    say(f"written: {page.relative_to(ROOT)}")
    if arguments.small:
        return
    missed = [
        row["measure"] for figures in sections for row in figures["rows"] if row["met"] is False
    ]
    say(f"targets missed: {'; '.join(missed)}" if missed else "all targets met")


def run(name: str, path: Path, *, small: bool, shapes: Sequence[str] = ()) -> None:
    """Run one benchmark in a fresh process and add the facts of the machine to its figures.

    Raises:
        SystemExit: it failed; it has said why.
    """
    flags = ["--small"] if small else []
    if shapes:
        flags += ["--shape", *shapes]
    measured = work_folder(small) / f"{name}-measured.json"
    measured.unlink(missing_ok=True)
    facts = report.facts(" ".join(["python -m", f"benchmarks.{name}", *flags]))
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *flags, "--json", str(measured)], cwd=ROOT
    )
    if measured.exists():
        write_json(path, {**json.loads(measured.read_text(encoding="utf-8")), "facts": facts})
    if done.returncode:
        raise SystemExit(f"benchmark {name} failed")


if __name__ == "__main__":
    main()
