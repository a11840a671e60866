"""Write docs/config.md, the keys of configs, and docs/columns.md, the columns of tables.

python -m tools.reference_pages
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from attention_probe.figures import figure_config as figures
from attention_probe.prompts.prompts_config import PromptsConfig
from harness.analysis import baseline_comparison
from harness.display.side_tables import SIDE_TABLES
from harness.experiment import (
    conditions,
    fewshot_examples,
    intervention_settings,
    model_settings,
    problems,
)
from harness.experiment import run_config as runs

DOCS = Path(__file__).resolve().parents[1] / "docs"
SECTIONS: dict[str, dict[str, type[BaseModel]]] = {
    "Run configs": {
        "": runs.RunConfig,
        "`model`": model_settings.ModelConfig,
        "`dataset`, as a mapping": problems.DatasetConfig,
        "`dataset`, made": problems.MadeConfig,
        "an entry of conditions, as a mapping": conditions.Condition,
        "with a filler": conditions.FilledCondition,
        **{f"with `{key}`": kind for key, kind in conditions.FILLERS.items()},
        "an intervention of the kind attention": intervention_settings.AttentionIntervention,
        "of the kind mlp_output": intervention_settings.MLPOutputIntervention,
        "of the kind filler": intervention_settings.FillerIntervention,
        "of the kind redistribute": intervention_settings.RedistributeIntervention,
        "of the kind function": intervention_settings.FunctionIntervention,
        "`fewshot`": fewshot_examples.FewshotConfig,
        "`fewshot`, your own": fewshot_examples.ExamplesConfig,
        "`gen_kwargs`, as a mapping": runs.ExplicitSampling,
    },
    "Figure configs": {
        "": figures.FigureConfig,
        "an entry of heads": figures.HeadConfig,
        "an entry of rows": figures.RowConfig,
        "an entry of series": figures.SeriesConfig,
        "prompts": PromptsConfig,
        "bars": figures.BarsConfig,
        "an entry of models": figures.ActivationModel,
    },
}
INTRODUCTION = """# Configs

```bash
mless run configs/runs/products.yaml --set max_gen_toks=50 --dry-run   # --set changes a key
```

Written by `python -m tools.reference_pages`. Defaults are in brackets.
"""

TABLES: dict[str, dict[str, str]] = {
    "The comparison (`rows`; `harness.analysis.compare`)": baseline_comparison.COMPARISON_COLUMNS,
    **{f"{side.heading} (`{side.key}`)": side.meanings for side in SIDE_TABLES if side.meanings},
}
COLUMNS_INTRODUCTION = """# Columns of the tables

```bash
mless table results/example --explain
```

Written by `python -m tools.reference_pages`. Differences are in points. A column is listed in the
first table that has it with this meaning. Each column with `low` in its name has one with `high`,
the upper end of the interval.
"""


def config_page() -> str:
    """docs/config.md."""
    sections = [INTRODUCTION]
    for title, models in SECTIONS.items():
        sections.append(f"## {title}\n")
        for name, model in models.items():
            about, meanings = _read(model)
            if name:
                sections.append(f"### {name[0].upper()}{name[1:]}\n")
            bases = [base for base in models.values() if base is not model]
            inherited = {
                key for base in bases if issubclass(model, base) for key in base.model_fields
            }
            rows = [
                f"- `{field.alias or key}`{_default(field)}: {meanings[key]}"
                for key, field in model.model_fields.items()
                if not field.exclude and key not in inherited
            ]
            sections.append("\n".join([about, "", *rows, ""]))
    return "\n".join(sections)


def columns_page() -> str:
    """docs/columns.md. A column with the meaning that it has in an earlier table is left out."""
    sections = [COLUMNS_INTRODUCTION]
    explained: set[tuple[str, str]] = set()
    for title, columns in TABLES.items():
        visible = [
            column
            for column in columns.items()
            if column not in explained and "upper end" not in column
        ]
        lines = ["- `{}`: {}".format(*column) for column in visible]
        explained.update(columns.items())
        sections.append("\n".join([f"## {title}", "", *lines, ""]))
    return "\n".join(sections)


def _read(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """A docstring's text, and its attributes by name, in one line each."""
    text, _, attributes = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")
    attribute_texts = re.findall(r"^    (\w+): ((?:.|\n        )*)", attributes, re.MULTILINE)
    field_texts = [
        (name, field.description) for name, field in model.model_fields.items() if field.description
    ]
    meanings = {
        name: " ".join(meaning.split()) for name, meaning in [*attribute_texts, *field_texts]
    }
    return " ".join(text.split()), meanings


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ", needed"
    if isinstance(value, tuple):
        value = [str(element) for element in value]
    return f" (`{value}`)".replace("\n", "\\n") if value not in (None, [], {}, "") else ""


if __name__ == "__main__":
    for name, page in {"config.md": config_page(), "columns.md": columns_page()}.items():
        (DOCS / name).write_text(page, encoding="utf-8")
        print(DOCS / name)
