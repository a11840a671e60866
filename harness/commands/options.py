"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from harness.constants import DecimalSign, TableFormat

RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, lm-eval output folders, folders of these; logs of lm-eval, Inspect or "
        "lighteval, and tables of scores, also as CONDITION=FILE.",
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|NAME,FILTER",
        help="Metric that decides right or wrong in logs of other tasks.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="ROLE=COLUMN,...",
        help="Columns of a table: item, condition, score, sample, model, cluster, completion, "
        "gold, question.",
    ),
]
CommonOnly = Annotated[
    bool, typer.Option("--common", help="Leave out problems that a condition lacks.")
]
ScoreName = Annotated[
    str | None,
    typer.Option(
        metavar="avg@K|pass@K|maj@K",
        help="Score of a problem with several samples, instead of its share of right samples.",
    ),
]
DecimalOption = Annotated[
    DecimalSign | None,
    typer.Option(help="Decimal sign of the gold answers: a comma or a point."),
]
FormatName = Annotated[TableFormat, typer.Option("--format", help="Output format.")]
Baseline = Annotated[
    str | None, typer.Option(help="Baseline of all differences; default: the run's baseline.")
]
Explain = Annotated[bool, typer.Option("--explain", help="Explain the columns below a text table.")]
LayoutName = Annotated[
    str | None, typer.Option(help="raw, chat or as_published, if the run has several layouts.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the config, such as model.label=NAME; repeatable.",
    ),
]
ProbeDevice = Annotated[
    str | None,
    typer.Option("--device", help="Device: cpu, cuda, ...; default: cuda if there is such a GPU."),
]
