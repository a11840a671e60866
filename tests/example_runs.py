"""Run folders made without an engine: the real plan, journal, grader and export, with completions of one's own."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import yaml

from harness.execution.run import _generation_config, _session, execute, run_identity
from harness.experiment.conditions import find_yardsticks
from harness.experiment.config import load_config
from harness.experiment.plan import make_plan
from harness.experiment.prompt import hash_prompts
from harness.experiment.requests import Request, make_requests, sample_key
from harness.grading import COLUMNS as GRADERS
from harness.runs.folder import JOURNAL, PROMPTS, RECEIPT, SCORES, RunFolder, read_prompts
from harness.runs.records import SESSION, Sample
from harness.runs.run import Run
from harness.runs.stored_files import expand, hash_stored


def passing_folder() -> Path:
    """A new folder that goes with this process."""
    folder = Path(tempfile.mkdtemp(prefix="mless-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _unpacked(folder: Path) -> Path:
    """A copy of a committed run that tests may read as plain JSON lines."""
    copy = passing_folder() / folder.name
    shutil.copytree(folder, copy)
    expand(copy)
    return copy


ROOT = Path(__file__).resolve().parent.parent
GREEDY_RUN = _unpacked(ROOT / "tests" / "data" / "greedy_run")
"""The bundled model on all bundled problems, greedily, with lm-eval's logs: see its README."""

REGISTERED = {"primary": "mless - wo", "contrasts": ["mless - wo", "mful - wo", "random - wo"]}
"""What it, and the example that people read, named before they were run."""


def small_run(folder: Path, problems: int = 25) -> Path:
    """Some problems of `GREEDY_RUN` as a run of their own, without lm-eval's files: fast to read and to grade."""
    shutil.copytree(GREEDY_RUN, folder, ignore=shutil.ignore_patterns("samples_*", "results_*", "accuracy.*"))
    rows = read_prompts(folder)
    names = list(dict.fromkeys(row["doc"]["id"] for row in rows))
    kept = set(names[:: len(names) // problems])
    rows = [row for row in rows if row["doc"]["id"] in kept]
    changed = {"prompts_sha256": hash_prompts(rows)}
    header, *samples = map(json.loads, (folder / JOURNAL).read_text(encoding="utf-8").splitlines())
    samples = [sample for sample in samples if sample.get("problem_id") in kept or sample["key"].startswith(SESSION)]
    first, *scores = map(json.loads, (folder / SCORES).read_text(encoding="utf-8").splitlines())
    scores = [score for score in scores if score["key"] in {sample["key"] for sample in samples}]
    for name, lines in ((PROMPTS, rows), (JOURNAL, [{**header, **changed}, *samples]), (SCORES, [first, *scores])):
        text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
        (folder / name).write_text(text, encoding="utf-8")
    receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
    files = {name: hash_stored(folder / name) for name in receipt["files"]}
    (folder / RECEIPT).write_text(json.dumps({**receipt, **changed, "problems": problems, "files": files}))
    return folder


CONFIG = {
    "name": "made",
    "model": {"label": "made", "arguments": {"pretrained": "demo", "dtype": "float32", "max_model_len": 4096}},
    "dataset": "demo",
    "conditions": ["wo", "mless"],
}


def write_run(
    folder: Path, answer: Callable[[Request, str], tuple[str, str]], *, limit: int = 6, **changes: object
) -> Path:
    """A finished run; `answer` makes completion and finish reason of a request and its target."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({**CONFIG, **changes}))
    plan = make_plan(load_config(file), limit=limit)
    sampling = plan.config.resolve_sampling(_generation_config(plan.config))
    identity = run_identity(plan, sampling)
    setting = identity.hash_setting()
    targets = {row["doc"]["id"]: row["doc"]["answer"] for row in plan.prompts}
    with RunFolder(folder, identity, plan.prompts) as opened:
        opened.begin_session(_session(plan))
        for request in make_requests(plan, sampling):
            text, reason = answer(request, targets[request.problem_id])
            sample = Sample.of(request, sample_key(request, setting), text, tokens=len(text) // 4, reason=reason)
            opened.journal.append(sample)
    execute(plan, output=folder, quiet=True)
    expand(folder)  # for tests that read and change its lines
    return folder


def add_stop(run: Path) -> None:
    """Make a run one that was sampled with a stop string."""
    first, rest = (run / JOURNAL).read_text(encoding="utf-8").split("\n", 1)
    header = json.loads(first)
    for arm in header["arms"].values():
        arm["sampling"]["stop"] = ["x"]
    (run / JOURNAL).write_text(json.dumps(header) + "\n" + rest, encoding="utf-8")


def right(request: Request, target: str) -> tuple[str, str]:
    """The gold answer."""
    return f"So the answer is $\\boxed{{{target}}}$.", "stop"


def evaluation(verdicts: dict[str, list[list[str]]], *, model: str = "m", layout: str = "raw", **facts) -> Run:
    """Made of verdicts [condition][problem][sample]; `wo again` is the second replicate of wo."""
    rows = []
    for name, problems in verdicts.items():
        condition, _, again = name.partition(" ")
        for problem, samples in enumerate(problems):
            for index, verdict in enumerate(samples):
                correct = verdict == "correct"
                rows.append(
                    {
                        "model": model,
                        "condition": condition,
                        "layout": layout,
                        "problem_id": f"p{problem}",
                        "sample_index": index,
                        "replicate": int(bool(again)),
                        "subject": ("Algebra", "Geometry")[problem % 2],
                        "level": 1 + problem % 5,
                        "verdict": verdict,
                        "correct": correct,
                        "answer": "1" if correct else str(problem),
                        "target": "1",
                        "completion_tokens": 10,
                        "characters": 40,
                        "looping": verdict == "truncated",
                        **dict.fromkeys(GRADERS, correct),
                        "boxes_after_first": 0,
                    }
                )
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(GRADERS, "boolean"))
    known = {
        "model": model,
        "primary": None,
        "greedy": True,
        "yardsticks": find_yardsticks(frame["condition"].unique()),
    }
    return Run(
        name=f"results/{model}",
        facts={**known, **facts},
        read_frame=lambda: frame,
        read_texts=lambda: frame,
        read_prompts=lambda: (),
    )


def drawn(seed: int, problems: int, k: int, chances: dict[str, float]) -> dict[str, list[list[str]]]:
    """Verdicts at random; a condition's value is its chance to be right, and the rest has all other verdicts."""
    rng = np.random.default_rng(seed)
    others = ["incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]
    return {
        name: [
            ["correct" if rng.random() < chance else str(rng.choice(others)) for _ in range(k)] for _ in range(problems)
        ]
        for name, chance in chances.items()
    }
