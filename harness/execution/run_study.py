"""The study for several models: accuracies, flipped problems, their attention, and five figures.

Each step is a command of mless in a process of its own. So the memory of a model is free before the
next is loaded, and a model that fails, even by running out of memory, leaves the others alone. A
step that is finished is not repeated: the same call continues a study that was interrupted.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from harness import resources
from harness.display.table_page import TableOptions, make_table
from harness.errors import ConfigError, ModelError, RunError, RunInterrupted
from harness.experiment.model_settings import select_model_changes
from harness.experiment.problems import open_dataset
from harness.experiment.prompts.tokenizer import load_model_config
from harness.experiment.run_config import config_of_model, name_folder
from harness.layers_and_heads import parse_numbers
from harness.runs.read_runs import Run
from harness.runs.run_files import RECEIPT
from harness.yaml_settings import parse_overrides

ACCURACY_FIGURE = "accuracy-bars-and-head-14"
"""The figure that also has the accuracies of the run."""
FIGURES = (
    "qwen-heads-12-13-14",
    "mless-vs-random-sentence",
    "qwen-layers-1-2-3-head-22",
    "llama-heads-20-25-26",
    ACCURACY_FIGURE,
)
"""The configs of the study's five figures, which are drawn for each model."""
INTERRUPTION_SECONDS = 10
"""A command that a terminal interrupts together with us ends within about 5 s."""
FIGURE_PROBLEMS = 100
"""The number of problems that these figures average, where MATH500_PATH names as many."""


def run_study(
    models: Sequence[str],
    output: Path,
    *,
    overrides: Sequence[str],
    limit: int | None,
    layers: str,
) -> str:
    """Run the study, or continue it.

    Args:
        models: Hub names or folders.
        output: The folder of the study, with a run folder for each model.
        overrides: Changes of configs/runs/any-model.yaml, see `--set`.
        limit: The number of problems, from the dataset's first.
        layers: The layers of the flipped problems whose attention is recorded, such as `1-3`.

    Returns:
        The table of all models, and below it the steps that were not completed. It is also in
        table.txt.

    Raises:
        ConfigError: two models have the same folder, or a model lacks a layer.
        RunError: no model has a finished run.
        RunInterrupted: a step was interrupted.
    """
    folders: dict[str, Path] = {}
    for model in models:
        folder = output / name_folder(model)
        if folder in folders.values():
            raise ConfigError(f"{model}: two models have the folder {folder}. Name each only once.")
        folders[model] = folder
    _refuse_layers(models, overrides, max(parse_numbers(layers, "--layers")))
    failures = []
    for number, (model, folder) in enumerate(folders.items(), start=1):
        for step, arguments in _steps(model, folder, overrides, limit, layers):
            progress = f"model {number} of {len(models)}"
            print(f"study   {progress}, {model}: {step}", file=sys.stderr, flush=True)
            try:
                _take_step(folder, step, arguments)
            except RunError as error:
                failures.append(f"{model}: {step}: {error}")
                if step == "run":
                    break
    finished = [folder for folder in folders.values() if (folder / RECEIPT).is_file()]
    if not finished:
        raise RunError(f"no model has a finished run. {' '.join(failures)}")
    page = make_table([*map(Run.load, finished)], TableOptions(models=True))
    if failures:
        page += "\n\nNot completed:\n" + "\n".join(failures)
    (output / "table.txt").write_text(f"{page}\n", encoding="utf-8")
    return page


def _refuse_layers(models: Sequence[str], overrides: Sequence[str], last: int) -> None:
    """Refuse a layer, counted from 1, that a model lacks, before the first model is loaded."""
    for model in models:
        arguments = config_of_model(model, parse_overrides(overrides)).model.model_args
        # a model without a readable config fails in its own run, and the others continue
        with suppress(ModelError):
            layer_count = load_model_config(model, arguments).num_hidden_layers
            if last > layer_count:
                raise ConfigError(f"--layers {last}: {model} has {layer_count} layers.")


def _steps(
    model: str, folder: Path, overrides: Sequence[str], limit: int | None, layers: str
) -> Iterator[tuple[str, list[str]]]:
    """The steps of a model: their names and the arguments of their commands."""
    run = ["run", "--model", model, "--output", str(folder), "--quiet"]
    for override in overrides:
        run += ["--set", override]
    if limit is not None:
        run += ["--limit", str(limit)]
    yield "run", run
    yield "flipped problems", ["show", str(folder), "--changed"]
    traces = folder / "flipped.traces"
    chosen = ["--flip", "changed", "--controls", "--layers", layers, "--rows", "last:16"]
    yield "attention", ["probe", str(folder), *chosen, "-o", str(traces)]
    attention = ["--traces", str(traces)] if traces.exists() else []
    yield "report", ["report", str(folder), *attention, "-o", str(folder / "report.html")]
    chosen = _choose_prompts(model, folder, overrides)
    for name in FIGURES:
        config = resources.folder("configs") / "figures" / f"{name}.yaml"
        arguments = ["figure", str(config), "--model", model, "-o", str(folder / "figures")]
        if name == ACCURACY_FIGURE:
            bars = json.dumps({"title": "Accuracy", "runs": [str(folder)]})
            arguments += ["--set", f"bars={bars}"]
        yield f"figure {name}", arguments + chosen


def _choose_prompts(model: str, folder: Path, overrides: Sequence[str]) -> list[str]:
    """Options with which figures have the run's prompts and model, if these are not the study's."""
    config = config_of_model(model, parse_overrides(overrides))
    changes = config.instruction or config.fewshot or select_model_changes(config.model.model_args)
    if config.dataset == "math500" and not changes:
        count = len(open_dataset(config.dataset).problems)
        return [] if count >= FIGURE_PROBLEMS else ["--set", f"prompts.n={count}"]
    prompts = {"run": str(folder), "layout": next(map(str, config.layouts), None)}
    # without the study's document the axes fit the prompts
    return ["--set", f"prompts={json.dumps(prompts)}", "--set", "seed_document=null"]


def _take_step(folder: Path, step: str, arguments: Sequence[str]) -> None:
    """Call the command of a step. The flipped problems, which it prints, go to flipped.txt."""
    if step != "flipped problems":
        call_command(arguments)
        return
    with (folder / "flipped.txt").open("w", encoding="utf-8") as file:
        call_command(arguments, file)


def call_command(arguments: Sequence[str], stdout: int | IO[str] = subprocess.DEVNULL) -> None:
    """Call `mless` in a process of its own, and print its messages on stderr line by line.

    Args:
        arguments: The command and its options.
        stdout: Where its output goes.

    Raises:
        RunError: the command failed. The message is the command's.
        RunInterrupted: the command was interrupted.
    """
    command = [sys.executable, "-m", "harness.cli", *arguments]
    message = ""
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # because of PIPE
        try:
            for line in process.stderr:
                message = line.rstrip("\n")
                print(message, file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            try:
                process.communicate(timeout=INTERRUPTION_SECONDS)
            except subprocess.TimeoutExpired:  # the signal went to this process alone
                process.terminate()
                process.communicate()
            raise
    # 130 is a command's exit code after an interruption
    if process.returncode:
        error = RunInterrupted if process.returncode == 130 else RunError
        raise error(message.removeprefix("mless: ") or f"exit code {process.returncode}")
