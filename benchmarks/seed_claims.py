"""The measured numbers of docs/seeds.md: makes or continues the traces they stand on, and prints them.

    python -m benchmarks.seed_claims [--small]

The model is SmolLM2; the prompts are 100 of MATH-500, those of configs/figures/*-smollm2.yaml. Where no hub is reached,
MATH500_PATH=FILE names a copy.
Every number is of mean curves: the average attention weight of each token, its mean over prompts, one curve a head.
*Aligned*: original tokens only, each at its place in the prompt without filler. *Full*: the prompt as it was. The first
token is left out of all of them, and so are positions that fewer than half of the prompts have.
A cell has the median over the heads of what the function of its number says, and in brackets the range.
*Published* averages over all later queries, *common* over those that every condition has.
With --small there are four prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention_probe.figures.figure_config import PromptsConfig
from attention_probe.measure.measure_prompts import Record
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.choose_prompts import open_source
from attention_probe.prompts.token_roles import ROLES
from attention_probe.run_probe import run_probe
from attention_probe.traces import AttentionTraces, Trace
from benchmarks.runs import say, work_folder
from harness.analysis.choose_problems import select
from harness.constants import Definition, View
from harness.errors import HarnessError
from harness.runs import versions_and_hashes

Floats = NDArray[np.float64]
FILLED = ("mless", "mful", "random")
DEFINITIONS: tuple[Definition, ...] = ("published", "common")
LAYERS = (0, 1, 2)
Traces = dict[str, list[Trace]]
"""What was measured: by condition one trace a prompt."""
PROMPTS = PromptsConfig.model_validate({"dataset": "math500", "layout": "as_published", "n": 100})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curves:
    """The mean curves of one layer: by condition [head, x], over the same positions x, whose roles are the same."""

    means: dict[str, Floats]
    x: NDArray[np.int64]
    roles: NDArray[np.int8]

    def at(self, condition: str, role: str, *, outside: bool = False) -> Floats:
        """Only the positions of one role, or only the others."""
        return self.means[condition][:, (self.roles == ROLES.index(role)) != outside]


def average(
    traces: Traces, definition: Definition, view: View = "aligned", *, layer: int = 0
) -> Curves:
    """All conditions; in the full view those with a filler, which must stand at the same positions in all."""
    conditions = FILLED if view == "full" else ("wo", *FILLED)
    width = max(len(trace.tokens) for name in conditions for trace in traces[name])
    means, kept, roles = {}, np.ones(width, bool), np.full((len(conditions), width), -1, np.int8)
    for name, role in zip(conditions, roles, strict=True):
        rows = []
        for trace in sorted(traces[name], key=lambda trace: len(trace.tokens)):
            place = np.arange(len(trace.tokens)) if view == "full" else trace.original_pos
            values = (trace.mean_all if definition == "published" else trace.mean_common)[
                LAYERS.index(layer)
            ]
            rows.append(np.full((len(values), width), np.nan))
            rows[-1][:, place[place > 0]] = values[:, place > 0]
            role[place[place >= 0]] = trace.roles[place >= 0]
        kept &= 2 * np.isfinite(rows).all(axis=1).sum(axis=0) >= len(rows)
        means[name] = np.array(rows)
    assert (roles[:, kept] == roles[0, kept]).all(), (
        "the conditions' positions are not of the same tokens"
    )
    averaged = {name: np.nanmean(rows[..., kept], axis=0) for name, rows in means.items()}
    return Curves(means=averaged, x=np.flatnonzero(kept), roles=roles[0, kept])


def load(folder: Path, model: str = "smollm2", prompts: PromptsConfig = PROMPTS) -> Traces:
    """The traces; what is missing is measured first.

    Raises:
        HarnessError: the traces there are of something else, or cannot be made.
    """
    settings = ProbeSettings(
        model=model, layers=LAYERS, conditions=("wo", *FILLED), record=Record(activations=True)
    )
    source = open_source(prompts, FILLED, settings.load_tokenizer)
    path = folder / f"{source.prompts_sha256[:8]}.traces"
    say(str(path))
    run_probe(source, prompts.criterion, settings, path)
    ids = [problem.id for problem in select(source, prompts.criterion)]
    with AttentionTraces.open(path) as traces:
        return {name: [traces.get(one, name) for one in ids] for name in settings.conditions}


def peaks(curves: Curves, condition: str = "mless") -> str:
    """In how many heads the highest point with the filler is above that without, wherever each stands."""
    more = curves.means[condition].max(axis=1) > curves.means["wo"].max(axis=1)
    return f"{more.sum()} of {len(more)}"


def remains(curves: Curves, role: str | None = None) -> Floats:
    """A head's mean over the positions, all or those of the role, with Mless, over that without."""
    with_it, without = (
        curves.at(name, role) if role else curves.means[name] for name in ("mless", "wo")
    )
    return np.asarray(with_it.mean(axis=1) / without.mean(axis=1))


def higher(curves: Curves, role: str, than: str) -> Floats:
    """The share of a head's positions of the role at which Mless's mean curve is above the other's."""
    return np.asarray((curves.at("mless", role) > curves.at(than, role)).mean(axis=1))


def alike(curves: Curves, role: str) -> Floats:
    """Pearson correlation of a head's curves without filler and with Mless over the positions of the role."""
    pairs = zip(curves.at("wo", role), curves.at("mless", role), strict=True)
    return np.array([np.corrcoef(one, other)[0, 1] for one, other in pairs])


def weight(full: Curves, condition: str, *, outside: bool = False) -> Floats:
    """A head's mean over the filler's positions, or over all others."""
    return np.asarray(full.at(condition, "filler", outside=outside).mean(axis=1))


def spread(full: Curves, condition: str) -> Floats:
    """A head's standard deviation over the filler's positions, over its mean there."""
    return np.asarray(full.at(condition, "filler").std(axis=1) / weight(full, condition))


def heads(values: Floats, places: int = 2, *, percent: bool = False) -> str:
    """The median over heads, the least and the greatest, for people."""
    unit, values = (" %", 100 * values) if percent else ("", values)
    middle, least, greatest = (
        f"{one:.{places}f}" for one in (np.median(values), values.min(), values.max())
    )
    return f"{middle}{unit} ({least}-{greatest})"


def layers_table(one: Traces) -> Iterator[list[str]]:
    """Mless against no filler in each layer. Over the problem both definitions have the same queries."""
    yield ["Mless against no filler", "definition", *(f"Layer {layer + 1}" for layer in LAYERS)]
    for definition in DEFINITIONS:
        curves = [average(one, definition, layer=layer) for layer in LAYERS]
        yield ["heads whose highest peak is higher", definition, *map(peaks, curves)]
        yield ["mean with Mless / without", definition, *(heads(remains(c)) for c in curves)]
        yield [
            "the same over the instruction",
            definition,
            *(heads(remains(c, "instruction")) for c in curves),
        ]
    yield [
        "mean with / without, over the problem",
        "either",
        *(heads(remains(c, "problem")) for c in curves),
    ]
    for role in ("instruction", "problem"):
        yield [f"correlation over the {role}", definition, *(heads(alike(c, role)) for c in curves)]


def numbers(one: Traces, definition: Definition) -> Iterator[tuple[str, str]]:
    """The other numbers of the page, of Layer 1, with the figures that they stand at."""
    curves, full = average(one, definition), average(one, definition, "full")
    inside = full.roles == ROLES.index("filler")
    first, *_, last = full.x[inside]
    yield "a: positions of the filler", f"{first} to {last}"
    yield (
        "a, d: weight in the filler / outside",
        heads(weight(full, "mless") / weight(full, "mless", outside=True)),
    )
    for role in ("problem", "filler"):
        above = higher(full, role, "random")
        yield (
            f"b: positions of the {role} where Mless is above the sentence",
            heads(above, 0, percent=True),
        )
    yield (
        "b: weight in the filler, Mless / sentence",
        heads(weight(full, "mless") / weight(full, "random")),
    )
    for name in ("mless", "random"):
        yield f"b, d: standard deviation / mean in the filler, {name}", heads(spread(full, name))
    parts = {
        "at positions 1 to 10": full.x <= 10,
        "in the filler": inside,
        "behind it": full.x > last,
    }
    for place, part in parts.items():
        yield f"d, e: mean {place}", heads(full.means["mless"][:, part].mean(axis=1), 3)
    yield "e: heads whose highest peak is higher with Mful", peaks(curves, "mful")


def activations(one: Traces, quantity: str) -> str:
    """How much the mean of a quantity of the first MLP changes with each filler."""
    means = {
        name: np.mean([trace.activations[quantity] for trace in traces])
        for name, traces in one.items()
    }
    return ", ".join(f"{name} {100 * (means[name] / means['wo'] - 1):+.1f} %" for name in FILLED)


def page(measured: Traces) -> Iterator[str]:
    """Both tables in Markdown, the second with a column for each definition; then the first MLP's changes."""
    columns = [list(numbers(measured, definition)) for definition in DEFINITIONS]
    lines = [[same[0][0], *(value for _, value in same)] for same in zip(*columns, strict=True)]
    for head, *body in (layers_table(measured), (["Layer 1", *DEFINITIONS], *lines)):
        yield "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))
    for quantity in ("near_zero_c0.1", "l1"):
        yield f"first MLP, {quantity}: {activations(measured, quantity)}"


def main() -> None:
    """Measure what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="four prompts, to see that it works")
    small = parser.parse_args().small
    prompts = PROMPTS.model_copy(update={"n": 4}) if small else PROMPTS
    try:
        measured = load(work_folder(small) / "seed-claims", prompts=prompts)
    except HarnessError as error:
        raise SystemExit(f"error: {error}") from None
    revision = f"git revision {versions_and_hashes.git_revision() or 'unknown: not a checkout'}"
    print("\n\n".join([revision, *page(measured)]))


if __name__ == "__main__":
    main()
