"""A figure from its config: measure what is missing, then draw.

A *source* is the problems with their prompts: those of a run or of logs, or built from a dataset.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pandas

from attention_probe.figures.activation_figures import draw_activations, read_activations
from attention_probe.figures.curve_figures import draw_figure
from attention_probe.figures.figure_config import FigureConfig
from attention_probe.figures.figure_numbers import read_bars, read_curves
from attention_probe.measure.prompt_fields import MeasurementOptions
from attention_probe.probe_run import Advance, run_probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.prompts_config import PromptsConfig, load_source
from attention_probe.traces import AttentionTraces
from harness.analysis.problem_selection import select
from harness.display.figures.figure_style import write_figure
from harness.errors import ConfigError
from harness.experiment.model_settings import label_model
from harness.experiment.prompts.prompt import hash_text
from harness.runs import versions_and_hashes


def make_figure(
    config: FigureConfig,
    *,
    device: str | None = None,
    folder: Path,
    advance: Advance = lambda finished, total: None,
) -> list[Path]:
    """Run every probe that the figure needs and that has not run, draw it, and return the files.

    Args:
        config: The figure.
        device: Where the probe runs; see `ProbeSettings`.
        folder: The figure's folder. Figures of the same model on the same prompts share traces.
        advance: Reports the progress of a probe.

    Raises:
        HarnessError: a model, run or dataset is not available, or lacks what the config names.
    """
    # stored traces need no model, whose config this check would load
    if config.traces is None:
        _refuse_missing_heads(config)
    has_curves = config.kind == "curves"
    receipts = []
    point_tables = []
    # all panels of a model share its traces, so each model is loaded once
    for model, layers in config.layers_by_model.items():
        settings = ProbeSettings(
            model=model,
            layers=layers,
            conditions=config.conditions,
            record=MeasurementOptions(activations=not has_curves),
            device=device,
        )
        traces_path = config.traces or _measure_traces(
            settings, config.prompts, folder / "traces", advance
        )
        with AttentionTraces(traces_path) as traces:
            # only stored traces can be of another model
            if label_model(traces.header.model) != label_model(model):
                raise ConfigError(
                    f"{traces_path}: traces of {traces.header.model}, and the figure is of "
                    f"{model}: --set model=NAME."
                )
            receipts.append(traces.receipt)
            read_points = read_curves if has_curves else read_activations
            point_tables.append(read_points(config, model, traces))
    points = pandas.concat(point_tables, ignore_index=True)
    bars = read_bars(config.bars) if config.bars else None
    if has_curves:
        figure = draw_figure(config, points, bars)
    else:
        figure = draw_activations(config, points)
    # `concat` leaves out None, which `bars` is if the config has no bars
    numbers = pandas.concat([points, bars], ignore_index=True).assign(figure=config.name)
    receipt = {
        "figure": config.model_dump(mode="json"),
        "probes": receipts,
        **versions_and_hashes.software_facts(),
    }
    return write_figure(figure, numbers, folder, config.name, receipt)


def _refuse_missing_heads(config: FigureConfig) -> None:
    """Refuse a head that its model lacks, before the first model is measured."""
    for panel in config.panels:
        head_number = panel.head.head
        head_count = ProbeSettings(model=panel.model).load_config().num_attention_heads
        if head_number > head_count:
            raise ConfigError(
                f"heads.{panel.column_index}: Head {head_number}: {panel.model} has {head_count} "
                "heads."
            )


def _measure_traces(
    settings: ProbeSettings,
    prompts_config: PromptsConfig,
    folder: Path,
    advance: Advance,
) -> Path:
    """Measure what is missing in a folder of traces, and return the folder.

    Its name is a hash of the settings, the prompts and the selected problems, so that the same
    traces are measured only once.
    """
    source = load_source(prompts_config, settings.conditions, settings.load_tokenizer)
    settings = settings.complete_from(source)
    selected_problems = [
        (problem.id, problem.outcome, problem.is_control)
        for problem in select(source, prompts_config)
    ]
    # colours and labels are left out, so that changing them does not start a new measurement
    recorded_settings = asdict(replace(settings, device=None))
    hashed_content = [
        recorded_settings,
        source.prompts_sha256,
        selected_problems,
        prompts_config.flip,
    ]
    traces_path = folder / f"{hash_text(json.dumps(hashed_content))[:12]}.traces"
    run_probe(source, prompts_config, settings, traces_path, advance=advance)
    return traces_path
