"""Grade again, without a model: a finished run, its completions cut at token budgets, or what mless did not make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
from msgspec import structs

from harness.analysis.outcomes import cap_table
from harness.constants import GRADER_VERSION, REGRADED_SHOWN
from harness.display.progress import progress_bar
from harness.errors import ConfigError, JournalError, RunError, list_first
from harness.execution.run import finish
from harness.execution.scoring import Scorer, grade_job
from harness.experiment.tokenizer import ModelTokenizer, decode_completion, encode
from harness.grading import GradeJob, GraderPool, count_outside
from harness.runs.folder import (
    JOURNAL,
    SCORES,
    PromptPlaces,
    compress_finished,
    lock,
    read_prompts,
    read_receipt,
    read_samples,
    read_scores,
    scored_now,
    set_old_scores_aside,
)
from harness.runs.journal import Journal, clear_messages, expand, read_header, read_records
from harness.runs.lm_eval_files import find_logs
from harness.runs.lm_eval_logs import read_log
from harness.runs.read import Run, locate
from harness.runs.records import Generated, Score, as_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def regrade(path: Path) -> str:
    """Make every score anew and name the samples whose verdict changed. Until the last is made, the old ones hold.

    Raises:
        JournalError: there is no finished run, or another process has the folder.
    """
    read_receipt(path)
    held = lock(path)
    part = path / f"{SCORES}.part"
    try:
        with clear_messages(path):
            expand(path)
        version, before = _read_old(path / SCORES)
        part.unlink(missing_ok=True)
        samples = list(read_samples(path))
        with Journal(part, as_json(scored_now())) as scores, Scorer(scores, read_prompts(path)) as scorer:
            for sample in samples:
                scorer.submit(sample)
            with progress_bar("regrade") as advance:
                for done, _ in enumerate(scorer.finish(), start=1):
                    advance(done, len(samples))
        after = read_scores(path, part.name)
        if len(after) != len(samples):
            raise JournalError(f"{path}: {len(after)} of {len(samples)} samples were graded. Run the command again.")
        with clear_messages(path):
            set_old_scores_aside(path)
            part.replace(path / SCORES)
        finish(path)
    finally:
        part.unlink(missing_ok=True)
        compress_finished(path)
        held.release()
    changed = [
        (f"{before[one.key]} -> {after[one.key].verdict}", f"{one.task} {one.problem_id} sample {one.sample_index}")
        for one in samples
        if one.key in before and before[one.key] != after[one.key].verdict
    ]
    counts = Counter(change for change, _ in changed).most_common()
    lines = [f"  {count:6}  {change}" for change, count in counts]
    lines += [f"  {change}: {sample}" for change, sample in changed[:REGRADED_SHOWN]]
    lines += [f"  and {len(changed) - REGRADED_SHOWN} more"] if len(changed) > REGRADED_SHOWN else []
    told = f"{len(after)} samples, grader {version} -> {GRADER_VERSION}"
    return "\n".join([f"{told}: {len(changed)} verdicts changed", *lines])


def _read_old(scores: Path) -> tuple[object, dict[str, str]]:
    """The grader's version and the verdicts by key; missing or damaged scores go without them."""
    try:
        return read_header(scores).get("grader_version"), {one.key: one.verdict for one in read_records(scores, Score)}
    except JournalError:
        return None, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A completion with its gold answer; what a filter read from it, and whether that was right, where it is known."""

    name: str
    completion: str
    gold: str
    read: str | None = None
    right: bool | None = None

    def job(self) -> GradeJob:
        """Its last box is graded; where there is none, what the filter read, else the last line."""
        gold = self.gold.rpartition("####")[2].strip()  # as GSM8K ends its solutions
        if "\\boxed" in self.completion or "\\fbox" in self.completion:
            return GradeJob(completion=self.completion, target=gold)
        lines = self.completion.strip().splitlines() or [""]
        return GradeJob(completion=self.read or lines[-1], target=gold, line=True)


def regrade_logs(path: Path, *, metric: str | None, completion: str, gold: str) -> pandas.DataFrame:
    """Grade completions that mless did not make, beside what their log says of them.

    Args:
        path: A sample log, a folder of logs, or a CSV or JSONL file.
        metric: Of a log: see `lm_eval_logs.read_log`.
        completion: The column of completions in a CSV or JSONL file.
        gold: That of gold answers.

    Returns:
        One row per completion: name, gold, answer, verdict, `ours` (right by our grader) and `theirs` (right by the
        log's own metric; missing where it has none).

    Raises:
        RunError: a log is missing or damaged.
        ConfigError: the file cannot be read, lacks a column, or holds no completion.
    """
    logs = find_logs(path) if path.is_dir() else [path] if path.name.startswith("samples_") else []
    completions = (
        [one for log in logs for one in _of_log(log, metric)] if logs else [*_of_table(path, completion, gold)]
    )
    if not completions:
        raise ConfigError(f"{path} holds no completion.")
    with GraderPool() as pool:
        for number, completed in enumerate(completions):
            pool.submit(number, completed.job())
        grades: dict[int, Any] = dict(pool.drain())
    rows = [
        {
            "name": completed.name,
            "gold": completed.gold,
            "answer": grades[number].answer,
            "verdict": grades[number].verdict,
            "ours": grades[number].correct,
            "theirs": completed.right,
        }
        for number, completed in enumerate(completions)
    ]
    return pandas.DataFrame(rows)


def _of_log(path: Path, metric: str | None) -> Iterator[Completed]:
    for prompt in read_log(path, metric=metric).prompts:
        for sample, score in prompt.graded_samples:
            right = score.verdict == "correct" if score.verdict else None
            name, gold = prompt.problem_id, prompt.doc["answer"]
            yield Completed(name=name, completion=sample.completion or "", gold=gold, read=score.answer, right=right)


def _of_table(path: Path, completion: str, gold: str) -> Iterator[Completed]:
    try:
        is_csv = path.suffix == ".csv"
        table = pandas.read_csv(path, dtype=str) if is_csv else pandas.read_json(path, lines=True, dtype=False)
        table = table.fillna("")  # a model may have written nothing
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no CSV or JSONL of completions: {error}.") from None
    if absent := [name for name in (completion, gold) if name not in table]:
        raise ConfigError(f"{path} has no column {absent[0]!r}: expected one of {list_first([*map(str, table)], 8)}.")
    for number, row in enumerate(table.to_dict("records"), start=1):
        yield Completed(name=str(row.get("id", number)), completion=str(row[completion]), gold=str(row[gold]))


def grade_at_caps(runs: Sequence[str], caps: Sequence[int]) -> pandas.DataFrame:
    """Accuracy of each condition, had its completions been cut after so many tokens.

    It tells a gain in answers from one in length: a condition whose answers are only shorter gains at small caps alone.
    A completion that is no longer than the cap keeps its verdict.

    Args:
        runs: Names of run folders. Their journals keep the tokens; logs of lm-eval do not.
        caps: In tokens.

    Returns:
        Columns model, layout, condition, and those of `outcomes.CAPS`.

    Raises:
        RunError: a run is not finished, or its completions have no tokens.
        ModelError: the model's tokenizer cannot be loaded.
    """
    paths = locate(runs)
    if strange := [path for path in paths if not isinstance(path, Path)]:
        raise RunError(f"{strange[0]}: --caps needs a run folder, whose journal keeps the tokens.")
    return pandas.concat([_grade_run(Path(str(path)), caps) for path in paths], ignore_index=True)


def _grade_run(path: Path, caps: Sequence[int]) -> pandas.DataFrame:
    run, prompts, scores = Run.load(path), read_prompts(path), read_scores(path)
    places, yardsticks = PromptPlaces(prompts), run.about["yardsticks"]
    model = ModelTokenizer.from_arguments(read_receipt(path)["config"]["model"]["arguments"])
    rows: list[dict[str, Any]] = []
    with GraderPool() as pool, progress_bar("grade") as advance:
        for number, sample in enumerate(read_records(path / JOURNAL, Generated), start=1):
            prompt = prompts[places.find(sample)]
            if sample.replicate or prompt.condition in yardsticks:
                continue
            if sample.token_ids is None or model is None:
                raise RunError(f"{path}: the tokens of its completions are not known, so none can be cut.")
            longer = len(sample.token_ids) > min(caps)
            prompt_ids = encode(prompt.prompt, model.tokenizer)[0] if longer else ()
            for cap in caps:
                cut = _cut(sample, cap, prompt_ids, model.tokenizer)
                job = grade_job(prompt, cut)
                if cut is not sample:
                    pool.submit(len(rows), job)
                said, verdict = count_outside(job.completion, job.target) > 0, scores[sample.key].verdict
                asked = {name: getattr(prompt, name) for name in ("condition", "layout")} | {
                    "problem_id": sample.problem_id
                }
                asked["cluster"] = prompt.doc.get("cluster") or sample.problem_id
                index = sample.sample_index
                rows.append({**asked, "cap": cap, "sample_index": index, "verdict": verdict, "stated": said})
            _fill_in(rows, pool.poll())
            advance(number, len(scores))
        _fill_in(rows, pool.drain())
    return cap_table(pandas.DataFrame(rows).assign(model=run.about["model"]))


def _cut(sample: Generated, cap: int, prompt_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Generated:
    """The sample as it would have been with so many tokens at most; itself if it has no more."""
    assert sample.token_ids is not None
    if len(sample.token_ids) <= cap:
        return sample
    text = decode_completion(tokenizer, prompt_ids, sample.token_ids[:cap])
    return structs.replace(sample, completion=text, finish_reason="length")


def _fill_in(rows: list[dict[str, Any]], graded: Iterable[tuple[int, Any]]) -> None:
    for place, grade in graded:
        rows[place]["verdict"] = grade.verdict
