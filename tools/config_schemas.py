"""The JSON schemas of configs, with which editors complete keys and mark faults.

pydantic writes them. Where a config may have more forms than the field that is made of it, such as
the name of a condition, this module adds the form. `reference_pages` writes the files.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from attention_probe.figures.figure_config import FigureConfig
from harness.experiment.conditions import FILLED_CLASSES, NAMED_CONDITIONS, Condition
from harness.experiment.run_config import RunConfig

LAYERS = {"type": ["integer", "string", "array"], "items": {"type": "integer", "minimum": 1}}


class _ConfigSchema(GenerateJsonSchema):
    """Unknown keys are refused, fields that no config sets are left out, keys need no titles."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        json_schema = super().model_schema(schema)
        for name, field in schema["cls"].model_fields.items():
            if field.exclude:
                del json_schema["properties"][name]
        return {**json_schema, "additionalProperties": False}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def config_schema(config: type[RunConfig] | type[FigureConfig]) -> dict[str, Any]:
    """The schema of run configs or of figure configs."""
    conditions = (Condition, *FILLED_CLASSES) if config is RunConfig else ()
    models = [(model, "validation") for model in (config, *conditions)]
    _, document = models_json_schema(models, schema_generator=_ConfigSchema)
    definitions = document["$defs"]
    for definition in definitions.values():
        keys = definition.get("properties", {})
        if "layers" in keys:
            keys["layers"] |= LAYERS
        if "intervention" in keys:
            several = keys["intervention"]
            keys["intervention"] = {
                "description": several.pop("description"),
                "anyOf": [several["items"], several],
            }
    if config is RunConfig:
        _add_forms(definitions["RunConfig"], {kind.__name__: kind for kind in conditions})
    return {"$ref": f"#/$defs/{config.__name__}", **document}


def _add_forms(run: dict[str, Any], conditions: dict[str, type[Condition]]) -> None:
    """Add the forms of conditions, a sweep in their place, and the number of other texts."""
    keys = run["properties"]
    forms: list[Any] = [{"enum": [*NAMED_CONDITIONS]}]
    forms += [{"$ref": f"#/$defs/{name}"} for name in conditions]
    keys["conditions"]["items"] = {"anyOf": forms}
    run["required"].remove("conditions")
    fields = [kind.model_fields for kind in conditions.values()]
    swept = {key: {} for names in fields for key in names if not names[key].exclude}
    keys["sweep"] |= {"type": "object", "properties": swept, "additionalProperties": False}
    keys["other_texts"]["anyOf"].append({"type": "integer", "minimum": 1})
