"""How long grading takes: 10,000 answers through the pool, against lm-eval's sequential `process_results`.

The answers are the worked solutions of MATH-500 with the last box altered as models do it: the gold answer itself, the
same written otherwise, off by one, another sign, a digit dropped, terms swapped; 20 a problem, about 1,600 distinct
pairs. The pool is timed in a fresh process, its start and the workers' start included (the interpreter's own is not).
lm-eval's time is measured on a seeded sample and extrapolated, or on all with --full.

    python -m benchmarks.grading [--small] [--data MATH-500.jsonl] [--json grading.json]

The data are those of MATH500_PATH, or the bundled set where it is unset.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.experiment.problems import Problem, load_demo, load_jsonl

ANSWERS = 10_000
TARGET_S = 1.8
SEED = 20_260


def main() -> None:
    """Measure, print a Markdown table, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MATH500_PATH", "demo"), help="MATH-500 JSONL, or demo")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=300, help="answers that lm-eval grades; extrapolated to all")
    parser.add_argument("--full", action="store_true", help="let lm-eval grade all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the pool; the median is reported")
    parser.add_argument("--small", action="store_true", help="one run, and few answers for lm-eval")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--pool-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pool_only:
        print(json.dumps(time_pool(arguments.data, arguments.workers)))
        return
    figures = measure(
        arguments.data,
        workers=arguments.workers,
        sample=ANSWERS if arguments.full else 20 if arguments.small else arguments.sample,
        repeats=1 if arguments.small else arguments.repeats,
    )
    print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def measure(data: str, *, workers: int = 2, sample: int = 300, repeats: int = 3) -> dict[str, Any]:
    """All figures, JSON-ready; each run of the pool in a fresh interpreter."""
    command = [sys.executable, __file__, "--pool-only", "--data", data, "--workers", str(workers)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    seconds = [run["seconds"] for run in runs]
    stock = time_lm_eval(data, sample)
    figures = {
        **runs[0],
        "data": "the bundled set" if data in {"", "demo"} else "MATH-500",
        "workers": workers,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(statistics.median(seconds), 3),
        "seconds_each": [round(one, 3) for one in seconds],
        "target_seconds": TARGET_S,
        "lm_eval_sample": sample,
        "lm_eval_seconds_sample": round(stock, 2),
        "lm_eval_seconds": round(stock / sample * ANSWERS, 1),
    }
    return {**report(figures), **figures}


def report(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures as the collector takes them: title, what, rows, notes."""
    seconds, stock, sample = figures["seconds"], figures["lm_eval_seconds"], figures["lm_eval_sample"]
    bundled = figures["data"] == "the bundled set"
    verdicts = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(figures["verdicts"].items()))
    none = {"target": "", "ratio": None, "met": None}
    pool = {
        "measure": f"{figures['answers']:,} answers through the pool, {figures['workers']} workers",
        "target": f"at most {TARGET_S} s",
        "measured": f"{seconds:.2f} s; runs {', '.join(f'{one:.2f}' for one in figures['seconds_each'])}",
        "ratio": seconds / TARGET_S,
        "met": seconds <= TARGET_S,
    }
    compared = {**none, "measured": f"{stock:.0f} s", "ratio": stock / seconds}
    return {
        "title": "Grading",
        "what": f"Answers made of {figures['data']}, {figures['pairs']:,} distinct pairs of answer and gold, from "
        "opening the pool to the last grade.",
        "rows": [pool, {"measure": "lm-eval's `process_results`, one after another; ratio to ours", **compared}],
        "notes": [
            f"lm-eval's time: {figures['lm_eval_seconds_sample']:g} s for {sample:,} of the answers, "
            + ("all of them." if sample == ANSWERS else "extrapolated to all."),
            f"Verdicts: {verdicts}.",
            *(["MATH-500 was not at hand (MATH500_PATH): its answers take longer to compare."] if bundled else []),
        ],
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as rows of a Markdown table."""
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(figures["verdicts"].items()))
    extrapolated = (
        "all of them"
        if figures["lm_eval_sample"] == ANSWERS
        else f"{figures['lm_eval_seconds_sample']:g} s for {figures['lm_eval_sample']}, extrapolated"
    )
    return "\n".join(
        [
            "| grading | seconds | note |",
            "| --- | ---: | --- |",
            f"| {figures['answers']} answers, {figures['pairs']} distinct pairs, {figures['workers']} workers on "
            f"{figures['cores']} cores | {figures['seconds']:.2f} | target {TARGET_S}; runs {figures['seconds_each']}; "
            f"{verdicts} |",
            f"| lm-eval's `process_results`, one after another | {figures['lm_eval_seconds']:.0f} | {extrapolated} |",
            f"| times faster | {figures['lm_eval_seconds'] / figures['seconds']:.0f} | |",
        ]
    )


def time_pool(data: str, workers: int) -> dict[str, Any]:
    """Seconds from opening the pool to its end, in this process."""
    from harness.grading import GradeJob, GraderPool

    pairs = [(completion, problem.answer) for completion, problem in build_answers(data)]
    started = time.perf_counter()
    results: dict[int, Any] = {}
    with GraderPool(workers=workers) as pool:
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
        "answers": len(pairs),
        "pairs": len({(grade.answer, pair[1]) for grade, pair in zip(grades, pairs, strict=True)}),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
    }


def time_lm_eval(data: str, sample: int) -> float:
    """Seconds that lm-eval's own grading takes for a seeded sample of the answers, its imports not counted."""
    from lm_eval.tasks.minerva_math.utils import last_boxed_only_string, normalize_final_answer, process_results
    from lm_eval.tasks.minerva_math.utils import remove_boxed as unboxed

    answers = random.Random(SEED).sample(build_answers(data), sample)
    golds = {p: normalize_final_answer(unboxed(last_boxed_only_string(p.solution))) for _, p in answers}
    process_results({"answer": "1", "solution": "$1$"}, ["$2$"])  # its parsers load at their first use
    started = time.perf_counter()
    for completion, problem in answers:
        process_results({"answer": golds[problem], "solution": problem.solution}, [completion])
    return time.perf_counter() - started


def build_answers(data: str) -> list[tuple[str, Problem]]:
    """The completions and their problems, seeded and shuffled."""
    dataset = load_demo() if data in {"", "demo"} else load_jsonl(Path(data))
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
    rewritten = [gold.replace("\\frac", "\\dfrac"), gold.replace("\\left", "").replace("\\right", ""), f"{gold}."]
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
        swapped = gold[: first.start()] + last.group() + gold[first.end() : last.start()] + first.group()
        wrong.append(swapped + gold[last.end() :])
    return wrong


if __name__ == "__main__":
    main()
