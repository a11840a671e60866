"""Print the measured numbers of docs/seeds.md. Traces are measured first, or continued.

    python -m benchmarks.seed_claims [--small]

The model is SmolLM2; the prompts are 100 of MATH-500, those of configs/figures/*-smollm2.yaml.
MATH500_PATH=FILE names a copy where no hub is reached. Every number is about mean curves: the
average attention weight of each token, averaged over prompts, with one curve for each head.
*Aligned*: original tokens only, each at its position in the prompt without filler. *Full*: the
complete prompt. The first token is left out of all curves, and so are positions that fewer than
half of the prompts have. A cell has the median over the heads, and in brackets the range.
*Published* averages over all later queries, *common* over those that every condition has. With
--small there are four prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attention_probe.figures.figure_config import PromptsConfig
from attention_probe.probe_run import run_probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.prompts_config import load_source
from attention_probe.prompts.token_roles import ROLES
from attention_probe.traces import AttentionTraces, Trace
from benchmarks.report import table
from benchmarks.runs import make_parser, work_folder
from harness.analysis.problem_selection import select
from harness.constants import CurveDefinition, CurveView
from harness.errors import HarnessError
from harness.runs import versions_and_hashes

Floats = NDArray[np.float64]
FILLED = ("mless", "mful", "random")
DEFINITIONS: tuple[CurveDefinition, ...] = ("published", "common")
LAYERS = (0, 1, 2)
Traces = dict[str, list[Trace]]
"""A trace of each prompt, by condition."""
PROMPTS = PromptsConfig.model_validate({"dataset": "math500", "layout": "as_published", "n": 100})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curves:
    """The mean curves of a layer by condition, [head, x], over positions x of the same roles."""

    means: dict[str, Floats]
    x: NDArray[np.int64]
    roles: NDArray[np.int8]

    def at(self, condition: str, role: str, *, outside: bool = False) -> Floats:
        """The curve at the positions of a role, or at all other positions."""
        return self.means[condition][:, (self.roles == ROLES.index(role)) != outside]

    def mean(self, condition: str, role: str, *, outside: bool = False) -> Floats:
        """Each head's mean over the positions of a role, or over all other positions."""
        return np.asarray(self.at(condition, role, outside=outside).mean(axis=1))


def average(
    traces: Traces, definition: CurveDefinition, view: CurveView = "aligned", *, layer: int = 0
) -> Curves:
    """Average the curves of all conditions, or in the full view of those with a filler.

    In the full view the filler must have the same positions in all conditions.
    """
    conditions = FILLED if view == "full" else ("wo", *FILLED)
    width = max(len(trace.tokens) for name in conditions for trace in traces[name])
    is_common = np.ones(width, bool)
    roles = np.full((len(conditions), width), -1, np.int8)
    curves = {}
    for name, role in zip(conditions, roles, strict=True):
        rows = []
        for trace in sorted(traces[name], key=lambda trace: len(trace.tokens)):
            positions = np.arange(len(trace.tokens)) if view == "full" else trace.original_pos
            means = trace.mean_all if definition == "published" else trace.mean_common
            weights = means[LAYERS.index(layer)]
            row = np.full((len(weights), width), np.nan)
            row[:, positions[positions > 0]] = weights[:, positions > 0]
            role[positions[positions >= 0]] = trace.roles[positions >= 0]
            rows.append(row)
        is_common &= 2 * np.isfinite(rows).all(axis=1).sum(axis=0) >= len(rows)
        curves[name] = np.array(rows)
    roles = roles[:, is_common]
    assert (roles == roles[0]).all(), "the conditions' positions are not of the same tokens"
    means = {name: np.nanmean(rows[..., is_common], axis=0) for name, rows in curves.items()}
    return Curves(means=means, x=np.flatnonzero(is_common), roles=roles[0])


def load(folder: Path, model: str = "smollm2", prompts: PromptsConfig = PROMPTS) -> Traces:
    """Read the traces, after measuring those that are missing.

    Raises:
        HarnessError: The stored traces are of something else, or new ones cannot be measured.
    """
    settings = ProbeSettings(model=model, layers=LAYERS, conditions=("wo", *FILLED))
    source = load_source(prompts, FILLED, settings.load_tokenizer)
    path = folder / f"{source.prompts_sha256[:8]}.traces"
    run_probe(source, prompts, settings, path)
    problem_ids = [problem.id for problem in select(source, prompts)]
    with AttentionTraces(path) as traces:
        return {
            condition: [traces.get(problem_id, condition) for problem_id in problem_ids]
            for condition in settings.conditions
        }


def count_higher_peaks(curves: Curves, condition: str = "mless") -> str:
    """The number of heads whose highest point is higher with the filler, at any position."""
    is_higher = curves.means[condition].max(axis=1) > curves.means["wo"].max(axis=1)
    return f"{is_higher.sum()} of {len(is_higher)}"


def divide_by_unfilled(curves: Curves, role: str | None = None) -> Floats:
    """A head's mean with Mless, divided by that without, over all positions or those of a role."""
    if role:
        return np.asarray(curves.mean("mless", role) / curves.mean("wo", role))
    return np.asarray(curves.means["mless"].mean(axis=1) / curves.means["wo"].mean(axis=1))


def correlate(curves: Curves, role: str) -> Floats:
    """Pearson correlation of a head's curves with and without Mless, at a role's positions."""
    pairs = zip(curves.at("wo", role), curves.at("mless", role), strict=True)
    return np.array([np.corrcoef(*pair)[0, 1] for pair in pairs])


def format_heads(values: Floats, digits: int = 2, *, percent: bool = False) -> str:
    """Format the median, the smallest and the greatest value of the heads."""
    unit, values = (" %", 100 * values) if percent else ("", values)
    median, low, high = (
        f"{value:.{digits}f}" for value in (np.median(values), values.min(), values.max())
    )
    return f"{median}{unit} ({low}-{high})"


def format_ratios(layers: Sequence[Curves], role: str | None = None) -> list[str]:
    """Format the ratios of `divide_by_unfilled` for each layer."""
    return [format_heads(divide_by_unfilled(curves, role)) for curves in layers]


def layers_table(measured: Traces) -> Iterator[list[str]]:
    """Compare Mless with no filler in each layer. Over the problem both definitions agree."""
    yield ["Mless against no filler", "definition", *(f"Layer {layer + 1}" for layer in LAYERS)]
    for definition in DEFINITIONS:
        curves = [average(measured, definition, layer=layer) for layer in LAYERS]
        peaks = map(count_higher_peaks, curves)
        yield ["heads whose highest peak is higher", definition, *peaks]
        yield ["mean with Mless / without", definition, *format_ratios(curves)]
        ratios = format_ratios(curves, "instruction")
        yield ["the same over the instruction", definition, *ratios]
    ratios = format_ratios(curves, "problem")
    yield ["mean with / without, over the problem", "either", *ratios]
    for role in ("instruction", "problem"):
        correlations = [format_heads(correlate(layer_curves, role)) for layer_curves in curves]
        yield [f"correlation over the {role}", definition, *correlations]


def numbers(measured: Traces, definition: CurveDefinition) -> Iterator[tuple[str, str]]:
    """The other numbers of the page, of Layer 1, each with the letters of its figures."""
    curves, full = average(measured, definition), average(measured, definition, "full")
    in_filler = full.roles == ROLES.index("filler")
    first, *_, last = full.x[in_filler]
    to_outside = full.mean("mless", "filler") / full.mean("mless", "filler", outside=True)
    yield "a: positions of the filler", f"{first} to {last}"
    yield "a, d: weight in the filler / outside", format_heads(to_outside)
    for role in ("problem", "filler"):
        is_higher = full.at("mless", role) > full.at("random", role)
        share = format_heads(is_higher.mean(axis=1), 0, percent=True)
        yield f"b: positions of the {role} where Mless is above the sentence", share
    for name in ("mless", "random"):
        spread = full.at(name, "filler").std(axis=1) / full.mean(name, "filler")
        yield f"b, d: standard deviation / mean in the filler, {name}", format_heads(spread)
    regions = {
        "at positions 1 to 10": full.x <= 10,
        "in the filler": in_filler,
        "behind it": full.x > last,
    }
    for region, is_inside in regions.items():
        mean = full.means["mless"][:, is_inside].mean(axis=1)
        yield f"d, e: mean {region}", format_heads(mean, 3)
    yield "e: heads whose highest peak is higher with Mful", count_higher_peaks(curves, "mful")


def page(measured: Traces) -> Iterator[str]:
    """Both tables in Markdown."""
    header, *rows = layers_table(measured)
    yield table(header, rows).rstrip()
    by_definition = [dict(numbers(measured, definition)) for definition in DEFINITIONS]
    rows = [[name, *(values[name] for values in by_definition)] for name in by_definition[0]]
    yield table(["Layer 1", *DEFINITIONS], rows).rstrip()


def main() -> None:
    """Measure missing traces and print the tables."""
    small = make_parser(__doc__).parse_args().small
    prompts = PROMPTS.model_copy(update={"n": 4}) if small else PROMPTS
    try:
        measured = load(work_folder(small) / "seed-claims", prompts=prompts)
    except HarnessError as error:
        raise SystemExit(f"error: {error}") from None
    revision = f"git revision {versions_and_hashes.git_revision() or 'unknown: not a checkout'}"
    print("\n\n".join([revision, *page(measured)]))


if __name__ == "__main__":
    main()
