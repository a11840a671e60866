"""The hooks of vLLM's V2 runner, on a GPU or in Triton's interpreter: `make test-v2-hooks`."""

import json
from contextlib import closing
from copy import deepcopy
from functools import partial
from itertools import chain
from types import SimpleNamespace

import pytest
import torch

from harness.engines.vllm_engine import VLLMEngine
from tests.conftest import report
from tests.engines.test_interventions import (
    CONDITIONS,
    FACTOR,
    PRODUCTS,
    attend,
    config,
    engine_arguments,
)
from tests.make import module_fixture, read_data, with_cases

HAS_GPU = torch.cuda.is_available()
HEADS, PAGE, LENGTH = 2, 16, 90
"""Heads for keys, tokens of a block, and those of a request."""

kernel = pytest.importorskip("benchmarks.v2_hooks.attention_kernel")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("count", [1, 13, LENGTH])
@pytest.mark.parametrize("change", read_data("attention_changes"))
@with_cases
def test_the_kernel_has_the_attention_of_our_arithmetic(
    group, units, dtype, bound, change, count, monkeypatch
):
    torch.manual_seed(0)
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    with torch.device("cuda" if HAS_GPU else "cpu"):
        draw = partial(torch.randn, dtype=getattr(torch, dtype))
        blocks, phantom_size = torch.randperm(9)[:6], len(change.get("phantom", ()))
        # vLLM's order in memory: keys beside values
        cache = draw(9, HEADS, PAGE, 2 * units).transpose(1, 2)
        query, phantoms = draw(count, HEADS * group, units), draw(2, 2, phantom_size, HEADS, units)
        states = cache[blocks].flatten(0, 1)[:LENGTH].split(units, -1)
        key, value = (torch.cat(pair)[None] for pair in zip(states, phantoms[:, 1], strict=True))
        expected = attend([query[None], key, value], change, first=LENGTH - count)[0]
        table = kernel.tabulate_row(change).repeat(2, 1).to(query.device)
        rows, row_count = torch.ones(count).long(), torch.zeros(1).long()
        metadata = SimpleNamespace(
            block_table=blocks[None].int(),
            query_start_loc=torch.tensor([0, count]).int(),
            seq_lens=torch.tensor([LENGTH]).int(),
            max_query_len=count,
        )
        output = torch.full_like(query, torch.nan)
        changes = table, phantoms, rows, row_count
        pages = cache.split(units, -1)
        kernel.change_attention(query, pages, output, FACTOR, changes, metadata)
    torch.testing.assert_close(output.float(), expected, atol=bound, rtol=bound)
    assert row_count == count


@module_fixture
def arguments(tmp_path_factory):
    """Engine arguments that name the answers of Hugging Face under all arms."""
    file = tmp_path_factory.mktemp("arms") / "halve.py"
    file.write_text("def change(activations, _): return activations / 2\n")
    text = json.dumps([*CONDITIONS["arms"], CONDITIONS["function"]])
    for value, new_value in {**CONDITIONS["for four layers"], "FILE": str(file)}.items():
        text = text.replace(value, new_value)
    return engine_arguments(config(json.loads(text), **PRODUCTS), 2)


@pytest.fixture
def start(arguments, monkeypatch):
    """Starts an engine for the first prompts of the arms, and lets it answer all in one batch."""
    from benchmarks.v2_hooks import worker

    def start(options, prompt_count=None, skipped_methods=()):
        changed_arguments = deepcopy(arguments) | options
        arms = changed_arguments["interventions"]["reference"]["questions"]["arms"]
        if "enforce_eager" in options:  # a function of the user excludes full graphs
            del arms["function"]
        questions = chain.from_iterable(arms.values())
        changes = [question["intervention"] or [] for question in questions]
        open_layers = partial(worker.open_layers, interventions=changes[:prompt_count])
        monkeypatch.setattr("harness.engines.vllm_engine.add_open_layers", open_layers)
        for method in skipped_methods:
            monkeypatch.setattr(worker.V2Interventions, method, lambda *_: None)
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        return VLLMEngine(changed_arguments, has_sampled_requests=False)

    return start


@with_cases
def test_a_batch_of_all_arms_has_the_answers_of_hugging_face(options, count, start):
    if "enforce_eager" in options and not HAS_GPU:
        pytest.skip("CUDA graphs need a GPU")
    with closing(start(options)) as engine:
        agreement = engine.facts()["interventions"]
        metrics = {metric.name: metric for metric in engine._engine.get_metrics()}
    report(f"log-probabilities differ by at most {agreement['largest']:.1g}")
    bound = 1e-4 if HAS_GPU else 2e-5
    assert agreement["largest"] < bound and metrics[f"vllm:{count}"].value > 0


@with_cases
def test_what_the_hooks_cannot_do_is_an_error(
    options, prompt_count, skipped_methods, message, start
):
    with pytest.raises(Exception, match=message):
        start(options, prompt_count, skipped_methods)
