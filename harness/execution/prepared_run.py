"""A run from its config: the checks that need no prompt, the plan, and its execution."""

import sys
from pathlib import Path
from typing import NamedTuple

from harness.display.dry_run import describe_plan, show_prompts
from harness.display.progress import progress_bar
from harness.engines.backends import check_backend
from harness.errors import ModelError
from harness.execution.run_execution import (
    describe_folder,
    execute,
    fill_open_settings,
    refuse_impossible_interventions,
    stored_example_ids,
)
from harness.experiment.plan import Plan, make_plan
from harness.experiment.run_config import RunConfig, load_config
from harness.runs.run_folder import refuse_unusable_folder
from harness.runs.run_reader import Run

ConfigOrPath = RunConfig | Path | str
"""A run config, or its file."""


def run(
    config: ConfigOrPath,
    *,
    limit: int | None = None,
    output: Path | str = "",
    engines: int | str | None = None,
    quiet: bool = False,
) -> Run:
    """Run an experiment, or continue it, and read the result: what `mless run` does.

    The plan and the progress are printed on standard error.

    Args:
        config: A run config, or its file.
        limit: The number of problems, from the dataset's first.
        output: The run folder; by default the config's.
        engines: The number of engines, or `auto` for one on each GPU; by default one.
        quiet: Print a line every 30 s instead of progress bars.

    Raises:
        HarnessError: the config or the folder cannot be used, a prompt breaks a guarantee, the
            model cannot be loaded, or the engine dies; finished samples stay in the folder.
        RunInterrupted: by Ctrl-C; the same call continues.

    Example:
        >>> changes = {"conditions": ["wo", "mless"], "replicates": 1}
        >>> config = mless.load_config("configs/runs/products.yaml", changes)
        >>> run = mless.run(config, limit=4, output="results/api")
        >>> len(run.samples)
        24
    """
    prepared = prepare(config, limit=limit, output=output, engines=engines)
    print(describe_plan(prepared.plan, prepared.fact_lines), file=sys.stderr)
    folder = execute(
        prepared.plan, output=prepared.folder, quiet=quiet, engine_choice=prepared.engine_choice
    )
    return Run.load(folder)


class PreparedRun(NamedTuple):
    """A run before its model is loaded.

    Attributes:
        plan: The plan.
        folder: The run folder.
        engine_choice: The number of engines, or `auto` for one on each GPU.
        fact_lines: Further facts for the text of the plan.
    """

    plan: Plan
    folder: Path
    engine_choice: int | str
    fact_lines: list[str]

    def describe(self) -> str:
        """The page of `mless run --dry-run`: prompts, the plan, and the folder's content."""
        fact_lines = [*self.fact_lines, f"folder    {describe_folder(self.plan, self.folder)}"]
        return f"{show_prompts(self.plan)}\n{describe_plan(self.plan, fact_lines)}"


def prepare(
    config: ConfigOrPath,
    *,
    limit: int | None = None,
    output: Path | str = "",
    engines: int | str | None = None,
    tokenizer_only: bool = False,
) -> PreparedRun:
    """Check a config and make its plan.

    Args:
        config: A run config, or its file.
        limit: See `run`.
        output: See `run`.
        engines: See `run`.
        tokenizer_only: Whether a model that has no more than its tokenizer is accepted, although
            the layers of its interventions cannot be checked then.
    """
    if not isinstance(config, RunConfig):
        config = load_config(config)
    # the checks that need no prompts come before the prompts, which can take minutes
    engine_choice = check_backend(config, engines)
    folder = Path(output or config.folder)
    refuse_unusable_folder(folder)
    config = fill_open_settings(config, folder)
    fact_lines = [] if engine_choice == 1 else [f"engines   {engine_choice}, in Ray actors"]
    try:
        refuse_impossible_interventions(config)
    except ModelError as error:
        if not tokenizer_only:
            raise
        fact_lines.append(f"layers    not checked: {error}")
    with progress_bar("prompts") as advance:
        plan = make_plan(
            config, limit=limit, stored_ids=stored_example_ids(folder), advance=advance
        )
    return PreparedRun(plan, folder, engine_choice, fact_lines)
