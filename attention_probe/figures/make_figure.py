"""A figure from its config: measure what is missing, then draw."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_probe.figures.config import FigureConfig, Probe
from attention_probe.figures.data import PanelCurves, panel_curves, read_bars
from attention_probe.figures.draw import write_figure
from attention_probe.prompts.choose_prompts import choose, open_source
from attention_probe.run_probe import run_probe
from attention_probe.settings import ProbeSettings
from attention_probe.traces import AttentionTraces
from harness.choices import Width
from harness.errors import ConfigError
from harness.runs import receipts

TRACES = "traces"
"""Folder beside the figures; figures that show the same model on the same prompts share traces there."""


def make_figure(
    config: FigureConfig,
    *,
    random_weights: bool = False,
    width: Width = "page",
    device: str = "cpu",
    folder: Path | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Run every probe that the figure needs and that is not done yet, draw it, and return the files.

    Args:
        config: The figure.
        random_weights: Draw the weights of each panel's architecture instead of loading its model.
        width: `page` or `column`.
        device: Where the probe runs.
        folder: Where the figure goes; the config's by default.
        advance: Told how many of how many problems of the running probe are done.

    Raises:
        HarnessError: a model, run or dataset cannot be had, or does not have what the config names.
    """
    folder = folder or config.output
    drawn: list[PanelCurves] = []
    sessions: list[dict[str, Any]] = []
    for wanted, panels in config.probes.items():
        path, settings = _measure(wanted, random_weights, device, folder / TRACES, advance)
        with AttentionTraces.open(path) as traces:
            sessions.append(traces.receipt)
            model_type = str(traces.header.options["model_type"])
            note = _note(traces.receipt, settings)
            drawn += [panel_curves(panel, traces, model_type=model_type, note=note) for panel in panels]
    receipt = {
        "figure": config.model_dump(mode="json"),
        "random_weights": random_weights,
        "probes": sessions,
        "versions": receipts.versions(),
        "git_revision": receipts.git_revision(),
    }
    bars = None if config.bars is None else read_bars(config.bars)
    return write_figure(config, drawn, folder, receipt=receipt, width=width, bars=bars)


def _measure(
    wanted: Probe, random_weights: bool, device: str, folder: Path, advance: Callable[[int, int], None]
) -> tuple[Path, ProbeSettings]:
    """One folder of traces, complete."""
    if random_weights and wanted.architecture is None:
        raise ConfigError(
            f"--random-weights needs an architecture, and the figure names none for {wanted.model}. Add "
            "`architecture: configs/architectures/NAME.yaml` to its config, or leave out --random-weights."
        )
    drawn = random_weights or wanted.model is None
    settings = ProbeSettings(
        model=None if drawn else wanted.model,
        architecture=wanted.architecture if drawn else None,
        layers=wanted.layers,
        heads=wanted.heads,
        conditions=wanted.conditions,
        device=device,
    )
    source = open_source(wanted.prompts, wanted.conditions, settings.load_tokenizer)
    selection = choose(wanted.prompts, source)
    chosen = [(problem.problem_id, problem.outcome, problem.control) for problem in selection.problems]
    parts = [
        settings.model,
        str(settings.architecture),
        settings.layers,
        wanted.conditions,
        source.prompts_sha256,
        chosen,
        selection.on_outcome,
    ]
    name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]
    path = folder / f"{name}.traces"
    run_probe(source, selection, settings, path, advance=advance)
    return path, settings


def _note(receipt: dict[str, Any], settings: ProbeSettings) -> str | None:
    """That the prompts were read by another tokenizer than the architecture's own, if so."""
    if settings.architecture is None:
        return None
    from attention_probe.model.architectures import read_architecture

    facts = read_architecture(settings.architecture)
    used = str(receipt["tokenizer"])
    if used == facts.tokenizer:
        return None
    name = "the bundled tokenizer" if used == "demo" else Path(used).name
    return f"Read by {name}, not {facts.tokenizer}'s"
