"""Generates the missing samples of a plan and grades them meanwhile.

A session is the work of one process on a run: a run that was interrupted has several.
"""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.constants import JsonObject
from harness.display.progress import Progress, progress_bar
from harness.engines.interventions.intervention_check import ask_reference, describe_agreement
from harness.engines.interventions.open_layers import find_changed_layers
from harness.engines.library_messages import LIBRARY_LOG, library_log
from harness.errors import JournalError, print_message
from harness.execution.held_replies import HeldReplies
from harness.execution.sample_grading import Scorer
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Plan, Request, make_requests, sample_key
from harness.reasoning_markers import NO_MARKERS_NOTE, add_reasoning, skip_reasoning
from harness.runs import versions_and_hashes
from harness.runs.journal import changed_settings_error, list_differences
from harness.runs.records import (
    SESSION_PREFIX,
    TIMING_PREFIX,
    AnswerScore,
    Sample,
    Score,
    TokenScores,
)
from harness.runs.run_files import JOURNAL, RunFiles
from harness.runs.run_folder import RunFolder


def generate_and_grade(
    plan: Plan, sampling: Sampling, folder: RunFolder, *, quiet: bool, engine_choice: int | str
) -> None:
    """Make every missing sample and every missing score.

    Raises:
        JournalError: the journal holds samples that are not in the plan.
    """
    session = _Session(plan, sampling, folder, quiet=quiet)
    with Scorer(folder.scores, folder.prompts, audit=plan.config.audit) as scorer:
        # first, so that the graders are busy while the model loads
        session.take_recorded_samples(scorer)
        if session.missing_requests:
            session.generate(scorer, engine_choice)
        session.show_scores(scorer.finish())
    folder.note(TIMING_PREFIX, session.timing)


class _Session:
    """The work of a process on a run.

    Attributes:
        missing_requests: The requests to send, as they have no sample yet: one for each answer
            whose log-probability is measured.
        timing: The content of the journal's note on the session's duration and amount of work.

    Raises:
        JournalError: the journal holds samples that are not in the plan.
    """

    def __init__(self, plan: Plan, sampling: Sampling, folder: RunFolder, *, quiet: bool) -> None:
        self._plan = plan
        self._sampling = sampling
        self._folder = folder
        self._session_facts = session_facts(plan)
        self._setting_hash = folder.identity.hash_setting()
        self._request_by_key = {
            sample_key(request, self._setting_hash): request
            for request in make_requests(plan, sampling)
        }
        if unknown_keys := sorted(folder.sample_keys - self._request_by_key.keys()):
            raise JournalError(
                f"{folder.path} holds {len(unknown_keys)} samples that are not this run's, "
                f"such as {unknown_keys[0]}."
            )
        self.missing_requests: list[Request] = []
        for key, request in self._request_by_key.items():
            if key not in folder.journal.keys:
                self.missing_requests += request.split_by_answer()
        self.timing: JsonObject = {"samples": 0, "tokens": 0}
        self._token_scores_by_key: defaultdict[str, dict[int, TokenScores]] = defaultdict(dict)
        """Log-probabilities of answers, by the sample's key and the answer's index, until all
        answers of the sample are scored."""
        self._has_unexpected_reasoning = False
        """Whether a completion has reasoning although the model is not known to reason."""
        self._held_replies = HeldReplies(plan)
        self._last_model: JsonObject | None = None
        """The server's description of the model in the last session."""
        self._line_by_task = plan.line_by_task
        """The line of the display of progress that counts the samples of a task."""
        sample_count_by_line = Counter(
            self._line_by_task[request.task] for request in self._request_by_key.values()
        )
        self._progress = Progress(
            sample_count_by_line, most_tokens=sampling.max_tokens, quiet=quiet
        )

    def take_recorded_samples(self, scorer: Scorer) -> None:
        """Take up the samples of earlier sessions.

        They are shown as recorded, and graded if they have no score. What they tell of a server is
        kept for `generate`: how it counts tokens, and which model it served last.
        """
        # with missing requests, `generate` writes this note together with the engine's facts
        if not self.missing_requests:
            self._folder.note(SESSION_PREFIX, self._session_facts)
        journal = RunFiles(self._folder.path).journal
        for sample in journal.records:
            self._progress.count_recorded(self._line_by_task[sample.task])
            # new replies must agree with the server's count of tokens in the recorded ones
            self._held_replies.add_reply(sample)
            # `submit` skips a sample that has its score
            scorer.submit(sample)
            # samples are graded while this loop runs, so some scores are finished
            self.show_scores(scorer.poll())
        for note in journal.notes:
            if note.get("engine"):
                self._last_model = note["engine"].get("served")

    def generate(self, scorer: Scorer, engine_choice: int | str) -> None:
        """Load the model and generate the missing samples.

        Args:
            scorer: Grades the samples.
            engine_choice: The number of engines, or `auto` for one on each GPU.

        Raises:
            JournalError: the server has another model than in the last session.
        """
        from harness.engines.backends import open_backend

        log_path = self._folder.path / LIBRARY_LOG
        self._announce_loading(log_path)
        with library_log(log_path):
            arguments = self._model_arguments()
            start_time = time.monotonic()
            with open_backend(
                self._plan.config.model.backend,
                arguments,
                has_sampled_requests=not self._sampling.is_greedy,
                engine_choice=engine_choice,
                request_count=len(self.missing_requests),
                log_path=log_path,
            ) as backend:
                engine_facts = backend.facts()  # waits for the first of several engines
                self._refuse_other_model(engine_facts.get("served"))
                if agreement := engine_facts.get("interventions"):
                    print_message(describe_agreement(agreement))
                self.timing["load_seconds"] = round(time.monotonic() - start_time, 1)
                self._folder.note(SESSION_PREFIX, {**self._session_facts, "engine": engine_facts})
                # only vLLM counts the tokens of unfinished samples
                self._progress.list_running_tokens = lambda: getattr(backend, "token_counts", ())
                with self._progress:
                    self._take_completions(
                        self._held_replies.hold(backend.stream(self.missing_requests)), scorer
                    )
                # read at the end, because further engines load while the first one generates
                self.timing["cards"] = getattr(backend, "cards", engine_facts.get("cards"))
        if self._has_unexpected_reasoning:
            print_message(NO_MARKERS_NOTE)

    def _announce_loading(self, log_path: Path) -> None:
        """Print which model is loaded, and the number of samples that need not be generated."""
        message = f"loading {self._plan.config.model.display_name} (messages: {log_path})"
        if recorded_count := len(self._folder.sample_keys):
            message += (
                f": {recorded_count:,} of {len(self._request_by_key):,} samples are in "
                f"{self._folder.path} already"
            )
        print_message(message)

    def _refuse_other_model(self, served_model: JsonObject | None) -> None:
        """Raise JournalError if a server describes another model than in the last session.

        A server can give another model the same name, so `root` is compared. Other facts, such as
        the length of the context, change no sample.
        """
        if served_model and self._last_model and served_model["root"] != self._last_model["root"]:
            raise changed_settings_error(
                self._folder.path / JOURNAL,
                list_differences(self._last_model, served_model, "served"),
            )

    def show_scores(self, scores: Iterable[Score]) -> None:
        """Count finished scores in the display of progress."""
        for score in scores:
            task_name = self._request_by_key[score.key].task
            self._progress.count_graded(self._line_by_task[task_name], score.verdict)

    def _model_arguments(self) -> JsonObject:
        """The model's arguments; with interventions also the layers to open and the reference.

        The reference is what Hugging Face answers under each intervention, to which the engine's
        answers are compared.
        """
        config = self._plan.config
        arguments = dict(self._plan.model_arguments)
        if config.interventions:
            print_message("Hugging Face answers the first prompts of every arm")
            with progress_bar("arms") as advance:
                arguments["interventions"] = {
                    "layers": find_changed_layers(config.interventions),
                    "reference": ask_reference(self._plan, advance),
                }
        return arguments

    def _take_completions(self, stream: Iterable[Sequence[Any]], scorer: Scorer) -> None:
        """Write every completion to the journal when it finishes, and wait for all scores."""
        start_time = time.monotonic()
        for batch in stream:
            for request, completion in batch:
                self._look_for_reasoning(completion.text)
                self._store_completion(request, completion, scorer)
            self.show_scores(scorer.poll())
            self._folder.sync_if_due()
            self._progress.print_line_if_due()
        self.timing["generation_seconds"] = round(time.monotonic() - start_time, 2)
        self.show_scores(scorer.finish())

    def _look_for_reasoning(self, text: str) -> None:
        """Note whether a completion has reasoning that is not expected of the model.

        It is expected if the chat template speaks of reasoning. If the template does so without
        known markers (`lacks_markers`), the dry run has warned of it.
        """
        # one such completion is enough, so the others are not searched
        if (
            self._plan.reasoning_markers
            or self._plan.lacks_markers
            or self._has_unexpected_reasoning
        ):
            return
        self._has_unexpected_reasoning = skip_reasoning(text) != text

    def _store_completion(self, request: Request, completion: Any, scorer: Scorer) -> None:
        """Store and grade the sample of a completion, and count its tokens.

        Where answers are scored, a sample has a request for each of its answers, and is stored with
        the last of them.
        """
        processed_token_count = completion.completion_tokens
        if request.scored_tokens:
            # nothing is generated: the prompt ends with the answer, so its tokens are counted
            processed_token_count = len(request.prompt_token_ids or ())
        self.timing["tokens"] += processed_token_count or 0
        key = sample_key(request, self._setting_hash)
        sample = Sample.of(
            self._request_by_key[key],
            key,
            add_reasoning(completion.text, completion.reasoning, self._plan.reasoning_markers),
            completion_tokens=completion.completion_tokens,
            finish_reason=completion.finish_reason,
            server_tokens=completion.prompt_tokens,
        )
        if request.scored_tokens:
            sample.answer_score = self._score_answers(key, request, completion.prompt_logprobs)
            # other answers of the sample are not scored yet
            if sample.answer_score is None:
                return
        # before it is graded, because a crash of a grader must not cost a completion
        self._folder.journal.append(sample)
        scorer.submit(sample)
        self._progress.count_finished(self._line_by_task[request.task], processed_token_count)
        self.timing["samples"] += 1

    def _score_answers(
        self, key: str, request: Request, prompt_token_scores: TokenScores
    ) -> AnswerScore | None:
        """Note the scores of a request's answer. The last answer of a sample completes its score.

        Args:
            key: The key of the sample.
            request: A request whose prompt ends with one of the sample's answers.
            prompt_token_scores: The log-probabilities of all tokens of the prompt.

        Returns:
            The score of all answers; None while some are missing.
        """
        token_scores_by_answer = self._token_scores_by_key[key]
        token_scores_by_answer[request.answer_index] = list(
            prompt_token_scores[-request.scored_tokens :]
        )
        if len(token_scores_by_answer) < len(request.answers):
            return None
        del self._token_scores_by_key[key]
        token_scores = [token_scores_by_answer[index] for index in sorted(token_scores_by_answer)]
        return AnswerScore.of(token_scores, request.other_answer_count)


def session_facts(plan: Plan) -> JsonObject:
    """The journal's note on a session: when, how and with what it runs. `engine` is set later."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        # a file name need not be UTF-8, but the journal is
        "command": command.encode("utf-8", "replace").decode(),
        "config": plan.config.values_with_defaults(),
        "engine": None,
        "dataset_source": plan.full_dataset.source,
        **versions_and_hashes.software_facts(),
    }
