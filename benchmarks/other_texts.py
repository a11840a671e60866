"""Draw the effect of the tested filler beside the range of other texts, by place and task.

    python -m benchmarks.other_texts RUN...

Each run asks one task with `other_texts`. It writes docs/figures/other-texts-by-task.png and
docs/figures/other-texts-by-task.csv, a row for each run and family.
"""

from __future__ import annotations

from pathlib import Path

import pandas
from matplotlib.figure import Figure

from benchmarks.runs import make_parser
from benchmarks.sink import FIGURES
from harness.analysis.result_tables import make_leaderboard
from harness.display.figures import figure_style
from harness.experiment.conditions import read_contrast
from harness.runs.run_reader import Run

PLACES = {
    "before_system": "before the instruction",
    "between": "between instruction and examples",
}
NOTE = (
    "Squares: 55 slashes. Grey: 95 % range of one more text of this length on these "
    "problems. Small lines: single texts."
)


def read_families(path: Path) -> pandas.DataFrame:
    """The families beside the tested filler of a run, with its task and place."""
    run = Run.load(path)
    texts = make_leaderboard([run]).side_tables["texts"]
    name, _ = read_contrast(run.about["primary"])
    place = PLACES[run.conditions[name].describe()["placement"]]
    task = run.about["dataset_name"] + ", " + texts["kind"]
    return texts[texts["condition"] == name].assign(filler_place=place, task=task)


def draw(table: pandas.DataFrame) -> Figure:
    """A panel for each place, with a row for each task and family."""
    colour, marker, _ = figure_style.STYLES["mless"]
    places = table.groupby("filler_place")
    with figure_style.drawing(1.2 + 0.22 * len(table), NOTE) as figure:
        sizes = places.size().to_list()
        panels = figure.subplots(len(sizes), sharex=True, squeeze=False, height_ratios=sizes)
        for axes, (place, rows) in zip(panels[:, 0], places, strict=True):
            low, high = rows["range_low"], rows["range_high"]
            axes.barh(rows["task"], high - low, left=low, color="#cccccc")
            texts = rows.explode("effects")
            axes.plot(texts["effects"], texts["task"], "|", color="#777777")
            axes.plot(rows["effect"], rows["task"], marker, color=colour)
            axes.axvline(0, color=figure_style.MUTED, linewidth=0.6)
            axes.invert_yaxis()
            axes.set_title(place, loc="left")
            figure_style.tidy(axes, grid="x")
        figure.axes[-1].set_xlabel("difference in accuracy from no filler (points)")
    return figure


def main() -> None:
    """Write figure and CSV."""
    parser = make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = parser.parse_args().runs
    table = pandas.concat(map(read_families, runs), ignore_index=True)
    figure_style.write_figure(draw(table), table, FIGURES, "other-texts-by-task", {"runs": runs})


if __name__ == "__main__":
    main()
