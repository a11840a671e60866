"""Any task of lm-eval that generates, under our conditions, as a task folder that needs lm-eval alone.

Each task of the folder is lm-eval's own, loaded by its name: its documents, examples, stop strings and scoring. Only
the text of the question at hand is another: the condition's filler stands before it.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness import resources
from harness.errors import ConfigError, list_first, list_near
from harness.experiment.conditions import (
    BASELINE,
    Condition,
    Placement,
    as_condition,
    draw_sentences,
    named_conditions,
)
from harness.lm_eval_plugin.standalone import build_one_prompt, refuse_used, write_files
from harness.yaml_settings import DoubledKeyError, parse_yaml

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

_HELPER = "with_filler.py"
_GENERATES = "generate_until"
_QUESTION = "Question"
"""Stands for the question while a filler's text is made."""


def write_wrapped(folder: Path, task: str, conditions: str | None = None, model: str | None = None) -> list[str]:
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
    refuse_used(folder)
    chosen = _read_conditions(conditions)
    settings = _find_task(task)
    built = build_one_prompt([named_conditions()[BASELINE], *chosen], _QUESTION, model)
    start = built[BASELINE].prompt.text.removesuffix(_QUESTION)
    files = {_HELPER: (resources.folder("tasks") / "wrap" / _HELPER).read_text(encoding="utf-8")}
    told = []
    for condition in chosen:
        name, one = f"{task}_{condition.name}", built[condition.name]
        if name in _all_tasks().all_tasks:
            raise ConfigError(f"{name} is lm-eval's own task. Give the condition {condition.name!r} another name.")
        tokens = f"{one.filler_tokens} filler tokens in the tokenizer of {model}" if model else "tokens not counted"
        filler = one.prompt.text.removeprefix(start).removesuffix(_QUESTION)
        files[f"{name}.yaml"] = _task(name, f"{condition.name}, {tokens}", condition, filler, settings)
        told.append(f"{name}: {tokens}")
    paths = write_files(folder, files)
    if settings["unsafe_code"]:
        told.append(
            f"{task} runs the code that a model writes. The files were written, and not tried: lm_eval asks for "
            "--confirm_run_unsafe_code, and for HF_ALLOW_CODE_EVAL=1 where the task needs it."
        )
    names = ",".join(f"{task}_{condition.name}" for condition in chosen)
    told.append(
        f"lm_eval --model vllm --model_args pretrained={resources.resolve_model(model or 'MODEL')} \\\n"
        f"    --include_path {folder} --log_samples --output_path results \\\n"
        f"    --tasks {names}"
    )
    return [*map(str, paths), *told]


def _task(name: str, what: str, condition: Condition, filler: str, settings: dict[str, Any]) -> str:
    keys = {
        "output_type": _GENERATES,
        "stock_task": settings["task"],
        "stock_file": settings["file"],
        "condition": condition.name,
        "filler": filler,
    }
    return (
        f"# {settings['task']} of lm-eval under the condition {what}.\n"
        f"# Written by mless tasks --wrap for lm-eval {version('lm-eval')}, and needs it alone. Any other key of a\n"
        "# task may be added here, such as num_fewshot, and replaces lm-eval's own.\n"
        f"task: {name}\nclass: !function {Path(_HELPER).stem}.WithFiller\n"
    ) + yaml.safe_dump(keys, allow_unicode=True, sort_keys=False, width=10**6)


@cache
def _all_tasks() -> TaskManager:
    """lm-eval's own tasks; it reads all their files, which takes a quarter of a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _find_type(name: str) -> str | None:
    """The output type of one of lm-eval's tasks. None: it is written in Python, and does not say."""
    settings = _all_tasks().task_index[name].cfg or {}
    return None if "class" in settings else settings.get("output_type", _GENERATES)


def _find_task(name: str) -> dict[str, Any]:
    """The task's name, its file within lm-eval's folder of tasks, and whether it runs code that a model writes.

    Raises:
        ConfigError: there is no such task, or it cannot be wrapped.
    """
    import lm_eval.tasks

    manager = _all_tasks()
    if name in manager.all_groups or name in manager.all_tags:
        entry = manager.task_index[name]
        named = (one if isinstance(one, str) else one.get("task") for one in (entry.cfg or {}).get("task", ()))
        inside = sorted(entry.tags) if name in manager.all_tags else [one for one in named if isinstance(one, str)]
        able = [one for one in manager.all_subtasks if _find_type(one) == _GENERATES]
        likely = [one for one in inside if one in able] or [one for one in able if one.startswith(f"{name}_")]
        raise ConfigError(
            f"{name} is a group of tasks of lm-eval. Expected one task that generates, such as "
            f"{list_first(likely) or list_near(name, able, 3)}."
        )
    if name not in manager.all_subtasks:
        raise ConfigError(
            f"lm-eval {version('lm-eval')} has no task {name!r}. Expected one of its tasks, such as "
            f"{list_near(name, manager.all_subtasks)}; `lm_eval ls subtasks` lists them."
        )
    entry = manager.task_index[name]
    settings = entry.cfg or {}
    kind = _find_type(name)
    if kind is None:
        raise ConfigError(
            f"{name} is written in Python, and does not say beforehand whether it generates. Expected a task that its "
            "YAML describes."
        )
    if kind != _GENERATES:
        raise ConfigError(
            f"{name} does not generate: it compares log-likelihoods of given answers (output_type {kind}). Expected a "
            "task with output_type generate_until, such as gsm8k; `lm_eval ls subtasks` shows the types."
        )
    assert entry.yaml_path is not None
    file = Path(entry.yaml_path).relative_to(Path(lm_eval.tasks.__file__).parent).as_posix()
    return {"task": name, "file": file, "unsafe_code": settings.get("unsafe_code", False)}


def _read_conditions(text: str | None) -> list[Condition]:
    """The conditions of a list such as `wo, {name: dots, unit: "."}`, with or without its brackets.

    Raises:
        ConfigError: it is no such list, names one twice, or holds one that cannot stand before a question.
    """
    if text is None:
        return list(named_conditions().values())
    try:
        values = parse_yaml(text if text.lstrip().startswith("[") else f"[{text}]")
    except DoubledKeyError as error:
        raise ConfigError(f"--conditions {text!r}: {error}.") from None
    except yaml.YAMLError:
        values = None
    if not values:
        raise ConfigError(
            "--conditions: expected names or inline conditions, such as 'wo,mless' or 'wo, {name: dots, text: ...}', "
            f"got {text[:60]!r}."
        )
    chosen = [as_condition(value) for value in draw_sentences(values)]
    names = [condition.name for condition in chosen]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--conditions: {doubled!r} is named twice. Expected each condition once.")
    for condition in chosen:
        if why := _find_obstacle(condition):
            raise ConfigError(f"--conditions: {condition.name!r} cannot stand before another task's question: {why}.")
    return chosen


def _find_obstacle(condition: Condition) -> str | None:
    """Why a condition is not one of a text before the question."""
    if condition.instruction is not None:
        return "it has its own instruction, and so has the task. Leave `instruction` out"
    if condition.answer_prefix or (condition.filler and condition.placement is Placement.ANSWER):
        return "it begins the model's answer, which lm-eval does not ask. Use `mless run`"
    if condition.cue:
        return "it has words after the question, and the task ends the question itself. Leave `cue` out"
    if condition.repeat_problem is not None:
        return "it repeats the problem, which only lm-eval's own task knows. Use `mless run`"
    if condition.random_ids is not None:
        return "it draws random tokens from a model's vocabulary. Use `mless run`, or give a `text`"
    if condition.filler and condition.placement is not Placement.BETWEEN:
        return f"its placement is {condition.placement}, and only `between` instruction and question is possible"
    return None
