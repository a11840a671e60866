"""The engine's own work around vLLM. Tests with the real vLLM are in test_engine.py."""

import os
import random
import time
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from harness.engines import engine_options, vllm_engine
from harness.engines.decode_tokens import decode_completion
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, ModelError


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def prepare():  # vLLM itself sets some variables too
        os.environ.update({"VLLM_LOGGING_LEVEL": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1"})
        raise ModelError("it does not start")

    monkeypatch.setattr(vllm_engine, "_prepare_environment", prepare)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    before = dict(os.environ)
    with pytest.raises(ModelError, match="it does not start"):
        VLLMEngine({"pretrained": "x", "dtype": "float32", "batch_invariant": True})
    assert dict(os.environ) == before


def test_an_engine_with_other_kernels_is_refused_while_one_is_open(monkeypatch):
    monkeypatch.setattr(vllm_engine, "_open_engines", [SimpleNamespace(_is_batch_invariant=False)])
    with pytest.raises(ConfigError, match="close that one first"):
        VLLMEngine({"pretrained": "x", "batch_invariant": True})


def output(request_id, *token_ids, finish_reason=None):
    """Like vLLM's RequestOutput: the tokens that are new since the last one of the request."""
    completion = SimpleNamespace(token_ids=[*token_ids], text="", finish_reason=finish_reason)
    return SimpleNamespace(
        request_id=request_id, outputs=[completion], finished=finish_reason is not None
    )


def test_steps_are_taken_until_a_request_finishes_or_the_time_is_over(monkeypatch):
    engine = VLLMEngine.__new__(VLLMEngine)
    engine._unfinished = {}
    steps = iter([
        [output("0", 1), output("1", 2)],
        [],
        [output("0", 3, 4), output("1", 5, finish_reason="length")],
        [output("0", 6, finish_reason="stop")],
    ])  # fmt: skip
    engine._engine = SimpleNamespace(step=steps.__next__)
    (finished,) = engine._take_steps()
    assert (finished.request_id, finished.outputs[0].token_ids) == ("1", [2, 5])
    assert engine.token_counts == {0: 3}, "progress is known between two completions"
    (finished,) = engine._take_steps()
    assert (finished.request_id, finished.outputs[0].token_ids) == ("0", [1, 3, 4, 6])
    assert not engine._unfinished
    monkeypatch.setattr(vllm_engine, "STEPS_SECONDS", 0.02)
    engine._engine = SimpleNamespace(step=lambda: time.sleep(0.01) or [])
    assert engine._take_steps() == []


@pytest.mark.parametrize(
    ("options", "is_fetched"),
    [
        ({"revision": "abc"}, True),
        ({"model": "/"}, False),
        ({"load_format": "dummy"}, False),
        ({"download_dir": "/data"}, False),
    ],
)
def test_weights_are_fetched_before_the_engine_starts(options, is_fetched, monkeypatch):
    download = Mock(return_value="")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    engine_options.fetch_weights({"model": "org/name", **options})
    unneeded = ["*.pth", "*.gguf", "original/*"]
    expected = call("org/name", revision="abc", ignore_patterns=unneeded)
    assert download.mock_calls == [expected] * is_fetched


# of torch, as vllm is imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WORDS = r" the, naïve,é,ß,中文,日本語,한국어,🙂,👩‍👩‍👧,\frac{1}{2},عربي,�".split(",")
PIECES = [*"aeiou 0123=+\n", *WORDS]
PROMPT = "What is 1 + 1?\nAnswer:"


def as_vllm(tokenizer, prompt_ids, token_ids):
    """The text after each token, by vLLM's decoder."""
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    parameters = SamplingParams(skip_special_tokens=False, spaces_between_special_tokens=False)
    request = SimpleNamespace(
        request_id="0", prompt_token_ids=list(prompt_ids), sampling_params=parameters
    )
    decoder = FastIncrementalDetokenizer(tokenizer, request)
    for token_id in token_ids:
        decoder.update([token_id], False)
        yield decoder.output_text


def check_decoding(tokenizer, token_ids):
    """Check that text, cut after each token, is decoded as in vLLM."""
    prompt_ids = tokenizer(PROMPT)["input_ids"]
    for count, expected in enumerate(as_vllm(tokenizer, prompt_ids, token_ids), start=1):
        prefix = token_ids[:count]
        assert decode_completion(tokenizer, prompt_ids, prefix) == expected, prefix


def test_texts_in_many_scripts_are_decoded_as_in_vllm(any_tokenizer):
    rng = random.Random(7)
    for _ in range(400):
        text = "".join(rng.choices(PIECES, k=12))
        check_decoding(any_tokenizer, any_tokenizer(text, add_special_tokens=False)["input_ids"])


def test_any_ids_are_decoded_as_in_vllm_also_special_ones_in_a_row(any_tokenizer):
    rng = random.Random(8)
    # a model's ids may go beyond its vocabulary
    all_ids, added = range(len(any_tokenizer) + 3), list(any_tokenizer.added_tokens_decoder)
    for _, kinds in product(range(40), ([all_ids], [all_ids, added], [added])):
        check_decoding(any_tokenizer, [rng.choice(rng.choice(kinds) or all_ids) for _ in range(20)])
    assert decode_completion(any_tokenizer, any_tokenizer(PROMPT)["input_ids"], []) == ""
