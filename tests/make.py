"""Runs, logs of lm-eval and traces for tests, made without an engine or a model.

Runs are made by the real plan, journal, grader and export from completions of the test. Numbers in
traces are random, with a seed.
"""

import atexit
import json
import shutil
import tempfile
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import yaml

from attention_probe.analysis.average_curves import CurveSettings, average_curve, chosen_problems
from attention_probe.prompts.token_roles import FILLER_INDEX
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness import Run, compare, load_config
from harness.analysis.result_tables import make_leaderboard
from harness.display.table_page import TableOptions, make_table
from harness.execution.run_execution import (
    _generation_config,
    execute,
    run_identity,
    stored_example_ids,
)
from harness.execution.sample_generation import session_facts
from harness.experiment.plan import make_plan, make_requests, sample_key
from harness.experiment.problems import DatasetConfig, open_dataset
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS
from harness.experiment.prompts.prompt import hash_text
from harness.grading import GRADERS
from harness.runs import run_reader
from harness.runs.prompt_sources import AnsweredPrompt, Source
from harness.runs.records import SESSION_PREFIX, Sample, Score, stored_prompts
from harness.runs.run_files import JOURNAL
from harness.runs.run_folder import RunFolder
from harness.runs.run_paths import locate_runs
from harness.runs.stored_files import unpack_files

module_fixture = pytest.fixture(scope="module")


def read_source(path, layout=None, metric=None):
    """The prompts of a run or of logs, as commands read them."""
    return run_reader.source_of(Run.load(path, metric=metric), layout=layout)


def passing_folder():
    """A new folder, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="mless-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _unpacked(folder):
    """A copy of a committed run whose files are plain JSON lines."""
    copy = passing_folder() / folder.name
    shutil.copytree(folder, copy)
    unpack_files(copy)
    return copy


ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "results" / "example"


def read_data(name):
    """Labelled cases of tests/data."""
    return yaml.safe_load((ROOT / "tests" / "data" / f"{name}.yaml").read_text())


def with_cases(test):
    """Parametrize a test by its cases in the YAML file beside its module.

    They are a list under the test's name: mappings of the test's parameters, or a table whose
    first row names them. `marks`, the first of them, has the names of a case's marks.
    """
    path = Path(test.__code__.co_filename).with_suffix(".yaml")
    cases = yaml.safe_load(path.read_text())[test.__name__]
    names, *rows = cases
    if isinstance(names, dict):
        names = list(names)
        rows = [[case[name] for name in names] for case in cases]
    if names[0] == "marks":
        names, rows = names[1:], [mark_case(*row) for row in rows]
    return pytest.mark.parametrize(names, rows, ids=str)(test)


def mark_case(marks, *values):
    return pytest.param(*values, marks=[getattr(pytest.mark, name) for name in marks])


TOY = ROOT / "tests" / "data" / "toy"
"""A tiny model and the problems that it was trained on: see its card."""
TOY_MODEL = str(TOY / "model")
TOY_DATA = {"path": str(TOY / "demo.jsonl")}
TOY_PROBLEMS = open_dataset(DatasetConfig(path=TOY / "demo.jsonl")).problems
TOY_CONFIG = passing_folder() / "demo.yaml"
TOY_CONFIG.write_text(
    (TOY / "demo.yaml").read_text().replace("tests/data/toy", str(TOY)) + "audit: false\n"
)
"""Without the other graders, whose libraries take each worker a second to load."""

CONDITIONS = ("wo", "mless", "mful", "random")
"""Those of `GREEDY_RUN`."""
GREEDY_RUN = _unpacked(ROOT / "tests" / "data" / "greedy_run")
"""Greedy answers of the toy model to all of its problems: see its README."""
LM_EVAL_LOGS = _unpacked(ROOT / "tests/data/lm_eval_logs")
"""Logs that lm-eval wrote of the same answers."""

REGISTERED = {"primary": "mless - wo", "contrasts": ["mless - wo", "mful - wo", "random - wo"]}
"""The contrasts that `GREEDY_RUN` registered."""


def one_line(text):
    """A text whose words are separated by single blanks, however it was broken into lines."""
    return " ".join(text.split())


def read_lines(path):
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_records(path, records):
    """Write records as the harness does: one a line, without blanks."""
    lines = [json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records]
    path.write_text("\n".join([*lines, ""]))


_CONFIGS = (ROOT / "tests/data/configs.yaml").read_text().replace("TOY", str(TOY))
CONFIG, MINIMAL, RIGHT, DUMMY = yaml.safe_load(_CONFIGS).values()


def load_made(folder, **changes):
    """The config of a run into a folder, read from a file beside it: CONFIG with changes."""
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump({**CONFIG, **changes}))
    return load_config(path)


def list_requests(plan):
    """The requests of a plan whose model has no sampling of its own."""
    return list(make_requests(plan, plan.config.resolve_sampling(None)))


def run_plan(plan, folder, make_sample):
    """The finished run of a plan, with the samples that a function makes of requests and keys."""
    sampling = plan.config.resolve_sampling(_generation_config(plan))
    identity = run_identity(plan, sampling)
    setting = identity.hash_setting()
    with RunFolder(folder, identity, stored_prompts(plan)) as run:
        run.note(SESSION_PREFIX, session_facts(plan))
        for request in make_requests(plan, sampling):
            key = sample_key(request, setting)
            if key not in run.journal.keys:
                run.journal.append(make_sample(request, key))
    execute(plan, output=folder, quiet=True)
    return folder


def write_run(folder, answer, /, *, limit=6, **changes):
    """A finished run, or one that is extended if the folder holds a run.

    `answer` returns completion and finish reason of a request and its target.
    """
    config = load_made(folder, **changes)
    plan = make_plan(config, limit=limit, stored_ids=stored_example_ids(folder))
    targets = {prompt.doc["id"]: prompt.doc["answer"] for prompt in stored_prompts(plan)}

    def make_sample(request, key):
        text, reason = answer(request, targets[request.problem_id])
        return Sample.of(request, key, text, completion_tokens=len(text) // 4, finish_reason=reason)

    return run_plan(plan, folder, make_sample)


def add_stop(run):
    """Change a run as if it had been sampled with a stop string."""
    header, *records = read_lines(run / JOURNAL)
    for task in header["arms"].values():
        task["sampling"]["stop"] = ["x"]
    write_records(run / JOURNAL, [header, *records])


def right(request, target):
    """The right answer to a request, for `write_run`."""
    return f"So the answer is $\\boxed{{{target}}}$.", "stop"


def small_run(folder):
    """A finished run of six problems, fast to read and grade."""
    return write_run(folder, right, audit=True)


CONTROL = {"control": {"kind": "positive control", "of": None, "number": 0}}
"""The reference conditions of a run that has a positive control."""


def evaluation(verdicts, *, model="m", layout="raw", **facts):
    """A run with verdicts [condition][problem][sample]. `wo again` is the repeat run of `wo`."""
    rows = []
    for name, problems in verdicts.items():
        condition, _, repeat = name.partition(" ")
        for problem, samples in enumerate(problems):
            for index, verdict in enumerate(samples):
                correct = verdict == "correct"
                row = {
                    "model": model,
                    "condition": condition,
                    "layout": layout,
                    "problem_id": f"p{problem}",
                    "sample_index": index,
                    "replicate": int(bool(repeat)),
                    "subject": ("Algebra", "Geometry")[problem % 2],
                    "level": 1 + problem % 5,
                    "verdict": verdict,
                    "correct": correct,
                    "answer": "1" if correct else str(problem),
                    "target": "1",
                    "completion_tokens": 10,
                    "completion": "",
                    "finish_reason": "length" if verdict == "truncated" else "stop",
                    "next_question": False,
                }
                rows.append(row | dict.fromkeys(GRADERS, correct))
    frame = pandas.DataFrame(rows).astype(dict.fromkeys(GRADERS, "boolean"))
    return Run(
        name=f"results/{model}" if layout == "raw" else f"results/{model}-{layout}",
        about={"model": model, "primary": None, "greedy": True, **facts},
        read=lambda: frame,
        read_prompts=lambda: (),
    )


WRONG = ("incorrect", "no_box", "truncated", "refused", "timeout", "crashed")


def drawn(seed, problems, k, chances, wrong_verdicts=WRONG):
    """Random verdicts: `chances` has each condition's chance of a right sample."""
    rng = np.random.default_rng(seed)

    def draw(chance):
        return "correct" if rng.random() < chance else str(rng.choice(wrong_verdicts))

    return {
        name: [[draw(chance) for _ in range(k)] for _ in range(problems)]
        for name, chance in chances.items()
    }


def verdicts_by_count(counts, samples=1):
    """Verdicts of conditions, from numbers of problems: `{"wo": {"correct": 3, "no_box": 1}}`."""
    return {
        name: [[verdict] * samples for verdict, count in verdicts.items() for _ in range(count)]
        for name, verdicts in counts.items()
    }


def make_board(verdicts, **facts):
    """The leaderboard of one run with these verdicts."""
    return make_leaderboard([evaluation(verdicts, **facts)])


def by_condition(board):
    """The rows of a comparison."""
    return board.comparison.set_index("condition")


def compare_rows(frame, **options):
    """The rows of the comparison of samples, by condition."""
    return compare(frame, **options).set_index("condition")


def answered_prompt(
    condition,
    verdicts=(),
    *,
    problem_id="p",
    completions=(),
    answers=(),
    **document,
):
    """A prompt with the verdicts of its samples, and their completions and answers if given.

    Args:
        condition: The condition.
        verdicts: A verdict for each sample.
        problem_id: The id of the problem.
        completions: The completions of the first samples; others have none.
        answers: The answers of the first samples; others have none.
        document: `text`, the prompt, and `doc`, keys of its document.
    """
    text = document.get("text", f"{problem_id} {condition}")
    doc = {"id": problem_id, "subject": "", "level": 0, "answer": "", "system": ""}
    doc |= {"segments": [{"role": "problem", "text": text}], **document.get("doc", {})}
    graded_samples = []
    for index, fields in enumerate(zip_longest(verdicts, completions, answers)):
        verdict, completion, answer = fields
        sample = Sample(
            key=str(index),
            task="made",
            problem_id=problem_id,
            sample_index=index,
            prompt_token_sha256=None,
            completion=completion,
            completion_tokens=None,
        )
        score = Score(key=sample.key, verdict=verdict, answer=answer)
        graded_samples.append((sample, score))
    return AnsweredPrompt(
        task="made",
        condition=condition,
        layout="raw",
        prompt=text,
        prompt_sha256=hash_text(text),
        prompt_token_sha256=None,
        doc=doc,
        graded_samples=tuple(graded_samples),
    )


def source_of(*problems):
    """A run of these problems under `wo` and `mless`."""
    facts = {"kind": "run", "model": None, "layout": "raw", "metric": "verdict"}
    return Source(name="made", conditions=("wo", "mless"), problems=problems, **facts)


DATE = "2026-01-0{}T00-00-00.0"
RESULTS = read_data("lm_eval_results")


def log_line(number, text=None, **changes):
    """A line of a log of another task, whose documents have no ids."""
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
    """Write a log with lm-eval's name, and its results file."""
    folder.mkdir(exist_ok=True)
    (folder / f"results_{DATE.format(number)}.json").write_text(json.dumps({**RESULTS, **results}))
    path = folder / f"samples_task_{DATE.format(number)}.jsonl"
    write_records(path, lines)
    return path


LAYERS, HEADS = (0, 2), 3
SHAPE = (len(LAYERS), HEADS)
FILLED = ("mless", "random")


def make_header(**changes):
    """The header of a file of traces."""
    facts = {
        "model": "tiny",
        "layers": LAYERS,
        "head_count": HEADS,
        "conditions": ("wo", *FILLED),
        "layout": "raw",
        "dtype": "float32",
        "options": {},
        "flip": None,
        **changes,
    }
    return TraceHeader(**{"fingerprint": {"name": facts["model"]}} | facts)


def make_trace(problem_id="p0", condition="wo", *, size=9, start=3, seed=0, **changes):
    """The trace of a prompt with `size` original tokens.

    Args:
        problem_id: The id of the problem.
        condition: The condition. `wo` has no filler.
        size: The number of original tokens.
        start: The index of the original token before which the filler stands.
        seed: The seed of all numbers.
        changes: Other fields; `filler`, the number of its tokens; `shape`, of layers and heads.
    """
    filler, shape = changes.pop("filler", 4), changes.pop("shape", SHAPE)
    inserted = filler if condition in {*FILLED, "mful"} else 0
    total = size + inserted
    random = np.random.default_rng([seed, sum(map(ord, problem_id + condition))])
    filler_positions = np.full(inserted, -1)
    original = np.insert(np.arange(size), start, filler_positions).astype(np.int32)
    later = np.arange(total)[::-1]
    common = size - np.cumsum(original >= 0)
    mean_all, mean_common = random.random((2, *shape, total), dtype=np.float32)
    mean_all[:, :, later == 0] = np.nan
    mean_common[:, :, common == 0] = np.nan
    facts = {
        "problem_id": problem_id,
        "condition": condition,
        "outcome": None,
        "control": False,
        "prompt_sha256": f"hash of {problem_id} {condition}",
        "tokens": tuple(f"{condition}{index}" for index in range(total)),
        "filler_span": (start, start + inserted) if inserted else None,
        "token_ids": random.integers(0, 1000, total).astype(np.int32),
        "roles": np.where(original < 0, FILLER_INDEX, 0).astype(np.int8),
        "original_pos": original,
        "positions": np.arange(total, dtype=np.int32),
        "mean_all": mean_all,
        "mean_common": mean_common,
        "activation_histogram": random.integers(0, 1000, 101).astype(np.int32),
        "measures": {
            f"mass_{region}": random.random(shape, dtype=np.float32)
            for region in ("filler", *(name for name in TOKEN_REGIONS if name != "filler"))
        },
    }
    return Trace(**facts | changes)


def write_traces(path, traces, **header):
    """Write a file of traces."""
    criterion = {"baseline": "wo", "condition": "mless", "flip": "changed"}
    receipt = {"seed": 1, "selection": {"criterion": criterion}}
    with AttentionTraces.create(path, make_header(**header), receipt=receipt) as file:
        for trace in traces:
            file.append(trace)
    return path


def same(trace, expected):
    """Assert that two traces have equal fields, where NaN equals NaN; return True."""
    np.testing.assert_equal(asdict(trace), asdict(expected))
    return True


def aligned_curve(traces, *, condition, problem_ids=None, **options):
    """The curve of one head under one condition: its columns as arrays."""
    if problem_ids is None:
        problem_ids = chosen_problems(traces, [condition])
    settings = CurveSettings(**options)
    table = average_curve(traces, settings, condition=condition, problem_ids=problem_ids)
    return SimpleNamespace(**{name: table[name].to_numpy() for name in table})


full_curve = partial(aligned_curve, view="full")


def table_page(*runs, metric=None, **options):
    """The page of `mless table`."""
    paths = locate_runs([str(run) for run in runs])
    return make_table([Run.load(path, metric=metric) for path in paths], TableOptions(**options))


def table_data(*runs, **options):
    """What `mless table --format json` prints."""
    return json.loads(table_page(*runs, output_format="json", **options))


def find_log(condition):
    """lm-eval's log of a condition, with the samples of `GREEDY_RUN`."""
    return next(LM_EVAL_LOGS.glob(f"samples_demo_{condition}_2*"))
