"""Any task of lm-eval under some conditions, as a task folder that needs lm-eval alone.

A wrapped task is a task of lm-eval, loaded by its name, with its documents, examples, stop strings
and scoring. Only the text of the question changes: the condition's filler stands before it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from harness import resources, smollm2_model
from harness.constants import BASELINE
from harness.errors import ConfigError, list_near
from harness.experiment.conditions import NAMED_CONDITIONS, PROMPT_KEYS, Condition, as_condition
from harness.experiment.problems import Problem
from harness.experiment.prompts.checked_prompts import build_checked_prompts
from harness.experiment.prompts.prompt import PromptSettings
from harness.experiment.prompts.template import find_columns
from harness.experiment.prompts.tokenizer import ModelTokenizer
from harness.runs.stored_files import clear_messages
from harness.yaml_settings import parse_option

_IMPOSSIBLE_KEYS = (*PROMPT_KEYS, "random_ids", "fresh", "placement")
"""Keys of a condition that are not possible before the question of another task."""
_HELPER_FILE = "with_filler.py"
_OUTPUT_TYPE = "generate_until"
_PLACEHOLDER = "Question"
"""Stands for the question while the text of a filler is made."""


def write_wrapped(
    folder: Path, task: str, conditions: str | None = None, model: str | None = None
) -> list[str]:
    """Write a task of lm-eval under some conditions, as a task folder.

    Args:
        folder: A new or an empty folder.
        task: lm-eval's name of the task.
        conditions: Names or inline conditions, as in the list of a run config. None: the study's
            four conditions.
        model: Model folder or hub name. Its tokenizer gives the random sentence its exact length,
            and counts the tokens of every filler.

    Returns:
        Lines for the user: the files, the fillers' tokens, and the command that runs the tasks.

    Raises:
        ConfigError: the folder is not empty or cannot be written, the task cannot be wrapped, or a
            condition is not possible before its question.
        ModelError: the tokenizer cannot be loaded.
        PromptMismatchError: a filler has another number of tokens in this tokenizer.
    """
    wrapped_conditions = _read_conditions(conditions)
    stock_file = _find_task(task)
    tokenizer = None if model is None else ModelTokenizer.from_arguments({"pretrained": model})
    baseline, *built_conditions = build_checked_prompts(
        [Problem(id="problem", problem=_PLACEHOLDER, answer="?")],
        [NAMED_CONDITIONS[BASELINE], *wrapped_conditions],
        PromptSettings(),
        tokenizer,
        max_gen_toks=0,
    )
    instruction = baseline.prompts[0].prompt.text.removesuffix(_PLACEHOLDER)
    helper_path = resources.folder("tasks") / "wrap" / _HELPER_FILE
    files = {_HELPER_FILE: helper_path.read_text(encoding="utf-8")}
    names, messages = [], []
    for condition, condition_prompts in zip(wrapped_conditions, built_conditions, strict=True):
        name, prompt = f"{task}_{condition.name}", condition_prompts.prompts[0]
        token_count = "tokens not counted"
        if model:
            token_count = f"{prompt.filler_tokens} filler tokens in the tokenizer of {model}"
        keys = {
            "stock_task": task,
            "stock_file": stock_file,
            "condition": condition.name,
            "filler": prompt.prompt.text.removeprefix(instruction).removesuffix(_PLACEHOLDER),
        }
        files[f"{name}.yaml"] = _write_task(name, token_count, keys)
        names.append(name)
        messages.append(f"{name}: {token_count}")
    return [*_write_files(folder, files), *messages, _make_command(folder, names, model)]


def _make_command(folder: Path, tasks: Sequence[str], model: str | None) -> str:
    """The call of lm-eval that runs the wrapped tasks."""
    pretrained = smollm2_model.resolve_model(model or "MODEL")
    return (
        f"lm_eval --model vllm --model_args pretrained={pretrained} \\\n"
        f"    --include_path {folder} --log_samples --output_path results \\\n"
        f"    --tasks {','.join(tasks)}"
    )


def _write_task(name: str, token_count: str, keys: Mapping[str, str]) -> str:
    """The YAML of a wrapped task, with these keys, which its class reads."""
    heading = (
        f"# {keys['stock_task']} of lm-eval under the condition {keys['condition']}, "
        f"{token_count}.\n"
        f"# Written by mless tasks --wrap for lm-eval {version('lm-eval')}, and needs it "
        "alone. Any other key of a\n# task may be added here, such as num_fewshot, and "
        "replaces lm-eval's own.\n"
        f"task: {name}\nclass: !function {Path(_HELPER_FILE).stem}.WithFiller\n"
    )
    settings = {"output_type": _OUTPUT_TYPE, **keys}
    # PyYAML would fold a long filler into several lines, which nobody could read
    return heading + yaml.safe_dump(settings, allow_unicode=True, sort_keys=False, width=10**6)


def _read_conditions(text: str | None) -> list[Condition]:
    """The conditions of a list such as `wo, {name: dots, unit: "."}`, with or without brackets.

    Raises:
        ConfigError: it is not such a list, names a condition twice, or holds a condition that is
            not possible before a question.
    """
    if text is None:
        return list(NAMED_CONDITIONS.values())
    # YAML needs brackets around a list, which users may leave out
    values = parse_option("--conditions", text if text.lstrip().startswith("[") else f"[{text}]")
    conditions = list(map(as_condition, values)) if isinstance(values, list) else []
    names = {condition.name for condition in conditions}
    if not names or len(names) < len(conditions):
        raise ConfigError(
            "--conditions: expected a list of conditions, each once, such as wo,mless; "
            f"got {text!r}."
        )
    for condition in conditions:
        impossible = [key for key in _IMPOSSIBLE_KEYS if getattr(condition, key, None)]
        # another task's documents have other columns
        impossible += [f"{{row.{column}}}" for column in find_columns(condition.as_entry())]
        if impossible:
            raise ConfigError(
                f"--conditions: {condition.name!r} is not a text before a task's question: "
                f"{', '.join(impossible)}."
            )
    return conditions


@cache
def _load_task_manager() -> Any:
    """lm-eval's manager of its own tasks; reading all their files takes a quarter of a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _find_task(name: str) -> str:
    """A task's file within lm-eval's folder of tasks.

    Raises:
        ConfigError: it is not a single task of lm-eval whose YAML says that it generates.
    """
    import lm_eval.tasks

    manager = _load_task_manager()
    generating = []
    for task in manager.all_subtasks:
        settings = manager.task_index[task].cfg or {}
        # the YAML of a task that is written in Python does not say whether it generates
        if "class" not in settings and settings.get("output_type", _OUTPUT_TYPE) == _OUTPUT_TYPE:
            generating.append(task)
    if name not in generating:
        family = name.partition("_")[0]
        relatives = [task for task in generating if task.startswith(family)]
        near = list_near(name, relatives or generating, 3)
        raise ConfigError(
            f"--wrap {name}: expected a single task of lm-eval that generates text and is written "
            f"in YAML, such as {near}."
        )
    path = Path(str(manager.task_index[name].yaml_path))
    return path.relative_to(Path(lm_eval.tasks.__file__).parent).as_posix()


def _write_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write texts by file name into a new or empty folder and return their paths."""
    with clear_messages(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} exists and is not an empty folder.")
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in sorted(files)]
