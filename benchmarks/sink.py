"""Why repeats harm and fillers help: two registered experiments, for docs/sink.md.

    python -m benchmarks.sink results

The folder has the runs harm-products, harm-opposites, harm-continents and help. With --attention
it also has traces, such as harm-products.traces, and attention is measured first. It writes
harm.csv, harm.png, help.csv and help.png to docs/figures; with --small, none of them.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pandas
from matplotlib.figure import Figure
from scipy.stats import t

from attention_probe.traces import AttentionTraces
from benchmarks.runs import ROOT, make_parser
from harness import compare, load_run
from harness.analysis.crossed_effects import measure_error
from harness.display.figures import figure_style
from harness.runs.run_reader import Run

FIGURES = ROOT / "docs" / "figures"
ATTENTION = FIGURES / "attention-on-filler.csv"
ATTENTION_COLUMNS = {"on_copies": "mass_filler", "on_first": "mass_first"}
"""Columns, and measures of traces: the first token of a filler before the instruction is the
prompt's first token."""
TASKS = ("products", "opposites", "continents")
ALL_TASKS = "all tasks"
STEPS = ("slashes - wo", "hidden - wo", "hidden - sham")
"""The contrasts of `help` in order. Each is tested only if the one before was found."""
INTERACTION = "(slashes - wo) - (both - hidden)"
"""The last step."""
TASK_LOOKS = (("#0c7a66", "s"), ("#3d97dd", "^"), ("#b87000", "v"))
"""Colour and marker of each task."""


def measure_contrasts(path: Path) -> pandas.DataFrame:
    """All differences of one run, in points, with intervals for new instructions or draws."""
    about = Run.load(path).about
    design = {"contrasts": about["contrasts"], "primary": about["primary"]}
    table = compare(load_run(path), baseline="wo", **design)
    table = table.replace({"baseline": {"": None}})
    columns = "condition baseline accuracy difference low high p p_adjusted role".split()
    return table[columns]


def pool_tasks(contrasts: pandas.DataFrame) -> pandas.DataFrame:
    """The mean of each difference over these tasks, which are taken as independent."""
    contrasts = contrasts.assign(square=((contrasts["high"] - contrasts["low"]) / 2) ** 2)
    groups = contrasts.groupby(["condition", "baseline", "role"], sort=False, dropna=False)
    pooled = groups.agg(
        accuracy=("accuracy", "mean"),
        difference=("difference", "mean"),
        squares=("square", "sum"),
        tasks=("square", "size"),
    ).reset_index()
    reach = np.sqrt(pooled["squares"]) / pooled["tasks"]
    pooled["low"], pooled["high"] = pooled["difference"] - reach, pooled["difference"] + reach
    return pooled.drop(columns=["squares", "tasks"]).assign(task=ALL_TASKS)


def measure_attention(folder: Path) -> pandas.DataFrame:
    """The mean attention on the prompt's first token, and on a filler's other tokens."""
    rows = []
    for task in TASKS:
        with AttentionTraces(folder / f"harm-{task}.traces") as traces:
            ids = list(dict.fromkeys(entry.problem_id for entry in traces.entries()))
            for condition in traces.header.conditions:
                measures = [traces.get(id, condition).measures for id in ids]
                means = {
                    column: fmean(float(measured[mass].mean()) for measured in measures)
                    for column, mass in ATTENTION_COLUMNS.items()
                }
                rows.append({"task": task, "condition": condition, **means})
    return pandas.DataFrame(rows)


def measure_harm(folder: Path) -> pandas.DataFrame:
    """The differences of each task and of their mean, with the attention on the filler."""
    tables = [measure_contrasts(folder / f"harm-{task}").assign(task=task) for task in TASKS]
    table = pandas.concat(tables, ignore_index=True)
    table = pandas.concat([table, pool_tasks(table)], ignore_index=True)
    if not ATTENTION.exists():
        return table
    attention = pandas.read_csv(ATTENTION)
    means = attention.groupby("condition", as_index=False)[list(ATTENTION_COLUMNS)].mean()
    attention = pandas.concat([attention, means.assign(task=ALL_TASKS)])
    return table.merge(attention, how="left", on=["task", "condition"])


def measure_help(path: Path) -> pandas.DataFrame:
    """The differences of `help`, the interaction, and which steps were found."""
    table = measure_contrasts(path)
    table = pandas.concat(
        [table, pandas.DataFrame([measure_interaction(load_run(path))])], ignore_index=True
    )
    names = [
        row.condition if " - " in row.condition else f"{row.condition} - {row.baseline}"
        for row in table.itertuples()
    ]
    table.insert(0, "contrast", names)
    is_found = True
    for step in (*STEPS, INTERACTION):
        row = table.index[table["contrast"] == step][0]
        is_tested = is_found
        is_found = is_tested and table.loc[row, "p"] < 0.05 and table.loc[row, "difference"] > 0
        table.loc[row, "step"] = "found" if is_found else "not found" if is_tested else "not tested"
    return table


def measure_interaction(frame: pandas.DataFrame) -> dict[str, object]:
    """How much less slashes change once the instruction is hidden, for new draws and problems."""
    counts = frame.pivot_table(
        index="draw", columns="problem_id", values="correct", aggfunc="sum", observed=True
    )
    right = {
        name: rows.pivot_table(
            index="draw", columns="problem_id", values="correct", aggfunc="sum", observed=True
        )
        for name, rows in frame.groupby("condition", observed=True)
    }
    samples = right["wo"].notna().astype(int).to_numpy()
    changes = (right["slashes"] - right["wo"]) - (right["both"] - right["hidden"])
    values = changes.reindex_like(counts).fillna(0).astype(int).to_numpy()
    error, freedom = measure_error(values, samples, np.arange(values.shape[1]))
    mean = values.sum() / samples.sum()
    reach = float(t.ppf(0.975, freedom)) * error
    return {
        "condition": INTERACTION,
        "difference": 100 * mean,
        "low": 100 * (mean - reach),
        "high": 100 * (mean + reach),
        "p": 2 * float(t.sf(abs(mean) / error, freedom)) if error else 1.0,
        "role": "tested",
    }


def draw_harm(table: pandas.DataFrame) -> Figure:
    """Accuracy against the attention on the filler: a mark for each arm and task."""
    note = (
        "Attention on the filler without its first token: the mean over heads of Layers 4 to 10 "
        "and 20 prompts. Open marks: no filler."
    )
    with figure_style.drawing(3.4, note) as figure:
        panels = figure.subplots(1, len(TASKS), sharex=True)
        for axes, task, (colour, marker) in zip(panels, TASKS, TASK_LOOKS, strict=True):
            arms = table[(table["task"] == task) & table["accuracy"].notna()]
            arms = arms[~arms["condition"].str.contains(" - ")]
            for arm in arms.itertuples():
                has_filler = arm.condition != "wo"
                face = colour if has_filler else "white"
                x = arm.on_copies if has_filler else 0
                axes.plot([x], [arm.accuracy], marker, color=colour, markerfacecolor=face)
                axes.annotate(arm.condition, (x, arm.accuracy), fontsize=5)
            axes.set_title(task, loc="left")
            axes.set_ylim(bottom=0)
            axes.set_xlabel("attention on the filler")
            figure_style.tidy(axes, grid="both")
        panels[0].set_ylabel("accuracy, percent")
    return figure


def draw_help(table: pandas.DataFrame) -> Figure:
    """The difference of each arm from no filler."""
    arms = table[table["baseline"] == "wo"].iloc[::-1]
    note = "95 % intervals for new examples and problems, not adjusted."
    with figure_style.drawing(0.8 + 0.25 * len(arms), note) as figure:
        axes = figure.subplots()
        axes.hlines(arms["condition"], arms["low"], arms["high"], color=TASK_LOOKS[0][0])
        axes.plot(arms["difference"], arms["condition"], "s", color=TASK_LOOKS[0][0])
        axes.axvline(0, color=figure_style.MUTED, linewidth=0.6)
        axes.set_xlabel("difference in accuracy from no filler (points)")
        figure_style.tidy(axes, grid="x")
    return figure


def main() -> None:
    """Print all differences, and write figures and CSV files."""
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--attention", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.attention:
        measure_attention(folder).to_csv(ATTENTION, index=False)
    harm, gains = measure_harm(folder), measure_help(folder / "help")
    for table in (harm, gains):
        print(table.round(4).to_string(index=False))
    if arguments.small:
        return
    receipts = [Run.load(folder / f"harm-{task}").about for task in TASKS]
    figure_style.write_figure(draw_harm(harm), harm, FIGURES, "harm", {"runs": receipts})
    receipts = [Run.load(folder / "help").about]
    figure_style.write_figure(draw_help(gains), gains, FIGURES, "help", {"runs": receipts})


if __name__ == "__main__":
    main()
