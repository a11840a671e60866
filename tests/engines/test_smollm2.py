"""SmolLM2 from `mless run` to the last command, compared with plain Hugging Face.

`make test` has one short run, `make test-long` has the other tests.
"""

import json
import subprocess

import pytest

import harness
from harness.runs.run_files import RunFiles
from tests.commands.test_cli import refused
from tests.conftest import PATIENCE, load_eager, succeeded
from tests.engines.test_faults import MLESS, count_samples, wait_for
from tests.engines.test_interventions import ARM
from tests.make import EXAMPLE, ROOT

pytestmark = pytest.mark.engine

CONDITIONS = ["wo", "mless", "mless-first"]
CONFIG = str(ROOT / "configs/runs/products.yaml")
FIRST = {"name": "mless-first", "unit": "/", "placement": "before_system"}
ARMS = ["wo", "mless", FIRST, {"causes": "mless-first", "layers": 1}, ARM]


def succeed(mless, *arguments):
    """What a command prints to standard error."""
    return succeeded(mless(*arguments)).stderr


@pytest.fixture(scope="session")
def run(mless, smollm2, tmp_path_factory):
    """A product with three draws of examples under 3 conditions and 8 with an intervention.

    These are 33 samples.
    """
    folder = tmp_path_factory.mktemp("smollm2") / "run"
    arms = ("--set", f"conditions={json.dumps(ARMS)}")
    options = (
        f"--set model.model_args.kv_cache_memory_bytes=1073741824 --quiet --limit 1 -o {folder}"
    )
    stderr = succeed(mless, "run", CONFIG, *arms, *options.split())
    assert "11 arms answer as in Hugging Face, 2 prompts each" in stderr
    return folder


@pytest.fixture(scope="module")
def whole_model(smollm2):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # while other tests run, two threads mostly wait for each other
    yield load_eager(smollm2)
    torch.set_num_threads(threads)


def load_completions(folder):
    frame = harness.load_run(folder)
    frame = frame[frame["condition"].isin(CONDITIONS)]
    index = ["condition", "problem_id", "sample_index"]
    return frame.sort_values(index)[[*index, "verdict", "completion"]].to_numpy().tolist()


def test_a_short_run_has_the_answers_of_the_committed_example(run):
    frame = harness.load_run(run)
    frame = frame[frame["condition"].isin(CONDITIONS)]
    ours = frame.set_index("prompt_token_sha256")["completion"]
    committed = harness.load_run(EXAMPLE).set_index("prompt_token_sha256")["completion"]
    # the same prompts have the same greedy answers
    assert len(ours) == 9 and (ours == committed[ours.index]).sum() >= 8


@pytest.mark.slow
def test_a_killed_run_continues_and_every_command_reads_it(run, mless, tmp_path):
    folder, conditions = tmp_path / "run", ",".join(CONDITIONS)
    options = f"--conditions {conditions} --quiet --limit 12 -o {folder}"
    command = ("run", CONFIG, *options.split())
    process = subprocess.Popen([MLESS, *command], stderr=subprocess.PIPE, text=True)
    wait_for(process, folder, 5)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert 0 < count_samples(folder) < 108
    succeed(mless, *command)
    finished = load_completions(folder)
    assert len(finished) == 108
    assert all(completion in finished for completion in load_completions(run))
    traces, page = tmp_path / "drawn.traces", tmp_path / "report.html"
    for command in (
        f"table {folder} --explain",
        f"show {folder} --changed",
        f"probe {folder} --n 4 --layers 1-2 --conditions {conditions} -o {traces}",
        f"heads {traces} -o {tmp_path}/attention.html",
        f"report {folder} -o {page}",
    ):
        succeed(mless, *command.split())
    assert "SmolLM2-135M-Instruct" in page.read_text()


@pytest.mark.slow
def test_log_probabilities_of_gold_answers_are_those_of_hugging_face(
    mless, smollm2, whole_model, tmp_path
):
    """100 prompts with six answers, each sent twice; the likelier of two accepted answers counts.

    The prefix cache is on. A block that holds a token of an answer would change the second number.
    """
    import torch
    from transformers import AutoTokenizer

    path = tmp_path / "sums.jsonl"
    golds = {f"What is {a} + {b}?": [str(a + b), f"{a}+{b}"] for a in range(10) for b in range(5)}
    rows = [{"problem": problem, "answer": answers} for problem, answers in golds.items()]
    path.write_text("\n".join(map(json.dumps, rows)))
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
    succeed(mless, "run", CONFIG, *options, "--quiet", "-o", folder)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
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


def test_the_probe_refuses_its_arms(run, command, tmp_path):
    arguments = f"probe {run} --conditions mless-first,mless-first-gap -o {tmp_path / 'x.traces'}"
    refused(
        command(*arguments.split()),
        "changes the model under mless-first-gap, which only the engine does",
    )
