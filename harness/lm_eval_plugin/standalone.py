"""The four conditions as a task folder that needs lm-eval alone: YAML files, one helper module and a README."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

from harness import resources
from harness.constants import STUDY_COUNT
from harness.errors import ConfigError
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.documents import ModelTokenizer
from harness.experiment.problems import MATH500_REPOSITORY, MATH500_REVISION
from harness.experiment.prompt import Layout
from harness.experiment.token_checks import BuiltPrompt, PromptBuilder

GROUP = "math500_fillers"
"""The name of the group of tasks, and the beginning of theirs."""

_CUT_FREELY = "has 59 tokens in the first and 63 in the second, as it was cut without a tokenizer"
"""What the README says of the random sentence; a test counts the tokens."""


def write_standalone(folder: Path, model: str | None = None) -> list[Path]:
    """Write the task folder and return its files.

    Args:
        folder: A new or an empty folder.
        model: Model folder or hub name. Its tokenizer gives the random sentence its exact length, and its chat
            template says whether the instruction may be a system turn. None: the sentence's length is approximate.

    Raises:
        ConfigError: the folder is not empty, or cannot be written.
        ModelError: the tokenizer cannot be had.
        PromptMismatchError: a filler has another number of tokens in this tokenizer.
    """
    refuse_used(folder)
    conditions = named_conditions()
    built = build_one_prompt(conditions.values(), "{{problem}}", model)  # which lm-eval fills in
    prompts = {name: one.prompt for name, one in built.items()}
    files = {f"{GROUP}_{name}.yaml": _task(name, prompt.user) for name, prompt in prompts.items()}
    tasks = "".join(f"  - {GROUP}_{name}\n" for name in conditions)
    files[f"{GROUP}.yaml"] = f"group: {GROUP}\ntask:\n{tasks}metadata:\n  version: 1.0\n"
    values = {
        "repository": MATH500_REPOSITORY,
        "revision": MATH500_REVISION,
        "description": json.dumps(next(iter(prompts.values())).system),
        "group": GROUP,
        "count": STUDY_COUNT,
        "rows": "\n".join(f"| `{GROUP}_{name}` | {_describe(one)} |" for name, one in conditions.items()),
        "sentence": _CUT_FREELY if model is None else f"has exactly {STUDY_COUNT} in the tokenizer of {model}",
    }
    for template in (resources.folder("tasks") / "standalone").iterdir():
        if template.is_file():
            text = template.read_text(encoding="utf-8")
            # the helper module is code, and stays as it is
            files[template.name] = text if template.suffix == ".py" else Template(text).substitute(values)
    return write_files(folder, files)


def refuse_used(folder: Path) -> None:
    """Raise ConfigError unless the folder is new or empty."""
    if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise ConfigError(f"{folder} exists and is not an empty folder. Give a new or an empty one.")


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts by file name into a folder and return their paths.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Give another folder.") from None
    return [folder / name for name in sorted(files)]


def build_one_prompt(conditions: Iterable[Condition], problem: str, model: str | None) -> dict[str, BuiltPrompt]:
    """The prompt of one problem under each condition, checked with the model's tokenizer where it is named."""
    known = None if model is None else ModelTokenizer.from_arguments({"pretrained": model})
    builder = PromptBuilder({"problem": problem}, Layout.RAW, known.tokenizer if known else None)
    prompts = {}
    for condition in conditions:
        built = builder.build(condition)
        built.refuse(str(model))
        prompts[condition.name] = built.prompts[0]
    return prompts


def _task(name: str, user: str) -> str:
    return f"include: _{GROUP}_yaml\ntask: {GROUP}_{name}\ndoc_to_text: {json.dumps(user)}\n"


def _describe(condition: Condition) -> str:
    if condition.unit is not None:
        return f"`{condition.unit}` {condition.count} times, with blanks between"
    return f"one unrelated sentence of about {condition.count} tokens" if condition.filler else "nothing"
