"""`mless run`: run or continue one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import DecimalOption, Overrides
from harness.constants import AnswerKind

if TYPE_CHECKING:
    from harness.runs.run_reader import Run


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
    decimal: DecimalOption = None,
    answer_is: Annotated[
        AnswerKind | None, typer.Option(help="What answers of data with choices are.")
    ] = None,
    conditions: Annotated[
        str | None, typer.Option(metavar="wo,mless", help="Only these of the study's conditions.")
    ] = None,
    max_gen_toks: Annotated[
        int | None, typer.Option(metavar="N", help="Maximum length of a completion, in tokens.")
    ] = None,
    apply_chat_template: Annotated[
        bool | None, typer.Option(help="Set the layout to chat, or to raw; default: the config's.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(metavar="N", help="Show N examples before the question.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    output: Annotated[
        str,
        typer.Option("--output", "-o", help="Run folder; default: the config's `output`/`name`."),
    ] = "",
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
    from harness.errors import ConfigError
    from harness.execution.prepared_run import prepare
    from harness.execution.prepared_run import run as execute_run
    from harness.experiment.run_config import config_of_model, load_config
    from harness.installation import remark_on_versions
    from harness.yaml_settings import parse_overrides

    if (config is None) == (model is None):
        count_word = "both" if config else "neither"
        raise ConfigError(
            f"Expected a run config or --model ORG/NAME, got {count_word}. Give one of the two."
        )
    option_values = {
        "max_gen_toks": max_gen_toks,
        "fewshot.num_fewshot": num_fewshot,
        # Examples show that the answer is one line. Without them the instruction must ask for a
        # form, so the default stays.
        "answer": "line" if num_fewshot and config is None else None,
        "dataset": dataset if dataset in (None, "math500") else {"path": dataset},
        "dataset.decimal": decimal,
        "dataset.answer_is": answer_is,
        "conditions": None if conditions is None else conditions.replace(" ", "").split(","),
    }
    if apply_chat_template is not None:
        option_values["layouts"] = ["chat"] if apply_chat_template else ["raw"]
    remark_on_versions()
    changes = {key: value for key, value in option_values.items() if value is not None}
    # last, so that --set wins over the other options
    changes |= parse_overrides(overrides)
    if config is None:
        run_config = config_of_model(str(model), changes, dataset=dataset)
    else:
        run_config = load_config(config, changes)
    if dry_run:
        prepared = prepare(
            run_config, limit=limit, output=output, engines=engines, tokenizer_only=True
        )
        typer.echo(prepared.describe())
        return
    show_run(execute_run(run_config, limit=limit, output=output, engines=engines, quiet=quiet))


def show_run(run: Run) -> None:
    """Print a run's table, the path of its files, and the next commands."""
    from harness.display.table_page import TableOptions, make_table
    from harness.errors import ComparisonError

    try:
        typer.echo(make_table([run], TableOptions(explain=False)))
    # a run without its baseline is allowed, and the error says why it has no table
    except ComparisonError as error:
        typer.echo(error)
    typer.echo(
        f"\nmore    mless table {run.name} --explain\n"
        f"next    mless report {run.name} -o report.html\nrun     {run.name}"
    )
