"""SmolLM2 from `mless run` to the last command, compared with plain Hugging Face.

`make test` has one short run, its only engine; `make test-long` has the other tests.
"""

import json
from itertools import product
from pathlib import Path

import pytest

import harness
from harness.experiment.prompts.prompt import hash_text
from harness.experiment.prompts.tokenizer import encode, load_tokenizer
from harness.runs.run_files import RunFiles
from tests.conftest import load_eager, session_fixture, succeeded
from tests.make import EXAMPLE, ROOT, read_data, table_data, write_records

pytestmark = pytest.mark.engine

CONDITIONS = ["wo", "mless", "mless-first"]
LAYOUTS = ["raw", "chat"]
CONFIG = str(ROOT / "configs/runs/products.yaml")
ARMS = read_data("interventions")["short run"]
AT_ONCE = 8
"""Requests that the engine answers at the same time."""


@session_fixture
def process(mless, smollm2, tmp_path_factory):
    """The command that makes the run."""
    settings = {
        "conditions": json.dumps(ARMS),
        "layouts": json.dumps(LAYOUTS),
        "model.model_args.kv_cache_memory_bytes": 2**30,
        "model.model_args.max_num_seqs": AT_ONCE,
    }
    options = [f"--set={key}={value}" for key, value in settings.items()]
    folder = tmp_path_factory.mktemp("smollm2") / "run"
    return succeeded(mless("run", CONFIG, *options, "--quiet", "--limit", 1, "-o", folder))


@session_fixture
def run(process):
    """A product with three draws of examples under six conditions in two layouts: 36 samples."""
    return Path(process.args[-1])


def test_a_short_run_has_the_answers_of_the_committed_example(run):
    frame = harness.load_run(run)
    is_unchanged = (frame["layout"] == "raw") & frame["condition"].isin(CONDITIONS)
    ours = frame[is_unchanged].set_index("prompt_token_sha256")["completion"]
    committed = harness.load_run(EXAMPLE).set_index("prompt_token_sha256")["completion"]
    # the same prompts have the same greedy answers
    assert len(ours) == 9 and (ours == committed[ours.index]).sum() >= 8


def test_the_table_has_every_condition_and_layout(process, run, succeed):
    assert "6 arms answer as in Hugging Face, 2 prompts each" in process.stderr
    assert succeed("table", run).strip() in process.stdout
    table = [(row["layout"], row["condition"], row["problems"]) for row in table_data(run)["rows"]]
    names = [*CONDITIONS, *(arm["name"] for arm in ARMS[3:])]
    assert table == [*product(LAYOUTS, names, [1])]


def test_the_run_folder_is_complete(run):
    receipt = RunFiles(run).receipt
    assert receipt["problems"] == 1
    assert receipt["sampling"]["max_tokens"] == 8
    assert receipt["timing"]["tokens"] == harness.load_run(run)["completion_tokens"].sum()
    assert receipt["versions"]["vllm"] and receipt["model"]["sha256"]["model.safetensors"]
    assert len(list(run.iterdir())) <= 11


def test_the_engine_takes_requests_in_the_plans_order(run):
    """A request begins when an earlier one has ended, so none ends before its turn."""
    tasks = sorted((row.task for row in RunFiles(run).prompts), key=lambda task: task[-1])
    turns = {task: turn for turn, task in enumerate(tasks)}  # draw after draw
    ended = [turns[sample.task] for sample in RunFiles(run).journal.records]
    assert len(ended) == 36
    assert all(turn < AT_ONCE + before for before, turn in enumerate(ended)), ended


def test_the_engine_ran_the_checked_token_ids(run, smollm2):
    tokenizer = load_tokenizer(str(smollm2))
    frame = harness.load_run(run)
    token_counts = frame.set_index("prompt_token_sha256")["prompt_tokens"].to_dict()
    for row in RunFiles(run).prompts:
        token_ids, _ = encode(row.prompt, tokenizer)
        sha256 = hash_text(",".join(map(str, token_ids)))
        assert token_counts[sha256] == len(token_ids)


@pytest.mark.slow
def test_log_probabilities_of_gold_answers_are_those_of_hugging_face(mless, smollm2, tmp_path):
    """100 prompts with six answers, each sent twice; the likelier of two accepted answers counts.

    The prefix cache is on. A block that holds a token of an answer would change the second number.
    """
    import torch
    from transformers import AutoTokenizer

    path = tmp_path / "sums.jsonl"
    golds = {f"What is {a} + {b}?": [str(a + b), f"{a}+{b}"] for a in range(10) for b in range(5)}
    rows = [{"problem": problem, "answer": answers} for problem, answers in golds.items()]
    write_records(path, rows)
    folder = tmp_path / "run"
    values = [
        "endpoint=answer_logprob",
        "answer=box",
        "replicates=2",
        "conditions=[wo, mless]",
        f"dataset={{path: {path}}}",
        "fewshot=null",
        "repeats=1",
        "model.model_args.enable_prefix_caching=true",
        "model.model_args.max_num_seqs=8",  # a busy machine ends such steps in time
    ]
    options = [f"--set={value}" for value in values]
    succeeded(mless("run", CONFIG, *options, "--quiet", "-o", folder))
    tokenizer, whole_model = AutoTokenizer.from_pretrained(smollm2), load_eager(smollm2)
    frame = harness.load_run(folder, replicates=True).set_index(["condition", "problem_id"])
    differences = []
    for prompt in RunFiles(folder).prompts:
        prefix = tokenizer(prompt.prompt)["input_ids"] + tokenizer.encode("\\boxed{")
        scores = []
        accepted = golds[prompt.doc["problem"]]
        for answer in (*accepted, *prompt.other_answers):
            tokens = tokenizer.encode(answer + "}")
            with torch.inference_mode():
                logits = whole_model(torch.tensor([prefix + tokens])).logits[
                    0, len(prefix) - 1 : -1
                ]
            logprobs = logits.double().log_softmax(-1)
            scores.append((float(logprobs[range(len(tokens)), tokens].sum()), len(tokens)))
        (gold, length), others = max(scores[:2]), [total for total, _ in scores[2:]]
        share = gold - float(torch.tensor([gold, *others]).double().logsumexp(0))
        first, again = frame.loc[(prompt.condition, prompt.doc["id"])].to_dict("records")
        assert first["answer_logprob"] == again["answer_logprob"] and first["completion"] == ""
        assert (first["answer_tokens"], first["correct"]) == (length, gold > max(others))
        differences += [first["answer_logprob"] - gold, first["answer_share"] - share]
    assert len(differences) == 200 and max(map(abs, differences)) < 1e-4
