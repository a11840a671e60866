"""Claims about whole runs on a GPU. A CPU can run them too, with fewer problems, as a rehearsal."""

import os
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.runs import SHAPES
from harness import load_run, resources
from harness.engines.completions import sampling_parameters
from harness.engines.vllm_engine import VLLMEngine
from harness.experiment.prompts.prompt import hash_text
from harness.runs.run_files import RunFiles
from tests.conftest import PATIENCE, gpu_share, gpu_share_options, ignore_warnings, report
from tests.engines.test_engine import read_lm_eval_samples
from tests.engines.test_interventions import ARGUMENTS, config, plan_requests
from tests.make import EXAMPLE, ROOT, TOY_CONFIG, TOY_MODEL, with_cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.engine,
    ignore_warnings,  # those of torch and vLLM, which are imported here
]

MOST_DIFFERENT_VERDICTS = 0.005
"""A kernel that sums in another order turns near-ties of greedy decoding, so a few may differ."""


def command(name, *arguments):
    """An installed command. Its output is not captured, so that the job's log shows it at once."""
    return [str(Path(sys.executable).with_name(name)), *map(str, arguments)]


def load_samples(folder, index):
    """A run's samples under the columns of an index, all columns as plain text."""
    return load_run(folder).astype(str).set_index(index)


def count_differences(samples, reference, columns):
    """The number of values of each column that differ between samples and their reference."""
    assert samples.index.is_unique and samples.index.isin(reference.index).all()  # the same prompts
    is_different = samples[columns].to_numpy() != reference.loc[samples.index, columns].to_numpy()
    return dict(zip(columns, is_different.sum(axis=0).tolist(), strict=True))


@with_cases
def test_products_have_the_verdicts_of_the_committed_run(kernels, smollm2, tmp_path):
    """In float32 on a GPU, compared with a run on a CPU, sample by sample."""
    limit = () if gpu_share() else ("--limit", 4)
    is_eager = str(kernels == "eager").lower()
    options = ("--set", f"model.model_args.enforce_eager={is_eager}", *gpu_share_options(), *limit)
    run = command("mless", "run", ROOT / "configs/runs/products.yaml", "--quiet", "-o", tmp_path)
    subprocess.run([*run, *map(str, options)], check=True, timeout=PATIENCE)
    index = ["condition", "prompt_token_sha256"]
    ours, theirs = load_samples(tmp_path, index), load_samples(EXAMPLE, index)
    counts = count_differences(ours, theirs, ["verdict", "completion"])
    (session,) = RunFiles(tmp_path).receipt["sessions"]
    facts = session["engine"]
    report(
        f"of {len(ours)} samples {counts['completion']} completions and {counts['verdict']} "
        f"verdicts differ from the CPU's ({facts['device']}, CUDA graphs {facts['cudagraph_mode']})"
    )
    assert counts["verdict"] <= MOST_DIFFERENT_VERDICTS * len(ours)


STOCK_LM_EVAL = """
import multiprocessing.util
from lm_eval.__main__ import cli_evaluate
if __name__ == "__main__":
    cli_evaluate()
"""
"""The command `lm_eval`, which does not end with some versions of filelock: see README.md."""


def test_stock_lm_eval_gives_the_prompts_and_verdicts_of_mless_run(tmp_path):
    """Two commands at the same time, each with its own engine."""
    limit, tokens = (100, 512) if gpu_share() else (10, 48)
    options = ("--set", "conditions=[wo, mless]", "--set", f"max_gen_toks={tokens}")
    options = (*options, *gpu_share_options(), "--limit", limit, "--quiet")
    ours = command("mless", "run", TOY_CONFIG, *options, "-o", tmp_path / "run")
    arguments = {"pretrained": TOY_MODEL, **ARGUMENTS, "max_model_len": 4096, **gpu_share()}
    if not gpu_share():
        arguments["kv_cache_memory_bytes"] = 2**30
    model = ",".join(f"{name}={value}" for name, value in arguments.items())
    constants = "run --model vllm --batch_size auto --tasks math500_wo,math500_mless --log_samples"
    theirs = (
        *(sys.executable, "-c", STOCK_LM_EVAL, *constants.split(), "--model_args", model),
        *("--limit", limit, "--gen_kwargs", f"max_gen_toks={tokens}"),
        *("--include_path", resources.folder("tasks"), "--output_path", tmp_path / "stock"),
    )
    # `mless run` asks for float32 in vLLM's attention; with stock lm-eval a user must do it
    environment = {**os.environ, "TRITON_F32_DEFAULT": "ieee"}
    processes = [subprocess.Popen([*map(str, line)], env=environment) for line in (ours, theirs)]
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    index = ["condition", "problem_id"]
    stock = read_lm_eval_samples(tmp_path / "stock").set_index(index)
    run = load_samples(tmp_path / "run", index)
    # stock lm-eval does not record why a completion ended
    run["verdict"] = run["verdict"].replace("truncated", "no_box")
    assert len(run) == len(stock) == 2 * limit
    counts = count_differences(stock, run, ["prompt_sha256", "verdict", "completion"])
    right = int((run["verdict"] == "correct").sum())
    report(
        f"of {len(run)} samples ({right} correct) {counts['prompt_sha256']} prompts, "
        f"{counts['completion']} completions and {counts['verdict']} verdicts differ"
    )
    assert counts["prompt_sha256"] == counts["verdict"] == 0


def test_the_study_runs_with_a_random_model_of_full_size(tmp_path):
    """The size of Qwen2.5-Math-1.5B; on a CPU a tiny one, of which figures draw only few heads."""
    shape, limit = ("qwen2.5-math-1.5b", 100) if gpu_share() else ("tiny", 10)
    model = tmp_path / shape
    with torch.device("cuda" if gpu_share() else "cpu"):
        sizes = SHAPES[shape] | {"max_position_embeddings": 4096}
        config = AutoConfig.for_model(**sizes, dtype=torch.bfloat16)
        AutoModelForCausalLM.from_config(config).save_pretrained(model)
    AutoTokenizer.from_pretrained(TOY_MODEL).save_pretrained(model)
    options = ["--set=layouts=[raw]", "--set=max_gen_toks=64", f"--limit={limit}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RUN_OPTIONS": " ".join([*options, *gpu_share_options()]),
        "FIGURE_OPTIONS": f"--set=prompts.n={limit}",
    }
    study = ["bash", ROOT / "scripts/study.sh", tmp_path / "out", model]
    subprocess.run(study, check=True, timeout=PATIENCE, env=environment)
    figures = sorted(path.stem for path in (tmp_path / "out" / shape / "figures").glob("*.png"))
    report(f"the study of {shape} with {limit} problems drew {figures}")
    assert len(figures) == 5
    assert shape in (tmp_path / "out/table.txt").read_text()


def sum_requests(count):
    """Greedy requests for some tokens of text about sums, three conditions."""
    settings = config(
        ["wo", "mless", "random"],
        arguments={"pretrained": "smollm2", "dtype": "bfloat16"},
        dataset={"make": "sums", "operands": [10, 99], "count": count},
        layouts=["chat"],
        max_gen_toks=64 if gpu_share() else 8,
    )
    _, requests = plan_requests(settings, None)
    return requests


KERNELS = {
    "plain": {},
    "variable": {},  # VLLM_BATCH_INVARIANT alone: Inductor makes RMSNorm
    "invariant": {"batch_invariant": True},
    "eager": {"batch_invariant": True, "enforce_eager": True},
    "uncached": {"batch_invariant": True, "enforce_eager": True, "enable_prefix_caching": False},
}


def answer(engine, requests):
    """Each token with its log-probability, by the request's number, with nothing cached before."""
    from vllm import TokensPrompt

    assert engine._engine.reset_prefix_cache()
    for number, request in requests:
        parameters = sampling_parameters(request)
        parameters.logprobs = 0
        prompt = TokensPrompt(prompt_token_ids=list(request.prompt_token_ids))
        engine._engine.add_request(str(number), prompt, parameters)
    answers = {}
    while engine._engine.has_unfinished_requests():
        for output in engine._engine.step():
            pairs = zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
            answers[int(output.request_id)] = [(id, row[id].logprob) for id, row in pairs]
    return answers


def count_changed(answers, reference):
    """How many answers differ in any bit: at the first token, which is prefill, or only later."""
    pairs = [(answer, reference[number]) for number, answer in answers.items()]
    early_count = sum(answer[0] != other[0] for answer, other in pairs)
    return early_count, sum(answer != other for answer, other in pairs) - early_count


@pytest.mark.parametrize("kernels", KERNELS)
def test_report_bfloat16_answers_that_differ_in_another_order_of_requests(
    kernels, smollm2, monkeypatch
):
    """Another order changes batches; the same order twice tells what varies without it."""
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    if kernels != "plain" and capability < (9, 0):
        pytest.skip("vLLM's batch-invariant kernels need a GPU of compute capability 9.0 or more")
    if kernels == "variable":
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    requests = [*enumerate(sum_requests(100 if gpu_share() else 4))]
    arguments = {
        "pretrained": str(smollm2),
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "enforce_eager": not gpu_share(),  # a CPU has no CUDA graphs, and compiles for minutes
        **gpu_share(),
        **KERNELS[kernels],
    }
    shuffled = random.Random(0).sample(requests, len(requests))
    alone = {}
    with closing(VLLMEngine(arguments, has_sampled_requests=False)) as engine:
        first, again, other = (answer(engine, order) for order in (requests, requests, shuffled))
        for request in requests[:20]:
            alone |= answer(engine, [request])
        facts = engine.facts()
    changes = [count_changed(answers, first) for answers in (again, other, alone)]
    report(
        f"{kernels}: of {len(first)} answers differ in any bit, at the first token and only later: "
        f"{changes[0]} in the same order, {changes[1]} in another, {changes[2]} of {len(alone)} "
        f"alone; answers {hash_text(repr(sorted(first.items())))[:8]}, custom_ops "
        f"{facts['custom_ops']}, {facts['cudagraph_mode']}"
    )
    assert len(first) == len(requests) and facts["batch_invariant"] == (kernels != "plain")
    if kernels != "plain" and any(map(any, changes)):
        pytest.xfail("not invariant: the line above says in what")
