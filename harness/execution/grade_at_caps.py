"""Accuracy by token budget: what each finished completion would have been, cut at a cap, and graded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from harness.analysis.budgets import cap_table
from harness.display.progress import progress_bar
from harness.errors import RunError
from harness.execution.scoring import grade_job
from harness.experiment.tokenizer import ModelTokenizer, decode_completion, encode
from harness.grading import GraderPool, count_outside
from harness.runs.folder import JOURNAL, PromptPlaces, read_prompts, read_receipt, read_scores
from harness.runs.journal import read_records
from harness.runs.paths import locate
from harness.runs.read import Run
from harness.runs.records import Generated

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedTokenizerBase


def grade_at_caps(runs: Sequence[str], caps: Sequence[int]) -> pandas.DataFrame:
    """Accuracy of each condition, had its completions been cut after so many tokens.

    It tells a gain in answers from one in length: a condition whose answers are only shorter gains at small caps alone.
    A completion that is no longer than the cap keeps its verdict.

    Args:
        runs: Names of run folders. Their journals keep the tokens; logs of lm-eval do not.
        caps: In tokens.

    Returns:
        Columns model, layout, condition, and those of `budgets.CAPS`.

    Raises:
        RunError: a run is not finished, or its completions have no tokens.
        ModelError: the model's tokenizer cannot be loaded.
    """
    import pandas

    paths = locate(runs)
    if strange := [path for path in paths if not isinstance(path, Path)]:
        raise RunError(f"{strange[0]}: --caps needs a run folder, whose journal keeps the tokens.")
    return pandas.concat([_grade_run(Path(str(path)), caps) for path in paths], ignore_index=True)


def _grade_run(path: Path, caps: Sequence[int]) -> pandas.DataFrame:
    import pandas

    run, prompts, scores = Run.load(path), read_prompts(path), read_scores(path)
    places, yardsticks = PromptPlaces(prompts), run.about["yardsticks"]
    model = ModelTokenizer.from_arguments(read_receipt(path)["config"]["model"]["arguments"])
    rows: list[dict[str, Any]] = []
    with GraderPool() as pool, progress_bar("grade") as advance:
        for number, sample in enumerate(read_records(path / JOURNAL, Generated), start=1):
            prompt = prompts[places.find(sample)]
            if sample.replicate or prompt["condition"] in yardsticks:
                continue
            if sample.token_ids is None or model is None:
                raise RunError(f"{path}: the tokens of its completions are not known, so none can be cut.")
            longer = len(sample.token_ids) > min(caps)
            prompt_ids = encode(prompt["prompt"], model.tokenizer)[0] if longer else ()
            for cap in caps:
                cut = _cut(sample, cap, prompt_ids, model.tokenizer)
                job = grade_job(prompt, cut)
                if cut is not sample:
                    pool.submit(len(rows), job)
                said, verdict = count_outside(job.completion, job.target) > 0, scores[sample.key].verdict
                asked = {name: prompt[name] for name in ("condition", "layout")} | {"problem_id": sample.problem_id}
                asked["cluster"] = prompt["doc"].get("cluster") or sample.problem_id
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
