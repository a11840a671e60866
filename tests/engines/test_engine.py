"""The real engine on the bundled model: the samples of our run are those of the stock command.

All of these tests are in `make test-long`.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from harness import Run, load_run, resources
from tests.conftest import BUDGET, PATIENCE, session_fixture, succeeded
from tests.make import TOY_CONFIG, TOY_MODEL, TOY_PROBLEMS, with_cases

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINE = (
    f"pretrained={TOY_MODEL},dtype=float32,max_model_len=4096,enforce_eager=True,"
    "kv_cache_memory_bytes=1073741824,enable_chunked_prefill=False,max_num_batched_tokens=8192"
)
MAX_GEN_TOKS = f"max_gen_toks={BUDGET}"
COMPARED = 15
"""Problems of the run that other commands generate too."""


def read_lm_eval_samples(folder):
    """Samples that lm-eval logged, with our verdicts, sorted by condition and problem."""
    return sort_samples(Run.load(folder).samples.astype(str))


def sort_samples(frame):
    return frame.sort_values(["condition", "problem_id"], ignore_index=True)


def generate(mless, folder, limit, *settings):
    """The folder of another run of the bundled problems, once it is finished."""
    options = [f"--set={setting}" for setting in settings]
    options += ["--limit", str(limit), "--output", str(folder), "--quiet"]
    succeeded(mless("run", TOY_CONFIG, *options))
    return folder


def read_compared(folder, layout):
    """The samples of a run whose problems other commands generate too."""
    frame = load_run(folder)
    problem_ids = [problem.id for problem in TOY_PROBLEMS[:COMPARED]]
    frame = frame[(frame["layout"] == layout) & frame["problem_id"].isin(problem_ids)]
    return sort_samples(frame.astype({"condition": str}))


def assert_equal(theirs, ours, *columns):
    for column in columns:
        assert list(theirs[column]) == list(ours[column])


@with_cases
def test_the_stock_command_gives_the_same_samples(our_run, lm_eval, tmp_path, layout, flags):
    options = (
        f"--model vllm --batch_size auto --tasks math500_conditions --limit {COMPARED} "
        f"--gen_kwargs {MAX_GEN_TOKS} --log_samples"
    )
    process = lm_eval(
        *("run", "--model_args", ENGINE, *options.split(), *flags),
        *("--include_path", resources.folder("tasks"), "--output_path", tmp_path),
    )
    succeeded(process)
    theirs, ours = read_lm_eval_samples(tmp_path), read_compared(our_run, layout)
    # stock lm-eval does not record why a completion ended
    ours["verdict"] = ours["verdict"].replace("truncated", "no_box")
    assert_equal(theirs, ours, "problem_id", "prompt_sha256", "completion", "verdict")


def test_500_completions_are_sampled_with_the_seeds_of_their_problems(mless, tmp_path):
    """On a CPU a seeded request whose prompt is prefilled in chunks kills vLLM.

    So the engine prefills no prompt in chunks.
    """
    settings = ["gen_kwargs={temperature: 1.2, top_p: 0.95}", "repeats=5", MAX_GEN_TOKS]
    settings += ["conditions=[wo, mless, {name: twin, unit: /}, random]"]
    frame = load_run(generate(mless, tmp_path / "run", 25, *settings))
    assert len(frame) == 500 and frame["finish_reason"].isin(["stop", "length"]).all()
    seeds = frame.groupby(["problem_id", "sample_index"], observed=True)["seed"]
    assert (seeds.nunique() == 1).all()  # one seed for a problem's sample, whatever the condition
    assert frame["seed"].nunique() == 125
    counts = frame.groupby(["condition", "problem_id"], observed=True)["completion"].nunique()
    # a small share, because the model's probabilities are near 1
    assert (counts > 1).mean() > 0.1  # samples of one problem differ
    index = ["condition", "problem_id", "sample_index"]
    completions = frame.set_index(index)["completion"].sort_index()
    assert completions["twin"].equals(completions["mless"])  # the same prompt under the same seed


def test_the_engine_ends_reasoning_with_the_last_token_of_its_budget(mless, tmp_path):
    settings = (
        'conditions=[{name: reasoning, template: "{problem} \\n\\n<think>"}]',
        "thinking={start: <think>, end: </think>}",
        "gen_kwargs={temperature: 0, thinking_token_budget: 5}",
        "model.model_args.reasoning_config={reasoning_start_str: <think>, "
        "reasoning_end_str: </think>}",
        MAX_GEN_TOKS,
    )
    run = Run.load(generate(mless, tmp_path / "run", 8, *settings))
    # the model has not learnt these markers, so it would reason until its limit
    for prompt in run.prompts:
        assert prompt.prompt.rstrip().endswith("<think>")
        assert all(text.count("</think>") == 1 for text in prompt.completions)
        assert "unfinished" not in prompt.verdicts
    assert len(run.samples) == 8


def test_every_backend_ends_a_completion_after_its_first_line(mless, tmp_path):
    settings = (
        "dataset={make: products, seed: 3}",
        "answer=line",
        "max_gen_toks=24",
        "conditions=[wo, mless]",
    )
    arguments = f"{{pretrained: {TOY_MODEL}, dtype: float32, device: cpu}}"
    hf = f"model={{backend: hf, model_args: {arguments}}}"
    ours = load_run(generate(mless, tmp_path / "vllm", 12, *settings))
    theirs = load_run(generate(mless, tmp_path / "hf", 12, *settings, hf))
    assert_equal(theirs, ours, "completion")
    assert len(ours) == 24 and (ours["finish_reason"] == "stop").any()
    assert not ours["completion"].str.contains("\n").any()


@session_fixture
def served(tmp_path_factory):
    """The address of a server of vLLM's, which calls the model `demo`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    address = f"http://127.0.0.1:{port}"
    options = (
        f"--host 127.0.0.1 --port {port} --dtype float32 "
        "--max-model-len 4096 --enforce-eager --served-model-name demo"
    )
    program = str(Path(sys.executable).with_name("vllm"))
    command = [program, "serve", TOY_MODEL, *options.split()]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("w") as stream:
        server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        try:
            for _ in range(PATIENCE):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=2)
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()[-3000:]
                    time.sleep(1)
            else:
                pytest.fail("vllm serve never became healthy: " + log.read_text()[-3000:])
            yield f"{address}/v1"
        finally:
            server.terminate()
            server.wait(30)


def test_mless_run_gives_the_same_samples_through_a_completions_server(
    our_run, served, mless, tmp_path
):
    server = f"{{model: demo, base_url: {served}, tokenizer: {TOY_MODEL}, max_length: 4096}}"
    settings = ["model.backend=local-completions", f"model.model_args={server}", MAX_GEN_TOKS]
    run = generate(mless, tmp_path / "run", COMPARED, *settings)
    theirs, ours = (read_compared(folder, "raw") for folder in (run, our_run))
    assert_equal(theirs, ours, "problem_id", "prompt_sha256", "completion")


def test_mless_run_gives_a_chat_server_the_turns_and_every_sample_its_seed(
    our_run, served, mless, tmp_path
):
    address = f"{served}/chat/completions"
    server = f"{{model: demo, base_url: {address}, tokenizer: {TOY_MODEL}, num_concurrent: 8}}"
    settings = ["model.backend=local-chat-completions", f"model.model_args={server}"]
    settings += ["layouts=[chat]", MAX_GEN_TOKS]
    sampled = ["gen_kwargs={temperature: 1.2}", "repeats=3", "conditions=[wo]"]
    greedy = generate(mless, tmp_path / "greedy", COMPARED, *settings)
    theirs, ours = (read_compared(folder, "chat") for folder in (greedy, our_run))
    assert_equal(theirs, ours, "problem_id", "completion")
    frame = load_run(generate(mless, tmp_path / "sampled", COMPARED, *settings, *sampled))
    assert frame["seed"].nunique() == 3 * COMPARED
    assert (frame.groupby("problem_id", observed=True)["completion"].nunique() > 1).any()
