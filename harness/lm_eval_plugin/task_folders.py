"""Any task of lm-eval under some conditions, as a task folder that needs lm-eval alone.

A wrapped task is a task of lm-eval, loaded by its name, with its documents, examples, stop strings
and scoring. Only the text of the question changes: the condition's filler stands before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness import resources, smollm2_model
from harness.constants import BASELINE
from harness.errors import ConfigError, list_near
from harness.experiment.conditions import NAMED_CONDITIONS, PROMPT_KEYS, Condition, as_condition
from harness.experiment.problems import Problem
from harness.experiment.prompts.checked_prompts import build_checked_prompts
from harness.experiment.prompts.prompt import PromptSettings
from harness.experiment.prompts.template_parser import find_columns
from harness.experiment.prompts.tokenizer import ModelTokenizer
from harness.runs.stored_files import explain_write_errors
from harness.yaml_settings import parse_option

_IMPOSSIBLE_KEYS = (*PROMPT_KEYS, "random_ids", "fresh", "placement")
"""Keys of a condition that are not possible before the question of another task."""
_HELPER_FILE = "with_filler.py"
"""The module in a task folder that puts the filler before the question."""
_OUTPUT_TYPE = "generate_until"
"""lm-eval's name for tasks that generate text."""
_PLACEHOLDER = "Question"
"""Stands for the question while the text of a filler is made."""


class _WrappedTask(NamedTuple):
    """A task under a condition.

    Attributes:
        name: lm-eval's name of the task under the condition.
        condition_name: The name of the condition.
        filler: The condition's filler with its separators.
        length_text: A text about the filler's number of tokens.
    """

    name: str
    condition_name: str
    filler: str
    length_text: str


def write_wrapped_tasks(
    folder: Path, task_name: str, conditions_text: str | None = None, model: str | None = None
) -> list[str]:
    """Write a task of lm-eval under some conditions, as a task folder.

    Args:
        folder: A new or an empty folder.
        task_name: lm-eval's name of the task.
        conditions_text: Names or inline conditions, as in the list of a run config. None: the
            study's four conditions.
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
    conditions = _read_conditions(conditions_text)
    stock_file = _find_task_file(task_name)
    wrapped_tasks = [*_wrap_task(task_name, conditions, model)]
    text_by_file_name = {
        f"{wrapped_task.name}.yaml": _make_task_yaml(wrapped_task, task_name, stock_file)
        for wrapped_task in wrapped_tasks
    }
    helper_path = resources.folder("tasks") / "wrap" / _HELPER_FILE
    text_by_file_name[_HELPER_FILE] = helper_path.read_text(encoding="utf-8")
    command = (
        "lm_eval --model vllm --model_args "
        f"pretrained={smollm2_model.resolve_model(model or 'MODEL')} \\\n"
        f"    --include_path {folder} --log_samples --output_path results \\\n"
        f"    --tasks {','.join(wrapped_task.name for wrapped_task in wrapped_tasks)}"
    )
    return [
        *_write_files(folder, text_by_file_name),
        *(f"{wrapped_task.name}: {wrapped_task.length_text}" for wrapped_task in wrapped_tasks),
        command,
    ]


def _wrap_task(
    task_name: str, conditions: Sequence[Condition], model: str | None
) -> Iterator[_WrappedTask]:
    """The task under each condition.

    The filler is cut out of a prompt of instruction, filler and question. The baseline's prompt has
    no filler, so its text without the question is the instruction.
    """
    baseline_prompts, *prompts_of_conditions = build_checked_prompts(
        [Problem(id="problem", problem=_PLACEHOLDER, answer="?")],
        [NAMED_CONDITIONS[BASELINE], *conditions],
        PromptSettings(),
        # without a model there is no tokenizer, and tokens are not counted
        ModelTokenizer.from_arguments({"pretrained": model}),
        max_gen_toks=0,
    )
    instruction = baseline_prompts.prompts[0].requested_prompt.text.removesuffix(_PLACEHOLDER)
    for condition_prompts in prompts_of_conditions:
        (built_prompt,) = condition_prompts.prompts
        prompt_text = built_prompt.requested_prompt.text
        filler_text = prompt_text.removeprefix(instruction).removesuffix(_PLACEHOLDER)
        length_text = "tokens not counted"
        if model:
            length_text = f"{built_prompt.filler_tokens} filler tokens in the tokenizer of {model}"
        condition_name = condition_prompts.condition.name
        yield _WrappedTask(
            f"{task_name}_{condition_name}", condition_name, filler_text, length_text
        )


def _make_task_yaml(wrapped_task: _WrappedTask, task_name: str, stock_file: str) -> str:
    """The YAML of a wrapped task. The class in `with_filler.py` reads the settings."""
    heading = (
        f"# {task_name} of lm-eval under the condition {wrapped_task.condition_name}, "
        f"{wrapped_task.length_text}.\n"
        f"# Written by mless tasks --wrap for lm-eval {version('lm-eval')}, and needs it "
        "alone. Any other key of a\n# task may be added here, such as num_fewshot, and "
        "replaces lm-eval's own.\n"
        f"task: {wrapped_task.name}\nclass: !function {Path(_HELPER_FILE).stem}.WithFiller\n"
    )
    return heading + yaml.safe_dump(
        {
            "output_type": _OUTPUT_TYPE,
            "stock_task": task_name,
            "stock_file": stock_file,
            "condition": wrapped_task.condition_name,
            "filler": wrapped_task.filler,
        },
        allow_unicode=True,
        sort_keys=False,
        # PyYAML would fold a long filler into several lines, which nobody could read
        width=10**6,
    )


def _read_conditions(conditions_text: str | None) -> list[Condition]:
    """The conditions of a list such as `wo, {name: dots, unit: "."}`, with or without brackets.

    Raises:
        ConfigError: it is not such a list, names a condition twice, or holds a condition that is
            not possible before a question.
    """
    if conditions_text is None:
        return list(NAMED_CONDITIONS.values())
    # YAML needs brackets around a list, which users may leave out
    has_brackets = conditions_text.lstrip().startswith("[")
    entries = parse_option(
        "--conditions", conditions_text if has_brackets else f"[{conditions_text}]"
    )
    conditions = list(map(as_condition, entries)) if isinstance(entries, list) else []
    condition_names = {condition.name for condition in conditions}
    if not condition_names or len(condition_names) < len(conditions):
        raise ConfigError(
            "--conditions: expected a list of conditions, each once, such as wo,mless; "
            f"got {conditions_text!r}."
        )
    for condition in conditions:
        impossible_keys = [key for key in _IMPOSSIBLE_KEYS if getattr(condition, key, None)]
        # `{row.COLUMN}` needs a column of our data, which another task's documents lack
        impossible_keys += [f"{{row.{column}}}" for column in find_columns(condition.as_entry())]
        if impossible_keys:
            raise ConfigError(
                f"--conditions: {condition.name!r} is not a text before a task's question: "
                f"{', '.join(impossible_keys)}."
            )
    return conditions


@cache
def _load_task_manager() -> Any:
    """lm-eval's manager of its own tasks; reading all their files takes a quarter of a minute."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _find_task_file(task_name: str) -> str:
    """A task's file within lm-eval's folder of tasks.

    Raises:
        ConfigError: it is not a single task of lm-eval whose YAML says that it generates.
    """
    import lm_eval.tasks

    manager = _load_task_manager()
    generating_names = []
    for listed_name in manager.all_subtasks:
        settings = manager.task_index[listed_name].cfg or {}
        # the YAML of a task that is written in Python does not say whether it generates
        if "class" not in settings and settings.get("output_type", _OUTPUT_TYPE) == _OUTPUT_TYPE:
            generating_names.append(listed_name)
    if task_name not in generating_names:
        # related tasks begin with the same word, such as `gsm8k` in `gsm8k_cot`
        related_names = [
            listed_name
            for listed_name in generating_names
            if listed_name.startswith(task_name.partition("_")[0])
        ]
        raise ConfigError(
            f"--wrap {task_name}: expected a single task of lm-eval that generates text and is "
            "written in YAML, such as "
            f"{list_near(task_name, related_names or generating_names, 3)}."
        )
    yaml_path = Path(str(manager.task_index[task_name].yaml_path))
    return yaml_path.relative_to(Path(lm_eval.tasks.__file__).parent).as_posix()


def _write_files(folder: Path, text_by_file_name: Mapping[str, str]) -> list[str]:
    """Write texts by file name into a new or empty folder and return their paths."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} exists and is not an empty folder.")
        for file_name, text in text_by_file_name.items():
            (folder / file_name).write_text(text, encoding="utf-8")
    return [str(folder / file_name) for file_name in sorted(text_by_file_name)]
