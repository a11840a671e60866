"""Any task of lm-eval under some conditions, as a task folder that needs lm-eval alone.

A wrapped task is lm-eval's own, loaded by its name: its documents, examples, stop strings and scoring. Only the text of
the question at hand is another: the condition's filler stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from harness import resources, smollm2_model
from harness.constants import BASELINE
from harness.errors import ConfigError, list_near
from harness.experiment.conditions import Condition, Placement, as_condition, named_conditions
from harness.experiment.problems import Problem
from harness.experiment.prompt import PromptSettings
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.journal import clear_messages
from harness.yaml_settings import parse_option

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

_NOT_BEFORE = ("instruction", "cue", "answer_prefix", "repeat_problem", "random_ids")
"""What of a condition cannot stand before the question of another task."""
_HELPER = "with_filler.py"
_GENERATES = "generate_until"
_QUESTION = "Question"
"""Stands for the question while a filler's text is made."""


def write_wrapped(
    folder: Path, task: str, conditions: str | None = None, model: str | None = None
) -> list[str]:
    """Write a task of lm-eval under some conditions, as a task folder.

    Args:
        folder: A new or an empty folder.
        task: lm-eval's name of the task.
        conditions: Names or inline conditions, as in the list of a run config. None: the study's four.
        model: Model folder or hub name. Its tokenizer gives the random sentence its exact length, and counts every
            filler's tokens.

    Returns:
        What to tell the user: the files, the fillers' tokens, and how to run the tasks.

    Raises:
        ConfigError: the folder is not empty or cannot be written, the task cannot be wrapped, or a condition cannot
            stand before its question.
        ModelError: the tokenizer cannot be had.
        PromptMismatchError: a filler has another number of tokens in this tokenizer.
    """
    chosen = _read_conditions(conditions)
    names = [f"{task}_{condition.name}" for condition in chosen]
    file = _find_task(task)
    known = None if model is None else ModelTokenizer.from_arguments({"pretrained": model})
    asked = [Problem(id="problem", problem=_QUESTION, answer="?")]
    every = build_checked_prompts(
        asked, [named_conditions()[BASELINE], *chosen], PromptSettings(), known, max_gen_toks=0
    )
    built = {one.condition.name: one.prompts[0] for one in every}
    start = built[BASELINE].prompt.text.removesuffix(_QUESTION)
    files = {_HELPER: (resources.folder("tasks") / "wrap" / _HELPER).read_text(encoding="utf-8")}
    told = []
    for condition, name in zip(chosen, names, strict=True):
        one = built[condition.name]
        tokens = (
            f"{one.filler_tokens} filler tokens in the tokenizer of {model}"
            if model
            else "tokens not counted"
        )
        keys = {
            "output_type": _GENERATES,
            "stock_task": task,
            "stock_file": file,
            "condition": condition.name,
            "filler": one.prompt.text.removeprefix(start).removesuffix(_QUESTION),
        }
        files[f"{name}.yaml"] = (
            f"# {task} of lm-eval under the condition {condition.name}, {tokens}.\n"
            f"# Written by mless tasks --wrap for lm-eval {version('lm-eval')}, and needs it alone. Any other key of a"
            "\n# task may be added here, such as num_fewshot, and replaces lm-eval's own.\n"
            f"task: {name}\nclass: !function {Path(_HELPER).stem}.WithFiller\n"
        ) + yaml.safe_dump(keys, allow_unicode=True, sort_keys=False, width=10**6)
        told.append(f"{name}: {tokens}")
    told.append(
        f"lm_eval --model vllm --model_args pretrained={smollm2_model.resolve_model(model or 'MODEL')} \\\n"
        f"    --include_path {folder} --log_samples --output_path results \\\n"
        f"    --tasks {','.join(names)}"
    )
    return [*_write_files(folder, files), *told]


def _read_conditions(text: str | None) -> list[Condition]:
    """The conditions of a list such as `wo, {name: dots, unit: "."}`, with or without its brackets.

    Raises:
        ConfigError: it is no such list, names one twice, or holds one that cannot stand before a question.
    """
    if text is None:
        return list(named_conditions().values())
    values = parse_option("--conditions", text if text.lstrip().startswith("[") else f"[{text}]")
    chosen = list(map(as_condition, values)) if isinstance(values, list) else []
    names = [condition.name for condition in chosen]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"--conditions: expected a list of conditions, each once, such as wo,mless; got {text!r}."
        )
    for one in chosen:
        odd = [key for key in _NOT_BEFORE if getattr(one, key)]
        odd += (
            [f"placement {one.placement}"]
            if one.filler and one.placement is not Placement.BETWEEN
            else []
        )
        if odd:
            raise ConfigError(
                f"--conditions: {one.name!r} is no text before a task's question: {', '.join(odd)}."
            )
    return chosen


@cache
def _all_tasks() -> TaskManager:
    """lm-eval's own tasks; it reads all their files, which takes a quarter of a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _find_task(name: str) -> str:
    """A task's file within lm-eval's folder of tasks.

    Raises:
        ConfigError: it is no single task of lm-eval whose YAML says that it generates.
    """
    import lm_eval.tasks

    manager = _all_tasks()
    settings = {one: manager.task_index[one].cfg or {} for one in manager.all_subtasks}
    # a task written in Python does not say beforehand whether it generates
    able = [
        one
        for one, of in settings.items()
        if "class" not in of and of.get("output_type", _GENERATES) == _GENERATES
    ]
    if name not in able:
        near = list_near(name, able, 3)
        raise ConfigError(
            f"--wrap {name}: expected one task of lm-eval whose YAML generates text, such as {near}."
        )
    path = Path(str(manager.task_index[name].yaml_path))
    return path.relative_to(Path(lm_eval.tasks.__file__).parent).as_posix()


def _write_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write texts by file name into a new or empty folder and return their paths."""
    if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise ConfigError(f"{folder} exists and is not an empty folder.")
    with clear_messages(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in sorted(files)]
