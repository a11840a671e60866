"""Arguments and options that several commands share."""

from typing import Annotated

import typer

from harness.constants import Format, Split

RunNames = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, lm-eval output folders, folders of these, or CONDITION=LOG.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|NAME,FILTER",
        help="Metric that decides right or wrong in logs of other tasks.",
    ),
]
Score = Annotated[
    str | None,
    typer.Option(
        metavar="avg@K|pass@K|maj@K",
        help="Score of a problem with several samples, instead of its share of right samples.",
    ),
]
FormatName = Annotated[Format, typer.Option("--format", help="Output format.")]
SplitBy = Annotated[
    list[Split] | None, typer.Option("--by", help="Split the table by this column; repeatable.")
]
Baseline = Annotated[
    str | None,
    typer.Option(help="Baseline of all differences; default: the run's baseline."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Explain the columns below a text table.")]
Condition = Annotated[str, typer.Option(help="Condition that is compared with the baseline.")]
Margin = Annotated[float | None, typer.Option(help="Equivalence margin in points; default 1.")]
LayoutName = Annotated[
    str | None, typer.Option(help="raw, chat or as_published, if the run has several layouts.")
]
Subject = Annotated[str | None, typer.Option(help="Only problems of this subject.")]
Level = Annotated[int | None, typer.Option(help="Only problems of this level.")]
DrawCount = Annotated[
    int | None, typer.Option("--n", min=1, help="Draw N problems at random (see --seed).")
]
DrawSeed = Annotated[int, typer.Option(help="Seed of the random draw.")]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of the config, such as model.label=NAME; repeatable.",
    ),
]
