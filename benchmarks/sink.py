"""Why repeats harm and fillers help: two registered experiments, for docs/sink.md.

    python -m benchmarks.sink results

The folder has the runs harm-products, harm-opposites, harm-continents and help. With --attention
it also has traces, such as harm-products.traces, and attention is measured first. It writes
harm.csv, harm.png, help.csv and help.png to docs/figures; with --small, none of them.
"""

from __future__ import annotations

import re
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
FAMILIES = {
    "wo": ("no filler", "#555555", "D", ()),
    "slashes": (
        "slashes",
        "#0c7a66",
        "s",
        ("permuted", "ordinary", "removed", "hidden", "light", "kept", "heavy"),
    ),
    "he": ("he", "#b87000", "v", ("he-kept", "he-permuted")),
    "sentence": (
        "sentence",
        "#3d97dd",
        "^",
        ("sentence-one", "planted", "planted-one", "planted-permuted", "planted-permuted-one"),
    ),
}
"""Label, colour, marker and the other conditions of each filler."""
CHANGED_OUTPUTS = re.compile("permuted|planted|ordinary|removed")
"""The conditions whose outputs of MLPs are changed."""
LEFT = (-7, 0)
LABEL_OFFSETS = {
    **dict.fromkeys(("planted", "light", "ordinary", "heavy", "he-kept", "wo"), LEFT),
    "sentence-one": (7, -8),
}
"""Where a label stands beside its mark, in points; by default to the right."""
GAIN_LABELS = {
    "slashes": "55 slashes after the instruction",
    "sentence": "a sentence after the instruction",
    "gap": "only their position gap",
    "hidden": "instruction hidden, Layers 1-3",
    "hidden-but-first": "the same, its first token visible",
    "hidden-everywhere": "instruction hidden, all layers",
    "hidden-late": "instruction hidden, Layers 20-22",
    "late-but-first": "the same, its first token visible",
    "sham": "4 tokens of examples hidden, 1-3",
    "both": "slashes, instruction hidden, 1-3",
    "both-but-first": "the same, its first token visible",
}


def measure_contrasts(path: Path) -> pandas.DataFrame:
    """All differences of one run, in points, with intervals for new instructions or draws."""
    about = Run.load(path).about
    design = {"contrasts": about["contrasts"], "primary": about["primary"]}
    table = compare(load_run(path), baseline="wo", **design)
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
    right = {
        name: rows.pivot_table(
            index="draw", columns="problem_id", values="correct", aggfunc="sum", observed=True
        )
        for name, rows in frame.groupby("condition", observed=True)
    }
    samples = right["wo"].notna().astype(int).to_numpy()
    changes = (right["slashes"] - right["wo"]) - (right["both"] - right["hidden"])
    values = changes.fillna(0).astype(int).to_numpy()
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
    """Mean accuracy of the tasks against the attention on the filler: a mark for each condition."""
    note = (
        "Means of three tasks. Attention: of later tokens on the filler (without one, on the "
        "prompt's first token), a mean over the heads of Layers 4 to 10 and 20 prompts of each "
        "task. Open marks: outputs of MLPs are changed."
    )
    means = table[table["task"] == ALL_TASKS].set_index("condition")
    attention = means["on_first"] + means["on_copies"]
    with figure_style.drawing(4.2, note) as figure:
        axes = figure.subplots()
        for family, (label, colour, marker, names) in FAMILIES.items():
            axes.plot([], [], marker, color=colour, label=label)
            for name in (family, *names):
                place = attention[name], means.loc[name, "accuracy"]
                face = "white" if CHANGED_OUTPUTS.search(name) else colour
                axes.plot(*place, marker, color=colour, markerfacecolor=face)
                offset = LABEL_OFFSETS.get(name, (7, 0))
                axes.annotate(
                    name,
                    place,
                    xytext=offset,
                    textcoords="offset points",
                    ha="right" if offset == LEFT else "left",
                    va="center",
                    fontsize=6,
                )
        axes.set_xlim(-0.05, 0.95)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("attention on the filler")
        axes.set_ylabel("accuracy, percent")
        figure_style.tidy(axes, grid="both")
    return figure


def draw_help(table: pandas.DataFrame) -> Figure:
    """The difference of each arm from no filler."""
    names = [name for name in GAIN_LABELS if name in set(table["condition"])]
    arms = table.set_index("condition").loc[names]
    rows = range(len(arms))
    note = "95 % intervals for new examples and problems, not adjusted."
    with figure_style.drawing(0.8 + 0.25 * len(arms), note) as figure:
        axes = figure.subplots()
        axes.hlines(rows, arms["low"], arms["high"], color=FAMILIES["slashes"][1])
        axes.plot(arms["difference"], rows, "s", color=FAMILIES["slashes"][1])
        axes.set_yticks(rows, [GAIN_LABELS[name] for name in names])
        axes.invert_yaxis()
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
