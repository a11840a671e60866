"""Generate what a plan lacks, and grade it meanwhile: completions go to the journal, scores beside them."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.display.progress import Progress, loading, progress_bar
from harness.engines.interventions.check_arms import (
    REFERENCE,
    ask_reference,
    describe_agreement,
    opened_layers,
    refuse_to_open,
)
from harness.errors import JournalError
from harness.execution.grade_samples import Scorer
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan, Request, make_requests, sample_key
from harness.runs import versions_and_hashes
from harness.runs.journal import clear_messages
from harness.runs.records import SESSION, TIMING, Identity, Sample, Score
from harness.runs.run_folder import RECORDED, RunFolder, read_samples

LOG = "libraries.log"
"""What vLLM, torch and others print while a run is made."""


def generate_and_grade(
    plan: Plan,
    sampling: Sampling,
    identity: Identity,
    folder: RunFolder,
    *,
    quiet: bool,
    engines: str | None,
) -> bool:
    """Make every missing sample and every missing score; return whether any was missing.

    Raises:
        JournalError: the journal holds samples that the plan has no place for.
    """
    session = _Session(plan, sampling, identity, folder, quiet=quiet)
    if session.is_finished:
        return False
    with Scorer(folder.scores, folder.prompts, audit=plan.config.audit) as scorer:
        session.grade_recorded(scorer)
        if session.missing:
            session.generate(scorer, engines)
        session.show(scorer.finish())
    folder.note(TIMING, session.timing)
    return True


class _Session:
    """What one process adds to a run.

    Attributes:
        missing: The requests that have no sample yet.
        timing: What the journal will say of the time that this took.

    Raises:
        JournalError: the journal holds samples that the plan has no place for.
    """

    def __init__(
        self, plan: Plan, sampling: Sampling, identity: Identity, folder: RunFolder, *, quiet: bool
    ) -> None:
        self._plan, self._sampling, self._folder = plan, sampling, folder
        self._facts = session_facts(plan)
        self._setting, self._task_lines = identity.hash_setting(), plan.lines
        self._requests = {
            sample_key(request, self._setting): request for request in make_requests(plan, sampling)
        }
        if strange := sorted(folder.sample_keys - self._requests.keys()):
            raise JournalError(
                f"{folder.path} holds {len(strange)} samples that are none of this run's, such as {strange[0]}."
            )
        self.missing = [
            request for key, request in self._requests.items() if key not in folder.journal.keys
        ]
        self.timing: dict[str, Any] = {"samples": 0, "tokens": 0}
        totals = Counter(self._line(key) for key in self._requests)
        self._progress = Progress(totals, most=sampling.max_tokens, quiet=quiet)

    @property
    def is_finished(self) -> bool:
        """Whether every sample is there and has its score."""
        return not self.missing and self._folder.scores.keys >= self._requests.keys()

    def grade_recorded(self, scorer: Scorer) -> None:
        """Hand the graders the samples of earlier sessions that have no score."""
        if self.missing:
            scorer.start()
        else:
            self._folder.note(SESSION, self._facts)
        for number, sample in enumerate(read_samples(self._folder.path)):
            self._progress.known(self._task_lines[sample.task])
            scorer.submit(sample)
            if number % 64 == 0:
                self.show(scorer.poll())  # the graders must not wait until all are read

    def generate(self, scorer: Scorer, engines: str | None) -> None:
        """Load the model, and have it answer the missing requests."""
        from harness.engines.backends import open_backend

        self._announce_loading()
        started, log = time.monotonic(), self._folder.path / LOG
        name, arguments = self._plan.config.model.backend, self._model_arguments()
        most, sampled = len(self.missing), not self._sampling.greedy
        with library_log(log), ExitStack() as opened:
            with loading(log):
                backend = opened.enter_context(
                    open_backend(
                        name, arguments, sampled=sampled, engines=engines, most=most, log=log
                    )
                )
                facts = backend.facts()  # which waits for the first of several engines
            recorder, requests = None, self.missing
            if self._plan.config.record_attention:
                recorder = opened.enter_context(
                    closing(_open_recorder(self._plan, self._folder.path, facts))
                )
                requests = [recorder.ask(request) for request in self.missing]
            if agreement := facts.get("interventions"):
                _say(describe_agreement(agreement))
            self.timing["load_seconds"] = round(time.monotonic() - started, 1)
            self._folder.note(SESSION, {**self._facts, "engine": facts})
            # only vLLM's engines tell what they have so far
            self._progress.running = lambda: [
                (self._task_lines[self.missing[number].task], tokens)
                for number, tokens in list(getattr(backend, "token_counts", {}).items())
            ]
            with self._progress:
                self._take_completions(backend.stream(requests), recorder, scorer)

    def show(self, scores: Iterable[Score]) -> None:
        """Count finished scores in the display of progress."""
        for score in scores:
            self._progress.score(self._line(score.key), score.verdict)

    def _line(self, key: str) -> str:
        """The line of the display that counts a sample."""
        return self._task_lines[self._requests[key].task]

    def _announce_loading(self) -> None:
        total = len(self._requests)
        recorded = total - len(self.missing)
        there = (
            f": {recorded:,} of {total:,} samples are in {self._folder.path} already"
            if recorded
            else ""
        )
        _say(f"loading {self._plan.config.model.display_name}{there}")

    def _model_arguments(self) -> dict[str, Any]:
        """The model's arguments; with interventions, the layers that are opened and what Hugging Face answers."""
        config, folder = self._plan.config, self._folder.path
        arguments = dict(self._plan.model_arguments)
        if any((layers := opened_layers(config)).values()):
            refuse_to_open(arguments, layers)
            arguments["interventions"] = {"layers": layers}
        if any(condition.intervention for condition in config.conditions):
            _say("Hugging Face answers the first prompts of every arm")
            with progress_bar("reference") as advance, clear_messages(folder / REFERENCE):
                reference = ask_reference(self._plan, self._requests.values(), folder, advance)
            arguments["interventions"]["reference"] = reference
        return arguments

    def _take_completions(
        self, stream: Iterable[Sequence[Any]], recorder: Any, scorer: Scorer
    ) -> None:
        """Write every completion to the journal as it comes, and wait for its score."""
        started = time.monotonic()
        for finished in stream:
            for request, completion in finished:
                if recorder and completion.attention is not None:
                    recorder.keep(request, completion.attention)
                self._take(request, completion, scorer)
            self.show(scorer.poll())
            self._folder.sync_if_due()
            self._progress.tick()
        last = time.monotonic()
        self.timing["generation_seconds"] = round(last - started, 2)
        self.timing["tokens_per_second"] = round(self.timing["tokens"] / (last - started), 1)
        self.show(scorer.finish())
        self.timing["grading_after_last_completion_seconds"] = round(time.monotonic() - last, 3)

    def _take(self, request: Request, completion: Any, scorer: Scorer) -> None:
        key, tokens = sample_key(request, self._setting), completion.completion_tokens
        sample = Sample.of(
            request,
            key,
            completion.text,
            tokens=tokens,
            reason=completion.finish_reason,
            token_ids=completion.token_ids,
        )
        self._folder.journal.append(sample)
        scorer.submit(sample)
        self._progress.sample(self._line(key), tokens)
        self.timing["samples"] += 1
        self.timing["tokens"] += tokens or 0


def _say(message: str) -> None:
    print(f"mless: {message}", file=sys.stderr, flush=True)


def _open_recorder(plan: Plan, folder: Path, facts: Mapping[str, Any]) -> Any:
    """What keeps attention that the engine records: the probe's, which this package must not import, only name."""
    recorder = import_module("attention_probe.run_recorder").RunRecorder
    with clear_messages(folder / RECORDED):
        return recorder(plan, folder / RECORDED, facts["dtype"])


def session_facts(plan: Plan) -> dict[str, Any]:
    """Who writes the journal from here on; `engine` is filled in when one has been loaded."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        # a name that is no UTF-8 could not be journalled
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        .encode("utf-8", "replace")
        .decode(),
        "config": plan.config.as_written(),
        "engine": None,
        "dataset_source": plan.whole.source,
        **versions_and_hashes.software(),
    }


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
        warnings.showwarning = lambda *warning: print(
            warnings.formatwarning(*warning[:4]), file=log, flush=True
        )
        try:
            yield
        finally:
            warnings.showwarning = warn
            sys.stderr = shown
            os.dup2(kept, 2)


def quieten_libraries() -> None:
    """Silence the libraries' logs, except where the user has set a level."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "WARNING")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    # a killed engine leaves shared memory to Python's tracker, which cleans it up and says so after our last word
    told = (os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, told))
