"""Write the pages of docs that list keys, columns and public names, and the schemas of configs.

python -m tools.reference_pages
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

import mless
from attention_probe.figures import figure_config as figures
from attention_probe.prompts.prompts_config import PromptsConfig
from harness.analysis import baseline_comparison
from harness.display.side_tables import SIDE_TABLES
from harness.engines import served_model
from harness.experiment import (
    conditions,
    fewshot_examples,
    generation_settings,
    intervention_settings,
    model_settings,
    problems,
)
from harness.experiment import run_config as runs
from tools.config_schemas import config_schema

ROOT = Path(__file__).resolve().parents[1]
SECTIONS: dict[str, dict[str, type[BaseModel]]] = {
    "Run configs": {
        "": runs.RunConfig,
        "`model`": model_settings.ModelConfig,
        "`model_args` of a server": served_model.ServerArguments,
        "`dataset`, as a mapping": problems.DatasetConfig,
        "`dataset`, made": problems.MadeConfig,
        "an entry of conditions, as a mapping": conditions.Condition,
        "with a filler": conditions.FilledCondition,
        **{f"with `{key}`": kind for key, kind in conditions.CLASS_BY_KEY.items()},
        "an intervention of the kind attention": intervention_settings.AttentionIntervention,
        "of the kind mlp_output": intervention_settings.MLPOutputIntervention,
        "of the kind filler": intervention_settings.FillerIntervention,
        "of the kind redistribute": intervention_settings.RedistributeIntervention,
        "of the kind function": intervention_settings.FunctionIntervention,
        "`fewshot`": fewshot_examples.FewshotConfig,
        "`fewshot`, your own": fewshot_examples.ExamplesConfig,
        "`thinking`": runs.ThinkingConfig,
        "`gen_kwargs`, as a mapping": generation_settings.ExplicitSampling,
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

Written by `python -m tools.reference_pages`. A key without *needed* may be left out. The example of
a section shows only its own keys: `name`, `model` and `conditions` (of a figure also `prompts`) are
needed beside them.

An editor with a YAML language server completes and checks the keys if a config begins with
`# yaml-language-server: $schema=FILE`. The file is configs/run.schema.json or
configs/figure.schema.json.
"""
EXAMPLES: dict[str, str] = yaml.safe_load(
    (Path(__file__).parent / "config_examples.yaml").read_text()
)
TYPES = {
    "conditions": "list of names and [mappings](#an-entry-of-conditions-as-a-mapping)",
    "intervention": "[mapping](#an-intervention-of-the-kind-attention) or list of mappings",
    "layers": "integer, text or list of integers",
    "other_texts": "integer or mapping to integers",
    "sweep": "mapping to lists",
}
"""Keys that accept more than the models have, because they are expanded before."""
NAMES = {"string": "text", "boolean": "`true` or `false`", "object": "mapping"}
LIMITS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
}
MOST = 10**6
"""Larger limits do not help a reader."""

TABLES: dict[str, dict[str, str]] = {
    "The comparison (`rows`; `mless.compare`)": baseline_comparison.COMPARISON_COLUMNS,
    **{
        f"{side.heading} (`{side.key}`)": side.meaning_by_column
        for side in SIDE_TABLES
        if side.meaning_by_column
    },
}
COLUMNS_INTRODUCTION = """# Columns of the tables

```bash
mless table results/example --explain
```

Written by `python -m tools.reference_pages`. Differences are in points. A column is listed in the
first table that has it with this meaning. Each column with `low` in its name has one with `high`,
the upper end of the interval.
"""


API_INTRODUCTION = """# From Python

```python
>>> import mless

```

Written by `python -m tools.reference_pages`. All names have types. Errors are of
`harness.errors.HarnessError`; their message is that of the command line. The keys of a `RunConfig`
are those of [run configs](config.md#run-configs), and frames have the columns of
[samples](samples.md) and [tables](columns.md).
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
            schema = model.model_json_schema()
            required = schema.get("required", ())
            rows = [
                _describe_key(field.alias or key, schema, required) + f" {meanings[key]}"
                for key, field in model.model_fields.items()
                if not field.exclude and key not in inherited
            ]
            example = f"```yaml\n{EXAMPLES[model.__name__]}```"
            sections.append("\n".join([about, "", *rows, "", example, ""]))
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


def api_page() -> str:
    """docs/api.md: the docstrings of the public names, and the methods of a run."""
    sections = [API_INTRODUCTION]
    for name in mless.__all__:
        value = getattr(mless, name)
        heading = f"## {name}\n"
        if not isinstance(value, type):
            heading += f"\n`mless.{name}{_spell_parameters(value)}`\n"
        sections += [heading, _describe(value)]
        if value is mless.Run:
            sections += ["Methods and properties:\n", _list_members(value)]
    return "\n".join(sections)


def _spell_parameters(function: Any) -> str:
    """The parameters of a function with their defaults, without types, which editors show."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _list_members(kind: type) -> str:
    """The public methods and properties of a class, with the first lines of their docstrings."""
    lines = []
    for name, member in vars(kind).items():
        if not name.startswith("_") and hasattr(member, "__get__"):
            lines.append(f"- `{name}`: {inspect.getdoc(member)}".partition("\n")[0])
    return "\n".join([*lines, ""])


def _describe(value: Any) -> str:
    """A docstring as Markdown: the text, lists of arguments and errors, the example."""
    text, *sections = re.split(r"\n\n([A-Z]\w+):\n(?=    )", inspect.cleandoc(value.__doc__))
    parts = [text]
    for title, content in zip(sections[::2], sections[1::2], strict=True):
        content = inspect.cleandoc(f"\n{content}")
        if title == "Example":
            parts.append(f"```python\n{content}\n\n```")
            continue
        entries = re.sub(r"\n +", " ", content)
        parts.append(f"{title}:\n")
        parts[-1] += "\n" + re.sub(r"^(\S+): ", r"- `\1`: ", entries, flags=re.MULTILINE)
    return "\n\n".join(parts) + "\n"


def _read(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """A docstring's text, and its attributes by name, in one line each."""
    docstring, _, _ = inspect.cleandoc(model.__doc__ or "").partition("\nExample:\n")
    text, _, attributes = docstring.partition("\nAttributes:\n")
    attribute_texts = re.findall(r"^    (\w+): ((?:.|\n        )*)", attributes, re.MULTILINE)
    field_texts = [
        (name, field.description) for name, field in model.model_fields.items() if field.description
    ]
    meanings = {
        name: " ".join(meaning.split()) for name, meaning in [*attribute_texts, *field_texts]
    }
    return " ".join(text.split()), meanings


def _describe_key(key: str, schema: dict[str, Any], required: Collection[str]) -> str:
    """The item of a key: its type, and its default as YAML."""
    node = schema["properties"][key]
    type_name = TYPES.get(key) or _name_type(node, schema.get("$defs", {}))
    text = f"- `{key}` ({type_name}"
    default = node.get("default")
    if key in required:
        text += ", needed"
    elif default not in (None, [], {}, ""):
        text += f", default `{_as_yaml(default)}`"
    return f"{text}):"


def _as_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("...\n").strip()


def _name_type(node: dict[str, Any], models: dict[str, Any], plural: str = "") -> str:
    """The type of a node of a JSON schema in words; `plural` is `s` for the entries of a list."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if "enum" in models[name]:
            return _name_type(models[name], models)
        return f"[mapping{plural}](#{_find_anchor(name)})"
    if "enum" in node or "const" in node:
        values = node.get("enum") or [node["const"]]
        return " or ".join(f"`{_as_yaml(value)}`" for value in values)
    alternatives = node.get("anyOf") or node.get("oneOf")
    if alternatives:
        types = [_name_type(entry, models) for entry in alternatives if entry != {"type": "null"}]
        return " or ".join(dict.fromkeys(types))
    if node["type"] == "array":
        pair = node.get("prefixItems")
        entries = _name_type(pair[0] if pair else node["items"], models, "s")
        return f"list{plural} of {f'{len(pair)} ' if pair else ''}{entries}"
    if isinstance(node.get("additionalProperties"), dict):
        return f"mapping{plural} to {_name_type(node['additionalProperties'], models, 's')}"
    if node.get("format") == "path":
        return f"path{plural}"
    name = NAMES.get(node["type"], node["type"]) + plural
    limits = [
        f" {word} {node[limit]}"
        for limit, word in LIMITS.items()
        if not plural and node.get(limit, MOST) < MOST
    ]
    return name + "".join(limits)


def _find_anchor(model_name: str) -> str:
    """The anchor of a model's section."""
    for models in SECTIONS.values():
        for heading, model in models.items():
            if model.__name__ == model_name:
                return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    raise LookupError(f"docs/config.md has no section of {model_name}")


def generated_files() -> dict[Path, str]:
    """The text of every generated file."""
    return {
        ROOT / "docs/config.md": config_page(),
        ROOT / "docs/columns.md": columns_page(),
        ROOT / "docs/api.md": api_page(),
        **{
            ROOT / f"configs/{name}.schema.json": json.dumps(config_schema(model), indent=1) + "\n"
            for name, model in (("run", runs.RunConfig), ("figure", figures.FigureConfig))
        },
    }


if __name__ == "__main__":
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")
        print(path)
