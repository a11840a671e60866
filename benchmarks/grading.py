"""Measure the time of grading 10,000 answers in the pool, and in lm-eval's `process_results`.

The answers are the worked solutions of MATH-500 with changes to the last box that models make: the
gold answer itself, another form of it, off by one, another sign, a digit dropped, terms swapped.
There are 20 per problem and about 1,600 different pairs. The pool is timed in a fresh process,
including its start and the workers' start, but not the interpreter's. lm-eval's time is measured on
a seeded sample and extrapolated.

Then our grader, Math-Verify as lm-eval calls it, and lm-eval's `hendrycks_math` grade the labelled
pairs of the tests, each answer in a box.

    python -m benchmarks.grading [--small] [--json grading.json]

The data are those of MATH500_PATH, or the tests' if it is not set.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Row, row
from benchmarks.runs import PROBLEMS, ROOT, run_benchmark
from harness.experiment.problems import DatasetConfig, Problem, open_dataset

ANSWERS = 10_000
TARGET_S = 1.8
SEED = 20_260
WORKERS = 2
KINDS = ("same", "not_yet", "different")
"""Of labelled pairs. The first two are right, but our grader does not read the second yet."""
DATA = Path(os.environ.get("MATH500_PATH") or PROBLEMS)
LABELS = ROOT / "tests" / "data" / "labelled_answers.yaml"


def measure(folder: Path, small: bool) -> dict[str, Any]:
    """Measure all figures, each run of the pool in a fresh interpreter."""
    sample = 20 if small else 300
    program = "import benchmarks.grading as g, json; print(json.dumps(g.time_pool()))"
    runs = []
    for _ in range(1 if small else 3):
        command = [sys.executable, "-c", program]
        process = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        runs.append(json.loads(process.stdout))
    pool = runs[0]
    times = [run["seconds"] for run in runs]
    seconds, stock_seconds = statistics.median(times), time_lm_eval(sample) / sample * ANSWERS
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in pool["verdicts"].items())
    data = "the tests' problems" if DATA == PROBLEMS else "MATH-500"
    notes = [
        f"lm-eval's time is extrapolated from {sample:,} of the answers.",
        f"Verdicts: {verdicts}.",
        "The labelled pairs are this project's. Many were written because its grader once misread "
        "them, so they rank no graders.",
    ]
    return {
        "title": "Grading",
        "what": f"Answers made from {data}, {pool['pairs']:,} distinct pairs of answer and gold. "
        "Time: from opening the pool to the last grade.",
        "rows": [
            row(
                f"{ANSWERS:,} answers graded in the pool, {WORKERS} workers",
                f"{seconds:.2f} s; runs {', '.join(f'{time:.2f}' for time in times)}",
                target=f"at most {TARGET_S} s",
                ratio=seconds / TARGET_S,
                met=seconds <= TARGET_S,
            ),
            row(
                "lm-eval's `process_results`, one answer after another; ratio to mless's grader",
                f"{stock_seconds:.0f} s",
                ratio=stock_seconds / seconds,
            ),
            *count_errors(100 if small else None),
        ],
        "notes": notes,
    }


def time_pool() -> dict[str, Any]:
    """Measure the seconds from opening the pool to its end, in this process."""
    from harness.grading import GradeJob, GraderPool

    pairs = [(completion, problem.answer) for completion, problem in build_answers()]
    started = time.perf_counter()
    results: dict[int, Any] = {}
    with GraderPool(worker_count=WORKERS) as pool:
        for index, (completion, target) in enumerate(pairs):
            pool.submit(index, GradeJob(completion=completion, target=target))
            if index % 16 == 0:
                results.update(pool.poll())
        results.update(pool.drain())
    seconds = time.perf_counter() - started
    verdicts = Counter(grade.verdict for grade in results.values())
    return {
        "seconds": seconds,
        "pairs": len({(grade.answer, pairs[index][1]) for index, grade in results.items()}),
        "verdicts": dict(sorted(verdicts.items())),
    }


def time_lm_eval(sample: int) -> float:
    """Measure the seconds of lm-eval's grading of a seeded sample of answers, without imports."""
    from lm_eval.tasks.minerva_math.utils import (
        last_boxed_only_string,
        normalize_final_answer,
        process_results,
        remove_boxed,
    )

    answers = random.Random(SEED).sample(build_answers(), sample)
    golds = {
        problem: normalize_final_answer(remove_boxed(last_boxed_only_string(problem.solution)))
        for _, problem in answers
    }
    # The first call loads the parsers.
    process_results({"answer": "1", "solution": "$1$"}, ["$2$"])
    started = time.perf_counter()
    for completion, problem in answers:
        process_results({"answer": golds[problem], "solution": problem.solution}, [completion])
    return time.perf_counter() - started


def count_errors(limit: int | None) -> list[Row]:
    """Count the errors of each grader on the labelled pairs."""
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    from harness.grading import GradeJob, GraderPool
    from harness.grading.answer_grading import compare_answers

    pairs = []
    for rule in yaml.safe_load(LABELS.read_text("utf-8")):
        for kind in KINDS:
            pairs += [(*pair, kind != "different") for pair in rule.get(kind, ())]
    pairs = pairs[:limit]
    with GraderPool(worker_count=WORKERS, with_audit=True) as pool:
        for index, (answer, gold, _) in enumerate(pairs):
            boxed = f"\\boxed{{{answer}}}"
            pool.submit(index, GradeJob(completion=boxed, target=gold))
        audits: dict[int, Any] = dict(pool.drain())
    graders = {
        "mless": [compare_answers(answer, gold).correct for answer, gold, _ in pairs],
        "Math-Verify": [audits[index].math_verify for index in range(len(pairs))],
        "hendrycks_math": [is_equiv(answer, gold) for answer, gold, _ in pairs],
    }
    labels = [label for _, _, label in pairs]
    right, wrong = labels.count(True), labels.count(False)
    rows = []
    for name, verdicts in graders.items():
        counts = Counter(zip(labels, map(bool, verdicts), strict=True))
        errors = f"{counts[True, False]:,} of {right:,}; {counts[False, True]:,} of {wrong:,}"
        rows.append(row(f"{name}: right answers refused; wrong answers accepted", errors))
    return rows


def build_answers() -> list[tuple[str, Problem]]:
    """Build the completions with their problems, seeded and shuffled."""
    problems = open_dataset(DatasetConfig(path=DATA)).problems
    rng = random.Random(SEED)
    distinct: dict[Problem, list[str]] = {}
    answers = []
    for index in range(ANSWERS):
        problem = problems[index % len(problems)]
        if index < len(problems):
            distinct[problem] = _distinct_answers(problem.answer, rng)
        choices = distinct[problem]
        # About half of a model's answers are right; the others are its few usual errors.
        answer = rng.choice(choices + [problem.answer] * (len(choices) - 1))
        answers.append((_with_answer(problem, answer), problem))
    rng.shuffle(answers)
    return answers


def _with_answer(problem: Problem, answer: str) -> str:
    """Change the last box of the worked solution, or add a box if it has another form."""
    before, box, after = problem.solution.rpartition(f"\\boxed{{{problem.answer}}}")
    if not box:
        return f"{problem.solution} So it is $\\boxed{{{answer}}}$."
    return f"{before}\\boxed{{{answer}}}{after}"


def _distinct_answers(gold: str, rng: random.Random) -> list[str]:
    """The gold answer and four or five different answers that a model might give."""
    candidates = dict.fromkeys([*_rewrites(gold), *_errors(gold, rng)])
    answers = [answer for answer in candidates if answer != gold]
    rng.shuffle(answers)
    return [gold, *answers[: rng.choice([4, 4, 5])]]


def _rewrites(gold: str) -> list[str]:
    return [
        gold.replace("\\frac", "\\dfrac"),
        gold.replace("\\left", "").replace("\\right", ""),
        f"{gold}.",
        re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", gold),
        f"x = {gold}",
    ]


def _errors(gold: str, rng: random.Random) -> list[str]:
    numbers = list(re.finditer(r"\d+", gold))
    errors = [gold[1:] if gold.startswith("-") else f"-{gold}"]
    for number in rng.sample(numbers, min(3, len(numbers))):
        text = number.group()
        shorter = text[1:] if len(text) > 1 else text + "0"
        neighbour = str(int(text) + rng.choice([-1, 1]))
        for error in (neighbour, shorter, str(2 * int(text))):
            errors.append(gold[: number.start()] + error + gold[number.end() :])
    if len(numbers) > 1:
        first, last = numbers[0], numbers[-1]
        between = gold[first.end() : last.start()]
        swapped = last.group() + between + first.group()
        errors.append(gold[: first.start()] + swapped + gold[last.end() :])
    return errors


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
