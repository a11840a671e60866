"""A task of lm-eval with a filler before the current question. It needs only lm-eval."""

from pathlib import Path
from typing import Any

import lm_eval.tasks

_KEYS_OF_THIS_CLASS = (
    "task",
    "class",
    "metadata",
    "stock_task",
    "stock_file",
    "condition",
    "filler",
)
"""Keys of the YAML that lm-eval's own task does not have."""


class WithFiller:
    """The `class` of a task's YAML. An instance is lm-eval's own task with another prompt."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Never called. Its signature makes lm-eval pass the YAML as `config`."""

    def __new__(cls, config: dict[str, Any]) -> Any:
        """Load lm-eval's own task through its public interface, with the other keys of the YAML."""
        file, name, filler = (config[key] for key in ("stock_file", "stock_task", "filler"))
        path = Path(lm_eval.tasks.__file__).parent / file
        if not path.is_file():
            raise FileNotFoundError(
                f"{config['task']}: this lm-eval ({lm_eval.__version__}) has no tasks/{file}. "
                "Install the version that the first lines of the task's YAML name, or write the "
                "tasks again with mless tasks --wrap."
            )
        manager = lm_eval.tasks.TaskManager(
            include_path=str(path.parent), include_defaults=False, metadata=config["metadata"]
        )
        # with lm-eval's own alias all conditions would have the same name in its table
        changes = {"task_alias": None} | {
            key: value for key, value in config.items() if key not in _KEYS_OF_THIS_CLASS
        }
        group = {"group": config["task"], "task": [{"task": name, **changes}]}
        task: Any = manager.load([group])["tasks"][name]
        stock_doc_to_text = task.doc_to_text

        def doc_to_text(doc: dict[str, Any], *example: Any) -> str:
            """The text of the current question. For an example lm-eval passes more arguments."""
            text = stock_doc_to_text(doc, *example)
            return text if example else filler + text

        task.doc_to_text = doc_to_text
        # lm-eval writes this into its results file, where mless finds condition and filler
        metadata = {"filler_condition": config["condition"], "filler": filler}
        task.config.metadata = {**(task.config.metadata or {}), **metadata}
        return task
