"""Attention that the engine records is that of Hugging Face."""

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import harness
from harness.engines.attention_sums import open_recorder, recording_request
from harness.engines.interventions import intervention_check, vllm_worker
from harness.errors import ConfigError, EngineError
from harness.experiment.generation_settings import Sampling
from harness.runs.run_files import RunFiles
from tests.attention_probe.test_probe import column_means, eager
from tests.conftest import gpu_share, ignore_warnings, load_eager, report, slow_engine
from tests.engines.test_interventions import ARGUMENTS
from tests.make import EXAMPLE, TOY_MODEL, with_cases
from tests.tiny_models import build_language_model, save_language_model

# of torch, as vllm is imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class StoppedError(Exception):
    """Stands for the start of an engine."""


@with_cases
def test_the_tokenizer_and_the_engine_have_the_arguments_of_the_model(
    toy_tokenizer, monkeypatch, device, arguments, is_eager
):
    calls = []

    def load(name, arguments):
        calls.append((name, arguments))
        return toy_tokenizer

    def start(arguments, **_):
        calls.append(arguments)
        raise StoppedError

    monkeypatch.setattr("harness.experiment.prompts.tokenizer.load_tokenizer", load)
    monkeypatch.setattr("harness.engines.attention_sums.refuse_to_open", lambda *_: None)
    monkeypatch.setattr("harness.engines.attention_sums.VLLMEngine", start)
    monkeypatch.setattr("harness.engines.attention_sums.device_type", lambda: device)
    with pytest.raises(StoppedError):
        harness.attention("people/model", ["one"], [1], **arguments)
    (name, options), engine_arguments = calls
    assert name == "people/words" and arguments.items() <= options.items()
    assert engine_arguments.pop("interventions")["layers"]["recorded"] == [0]
    assert engine_arguments.pop("enforce_eager", None) is is_eager
    assert engine_arguments == {"pretrained": "people/model", **arguments}


@slow_engine
@with_cases
def test_attention_recorded_in_all_layers_of_forty_prompts_is_eager_attention(
    smollm2, budget, ranks, kernels, tmp_path
):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    rows = RunFiles(EXAMPLE).prompts  # with all lengths that the example has
    prompts = [tokenizer(row.prompt)["input_ids"] for row in rows[:: len(rows) // 40][:40]]
    arguments = {"enforce_eager": kernels == "eager", "tensor_parallel_size": ranks}
    if budget is not None:
        arguments |= {"enable_chunked_prefill": True, "max_num_batched_tokens": budget}
    recorded = record_in_script(tmp_path, "smollm2", prompts, **arguments)
    model = load_eager(smollm2)
    # kernels of a GPU round differently; with tf32 the difference would be above 1e-3
    device, bound = ("cuda", 1e-4) if torch.cuda.is_available() else ("cpu", 1e-5)
    model.to(device)
    largest = 0.0
    for token_ids, ours in zip(prompts, recorded, strict=True):
        theirs = eager_means(model, np.array(token_ids))
        assert ours.shape == (30, 9, len(token_ids)) == theirs.shape
        assert (np.isnan(ours) == np.isnan(theirs)).all()
        largest = max(largest, float(np.nanmax(np.abs(ours - theirs))))
    report(f"attention differs from eager attention by {largest:.1e} at most ({device}, {kernels})")
    assert largest < bound


@slow_engine
@with_cases
def test_attention_recorded_in_other_architectures_is_eager_attention(kind, window, tmp_path):
    windows = {"sliding_window": window, "sliding_window_pattern": 2}
    model = build_language_model(kind, num_local_experts=4, **windows)
    for name, weights in model.named_parameters():
        if "q_norm" in name or "k_norm" in name:
            weights.data += 2
    save_language_model(tmp_path / kind, model)
    token_ids = np.random.default_rng(0).integers(3, 500, 70)
    (ours,) = record_in_script(tmp_path, str(tmp_path / kind), [token_ids.tolist()])
    theirs = eager_means(model, token_ids)
    assert np.nanmax(theirs) > 3 * np.nanmedian(theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def eager_means(model, token_ids, layers=slice(None)):
    """The mean of each column of the attention matrices of Hugging Face."""
    weights = eager(model, token_ids)
    return column_means(weights[layers], np.arange(len(token_ids)))


def record_in_script(folder, model, prompts, **changes):
    """What `mless.attention` returns in a process of its own, as in a script of a user."""
    path = folder / "prompts.json"
    arguments = {**ARGUMENTS, "tensor_parallel_size": 1, **gpu_share(), **changes}
    path.write_text(json.dumps(prompts))
    environment = {**os.environ}
    if arguments["tensor_parallel_size"] > 1:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "0|1|1"  # three ranks share two cores
    command = [sys.executable, "-c", SCRIPT, model, str(path), json.dumps(arguments)]
    subprocess.run(command, check=True, env=environment)
    arrays = np.load(path.with_suffix(".npz"))
    return [arrays[str(index)] for index in range(len(prompts))]


@slow_engine
def test_single_rows_are_those_of_eager_attention(tmp_path):
    """Prompts in several chunks, one shorter than the number of rows."""
    model = load_eager(TOY_MODEL)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(3, 500, size) for size in (200, 90, 4)]
    token_ids = [prompt.tolist() for prompt in prompts]
    means = record_in_script(tmp_path, TOY_MODEL, token_ids, queries="last:6")
    arrays = np.load(tmp_path / "prompts.npz")
    for index, prompt in enumerate(prompts):
        weights = eager(model, prompt)
        np.testing.assert_allclose(means[index], eager_means(model, prompt), atol=1e-5)
        np.testing.assert_allclose(arrays[f"rows {index}"], weights[:, :, -6:], atol=1e-5)


@slow_engine
@ignore_warnings  # of vLLM's worker, which is in this process
def test_a_recorded_prompt_without_a_salt_of_its_own_ends_the_run_if_it_is_cached(
    smollm2, monkeypatch
):
    monkeypatch.setattr(intervention_check, "hash_json", lambda value: "one for all")
    (request,) = random_requests((150,))
    message = "the attention of 128 tokens was not recorded, they came out of a cache"
    with pytest.raises(EngineError, match=message):
        record_sums(smollm2, [request, replace(request)], max_num_seqs=1)


def random_requests(lengths):
    """Prompts of random tokens with all three sets of queries, and with answers of some length."""
    generator = np.random.default_rng(0)
    requests = []
    for size in lengths:
        sets = [[1] * size, *(generator.integers(0, 2, size).tolist() for _ in range(2))]
        token_ids = generator.integers(100, 40_000, size).tolist()
        request = recording_request(token_ids, sets, prompt_name=str(len(requests)))
        requests.append(replace(request, sampling=Sampling(max_tokens=60, stop=("no such text",))))
    return requests


def record_sums(folder, requests, **changes):
    """The sums that an engine in this process records, and facts about each preemption.

    These facts are the index at which a prompt comes again, the number of its queries that had been
    added up, and its length.
    """
    arguments = {"pretrained": str(folder), **ARGUMENTS, **changes}
    layers = {"attention": [], "activations": [], "recorded": [0, 29]}
    preemptions, find_recording = [], vllm_worker.WorkerInterventions._advance_recording

    def note_preemption(interventions, options, index, count):
        if options:
            size, queries = len(options["sets"][0]), 0
            if options["name"] in interventions._complete_names:
                queries = size
            elif recording := interventions._recordings.get(options["name"]):
                queries = recording.query_count
            if index < queries:
                preemptions.append((index, queries, size))
        return find_recording(interventions, options, index, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setattr(vllm_worker.WorkerInterventions, "_advance_recording", note_preemption)
        with closing(open_recorder(arguments, layers, 3)) as engine:
            finished = chain.from_iterable(engine.stream(requests))
            attention = {request.problem_id: answer.attention for request, answer in finished}
            paths = map(os.path.realpath, Path("/proc/self/fd").iterdir())
            # a file is open until the sums of later prompts are taken
            assert sum("memfd:attention" in path for path in paths) < len(requests)
    return [attention[request.problem_id] for request in requests], preemptions


@slow_engine
@ignore_warnings  # of vLLM's worker, which is in this process
@with_cases
def test_a_preempted_prompt_is_added_up_once(lengths, is_cut, smollm2):
    """Preempted within the prompt, and after it.

    The prompt comes again in other chunks, and partly from the cache.
    """
    requests = random_requests(lengths)
    expected, preemptions = record_sums(smollm2, requests)
    assert not preemptions
    sums, preemptions = record_sums(
        smollm2,
        requests,
        enable_chunked_prefill=True,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=20,
    )
    assert any((queries < size) == is_cut for _, queries, size in preemptions), preemptions
    assert any(index for index, _, _ in preemptions), preemptions
    for ours, theirs in zip(sums, expected, strict=True):
        assert ours.shape == theirs.shape == (2, 3, 9, theirs.shape[3])
        np.testing.assert_allclose(ours, theirs, atol=1e-4)  # sums over up to 200 queries


SCRIPT = """
import json, sys
import numpy as np
import mless
if __name__ == "__main__":
    path = sys.argv[2]
    layers = mless.attention(sys.argv[1], json.load(open(path)), **json.loads(sys.argv[3]))
    arrays = {str(index): array for index, array in enumerate(layers)}
    arrays |= {f"rows {index}": array for index, array in enumerate(layers.rows)}
    np.savez(path.replace(".json", ".npz"), **arrays)
"""


@with_cases
def test_layers_that_the_model_does_not_have_are_refused_before_it_is_loaded(
    smollm2, layers, message
):
    with pytest.raises(ConfigError, match=message):
        harness.attention("smollm2", [[1, 2]], layers)


@slow_engine
def test_recorded_attention_over_the_memory_is_refused(tmp_path, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        record_in_script(tmp_path, "smollm2", [[1, 2]], kv_cache_memory_bytes=60_000_000)
    error = capfd.readouterr().err.splitlines()[-1]
    assert "attention recorded in 30 layers takes up to 0.1" in error
    assert "of 0.06 GiB" in error
