"""Grades without a model: a finished run again, or completions that mless did not generate.

A log of lm-eval may hold, besides a completion, the answer that a filter of its task extracted from
it. The form of an answer says how it was found: by such a filter, in a box, after a marker as in
`The answer is`, and so on.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from harness.constants import DecimalSign, JsonObject
from harness.display.progress import progress_bar
from harness.errors import ConfigError, JournalError
from harness.execution.run_execution import write_receipt
from harness.execution.sample_grading import Scorer
from harness.experiment.gold_answers import read_gold_column
from harness.experiment.problems import add_facts, fold_text
from harness.grading import GradeJob, GraderPool
from harness.grading.answer_forms import MARKER_BY_FORM, find_answer
from harness.grading.answer_grading import GRADER_VERSION
from harness.reasoning_markers import find_hidden_start, find_open_reasoning, skip_reasoning
from harness.runs.journal import Journal
from harness.runs.logs.harness_logs import LM_EVAL, find_kind, read_scores
from harness.runs.logs.lm_eval_files import find_logs
from harness.runs.logs.sample_log import read_completions, read_log
from harness.runs.logs.score_tables import parse_score
from harness.runs.records import Sample, Score, as_json
from harness.runs.run_files import JOURNAL, PROMPTS, SCORES, RunFiles, current_score_versions
from harness.runs.run_folder import lock_folder, set_old_scores_aside
from harness.runs.stored_files import explain_write_errors, unpack_files

MOST_LISTED_SAMPLES = 20
"""The most samples that `mless regrade` lists: those whose verdict changed, or differs from the
log's."""


def regrade(files: RunFiles) -> str:
    """Grade every sample again and list the changed verdicts.

    The old scores stay until the last new score is stored.

    Raises:
        JournalError: there is no finished run, or another process has the folder.
    """
    folder = files.path
    old_version = files.receipt["grader_version"]
    file_lock = lock_folder(folder)
    new_scores_path = folder / f"{SCORES}.part"
    try:
        with explain_write_errors(folder):
            unpack_files(folder, excluded_names=(JOURNAL, PROMPTS))
        old_verdicts = {}
        # damaged scores are replaced, and have no verdicts that could change
        with suppress(JournalError):
            old_verdicts = {key: score.verdict for key, score in files.scores.items()}
        # a regrading that was killed may have had another grader, so it is not continued
        new_scores_path.unlink(missing_ok=True)
        _grade_samples(files, new_scores_path)
        with explain_write_errors(folder):
            set_old_scores_aside(files)
            # a kill between these two steps leaves no scores, and then all samples are graded again
            new_scores_path.replace(folder / SCORES)
        files.forget_scores()
        write_receipt(files)
    finally:
        new_scores_path.unlink(missing_ok=True)
        file_lock.release()
    samples = files.journal.records
    return (
        f"{len(samples)} samples, grader {old_version} -> {GRADER_VERSION}: "
        f"{_describe_changes(samples, old_verdicts, files.scores)}"
    )


def _grade_samples(files: RunFiles, new_scores_path: Path) -> None:
    """Write the score of every sample to a new file."""
    samples = files.journal.records
    with (
        Journal(new_scores_path, as_json(current_score_versions())) as journal,
        Scorer(journal, files.prompts) as scorer,
    ):
        for sample in samples:
            scorer.submit(sample)
        with progress_bar("regrade") as advance:
            for graded_count, _ in enumerate(scorer.finish(), 1):
                advance(graded_count, len(samples))


def _describe_changes(
    samples: Sequence[Sample], old_verdicts: Mapping[str, str], scores: Mapping[str, Score]
) -> str:
    """The number of changed verdicts, by change, and the first samples that have them."""
    count_by_change: Counter[str] = Counter()
    sample_lines = []
    for sample in samples:
        new_verdict = scores[sample.key].verdict
        # a sample without an old score has no change
        old_verdict = old_verdicts.get(sample.key, new_verdict)
        if old_verdict != new_verdict:
            change = f"{old_verdict} -> {new_verdict}"
            count_by_change[change] += 1
            sample_lines.append(
                f"  {change}: {sample.task} {sample.problem_id} sample {sample.sample_index}"
            )
    count_lines = [f"  {count:6}  {change}" for change, count in count_by_change.most_common()]
    return "\n".join(
        [f"{len(sample_lines)} verdicts changed", *count_lines, *sample_lines[:MOST_LISTED_SAMPLES]]
    )


FILTER_FORM = "filter"
"""The form of an answer that the log's own filter extracted."""
_NO_MATCH = "[invalid]"
"""What a filter of lm-eval returns without a match."""


class LoggedCompletion(NamedTuple):
    """A completion of a log or table.

    Attributes:
        problem_id: The id of its problem.
        question: The problem's text.
        completion: Its text.
        location: The location of its gold answers, for messages.
        gold_cell: The gold answers as the file has them.
        filter_answer: The answer that the log's filter extracted; empty without one.
        is_right: Whether it is right by the log's metric, if this is known.
        metric: The name of the log's metric.
    """

    problem_id: str
    question: str
    completion: str
    location: str
    gold_cell: Any
    filter_answer: str
    is_right: bool | None
    metric: str | None


def regrade_logs(
    path: Path, *, metric: str | None, columns: str | None, decimal_sign: DecimalSign | None
) -> pandas.DataFrame:
    """Grade completions that mless did not generate.

    Args:
        path: A sample log, a folder of logs, or a file that `harness_logs.read_scores` reads.
        metric: The metric of a log: see `Run.load`.
        columns: The columns of a table: see `Run.load`.
        decimal_sign: The decimal sign of the gold answers, if it is known.

    Returns:
        A row for each completion: `name`, `cluster`, `gold`, `answer`, `form` (see
        `answer_forms.find_answer`), `verdict`; `by_mless`, whether it is right; `by_log`, whether
        it is right by the log's metric, missing without such a metric; `metric`, its name.

    Raises:
        RunError: a log is missing or damaged.
        ConfigError: the file lacks a column, or holds no completion.
        DataError: the file cannot be read, or gold answers are missing, have another form, or
            differ between copies of a problem.
    """
    # the logs of lm-eval; none if the path is a table, or a log of another harness
    log_paths = find_logs(path)
    if path.is_file() and find_kind(path) == LM_EVAL:
        log_paths = [path]
    if log_paths and columns:
        raise ConfigError("--columns: expected a table, got logs of lm-eval.")
    rows_and_jobs = []
    for log_path in log_paths:
        rows_and_jobs += _make_jobs([*_read_log(log_path, metric)], log_path, decimal_sign)
    if not log_paths:
        rows_and_jobs += _make_jobs([*_read_table(path, metric, columns)], path, decimal_sign)
    if not rows_and_jobs:
        raise ConfigError(f"{path} holds no completion.")
    rows = [row for row, _ in rows_and_jobs]
    with GraderPool() as pool:
        for index, (_, job) in enumerate(rows_and_jobs):
            pool.submit(index, job)
        for index, grade in pool.drain():
            rows[index] |= {
                "answer": grade.answer,
                "verdict": grade.verdict,
                "by_mless": grade.correct,
            }
    return pandas.DataFrame(rows)


def _make_jobs(
    logged_completions: Sequence[LoggedCompletion], path: Path, decimal_sign: DecimalSign | None
) -> list[tuple[JsonObject, GradeJob]]:
    """The first columns of each row of `regrade_logs`, and the grader's job for the row.

    Args:
        logged_completions: All completions of a file. If many of them end reasoning that they do
            not begin, the prompts began it, so its start is put before every completion.
        path: The file.
        decimal_sign: The decimal sign of the gold answers, if it is known.
    """
    rows_and_jobs = []
    facts_and_location_by_question: dict[str, tuple[str, str]] = {}
    hidden_start = find_hidden_start(
        [logged_completion.completion for logged_completion in logged_completions]
    )
    gold_lists = read_gold_column(
        [
            (logged_completion.location, logged_completion.gold_cell)
            for logged_completion in logged_completions
        ],
        path,
        decimal_sign,
    )
    for logged_completion, golds in zip(logged_completions, gold_lists, strict=True):
        add_facts(
            facts_and_location_by_question,
            logged_completion.question,
            golds,
            logged_completion.location,
        )
        gold, *alternatives = golds
        form, answer = _choose_answer(
            hidden_start + logged_completion.completion, logged_completion.filter_answer
        )
        job = GradeJob(
            completion=" ".join(answer.split()),
            target=gold.strip(),
            alternatives=tuple(alternatives),
            is_line=True,
            decimal_sign=decimal_sign,
        )
        row = {
            "name": logged_completion.problem_id,
            "cluster": fold_text(logged_completion.question),
            "gold": gold,
            "form": form,
            "by_log": logged_completion.is_right,
            "metric": logged_completion.metric,
        }
        rows_and_jobs.append((row, job))
    return rows_and_jobs


def _choose_answer(completion: str, filter_answer: str) -> tuple[str, str]:
    """The form of the answer that counts, and its text.

    The first of these that applies:

    1. The whole completion, if its reasoning did not end.
    2. The answer of the completion in any form, if the log's filter has no answer, or one that only
       the reasoning contains.
    3. The filter's answer.

    Args:
        completion: The completion, with the start of reasoning that its prompt ends with.
        filter_answer: The answer that the log's filter extracted; empty without one.
    """
    form, answer = find_answer(completion)
    conclusion = skip_reasoning(completion)
    if conclusion is None:
        # the grader gets the whole text, and sees that the reasoning did not end
        return form, completion
    if not filter_answer:
        return form, answer
    if _contains_answer(conclusion, filter_answer):
        return FILTER_FORM, filter_answer
    # the filter took its answer from the reasoning, where an answer does not count
    if _contains_answer(completion, filter_answer):
        return form, answer
    # the filter wrote the answer in another way than the completion, such as `0.5` for `1/2`
    return FILTER_FORM, filter_answer


def _contains_answer(text: str, answer: str) -> bool:
    """Whether an answer is in a text, and not only as a part of another word or number."""
    return bool(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text))


def _read_log(path: Path, metric: str | None) -> Iterator[LoggedCompletion]:
    """The completions of a log of lm-eval; none if its task only scores given continuations.

    Each begins with the start of reasoning, if its prompt ends with one. The completions of our
    tasks are empty, because our grader has searched them already: where it found no answer, no
    other answer must be found.
    """
    log = read_log(path, metric=metric)
    is_of_our_task = (log.metric or "").startswith("verdict")
    for prompt in log.prompts:
        reasoning_start, _ = find_open_reasoning(prompt.prompt)
        for sample, score in prompt.graded_samples:
            if sample.completion is None:
                continue
            logged_completion = LoggedCompletion(
                prompt.problem_id,
                prompt.question,
                reasoning_start + sample.completion,
                f"{path}, problem {prompt.problem_id}",
                prompt.golds,
                filter_answer=(score.answer or "").strip(),
                is_right=score.verdict == "correct" if score.verdict else None,
                metric=log.metric,
            )
            if is_of_our_task:
                yield logged_completion._replace(completion="")
            else:
                yield _drop_foreign_answer(
                    logged_completion, sample.completion, len(prompt.completions)
                )


def _drop_foreign_answer(
    logged_completion: LoggedCompletion, completion: str, sample_count: int
) -> LoggedCompletion:
    """The completion, without its filter's answer if this is not a short answer to this sample.

    It is not if the filter found nothing or returned a longer text, or if a problem has several
    samples and this completion lacks the answer. The answer is then searched for in the completion.

    Args:
        logged_completion: A completion, with the start of reasoning that its prompt ends with.
        completion: The completion without this start.
        sample_count: The number of samples of the problem.
    """
    if _lacks_short_answer(logged_completion.filter_answer, completion):
        return logged_completion._replace(filter_answer="")
    if logged_completion.filter_answer in completion or sample_count == 1:
        return logged_completion
    # the filter of a majority gives all samples of a problem one answer and one verdict, which say
    # nothing about this sample
    return logged_completion._replace(filter_answer="", is_right=None)


def _lacks_short_answer(filter_text: str, completion: str) -> bool:
    """Whether a filter returned another text than a short answer: nothing found, or a longer text.

    Such a text is the whole completion, several lines, or a sentence such as `The answer is 5.`
    """
    return (
        "\n" in filter_text
        or filter_text in (_NO_MATCH, completion.strip())
        or find_answer(filter_text)[0] in MARKER_BY_FORM
    )


def _read_table(path: Path, metric: str | None, columns: str | None) -> Iterator[LoggedCompletion]:
    """The completions of a table, or of a log of Inspect or lighteval. A row may hold several."""
    table = read_scores(path, metric, columns, needed_roles=("completion", "gold"))
    for row_number, (location, row) in enumerate(table.located_rows, 1):
        problem_id = str(row.get("item") or row_number)
        question = str(row.get("question") or problem_id)
        completions = read_completions(row["completion"], location)
        is_right = None
        # A score of several completions does not say which of them are right. A score between 0 and
        # 1 does not say whether the completion is right.
        if "score" in row and len(completions) == 1:
            is_right = {0.0: False, 1.0: True}.get(parse_score(location, row))
        for completion in completions:
            yield LoggedCompletion(
                problem_id,
                question,
                completion,
                location,
                row["gold"],
                filter_answer="",
                is_right=is_right,
                metric=table.about.get("metric", "score"),
            )
