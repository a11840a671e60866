"""`mless run`: run or continue one experiment."""

import json
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Decimal, Overrides


def run(
    config: Annotated[
        Path | None,
        typer.Argument(help="A run config, such as configs/runs/products.yaml; or use --model."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME", help="Run this model without a config; see --dataset."),
    ] = None,
    overrides: Overrides = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="math500|FILE|OWNER/NAME:SPLIT",
            help="Problems: MATH-500, the default of --model, a file (JSONL, JSON, CSV, parquet, "
            "arrow), a folder that `datasets` saved, or a dataset on the hub.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="problem=Question,answer=Answer", help="Columns of the --dataset."),
    ] = None,
    decimal: Decimal = None,
    conditions: Annotated[
        str | None, typer.Option(metavar="wo,mless", help="Only these of the study's conditions.")
    ] = None,
    max_gen_toks: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum length of a completion, in tokens.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", help="Samples of each problem.")
    ] = None,
    other_texts: Annotated[
        int | None,
        typer.Option(metavar="N", help="Also ask with N other sentences in place of the filler."),
    ] = None,
    apply_chat_template: Annotated[
        bool | None, typer.Option(help="Set the layout to chat, or to raw; default: the config's.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(metavar="N", help="Show N examples before the question.")
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="box|line",
            help="Read the answer in the last box, or in the first line; default: the config's, "
            "or with --model and --num-fewshot the line.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder; default: the config's `output`/`name`."),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(metavar="auto|N", help="Run N engines, or one on each GPU; default: one."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print a line every 30 s instead of progress bars.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan; load no model.")
    ] = False,
) -> None:
    """Run an experiment, or continue it. It writes a run folder and prints a table."""
    from harness.display.dry_run import describe_plan, show_prompts
    from harness.display.progress import progress_bar
    from harness.engines.backends import check_backend
    from harness.errors import ConfigError, ModelError
    from harness.execution.execute_plan import (
        choose_eager,
        describe_folder,
        execute,
        fill_open_settings,
        refuse_layers,
        stored_example_ids,
    )
    from harness.experiment.plan import make_plan
    from harness.experiment.run_config import config_of_model, load_config
    from harness.runs.run_folder import refuse_foreign

    if (config is None) == (model is None):
        got = "both" if config else "neither"
        raise ConfigError(
            f"Expected a run config or --model ORG/NAME, got {got}. Give one of the two."
        )
    values: dict[str, object] = {
        "max_gen_toks": max_gen_toks,
        "repeats": repeats,
        "other_texts": other_texts,
        "fewshot.num_fewshot": num_fewshot,
        # examples show a line; without them only an instruction can ask for the answer's form
        "answer": answer or ("line" if num_fewshot and config is None else None),
        "dataset": dataset if dataset in (None, "math500") else {"path": dataset},
        "dataset.decimal": decimal,
        "conditions": None if conditions is None else conditions.replace(" ", "").split(","),
    }
    for pair in columns.split(",") if columns else ():
        key, _, name = pair.partition("=")
        if not name.strip():
            raise ConfigError(f"--columns {pair!r}: expected problem=COLUMN or answer=COLUMN.")
        values[f"dataset.{key.strip()}"] = name.strip()
    if apply_chat_template is not None:
        values["layouts"] = ["chat"] if apply_chat_template else ["raw"]
    options = [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]
    # last, so that --set wins over the other options
    options += overrides or []
    if config is None:
        settings = config_of_model(str(model), options, dataset=dataset)
    else:
        settings = load_config(config, options)
    engine_count = check_backend(settings, engines)
    folder = output or settings.folder
    # all checks that need no prompt stand before the prompts, which can take minutes
    refuse_foreign(folder)
    settings = fill_open_settings(settings, folder)
    further_lines = [] if engine_count == 1 else [f"engines   {engine_count}, in Ray actors"]
    try:
        refuse_layers(settings)
    except ModelError as error:
        if not dry_run:
            raise
        # a dry run needs no more than a tokenizer
        further_lines.append(f"layers    not checked: {error}")
    stored_ids = stored_example_ids(folder)
    with progress_bar("prompts") as advance:
        plan = make_plan(settings, limit=limit, stored_ids=stored_ids, advance=advance)
    plan = choose_eager(plan, folder)
    if dry_run:
        further_lines.append(f"folder    {describe_folder(plan, folder)}")
        typer.echo(f"{show_prompts(plan)}\n{describe_plan(plan, further_lines)}")
        return
    typer.echo(describe_plan(plan, further_lines), err=True)
    show_run(execute(plan, output=folder, quiet=quiet, engines=engine_count))


def show_run(folder: Path) -> None:
    """Print a run's table, the path of its files, and the next commands."""
    from harness.display.table_page import TableOptions, make_table
    from harness.errors import ComparisonError

    try:
        typer.echo(make_table([str(folder)], TableOptions(explain=False)))
    except ComparisonError as error:  # a run without the baseline is allowed
        typer.echo(error)
    typer.echo(f"\nmore    mless table {folder} --explain")
    typer.echo(f"next    mless report {folder} -o report.html\nrun     {folder}")
