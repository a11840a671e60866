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
from attention_probe.figures.attention_curves import (
    choose_one_prompt,
    draw_figure,
    figure_table,
    read_bars,
    read_curves,
)
from attention_probe.figures.config import FigureConfig
from attention_probe.figures.from_traces import figure_receipt
from attention_probe.measure.measure_prompts import Record
from attention_probe.probe import ProbeSettings, run_probe
from attention_probe.prompts.choose_prompts import PromptsConfig, open_source
from attention_probe.traces import AttentionTraces
from harness.analysis.choose_problems import select
from harness.display.figures.style import write_figure
from harness.errors import ConfigError
from harness.models import label_model


def make_figure(
    config: FigureConfig,
    *,
    device: str = "cpu",
    folder: Path,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Run every probe that the figure needs and that is not done yet, draw it, and return the files.

    Args:
        config: The figure.
        device: Where the probe runs.
        folder: Where the figure goes. Figures that show the same model on the same prompts share its `traces`.
        advance: Called with the number of problems that the running probe has done, and how many there are.

    Raises:
        HarnessError: a model, run or dataset cannot be had, or does not have what the config names.
    """
    sessions: list[dict[str, Any]] = []

    def measure(model: str | None, **what: Any) -> AttentionTraces:
        settings = ProbeSettings(model=model, conditions=config.conditions, device=device, **what)
        path = config.traces or _measure(settings, config.prompts, folder / "traces", advance)
        traces = AttentionTraces.open(path)
        if label_model(traces.header.model) != label_model(str(model)):
            raise ConfigError(
                f"{path}: traces of {traces.header.model}, and the figure is of {model}: --set model=NAME."
            )
        sessions.append(traces.receipt)
        return traces

    def write(name: str, figure: Any, numbers: pandas.DataFrame) -> list[Path]:
        return write_figure(figure, numbers, folder, name, figure_receipt(config, sessions))

    if config.kind != "curves":
        tables = []
        for model in config.models:
            with measure(model.model, record=Record(activations=True)) as traces:
                tables.append(read_activations(model, traces))
        table = pandas.concat(tables, ignore_index=True).assign(figure=config.name)
        return write(config.name, draw_activations(config, table), table)
    names = [config.name, *([f"{config.name}-one-prompt"] if config.one_prompt else [])]
    found: dict[str, list[pandas.DataFrame]] = {name: [] for name in names}
    for model_name in dict.fromkeys(panel.head.model for panel in config.panels):
        panels = [panel for panel in config.panels if panel.head.model == model_name]
        with measure(model_name, layers=tuple(sorted({panel.head.layer - 1 for panel in panels}))) as traces:
            for name, curves in found.items():
                one = None if name == config.name else choose_one_prompt(config, traces)
                curves.append(read_curves(panels, config, traces, one))
    bars = None if config.bars is None else read_bars(config.bars)
    files = []
    for name, curves in found.items():
        points = pandas.concat(curves, ignore_index=True)
        files += write(name, draw_figure(config, points, bars), figure_table(config, points, bars))
    return files


def _measure(
    settings: ProbeSettings, prompts: PromptsConfig, folder: Path, advance: Callable[[int, int], None]
) -> Path:
    """A complete folder of traces, named after what was measured, so that what is there is not measured again."""
    source = open_source(prompts, settings.conditions, settings.load_tokenizer)
    criterion = prompts.criterion
    parts = [
        settings.model,
        settings.layers,
        settings.conditions,
        source.prompts_sha256,
        [(problem.id, problem.outcome, problem.is_control) for problem in select(source, criterion)],
        criterion.on_outcome,
        asdict(settings.record),
    ]
    path = folder / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}.traces"
    run_probe(source, criterion, settings, path, advance=advance)
    return path
