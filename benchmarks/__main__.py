"""Run benchmarks one after another, each in a fresh process, and write RESULTS.md.

    python -m benchmarks [--small] [grading] [tables] [probe] [stock] [engine]
    python -m benchmarks --shape NAME [NAME ...] -- engine

Without names all benchmarks run. The page has the last figures of benchmarks that do not run now.
With --small they are short and write to results/bench-small: a test that they work, which measures
no speed. With --shape the engine's benchmark uses models of these sizes, on a GPU, and writes
engine-shapes.json.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.runs import ROOT, make_parser, read_json, say, work_folder, write_json

MINUTES = {"grading": 1, "tables": 3, "probe": 24, "stock": 9, "engine": 10}
"""Benchmarks in the order of the page, with their minutes on two cores."""

FIGURES = Path(__file__).resolve().parent / "figures"
"""The committed figures, from which the page is written."""


def main() -> None:
    """Run the requested benchmarks and write the page."""
    parser = make_parser(__doc__)
    names_help = f"any of {', '.join(MINUTES)}; default all"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names_help)
    shape_help = "sizes in shapes.yaml, for the engine benchmark"
    parser.add_argument("--shape", nargs="+", default=[], help=shape_help)
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in MINUTES]:
        parser.error(f"no benchmark {unknown[0]!r}; expected any of {', '.join(MINUTES)}")
    small = arguments.small
    folder = work_folder(True) if small else FIGURES
    for name in arguments.names or MINUTES:
        say(f"{name}: about {MINUTES[name]} minutes on two cores, or two with --small")
        shapes = arguments.shape if name == "engine" else []
        path = folder / (f"{name}-shapes.json" if shapes else f"{name}.json")
        run(name, path, small=small, shapes=shapes)
    paths = [folder / f"{name}.json" for name in (*MINUTES, "engine-shapes")]
    sections = [read_json(path) for path in paths if path.is_file()]
    page = (folder if small else FIGURES.parent) / "RESULTS.md"
    title = "Benchmarks, cut short: no measure of speed" if small else "Benchmark results"
    page.write_text(report.page(title, sections, "make bench"), encoding="utf-8")
    say(f"written: {page.relative_to(ROOT)}")


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
    command = ["-m", f"benchmarks.{name}", *flags]
    facts = report.facts(" ".join(["python", *command]))
    process = subprocess.run([sys.executable, *command, f"--json={measured}"], cwd=ROOT)
    if measured.exists():
        write_json(path, {**read_json(measured), "facts": facts})
    if process.returncode:
        raise SystemExit(f"benchmark {name} failed")


if __name__ == "__main__":
    main()
