"""The probe's commands; `mless` finds them by an entry point. Heavy imports wait for their command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attention_probe.choices import Definition, Dtype, View
from harness.analysis.flips import Choice, Repeats
from harness.choices import Width
from harness.commands.flips import flips
from harness.commands.report import report
from harness.errors import ConfigError

if TYPE_CHECKING:
    import pandas

TracesPath = Annotated[Path, typer.Argument(help="A trace file, as `mless probe` writes it.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a config value; dotted keys, repeatable.")
]
Averaged = Annotated[
    Definition,
    typer.Option(help="common: queries that every condition has; published: all later ones, filler tokens too."),
]

_SELECTING = ("flip", "baseline", "condition", "repeats", "controls", "subject", "level", "ids", "n", "seed")
"""Options of `mless probe` that select problems, and that a saved selection therefore refuses."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (probe, curves, heads, figure, link, flips, report):
        app.command()(command)


def probe(
    context: typer.Context,
    source: Annotated[
        Path | None, typer.Argument(help="A run folder, an lm-eval output folder, or a samples_*.jsonl file.")
    ] = None,
    logs: Annotated[
        list[str] | None, typer.Option("--log", metavar="CONDITION=FILE", help="Sample logs of any task; repeatable.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What in the logs says right from wrong, if several do.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Without a run: math500, demo, or a JSONL file.")] = None,
    model: Annotated[str | None, typer.Option(help="Model folder or hub name; default: the run's.")] = None,
    random_weights: Annotated[
        Path | None, typer.Option("--random-weights", metavar="ARCH", help="An architecture's YAML, weights drawn.")
    ] = None,
    layers: Annotated[str, typer.Option(help="Indices from 0, such as 0,1,2 or 0-2.")] = "0",
    heads: Annotated[str | None, typer.Option(help="Heads in the summary, from 0. All are recorded.")] = None,
    conditions: Annotated[str | None, typer.Option(help="Such as mless,random; default: the run's.")] = None,
    layout: Annotated[str | None, typer.Option(help="raw, chat or as_published, where there are several.")] = None,
    select: Annotated[Path | None, typer.Option(help="A selection file instead of the options below.")] = None,
    save_selection: Annotated[Path | None, typer.Option(help="Write the selection here.")] = None,
    flip: Annotated[Choice | None, typer.Option(help="Only problems that went so; `changed` is either way.")] = None,
    baseline: Annotated[str, typer.Option(help="A flip is from this condition ...")] = "wo",
    condition: Annotated[str, typer.Option(help="... to this one.")] = "mless",
    repeats: Annotated[Repeats, typer.Option(help="Which of several samples make a problem right.")] = "first",
    controls: Annotated[bool, typer.Option("--controls", help="Add a matched unflipped problem to each.")] = False,
    subject: Annotated[str | None, typer.Option(help="Only this subject.")] = None,
    level: Annotated[int | None, typer.Option(help="Only this level.")] = None,
    ids: Annotated[str | None, typer.Option(help="Only these problems, comma-separated.")] = None,
    n: Annotated[int | None, typer.Option("--n", min=1, help="So many of them, drawn by seed.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 1234,
    queries: Annotated[
        Literal["prompt", "completion"], typer.Option(help="Whose attention: the prompt's, or the recorded answer's.")
    ] = "prompt",
    decompose: Annotated[
        bool, typer.Option("--decompose", help="Position-gap control; shift, scale and bias of each head's output.")
    ] = False,
    activations: Annotated[bool, typer.Option("--activations", help="Also the first MLP.")] = False,
    visible: Annotated[
        bool, typer.Option("--visible", help="Sliding windows: average over queries that can still see the key.")
    ] = False,
    definition: Averaged = "common",
    dtype: Annotated[Dtype, typer.Option(help="What the layers are computed in.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace file; continued if it is there.")] = Path(
        "probe.traces"
    ),
) -> None:
    """Rerun chosen prompts through the first layers and record every head; one trace file."""
    from attention_probe.analysis.summary import describe_checks, summary
    from attention_probe.measure.measure import Record
    from attention_probe.model.memory import keep_freed_memory
    from attention_probe.prompts.choose_prompts import choose, open_source, prompts_config
    from attention_probe.run_probe import run_probe
    from attention_probe.settings import ProbeSettings
    from attention_probe.traces import AttentionTraces
    from harness.analysis.selection import Selection

    selecting = [f"--{name}" for name in _SELECTING if _is_given(context, name)]
    if select is not None and selecting:
        raise ConfigError(f"--select {select} names the problems: leave out {', '.join(selecting)}.")
    prompts = prompts_config(
        run=source,
        logs=_by_condition(logs),
        metric=metric,
        dataset={"path": dataset} if dataset not in (None, "math500", "demo") else dataset,
        layout=layout,
        flip=flip,
        baseline=baseline,
        condition=condition,
        repeats=repeats,
        controls=controls,
        subject=subject,
        level=level,
        ids=_words(ids),
        n=n,
        seed=seed,
    )
    settings = ProbeSettings(
        model=model,
        architecture=random_weights,
        layers=_indices(layers, "--layers"),
        heads=None if heads is None else _indices(heads, "--heads"),
        conditions=_words(conditions),
        record=Record(
            completion=queries == "completion",
            decompose=decompose,
            activations=activations,
            visible=visible,
        ),
        dtype=dtype,
        device=device,
    )
    saved = None if select is None else Selection.load(select)
    # a selection is of prompts under the conditions of its source, which are all proven to be the same ones
    selected = () if saved is None else (name for problem in saved.problems for name in problem.prompts)
    opened = open_source(prompts, tuple(dict.fromkeys((*settings.conditions, *selected))), settings.load_tokenizer)
    selection = saved or choose(prompts, opened)
    if save_selection is not None:
        selection.save(save_selection)
    keep_freed_memory()
    with _progress(f"probe {len(selection.problems)} problems") as advance:
        receipt = run_probe(opened, selection, settings, output, advance=advance)
    with AttentionTraces.open(output) as traces:
        typer.echo(summary(traces, heads=settings.heads, definition=definition))
    typer.echo(f"\n{describe_checks(receipt['self_check'])}\ntraces  {output}")


def curves(
    traces: TracesPath,
    layer: Annotated[int, typer.Option(help="Index from 0.")] = 0,
    head: Annotated[str, typer.Option(help="Indices from 0, such as 11-13, or all.")] = "all",
    conditions: Annotated[str | None, typer.Option(help="Default: all in the file.")] = None,
    view: Annotated[View, typer.Option(help="aligned: filler removed; full: the prompt as it was.")] = "aligned",
    definition: Averaged = "common",
    exclude_first: Annotated[
        bool | None,
        typer.Option("--exclude-first/--include-first", help="The first token; default: left out for Llama and Gemma."),
    ] = None,
    form: Annotated[Literal["csv", "json"], typer.Option("--format", help="How it is written.")] = "csv",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file instead of the screen.")] = None,
) -> None:
    """Print average attention weights as numbers, with bands over prompts and their count."""
    from attention_probe.analysis.averaging import aligned_curve, as_frame, chosen_problems, full_curve
    from attention_probe.analysis.curve import leaves_out_first_token
    from attention_probe.traces import AttentionTraces

    curve = aligned_curve if view == "aligned" else full_curve
    with AttentionTraces.open(traces) as opened:
        header = opened.header
        names = _words(conditions) or opened.conditions
        chosen = range(header.head_count) if head == "all" else _indices(head, "--head")
        problems = chosen_problems(opened, names)
        first = leaves_out_first_token(str(header.options.get("model_type", "")))
        drawn = [
            curve(
                opened,
                condition=name,
                layer=layer,
                head=index,
                definition=definition,
                exclude_first=first if exclude_first is None else exclude_first,
                problem_ids=problems,
            )
            for index in chosen
            for name in names
        ]
    frame = as_frame(drawn).assign(random_weights=header.random_weights, on_outcome=header.on_outcome)
    _emit(frame, form, output)


def heads(
    traces: TracesPath,
    measure: Annotated[str, typer.Option(help="Which measure; see the trace file's documentation.")] = "mass_filler",
    baseline: Annotated[str, typer.Option(help="Subtracted: another filler, as a rule.")] = "random",
    condition: Annotated[str, typer.Option(help="From which it is subtracted.")] = "mless",
    top: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = 20,
    form: Annotated[Literal["text", "csv", "json"], typer.Option("--format", help="How it is written.")] = "text",
) -> None:
    """Rank all heads by how far a measure differs between two conditions, corrected for looking at all of them."""
    from attention_probe.analysis.head_ranking import rank_heads
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(traces) as opened:
        frame = rank_heads(opened, measure, baseline, condition)
    note = frame.attrs["note"]
    _emit(frame.head(top) if top else frame, form, None)
    typer.echo(f"{measure}, {condition} - {baseline}: {note}", err=form != "text")


def figure(
    config: Annotated[
        Path, typer.Argument(help="A figure config, e.g. configs/figures/qwen-heads-12-13-14-demo.yaml.")
    ],
    overrides: Overrides = None,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="The exact architecture with drawn weights, where none are at hand."),
    ] = False,
    width: Annotated[Width, typer.Option(help="The whole page's, or one column's.")] = "page",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder; default: the config's.")] = None,
) -> None:
    """Measure what is missing and draw a figure: PNG, SVG, PDF and its numbers as CSV."""
    from attention_probe.figures.config import load_figure_config
    from attention_probe.figures.make_figure import make_figure
    from attention_probe.model.memory import keep_freed_memory

    keep_freed_memory()
    with _progress("figure") as advance:
        files = make_figure(
            load_figure_config(config, overrides or ()),
            random_weights=random_weights,
            width=width,
            device=device,
            folder=output,
            advance=advance,
        )
    typer.echo("\n".join(f"{path.suffix[1:]:<6}  {path}" for path in files))


def link(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    traces: TracesPath,
    condition: Annotated[str, typer.Option(help="Against the traces' baseline.")] = "mless",
    layer: Annotated[int | None, typer.Option(help="Index from 0; default: the first recorded.")] = None,
    head: Annotated[int | None, typer.Option(help="Index from 0; default: the mean over heads.")] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How it is written.")] = "text",
) -> None:
    """Regress which problems gained on what the probe saw in their prompts, beside its null."""
    from attention_probe.analysis.link import link as link_run
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(traces) as opened:
        found = link_run(run, opened, condition, layer=layer, head=head)
    typer.echo(json.dumps(found.as_record(), indent=2) if form == "json" else found.as_text())


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time that is left, on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _emit(frame: pandas.DataFrame, form: str, output: Path | None) -> None:
    """Print a frame, or write it."""
    if form == "text":
        text = frame.to_string(index=False, float_format="{:.5f}".format)
    else:
        text = frame.to_csv(index=False).rstrip("\n") if form == "csv" else frame.to_json(orient="records", indent=1)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}. Choose another file.") from None


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else ()


def _by_condition(logs: list[str] | None) -> dict[str, str] | None:
    """Sample logs by condition."""
    pairs = [log.partition("=") for log in logs or ()]
    for condition, _, path in pairs:
        if not condition or not path:
            raise ConfigError(f"--log {condition!r}: expected CONDITION=FILE, such as wo=samples_plain.jsonl.")
    return {condition: path for condition, _, path in pairs} or None


def _indices(text: str, option: str) -> tuple[int, ...]:
    """Indices such as 0,2 or 11-13."""
    found: list[int] = []
    for part in _words(text):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ConfigError(f"{option} {text}: expected indices from 0 such as 0,2 or 11-13, got {part!r}.")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise ConfigError(f"{option} {text}: expected ranges from low to high such as 11-13, got {part!r}.")
        found += range(low, high + 1)
    if not found:
        raise ConfigError(f"{option} {text!r}: expected at least one index, such as 0.")
    return tuple(dict.fromkeys(found))


def _is_given(context: typer.Context, parameter: str) -> bool:
    """Whether the command line names the option, be it with its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
