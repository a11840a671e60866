"""Pool the tasks of the registered experiment about the attention sink: numbers of docs/sink.md.

    python -m benchmarks.sink results/sink-products results/sink-capitals results/sink-opposites

It writes docs/figures/sink.csv, a row for each contrast in each task and over all tasks, and
docs/figures/sink.png. With --small it writes neither.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.runs import ROOT, make_parser
from harness import compare, load_run
from harness.display.figures import figure_style
from harness.runs.run_reader import Run

FIGURES = ROOT / "docs" / "figures"
ALL_TASKS = "all tasks"
MARGIN = 5.0
"""The registered equivalence margin in points."""
DOSES = {1: "wo", 3: "sink-3-4-10", 10: "sink-10-4-10", 30: "sink-30-4-10"}
"""How many times the first token counts in Layers 4 to 10, and the condition."""
LATE_DOSE = "sink-30-14-20"
SLOPE = "slope in log k"
BANDS = {
    "wo": "no filler",
    "one": "one slash",
    "slashes": "55 slashes",
    "kept-4-10": "first kept in 4-10",
    "middle-4-10": "middle kept in 4-10",
    "last-4-10": "last kept in 4-10",
    "kept-14-20": "first kept in 14-20",
    "examples-4-10": "examples hidden in 4-10",
}
"""The conditions of the second panel and their labels."""
TASK_LOOKS = (("#0c7a66", "s"), ("#3d97dd", "^"), ("#b87000", "v"))
"""Colour and marker of each task."""


def measure_contrasts(run: Run, frame: pandas.DataFrame) -> pandas.DataFrame:
    """The registered contrasts of one task, in points, with intervals for new instructions."""
    design = {"contrasts": run.about["contrasts"], "primary": run.about["primary"]}
    table = compare(frame, baseline="wo", margin=MARGIN, **design)
    table = table[table["role"] != "baseline"]
    columns = ["condition", "baseline", "difference", "low", "high", "p_adjusted", "role"]
    return table[columns]


def measure_slope(frame: pandas.DataFrame) -> dict[str, object]:
    """The change of accuracy, in points, if log k grows by 1; its interval is over instructions."""
    accuracies = average_by_instruction(frame).loc[list(DOSES.values())].to_numpy()
    log_counts = np.log(list(DOSES))
    weights = log_counts - log_counts.mean()
    slopes = weights @ accuracies / (weights**2).sum()
    reach = t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / np.sqrt(len(slopes))
    mean = slopes.mean()
    return {
        "condition": SLOPE,
        "baseline": "",
        "difference": mean,
        "low": mean - reach,
        "high": mean + reach,
        "role": "registered",
    }


def average_by_instruction(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The accuracy in percent: a row for each condition, a column for each instruction."""
    return 100 * frame.pivot_table(
        index="condition", columns="draw", values="correct", aggfunc="mean", observed=True
    )


def pool_tasks(contrasts: pandas.DataFrame) -> pandas.DataFrame:
    """The mean of each contrast over these tasks, which are independent."""
    contrasts = contrasts.assign(square=((contrasts["high"] - contrasts["low"]) / 2) ** 2)
    groups = contrasts.groupby(["condition", "baseline", "role"], sort=False)
    pooled = groups.agg(
        difference=("difference", "mean"), squares=("square", "sum"), tasks=("square", "size")
    ).reset_index()
    reach = np.sqrt(pooled["squares"]) / pooled["tasks"]
    pooled["low"], pooled["high"] = pooled["difference"] - reach, pooled["difference"] + reach
    return pooled.drop(columns=["squares", "tasks"]).assign(task=ALL_TASKS)


def draw(accuracies: dict[str, pandas.DataFrame]) -> Figure:
    """Accuracy by the weight of the first token, and by which tokens the layers see."""
    note = (
        "Each small mark is one of eight instructions, each large one their mean. Above: open "
        "marks count the first token 30 times in Layers 14 to 20. Below: 4-10 and 14-20 are layers."
    )
    with figure_style.drawing(5.5, note) as figure:
        dose_axes, band_axes = figure.subplots(2, height_ratios=(1, 1.3))
        for index, (task, table) in enumerate(accuracies.items()):
            colour, marker = TASK_LOOKS[index]
            means = table.mean(axis=1)
            doses = means[list(DOSES.values())]
            dose_axes.plot(list(DOSES), doses, color=colour, marker=marker, label=task)
            dose_axes.plot(
                [max(DOSES)], [means[LATE_DOSE]], marker, color=colour, markerfacecolor="white"
            )
            rows = np.arange(len(BANDS)) + 0.22 * (index - 1)
            for instruction in table:
                band_axes.plot(
                    table.loc[list(BANDS), instruction], rows, ".", color=colour, markersize=2.5
                )
            band_axes.plot(means[list(BANDS)], rows, marker, color=colour, markersize=5)
        dose_axes.set_xscale("log")
        dose_axes.set_xticks(list(DOSES), list(map(str, DOSES)))
        dose_axes.minorticks_off()
        dose_axes.set_xlabel("times that the first token counts (Layers 4 to 10)")
        dose_axes.set_ylabel("accuracy, percent")
        dose_axes.set_ylim(bottom=0)
        band_axes.set_yticks(range(len(BANDS)), list(BANDS.values()))
        band_axes.invert_yaxis()
        band_axes.set_xlabel("accuracy, percent")
        band_axes.set_xlim(left=0)
        for axes in (dose_axes, band_axes):
            figure_style.tidy(axes, grid="both")
    return figure


def main() -> None:
    """Print the pooled contrasts, and write figure and CSV."""
    parser = make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    contrasts, accuracies, receipts = [], {}, []
    for path in arguments.runs:
        run, frame = Run.load(path), load_run(path)
        task = str(run.about["dataset_name"])
        slope = pandas.DataFrame([measure_slope(frame)])
        contrasts.append(pandas.concat([measure_contrasts(run, frame), slope]).assign(task=task))
        accuracies[task] = average_by_instruction(frame)
        receipts.append(run.about)
    table = pandas.concat(contrasts, ignore_index=True)
    table = pandas.concat([table, pool_tasks(table)], ignore_index=True)
    means = pandas.DataFrame({task: rows.mean(axis=1) for task, rows in accuracies.items()})
    print(means.round(1).to_string())
    print(table.round(3).to_string(index=False))
    if not arguments.small:
        figure_style.write_figure(draw(accuracies), table, FIGURES, "sink", {"runs": receipts})


if __name__ == "__main__":
    main()
