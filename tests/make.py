"""Runs, logs of lm-eval and traces for tests, made without an engine or a model.

Runs come from the real plan, journal, grader and export, with completions of one's own; numbers in traces from a seeded
generator.
"""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import yaml

from attention_probe.analysis.average_curves import CurveSettings, average_curves, chosen_problems
from attention_probe.prompts.token_roles import FILLER
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness.display.table_page import TableOptions, make_table
from harness.execution.execute_plan import _generation_config, execute, run_identity
from harness.execution.generate_samples import session_facts
from harness.experiment.plan import Request, make_plan, make_requests, sample_key
from harness.experiment.problems import load_jsonl
from harness.experiment.prompt import hash_prompts, hash_text
from harness.experiment.run_config import load_config
from harness.grading import GRADERS
from harness.runs import read_runs
from harness.runs.prompt_sources import AnsweredPrompt, Source
from harness.runs.read_runs import Run
from harness.runs.records import SESSION, Sample, Score, as_json, stored_prompts
from harness.runs.run_files import JOURNAL, PROMPTS, RECEIPT, SCORES, read_prompts
from harness.runs.run_folder import RunFolder
from harness.runs.stored_files import expand, hash_stored


def read_source(path, layout=None, metric=None) -> Source:
    """The prompts of a run or of logs, as commands read them."""
    return read_runs.source_of(Run.load(path, metric=metric), layout=layout)


def passing_folder() -> Path:
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
EXAMPLE = ROOT / "results" / "example"


def read_data(name: str):
    """Labelled cases of tests/data."""
    return yaml.safe_load((ROOT / "tests" / "data" / f"{name}.yaml").read_text(encoding="utf-8"))


TOY = ROOT / "tests" / "data" / "toy"
"""A tiny model that was trained on the problems beside it: see its card. Its files name each other from the root."""
TOY_MODEL = str(TOY / "model")
TOY_DATA = {"path": str(TOY / "demo.jsonl")}
TOY_PROBLEMS = load_jsonl(TOY / "demo.jsonl").problems
TOY_CONFIG = passing_folder() / "demo.yaml"
TOY_CONFIG.write_text(
    (TOY / "demo.yaml").read_text().replace("tests/data/toy", str(TOY)) + "audit: false\n"
)
"""Without the other graders, whose libraries take each worker a second to load."""

GREEDY_RUN = _unpacked(ROOT / "tests" / "data" / "greedy_run")
"""The toy model on all of its problems, greedily, with lm-eval's logs: see its README."""

REGISTERED = {"primary": "mless - wo", "contrasts": ["mless - wo", "mful - wo", "random - wo"]}
"""What it named before it was run."""


def small_run(folder: Path, problems: int = 25) -> Path:
    """Some problems of `GREEDY_RUN` as a run of their own, without lm-eval's files: fast to read and to grade."""
    shutil.copytree(
        GREEDY_RUN, folder, ignore=shutil.ignore_patterns("samples_*", "results_*", "accuracy.*")
    )
    rows = read_prompts(folder)
    names = list(dict.fromkeys(row.doc["id"] for row in rows))
    kept = set(names[:: len(names) // problems])
    rows = [row for row in rows if row.doc["id"] in kept]
    changed = {"prompts_sha256": hash_prompts(rows)}
    header, *samples = map(json.loads, (folder / JOURNAL).read_text(encoding="utf-8").splitlines())
    samples = [
        sample
        for sample in samples
        if sample.get("problem_id") in kept or sample["key"].startswith(SESSION)
    ]
    first, *scores = map(json.loads, (folder / SCORES).read_text(encoding="utf-8").splitlines())
    scores = [score for score in scores if score["key"] in {sample["key"] for sample in samples}]
    for name, lines in (
        (PROMPTS, [as_json(row) for row in rows]),
        (JOURNAL, [{**header, **changed}, *samples]),
        (SCORES, [first, *scores]),
    ):
        text = "".join(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines
        )
        (folder / name).write_text(text, encoding="utf-8")
    receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
    files = {name: hash_stored(folder / name) for name in receipt["files"]}
    (folder / RECEIPT).write_text(
        json.dumps({**receipt, **changed, "problems": problems, "files": files})
    )
    return folder


CONFIG = {
    "name": "made",
    "model": {
        "label": "made",
        "model_args": {"pretrained": TOY_MODEL, "dtype": "float32", "max_model_len": 4096},
    },
    "dataset": TOY_DATA,
    "conditions": ["wo", "mless"],
    "layouts": ["raw"],
    "audit": False,
}


def write_run(
    folder: Path,
    answer: Callable[[Request, str], tuple[str, str]],
    *,
    limit: int = 6,
    **changes: object,
) -> Path:
    """A finished run; `answer` makes completion and finish reason of a request and its target."""
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump({**CONFIG, **changes}))
    plan = make_plan(load_config(file), limit=limit)
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    setting = identity.hash_setting()
    prompts = stored_prompts(plan)
    targets = {prompt.doc["id"]: prompt.doc["answer"] for prompt in prompts}
    with RunFolder(folder, identity, prompts) as opened:
        opened.note(SESSION, session_facts(plan))
        for request in make_requests(plan, sampling):
            text, reason = answer(request, targets[request.problem_id])
            sample = Sample.of(
                request, sample_key(request, setting), text, tokens=len(text) // 4, reason=reason
            )
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
    return f"So the answer is $\\boxed{{{target}}}$.", "stop"


CONTROL = {"control": {"kind": "positive control", "of": None, "number": 0}}
"""What a run says of its positive control, by name."""


def evaluation(
    verdicts: dict[str, list[list[str]]], *, model: str = "m", layout: str = "raw", **facts
) -> Run:
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
    known = {"model": model, "primary": None, "greedy": True}
    return Run(
        name=f"results/{model}" if layout == "raw" else f"results/{model}-{layout}",
        about={**known, **facts},
        read=lambda texts=False: frame,
        read_prompts=lambda: (),
    )


WRONG = ("incorrect", "no_box", "truncated", "refused", "timeout", "crashed")


def drawn(
    seed: int, problems: int, k: int, chances: dict[str, float], others=WRONG
) -> dict[str, list[list[str]]]:
    """Verdicts at random; a condition's value is its chance to be right, and the rest has the others."""
    rng = np.random.default_rng(seed)
    return {
        name: [
            ["correct" if rng.random() < chance else str(rng.choice(others)) for _ in range(k)]
            for _ in range(problems)
        ]
        for name, chance in chances.items()
    }


def answered_prompt(
    condition: str,
    verdicts: tuple[str, ...] = (),
    *,
    problem_id: str = "p",
    completions=None,
    answers=(),
    **facts,
) -> AnsweredPrompt:
    """A prompt with the verdicts of its samples, and of each the completion and the answer where they are given."""
    text = facts.pop("text", f"{problem_id} {condition}")
    doc = {"id": problem_id, "subject": "", "level": 0, "answer": "", "system": ""}
    doc["segments"] = [{"role": "problem", "text": text}]
    doc |= facts.pop("doc", {})
    graded_samples = [
        (
            Sample(
                key=str(index),
                task="made",
                problem_id=problem_id,
                sample_index=index,
                prompt_token_sha256=None,
                completion=completion,
                completion_tokens=None,
            ),
            Score(key=str(index), verdict=verdict, answer=answer, boxes_after_first=0),
        )
        for index, (verdict, completion, answer) in enumerate(
            zip_longest(verdicts, completions or (), answers)
        )
    ]
    known = {
        "task": "made",
        "condition": condition,
        "layout": "raw",
        "prompt": text,
        "prompt_sha256": hash_text(text),
    }
    known |= {"prompt_token_sha256": None, "doc": doc, "graded_samples": tuple(graded_samples)}
    return AnsweredPrompt(**{**known, **facts})


def source_of(*problems) -> Source:
    """A run of these problems under `wo` and `mless`."""
    facts = {"kind": "run", "model": None, "layout": "raw", "metric": "verdict"}
    return Source(name="made", conditions=("wo", "mless"), problems=problems, **facts)


DATE = "2026-01-0{}T00-00-00.0"
RESULTS = {
    "model_name": "some/model",
    "config": {
        "model": "hf",
        "model_args": "pretrained=some/model,dtype=float32",
        "random_seed": 0,
    },
    "configs": {"task": {"generation_kwargs": {"do_sample": False}, "num_fewshot": 0}},
    "versions": {"task": 3},
    "n-samples": {"task": {"original": 20, "effective": 20}},
    "date": 1.0,
}


def log_line(number, text=None, **changes):
    """A line of a log of another task, whose documents have no id."""
    question = text or f"What is {number}?"
    return {
        "doc_id": number,
        "doc": {"question": question},
        "target": str(number),
        "arguments": {"gen_args_0": {"arg_0": f"Q: {question}", "arg_1": {}}},
        "resps": [["x"]],
        "filtered_resps": ["x"],
        "filter": "none",
        "prompt_hash": hash_text(f"Q: {question}"),
        "metrics": ["exact_match"],
        "exact_match": float(number % 2),
        **changes,
    }


def write_log(folder, lines, *, number=1, **results):
    """A log under lm-eval's name, with its results file."""
    folder.mkdir(exist_ok=True)
    (folder / f"results_{DATE.format(number)}.json").write_text(json.dumps({**RESULTS, **results}))
    path = folder / f"samples_task_{DATE.format(number)}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


LAYERS, HEADS = (0, 2), 3
SHAPE = (len(LAYERS), HEADS)
FILLED = ("mless", "random")


def make_header(**changes):
    facts = {
        "model": "tiny",
        "layers": LAYERS,
        "head_count": HEADS,
        "conditions": ("wo", *FILLED),
        "baseline": "wo",
    }
    facts |= {
        "layout": "raw",
        "queries": "prompt",
        "dtype": "float32",
        "options": {},
        "flip": None,
    } | changes
    return TraceHeader(**{"fingerprint": {"name": facts["model"]}} | facts)


def make_trace(
    problem_id="p0", condition="wo", *, size=9, start=3, filler=4, seed=0, shape=SHAPE, **changes
):
    """A prompt of `size` original tokens; where there is a filler, its tokens stand before original token `start`."""
    inserted = filler if condition in {*FILLED, "mful"} else 0
    total = size + inserted
    random = np.random.default_rng([seed, sum(map(ord, problem_id + condition))])
    original = np.concatenate(
        [np.arange(start), np.full(inserted, -1), np.arange(start, size)]
    ).astype(np.int32)
    later = np.arange(total)[::-1].astype(np.int32)
    common = (size - np.cumsum(original >= 0)).astype(np.int32)
    curves = random.random((2, *shape, total), dtype=np.float32)
    curves[0][:, :, later == 0] = np.nan
    curves[1][:, :, common == 0] = np.nan
    facts = {
        "problem_id": problem_id,
        "condition": condition,
        "subject": "Algebra",
        "level": 1 + seed % 5,
        "outcome": None,
        "control": False,
        "prompt_sha256": f"hash of {problem_id} {condition}",
        "tokens": tuple(f"{condition}{place}" for place in range(total)),
        "filler_span": (start, start + inserted) if inserted else None,
        "token_ids": random.integers(0, 1000, total).astype(np.int32),
        "roles": np.where(original < 0, FILLER, 0).astype(np.int8),
        "original_pos": original,
        "mean_all": curves[0],
        "mean_common": curves[1],
        "activation_histogram": random.integers(0, 1000, 101).astype(np.int32),
        "measures": {"mass_filler": random.random(shape, dtype=np.float32)},
    }
    return Trace(**facts | changes)


def write_traces(path, traces, **header):
    with AttentionTraces.create(path, make_header(**header), receipt={"seed": 1}) as opened:
        for trace in traces:
            opened.append(trace)
    return path


def same(one, other):
    """Whether two traces are equal in every number and word; NaN equals NaN."""
    np.testing.assert_equal(asdict(one), asdict(other))
    return True


def aligned_curve(traces, *, condition, head, baseline=None, problem_ids=None, **options):
    """The curve of one head under one condition: its columns as arrays."""
    if problem_ids is None:
        problem_ids = chosen_problems(traces, [condition, baseline or condition])
    table = average_curves(
        traces,
        CurveSettings(heads=[head], **options),
        conditions=[condition],
        problem_ids=problem_ids,
        baseline=baseline,
    )
    return SimpleNamespace(**{name: table[name].to_numpy() for name in table})


full_curve = partial(aligned_curve, view="full")


def table_page(*runs, **options):
    """The page of `mless table`."""
    return make_table([str(run) for run in runs], TableOptions(**options))
