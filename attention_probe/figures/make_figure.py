"""A figure from its config: measure what is missing, then draw."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas

from attention_probe.figures.activations import draw_activations, read_activations
from attention_probe.figures.config import ActivationsConfig, FigureConfig
from attention_probe.figures.data import choose_one_prompt, figure_table, read_bars, read_curves
from attention_probe.figures.draw import draw_figure
from attention_probe.measure.measure_prompts import Record
from attention_probe.probe import run_probe
from attention_probe.probe_config import ProbeSettings
from attention_probe.prompts.choose_prompts import PromptsConfig, choose, open_source
from attention_probe.traces import AttentionTraces
from harness.display.figures.saving import write_figure
from harness.runs import receipts

TRACES = "traces"
"""Folder beside the figures; figures that show the same model on the same prompts share traces there."""


def make_figure(
    config: FigureConfig | ActivationsConfig,
    *,
    device: str = "cpu",
    folder: Path,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Run every probe that the figure needs and that is not done yet, draw it, and return the files.

    Args:
        config: The figure.
        device: Where the probe runs.
        folder: Where the figure goes.
        advance: Called with the number of problems that the running probe has done, and how many there are.

    Raises:
        HarnessError: a model, run or dataset cannot be had, or does not have what the config names.
    """
    if isinstance(config, ActivationsConfig):
        return _make_activations(config, device, folder, advance)
    names = [config.name, *([f"{config.name}-one-prompt"] if config.one_prompt else [])]
    tables: dict[str, list[pandas.DataFrame]] = {name: [] for name in names}
    sessions: list[dict[str, Any]] = []
    for panels in config.groups:
        settings = ProbeSettings(
            model=panels[0].head.model,
            layers=tuple(sorted({panel.head.layer for panel in panels})),
            heads=tuple(sorted({panel.head.head for panel in panels})),
            conditions=config.conditions,
            device=device,
        )
        path = _measure(settings, panels[0].prompts, folder / TRACES, advance)
        with AttentionTraces.open(path) as traces:
            sessions.append(traces.receipt)
            for name, found in tables.items():
                one = None if name == config.name else choose_one_prompt(config, traces)
                found += [read_curves(panel, traces, problem=one) for panel in panels]
    receipt = _receipt(config, sessions)
    bars = None if config.bars is None else read_bars(config.bars)
    files = []
    for name, found in tables.items():
        curves = pandas.concat(found, ignore_index=True)
        figure = draw_figure(config, curves, bars=bars)
        files += write_figure(figure, figure_table(config, curves, bars), folder, name, receipt)
    return files


def _make_activations(
    config: ActivationsConfig,
    device: str,
    folder: Path,
    advance: Callable[[int, int], None],
) -> list[Path]:
    """A figure of the first MLP; arguments as for `make_figure`."""
    tables, sessions = [], []
    if all(model.traces for model in config.models):
        config = config.model_copy(update={"prompts": None})  # the receipt must not name prompts that were not asked
    for model in config.models:
        path = model.traces
        if path is None:
            assert config.prompts is not None  # the config has checked it
            settings = ProbeSettings(
                model=model.model,
                conditions=config.conditions,
                record=Record(activations=True),
                device=device,
            )
            path = _measure(settings, config.prompts, folder / TRACES, advance)
        with AttentionTraces.open(path) as traces:
            tables.append(read_activations(model, config.conditions, traces))
            sessions.append(traces.receipt)
    table = pandas.concat(tables, ignore_index=True).assign(figure=config.name)
    figure = draw_activations(config, table)
    return write_figure(figure, table, folder, config.name, _receipt(config, sessions))


def _receipt(config: FigureConfig | ActivationsConfig, sessions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "figure": config.model_dump(mode="json"),
        "probes": sessions,
        "versions": receipts.versions(),
        "git_revision": receipts.git_revision(),
    }


def _measure(
    settings: ProbeSettings, prompts: PromptsConfig, folder: Path, advance: Callable[[int, int], None]
) -> Path:
    """A complete folder of traces, named after what was measured, so that what is there is not measured again."""
    source = open_source(prompts, settings.conditions, settings.load_tokenizer)
    selection = choose(prompts, source)
    parts = [
        settings.model,
        settings.layers,
        settings.conditions,
        source.prompts_sha256,
        [(problem.problem_id, problem.outcome, problem.control) for problem in selection.problems],
        selection.on_outcome,
        asdict(settings.record),
    ]
    path = folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}.traces"
    run_probe(source, selection, settings, path, advance=advance)
    return path
