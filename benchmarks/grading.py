"""How long grading takes: 10,000 answers through the pool, against lm-eval's sequential `process_results`.

The answers are the worked solutions of MATH-500 with the last box altered as models do it: the gold answer itself, the
same written otherwise, off by one, another sign, a digit dropped, terms swapped; 20 a problem, about 1,600 distinct
pairs. The pool is timed in a fresh process, its start and the workers' start included (the interpreter's own is not).
lm-eval's time is measured on a seeded sample and extrapolated. Then the labelled pairs of the tests are put to ours, to
Math-Verify and minerva as lm-eval calls them, and to lm-eval's `hendrycks_math`, each answer in a box.

    python -m benchmarks.grading [--small] [--json grading.json]

The data are those of MATH500_PATH, or the toy's where it is unset.
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
from harness.experiment.problems import Problem, load_jsonl

ANSWERS = 10_000
TARGET_S = 1.8
SEED = 20_260
WORKERS = 2
KINDS = ("same", "not_yet", "different")
"""Of labelled pairs: the first two are right, and the second not read yet."""
DATA = Path(os.environ.get("MATH500_PATH") or PROBLEMS)
LABELS = ROOT / "tests" / "data" / "labelled_answers.yaml"


def measure(folder: Path, small: bool) -> dict[str, Any]:
    """All figures, JSON-ready; each run of the pool in a fresh interpreter."""
    sample = 20 if small else 300
    command = [
        sys.executable,
        "-c",
        "import benchmarks.grading as g, json; print(json.dumps(g.time_pool()))",
    ]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
        for _ in range(1 if small else 3)
    ]
    pool = runs[0]
    each = [run["seconds"] for run in runs]
    seconds, stock = statistics.median(each), time_lm_eval(sample) / sample * ANSWERS
    verdicts = ", ".join(
        f"{count:,} {verdict}" for verdict, count in sorted(pool["verdicts"].items())
    )
    data = "the toy's problems" if DATA == PROBLEMS else "MATH-500"
    return {
        "title": "Grading",
        "what": f"Answers made of {data}, {pool['pairs']:,} distinct pairs of answer and gold, from "
        "opening the pool to the last grade.",
        "rows": [
            row(
                f"{ANSWERS:,} answers through the pool, {WORKERS} workers",
                f"{seconds:.2f} s; runs {', '.join(f'{one:.2f}' for one in each)}",
                target=f"at most {TARGET_S} s",
                ratio=seconds / TARGET_S,
                met=seconds <= TARGET_S,
            ),
            row(
                "lm-eval's `process_results`, one after another; ratio to ours",
                f"{stock:.0f} s",
                ratio=stock / seconds,
            ),
            *count_errors(100 if small else None),
        ],
        "notes": [
            f"lm-eval's time is extrapolated from {sample:,} of the answers.",
            f"Verdicts: {verdicts}.",
            "Labelled pairs are this project's, many written for what its grader once misread: they rank no graders.",
            *(
                ["MATH-500 was not at hand (MATH500_PATH): its answers take longer to compare."]
                * (DATA == PROBLEMS)
            ),
        ],
    }


def time_pool() -> dict[str, Any]:
    """Seconds from opening the pool to its end, in this process."""
    from harness.grading import GradeJob, GraderPool

    pairs = [(completion, problem.answer) for completion, problem in build_answers()]
    started = time.perf_counter()
    results: dict[int, Any] = {}
    with GraderPool(workers=WORKERS) as pool:
        for place, (completion, target) in enumerate(pairs):
            pool.submit(place, GradeJob(completion=completion, target=target))
            if place % 16 == 0:
                results.update(pool.poll())
        results.update(pool.drain())
    grades = [results[place] for place in range(len(pairs))]
    seconds = time.perf_counter() - started
    verdicts = [grade.verdict for grade in grades]
    return {
        "seconds": seconds,
        "pairs": len({(grade.answer, pair[1]) for grade, pair in zip(grades, pairs, strict=True)}),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
    }


def time_lm_eval(sample: int) -> float:
    """Seconds that lm-eval's own grading takes for a seeded sample of the answers, its imports not counted."""
    from lm_eval.tasks.minerva_math.utils import (
        last_boxed_only_string,
        normalize_final_answer,
        process_results,
    )
    from lm_eval.tasks.minerva_math.utils import remove_boxed as unboxed

    answers = random.Random(SEED).sample(build_answers(), sample)
    golds = {
        p: normalize_final_answer(unboxed(last_boxed_only_string(p.solution))) for _, p in answers
    }
    process_results(
        {"answer": "1", "solution": "$1$"}, ["$2$"]
    )  # its parsers load at their first use
    started = time.perf_counter()
    for completion, problem in answers:
        process_results({"answer": golds[problem], "solution": problem.solution}, [completion])
    return time.perf_counter() - started


def count_errors(most: int | None) -> list[Row]:
    """A row for each grader: how many of the labelled pairs it takes for what they are not."""
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    from harness.grading import AuditJob, GraderPool
    from harness.grading.same_answer import compare

    labels = [
        (rule.get(key, ()), key)
        for rule in yaml.safe_load(LABELS.read_text("utf-8"))
        for key in KINDS
    ]
    pairs = [(answer, gold, key != "different") for found, key in labels for answer, gold in found][
        :most
    ]
    with GraderPool(workers=WORKERS, audits=True) as pool:
        for place, (answer, gold, _) in enumerate(pairs):
            boxed = f"\\boxed{{{answer}}}"
            pool.submit(place, AuditJob(prompt="", completion=boxed, target=gold, solution=""))
        audits = dict(pool.drain())
    graders = {
        "mless": [compare(answer, gold).verdict == "correct" for answer, gold, _ in pairs],
        "Math-Verify": [audits[place].math_verify for place in range(len(pairs))],
        "minerva": [audits[place].exact_match_boxed for place in range(len(pairs))],
        "hendrycks_math": [is_equiv(answer, gold) for answer, gold, _ in pairs],
    }
    right = [same for _, _, same in pairs]
    rows = []
    for name, found in graders.items():
        judged = Counter(zip(right, map(bool, found), strict=True))
        told = f"{judged[True, False]:,} of {sum(right):,}; {judged[False, True]:,} of {len(pairs) - sum(right):,}"
        rows.append(row(f"right answers refused; wrong ones accepted: {name}", told))
    return rows


def build_answers() -> list[tuple[str, Problem]]:
    """The completions and their problems, seeded and shuffled."""
    dataset = load_jsonl(DATA)
    source = random.Random(SEED)
    distinct: dict[Problem, list[str]] = {}
    answers = []
    for place in range(ANSWERS):
        problem = dataset.problems[place % len(dataset.problems)]
        if place < len(dataset.problems):
            distinct[problem] = _distinct_answers(problem.answer, source)
        # half of what a model says is right, as a rule; the rest spreads over its few favourite errors
        given = source.choice(distinct[problem] + [problem.answer] * (len(distinct[problem]) - 1))
        answers.append((_with_answer(problem, given), problem))
    source.shuffle(answers)
    return answers


def _with_answer(problem: Problem, answer: str) -> str:
    """The worked solution with its last box altered, or one added where the solution boxes another form of the gold."""
    before, found, after = problem.solution.rpartition(f"\\boxed{{{problem.answer}}}")
    if not found:
        return f"{problem.solution} So it is $\\boxed{{{answer}}}$."
    return f"{before}\\boxed{{{answer}}}{after}"


def _distinct_answers(gold: str, source: random.Random) -> list[str]:
    """The gold answer and four or five others that a model might give for it."""
    others = [*_rewrites(gold), *_errors(gold, source)]
    others = [other for other in dict.fromkeys(others) if other != gold]
    source.shuffle(others)
    return [gold, *others[: source.choice([4, 4, 5])]]


def _rewrites(gold: str) -> list[str]:
    rewritten = [
        gold.replace("\\frac", "\\dfrac"),
        gold.replace("\\left", "").replace("\\right", ""),
        f"{gold}.",
    ]
    rewritten.append(re.sub(r"\\d?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", gold))
    rewritten.append(f"x = {gold}")
    return rewritten


def _errors(gold: str, source: random.Random) -> list[str]:
    numbers = list(re.finditer(r"\d+", gold))
    wrong = [gold[1:] if gold.startswith("-") else f"-{gold}"]
    for number in source.sample(numbers, min(3, len(numbers))):
        text = number.group()
        shorter = text[1:] if len(text) > 1 else text + "0"
        altered = [str(int(text) + source.choice([-1, 1])), shorter, str(2 * int(text))]
        wrong += [gold[: number.start()] + other + gold[number.end() :] for other in altered]
    if len(numbers) > 1:
        first, last = numbers[0], numbers[-1]
        swapped = (
            gold[: first.start()] + last.group() + gold[first.end() : last.start()] + first.group()
        )
        wrong.append(swapped + gold[last.end() :])
    return wrong


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
