"""A task of lm-eval with a filler before the question at hand, and nothing else changed. Needs lm-eval alone."""

from pathlib import Path
from typing import Any

import lm_eval.tasks

_NOT_A_TASKS = ("task", "class", "metadata", "stock_task", "stock_file", "condition", "filler")


class WithFiller:
    """The `class` of a task's YAML. What lm-eval gets is its own task, asked in another way."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Never called. lm-eval reads here that it should hand over the YAML as `config`."""

    def __new__(cls, config: dict[str, Any]) -> Any:
        """Load lm-eval's own task by its public interface, with what else the YAML has in place of its own keys."""
        file, name, filler = (config[key] for key in ("stock_file", "stock_task", "filler"))
        path = Path(lm_eval.tasks.__file__).parent / file
        if not path.is_file():
            raise FileNotFoundError(
                f"{config['task']}: this lm-eval ({lm_eval.__version__}) has no tasks/{file}. Install the version that "
                "the first lines of the task's YAML name, or write the tasks again with mless tasks --wrap."
            )
        # an alias would stand in lm-eval's table for every condition alike
        own = {"task_alias": None} | {
            key: value for key, value in config.items() if key not in _NOT_A_TASKS
        }
        manager = lm_eval.tasks.TaskManager(
            include_path=str(path.parent), include_defaults=False, metadata=config["metadata"]
        )
        task: Any = manager.load([{"group": config["task"], "task": [{"task": name, **own}]}])[
            "tasks"
        ][name]
        ask = task.doc_to_text

        def doc_to_text(doc: dict[str, Any], *example: Any) -> str:
            """The text of the question at hand. For an example lm-eval says more than the document."""
            return ask(doc, *example) if example else filler + ask(doc)

        task.doc_to_text = doc_to_text
        # into lm-eval's results file, where mless reads which condition it is, and where the probe finds the filler
        known = {"filler_condition": config["condition"], "filler": filler}
        task.config.metadata = {**(task.config.metadata or {}), **known}
        return task
