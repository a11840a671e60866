"""The command `mless`. Heavy imports wait until a command needs them, so that `--help` is instant."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from harness.choices import Format, Kind, Split, Width
from harness.display.visible import visible
from harness.errors import HarnessError, RunInterrupted

app = typer.Typer(
    name="mless",
    help="Put meaningless tokens before a maths question, and measure honestly whether the model answers better.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[Path, typer.Argument(help="A run config, e.g. configs/runs/demo.yaml.")]
RunPath = Annotated[Path, typer.Argument(help="A run folder.")]
RunNames = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Run folders, lm-eval output folders, folders of these, or CONDITION=LOG."),
]
Metric = Annotated[str | None, typer.Option(help="What in the logs of other tasks says right or wrong.")]
FormatName = Annotated[Format, typer.Option("--format", help="How it is written.")]
SplitBy = Annotated[list[Split] | None, typer.Option("--by", help="Split by this; repeatable.")]
Baseline = Annotated[str, typer.Option(help="The condition that others are compared with.")]
Margin = Annotated[float | None, typer.Option(help="Equivalence margin in points; default 1.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a config value; dotted keys, repeatable.")
]


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N problems.")] = None,
    output: Annotated[Path | None, typer.Option(help="Run folder; default: the config's output and name.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Only the I-th of N parts; see merge.")] = None,
    fork: Annotated[
        bool, typer.Option("--fork", help="Where the folder holds a run with other settings, start one beside it.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="A line now and then, for logs; no live table.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; load no model.")] = False,
) -> None:
    """Run one experiment, or continue it: all conditions through one loaded model; a table, a figure, a run folder."""
    from harness.display.describe_plan import describe_plan
    from harness.engines.vllm import check_arguments
    from harness.execution.run import execute
    from harness.experiment.config import load_config
    from harness.experiment.plan import Shard, make_plan

    settings = load_config(config, overrides or ())
    check_arguments(settings)
    plan = make_plan(settings, limit=limit, shard=Shard.parse(shard) if shard else None)
    typer.echo(describe_plan(plan), err=not dry_run)
    if dry_run:
        return
    _show(execute(plan, output=output, fork=fork, quiet=quiet))


@app.command()
def merge(
    shards: Annotated[list[Path], typer.Argument(help="The folders of all shards of one run.")],
    output: Annotated[Path, typer.Option(help="The folder of the whole run; must not exist.")],
) -> None:
    """Make one run of its finished shards."""
    from harness.execution.merge_shards import merge as merge_shards

    merge_shards(shards, output)
    _show(output)


@app.command()
def regrade(
    run: RunPath,
) -> None:
    """Grade and audit a finished run again, without a model; say which verdicts changed."""
    from harness.execution.regrade import regrade as regrade_run

    typer.echo(regrade_run(run))
    _show(run)


@app.command()
def pack(
    run: RunPath,
) -> None:
    """Compress a run's files to a tenth or less, to commit or send them; every command reads them so."""
    from harness.runs.folder import pack as pack_run

    pack_run(run)


@app.command()
def table(
    runs: RunNames,
    form: FormatName = "text",
    by: SplitBy = None,
    baseline: Baseline = "wo",
    margin: Margin = None,
    metric: Metric = None,
    mediators: Annotated[
        bool, typer.Option("--mediators", help="Also what else changed: missing boxes, truncation, length, loops.")
    ] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Also what every other grader says.")] = False,
    reference: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also published numbers: a name in results/reference, or a file.")
    ] = None,
) -> None:
    """Every condition of some runs against the baseline: accuracy, difference, adjusted p, verdict."""
    from harness.display.table_pages import Parts, make_table

    parts = Parts(mediators=mediators, audit=audit, reference=reference)
    typer.echo(make_table(runs, form=form, by=by or (), baseline=baseline, margin=margin, metric=metric, parts=parts))


@app.command()
def leaderboard(
    runs: RunNames,
    form: FormatName = "text",
    by: SplitBy = None,
    baseline: Baseline = "wo",
    margin: Margin = None,
    metric: Metric = None,
) -> None:
    """Many models, one row each: the primary contrast whole, the other conditions as bare differences."""
    from harness.display.table_pages import make_leaderboard_page

    typer.echo(make_leaderboard_page(runs, form=form, by=by or (), baseline=baseline, margin=margin, metric=metric))


@app.command()
def plot(
    runs: RunNames,
    kind: Annotated[list[Kind] | None, typer.Option(help="Which figure; repeatable; default all.")] = None,
    width: Annotated[Width, typer.Option(help="The whole page's, or one column's.")] = "page",
    baseline: Baseline = "wo",
    margin: Margin = None,
    metric: Metric = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The figures' folder.")] = Path("figures"),
) -> None:
    """Draw accuracies, differences, flips and lengths: PNG, SVG, PDF, and the numbers as CSV."""
    from harness.display.plots import make_plots

    files = make_plots(runs, output, kinds=kind or (), width=width, baseline=baseline, margin=margin, metric=metric)
    typer.echo("\n".join(f"{path.suffix[1:]:<4} {path}" for path in files))


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run folder, or a folder of one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file.")] = Path("samples.parquet"),
) -> None:
    """Write a run's samples as one Parquet file, a row each, with the run's receipt in it."""
    from harness.runs.find_runs import locate_folder
    from harness.runs.parquet import export_parquet

    typer.echo(f"{export_parquet(locate_folder(run), output):,} samples  {output}")


@app.command()
def tasks(
    link: Annotated[bool, typer.Option("--link", help="Make the bare `lm_eval --tasks math500_mless` work.")] = False,
    unlink: Annotated[bool, typer.Option("--unlink", help="Undo --link exactly.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure every prompt's tokens for --model.")] = False,
    model: Annotated[str, typer.Option(help="Model folder or hub name whose tokenizer --check uses.")] = "demo",
) -> None:
    """Print the path for lm-eval's --include_path; link, unlink or check the tasks."""
    from harness.lm_eval_plugin import links

    if link + unlink + check > 1:
        raise HarnessError("Give one of --link, --unlink and --check, not several.")
    if link:
        for path in links.link():
            typer.echo(path)
    elif unlink:
        removed = links.unlink()
        typer.echo("\n".join(f"removed {path}" for path in removed) or "no links were there")
    elif check:
        _check_tasks(model)
    else:
        typer.echo(links.include_path())


@app.command()
def doctor(
    model: Annotated[str | None, typer.Option(help="Also check that this model's tokenizer can be had.")] = None,
) -> None:
    """Check the installation and name the fix for whatever fails."""
    from harness.verification.doctor import diagnose

    findings = diagnose(model)
    for finding in findings:
        mark = "ok  " if not finding.fix else "FAIL" if finding.fatal else "note"
        typer.echo(f"{mark}  {finding.subject:<10} {finding.found}")
        if finding.fix:
            typer.echo(f"{'':<16} fix: {finding.fix}")
    if any(finding.fix and finding.fatal for finding in findings):
        raise typer.Exit(2)


@app.command()
def verify(
    output: Annotated[Path, typer.Option("--output", "-o", help="The verification's folder.")] = Path("results/verify"),
    model: Annotated[
        str | None,
        typer.Option(help="Model folder or hub name; default Qwen2.5-Math-1.5B, `demo` for the bundled one."),
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Qwen2.5-Math-1.5B's exact shape with random weights; no hub needed."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N problems of each run: a rehearsal.")
    ] = None,
    overrides: Overrides = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Derive every number of a folder again; no GPU needed.")
    ] = None,
) -> None:
    """Show on this machine, in about an hour on one GPU, what is claimed of runs; or check what another one showed."""
    from harness import verification

    if check is not None:
        folder, wrong = check, verification.check(check)
    else:
        settings = verification.Settings(
            model=model, random_weights=random_weights, limit=limit, overrides=tuple(overrides or ())
        )
        folder, wrong = output, verification.verify(output, settings)
    typer.echo("\n".join([*wrong, f"page  {folder / verification.PAGE}: {len(wrong) or 'nothing'} not as expected"]))
    if wrong:
        raise typer.Exit(2)


@app.command()
def fetch(
    config: ConfigPath,
    overrides: Overrides = None,
    pin: Annotated[Path | None, typer.Option(help="Also write the config with its revision pinned, here.")] = None,
) -> None:
    """Download a config's model, tokenizer and data, for later use with HF_HUB_OFFLINE=1."""
    from harness.experiment.config import load_config
    from harness.experiment.fetch import fetch as fetch_all

    for line in fetch_all(load_config(config, overrides or ()), pin=pin):
        typer.echo(line)


def _show(folder: Path) -> None:
    from harness.display.table_pages import make_table

    typer.echo(make_table([str(folder)], lenient=True))
    typer.echo(f"\nfigure  {folder / 'accuracy.png'}\nrun     {folder}")


def _check_tasks(name: str) -> None:
    from harness.experiment.conditions import named_conditions
    from harness.experiment.documents import Model
    from harness.experiment.problems import load_math500
    from harness.experiment.prompt import Layout
    from harness.experiment.token_checks import check_condition

    model = Model.from_arguments({"pretrained": name})
    assert model is not None
    dataset = load_math500()
    problems = {problem.id: problem.problem for problem in dataset.problems}
    header = ("condition", "layout", "filler", "own", "straddling", "merged", "span", "prompt tokens", "problem ids")
    rows: list[tuple[str, ...]] = [header]
    complaints = []
    for layout in (*model.layouts(), Layout.AS_PUBLISHED):
        for condition in named_conditions().values():
            try:
                found = check_condition(problems, condition, layout, model.tokenizer)
            except HarnessError as error:
                rows.append((condition.name, str(layout), *["-"] * (len(header) - 2)))
                complaints.append(("violation", f"violation: {condition.name}, {layout}: {error}"))
                continue
            low, high = found.filler_span or (0, 0)
            same = "same" if found.same_problem_ids == len(problems) else f"{found.same_problem_ids} same"
            rows.append(
                (
                    condition.name,
                    str(layout),
                    str(found.count),
                    _least_most(found.filler_tokens),
                    _least_most(found.straddling),
                    _least_most(found.merged),
                    f"{low}-{high}" if high else "-",
                    _least_most((min(found.prompt_tokens), max(found.prompt_tokens))),
                    same,
                )
            )
            if found.violations:
                kind = "note" if layout is Layout.AS_PUBLISHED else "violation"
                complaints.append((kind, f"{kind}: {condition.name}, {layout}: {found.violations[0]}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    typer.echo(f"{model.name}, {len(problems)} problems from {dataset.source}; spans in tokens, half-open")
    for row in rows:
        typer.echo("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    for _, line in complaints:
        typer.echo(line)
    if any(kind == "violation" for kind, _ in complaints):
        raise typer.Exit(2)


def _least_most(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"


def add_commands() -> None:
    """Add the commands of packages that build on this one, which it must not import.

    An entry point of the group `mless.commands` is a function that takes the typer app.
    """
    for entry in sorted(entry_points(group="mless.commands"), key=lambda entry: entry.name):
        entry.load()(app)


def main() -> None:
    """Run the command; an expected error is one line on stderr and exit code 2."""
    try:
        add_commands()
        app()
    except HarnessError as error:
        told = visible(" ".join(str(error).split()), keep="")  # it may quote what a file or a model says
        typer.echo(f"mless: {told}", err=True)
        sys.exit(130 if isinstance(error, RunInterrupted) else 2)
    except KeyboardInterrupt:
        typer.echo("mless: interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
