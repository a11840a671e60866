"""`mless probe`: rerun chosen prompts through the first layers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import LayoutName, MetricName, ProbeDevice
from harness.constants import Dtype, FlipChoice, JsonObject


def probe(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run folder, an lm-eval output folder, or CONDITION=LOG for each condition.",
        ),
    ] = None,
    metric: MetricName = None,
    layout: LayoutName = None,
    dataset: Annotated[str | None, typer.Option(help="Without a run: math500, or a file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder or hub name; default: the run's.")
    ] = None,
    layers: Annotated[str, typer.Option(help="Layers, counted from 1, such as 1,3 or 1-3.")] = "1",
    conditions: Annotated[
        str | None, typer.Option(help="Conditions, such as mless,random; default: the run's.")
    ] = None,
    flip: Annotated[
        FlipChoice | None,
        typer.Option(help="Only problems with this outcome; `changed`: in either direction."),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option("--controls", help="Add to each problem a matched problem that did not flip."),
    ] = False,
    ids: Annotated[
        str | None, typer.Option(help="Only problems with these ids, separated by commas.")
    ] = None,
    n: Annotated[int | None, typer.Option(min=1, help="Draw N problems at random.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Choose prompts by a key of `prompts` in docs/config.md, such as seed=5; "
            "repeatable.",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="Also store each weight of these queries: last:16, or all."),
    ] = None,
    activations: Annotated[
        bool, typer.Option("--activations", help="Also record the first MLP.")
    ] = False,
    norms: Annotated[
        bool, typer.Option("--norms", help="Also record the norm of each token after each layer.")
    ] = False,
    dtype: Annotated[Dtype, typer.Option(help="Number type of the computation.")] = "float32",
    device: ProbeDevice = None,
    engine: Annotated[
        bool,
        typer.Option("--engine", help="Use vLLM with the run's arguments, not Hugging Face."),
    ] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder of traces. An existing folder is continued."),
    ] = Path("probe.traces"),
) -> None:
    """Rerun chosen prompts through the first layers and record every head in a folder of traces."""
    from attention_probe import probe_run
    from attention_probe.measure.prompt_fields import MeasurementOptions
    from attention_probe.probe_settings import ProbeSettings
    from attention_probe.prompts.prompts_config import PromptsConfig
    from harness.display.progress import progress_bar
    from harness.layers_and_heads import parse_numbers, split_words
    from harness.runs.run_paths import locate_run
    from harness.yaml_settings import parse_overrides, validate

    run_or_logs = locate_run(source) if source else None
    # `locate_run` returns logs by condition, or one path
    source_key = "logs" if isinstance(run_or_logs, dict) else "run"
    prompt_values = {
        source_key: run_or_logs,
        "metric": metric,
        "layout": layout,
        "dataset": dataset if dataset in (None, "math500") else {"path": dataset},
        "flip": flip,
        "controls": controls,
        "ids": split_words(ids),
        "n": n,
        **parse_overrides(overrides),
    }
    prompts_config = validate(PromptsConfig, prompt_values, "prompts")
    settings = ProbeSettings(
        model=model,
        layers=tuple(layer - 1 for layer in parse_numbers(layers, "--layers")),
        conditions=split_words(conditions),
        record=MeasurementOptions(activations=activations, norms=norms, rows=rows),
        dtype=dtype,
        device=device,
        engine={} if engine else None,
    )
    with progress_bar("probe problems") as advance:
        receipt = probe_run.probe(prompts_config, settings, output, advance)
    show_traces(output, receipt)


def show_traces(output: Path, receipt: JsonObject) -> None:
    """Print what a folder of traces holds, and how exact it is."""
    from attention_probe.traces import AttentionTraces
    from harness.layers_and_heads import list_numbers

    error_texts = [
        f"{name.removesuffix('_error')} {error:.1e}"
        for name, error in receipt.get("self_check", {}).items()
        if name.endswith("_error")
    ]
    with AttentionTraces(output) as traces:
        output_lines = [
            *(["selected on outcome"] if traces.header.flip else []),
            f"self-check (largest error): {', '.join(error_texts) or 'none in an engine'}",
            f"traces  {output}",
            f"layers  {list_numbers(traces.header.layers)}",
            f"prompts {len(traces.problem_ids)} problems under {', '.join(traces.conditions)}",
            f"next    mless heads {output} -o page.html",
        ]
    typer.echo("\n".join(output_lines))
