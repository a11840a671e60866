"""The measured numbers of docs/seeds.md: makes or continues the traces they stand on, and prints a table a figure.

    python -m benchmarks.seed_claims

The model is tests/data/toy, asked the first 100 of its problems in the layout raw.
Every number is of mean curves: the average attention weight of each token, its mean over prompts, one curve a head, in
Layer 1 unless said. *Aligned*: original tokens only, each at its place in the prompt without filler. *Full*: the prompt
as it was. The first token is left out of all of them, and so are positions that fewer than half of the prompts have.
A cell with one number has the median over the heads of what the function of that number says. *Published* averages
over all later queries, *common* over those that every condition has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention_probe.figures.config import PromptsConfig
from attention_probe.probe import ProbeSettings, run_probe
from attention_probe.prompts.choose_prompts import choose, open_source
from attention_probe.prompts.token_roles import ROLES
from attention_probe.traces import AttentionTraces, Trace
from benchmarks.runs import TOY, say, work_folder
from harness.constants import Definition, View
from harness.errors import HarnessError
from harness.runs import receipts

Floats = NDArray[np.float64]
FILLED = ("mless", "mful", "random")
DEFINITIONS: tuple[Definition, ...] = ("published", "common")


LAYERS = (0, 1, 2)
PROMPTS = PromptsConfig.model_validate({"dataset": {"path": TOY / "demo.jsonl"}, "layout": "raw", "n": 100})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curves:
    """The mean curves of one layer: by condition [head, x], over the same positions x, whose roles are the same."""

    means: dict[str, Floats]
    x: NDArray[np.int64]
    roles: NDArray[np.int8]

    def at(self, condition: str, role: str, *, outside: bool = False) -> Floats:
        """Only the positions of one role, or only the others."""
        return self.means[condition][:, (self.roles == ROLES.index(role)) != outside]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traces:
    """What was measured: by condition one trace a prompt."""

    traces: dict[str, list[Trace]]

    def curves(self, definition: Definition, view: View = "aligned", *, layer: int = 0) -> Curves:
        """All conditions; in the full view those with a filler, which must stand at the same positions in all."""
        conditions = FILLED if view == "full" else ("wo", *FILLED)
        width = max(len(trace.tokens) for name in conditions for trace in self.traces[name])
        means, kept, roles = {}, np.ones(width, bool), np.full((len(conditions), width), -1, np.int8)
        for name, role in zip(conditions, roles, strict=True):
            rows = []
            for trace in sorted(self.traces[name], key=lambda trace: len(trace.tokens)):
                place = np.arange(len(trace.tokens)) if view == "full" else trace.original_pos
                values = (trace.mean_all if definition == "published" else trace.mean_common)[LAYERS.index(layer)]
                rows.append(np.full((len(values), width), np.nan))
                rows[-1][:, place[place > 0]] = values[:, place > 0]
                role[place[place >= 0]] = trace.roles[place >= 0]
            kept &= 2 * np.isfinite(rows).all(axis=1).sum(axis=0) >= len(rows)
            means[name] = np.array(rows)
        assert (roles[:, kept] == roles[0, kept]).all(), "the conditions' positions are not of the same tokens"
        averaged = {name: np.nanmean(rows[..., kept], axis=0) for name, rows in means.items()}
        return Curves(means=averaged, x=np.flatnonzero(kept), roles=roles[0, kept])


def load(folder: Path) -> Traces:
    """The traces; what is missing is measured first.

    Raises:
        HarnessError: the traces there are of something else, or cannot be made.
    """
    settings = ProbeSettings(model=str(TOY / "model"), layers=LAYERS, conditions=("wo", *FILLED))
    source = open_source(PROMPTS, FILLED, settings.load_tokenizer)
    selection = choose(PROMPTS, source)
    path = folder / f"toy-{source.prompts_sha256[:8]}.traces"
    say(str(path))
    run_probe(source, selection, settings, path)
    ids = [problem.problem_id for problem in selection.problems]
    with AttentionTraces.open(path) as traces:
        return Traces(traces={name: [traces.get(one, name) for one in ids] for name in settings.conditions})


def peak(curves: Curves, condition: str) -> Floats:
    """A head's highest point with the filler over that without, wherever each stands; the table counts those over 1."""
    return np.asarray(curves.means[condition].max(axis=1) / curves.means["wo"].max(axis=1))


def remains(curves: Curves, condition: str) -> Floats:
    """A head's mean over the positions with the filler, over that without."""
    return np.asarray(curves.means[condition].mean(axis=1) / curves.means["wo"].mean(axis=1))


def higher(curves: Curves, role: str, condition: str = "mless", than: str = "wo") -> Floats:
    """The share of a head's positions of the role at which the one mean curve is above the other."""
    return np.asarray((curves.at(condition, role) > curves.at(than, role)).mean(axis=1))


def alike(curves: Curves, role: str) -> Floats:
    """Pearson correlation of a head's curves without filler and with Mless over the positions of the role."""
    pairs = zip(curves.at("wo", role), curves.at("mless", role), strict=True)
    return np.array([np.corrcoef(one, other)[0, 1] for one, other in pairs])


def filler_weight(full: Curves) -> Floats:
    """A head's mean over Mless's positions, over its mean over all others."""
    return np.asarray(full.at("mless", "filler").mean(axis=1) / full.at("mless", "filler", outside=True).mean(axis=1))


def taken(full: Curves, condition: str, than: str) -> Floats:
    """A head's mean over the one filler's positions, over its mean over the other's."""
    return np.asarray(full.at(condition, "filler").mean(axis=1) / full.at(than, "filler").mean(axis=1))


def spread(full: Curves, condition: str) -> Floats:
    """A head's standard deviation over the filler's positions, over its mean there."""
    return np.asarray(full.at(condition, "filler").std(axis=1) / full.at(condition, "filler").mean(axis=1))


def stretches(full: Curves) -> list[Floats]:
    """A head's mean with Mless over positions 1 to 10, over the filler's, and over those behind it."""
    inside = full.x[full.roles == ROLES.index("filler")]
    parts = (full.x <= 10, np.isin(full.x, inside), full.x > inside[-1])
    return [np.asarray(full.means["mless"][:, part].mean(axis=1)) for part in parts]


def median(values: Floats, *, places: int = 2, percent: bool = False) -> str:
    """The median over heads, for people."""
    return f"{100 * np.median(values):.0f} %" if percent else f"{np.median(values):.{places}f}"


def count(ratios: Floats) -> str:
    """In how many heads it is more."""
    return f"{(ratios > 1).sum()} of {len(ratios)}"


def rows(one: Traces, definition: Definition) -> Iterator[tuple[str, str]]:
    """Every number of the page with its name; the first five are those of its first table."""
    curves, full = one.curves(definition), one.curves(definition, "full")
    layers = [one.curves(definition, layer=layer) for layer in LAYERS]
    left = remains(curves, "mless")
    shares = (median(higher(curves, role), percent=True) for role in ("instruction", "problem"))
    yield "heads whose highest peak is higher with Mless", count(peak(curves, "mless"))
    yield "positions of the instruction, of the problem, where it is higher", ", ".join(shares)
    yield "mean with Mless / without", f"{median(left)} ({left.min():.2f} to {left.max():.2f})"
    for role in ("instruction", "problem"):
        yield f"correlation over the {role}, by layer", ", ".join(median(alike(c, role)) for c in layers)
    filler = full.x[full.roles == ROLES.index("filler")]
    yield "a: positions of the filler", f"{filler[0]} to {filler[-1]}"
    yield "a, d: weight in the filler / outside", median(filler_weight(full))
    for role in ("problem", "filler"):
        above = higher(full, role, than="random")
        yield f"b: positions of the {role} where Mless is above the sentence", median(above, percent=True)
    yield "b: weight in the filler, Mless / sentence", median(taken(full, "mless", "random"))
    spreads = ", ".join(median(spread(full, name)) for name in ("mless", "random"))
    yield "b, d: standard deviation / mean in the filler: Mless, sentence", spreads
    yield "c: mean with Mless / without, by layer", ", ".join(median(remains(c, "mless")) for c in layers)
    stretch = ", ".join(median(part, places=3) for part in stretches(full))
    yield "d, e: mean at positions 1 to 10, in the filler, behind it", stretch


def page(measured: Traces) -> Iterator[str]:
    """The page's first table in Markdown, and one of all other numbers, with a column for each definition."""
    columns = [list(rows(measured, definition)) for definition in DEFINITIONS]
    lines = [[same[0][0], *(value for _, value in same)] for same in zip(*columns, strict=True)]
    for chosen in (lines[:5], lines[5:]):
        table = [["number", *DEFINITIONS], ["---"] * (1 + len(DEFINITIONS)), *chosen]
        yield "\n".join(f"| {' | '.join(line)} |" for line in table)


def main() -> None:
    """Measure what is missing and print the tables."""
    try:
        measured = load(work_folder(small=False) / "seed-claims")
    except HarnessError as error:
        raise SystemExit(f"error: {error}") from None
    revision = f"git revision {receipts.git_revision() or 'unknown: not a checkout'}"
    print("\n\n".join([revision, *page(measured)]))


if __name__ == "__main__":
    main()
