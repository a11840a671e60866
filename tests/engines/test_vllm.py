"""What the engine does around vLLM: weights fetched, completions decoded; with the real one: test_engine.py."""

import os
import random
import time
from itertools import product
from types import SimpleNamespace

import pytest

from harness.engines import engine_options, vllm_engine
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, ModelError
from harness.experiment.decode_tokens import decode_completion


def test_an_engine_that_does_not_start_leaves_the_environment_as_it_was(monkeypatch):
    def prepare():
        os.environ["VLLM_LOGGING_LEVEL"] = os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = (
            "1"  # as vLLM itself sets some
        )
        raise ModelError("it does not start")

    monkeypatch.setattr(vllm_engine, "_prepare_environment", prepare)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    before = dict(os.environ)
    with pytest.raises(ModelError, match="it does not start"):
        VLLMEngine({"pretrained": "x", "dtype": "float32", "batch_invariant": True})
    assert dict(os.environ) == before


def test_two_engines_that_compute_otherwise_are_not_alive_at_once(monkeypatch):
    monkeypatch.setattr(vllm_engine, "_open_engines", [SimpleNamespace(_is_batch_invariant=False)])
    with pytest.raises(ConfigError, match="close that one first"):
        VLLMEngine({"pretrained": "x", "batch_invariant": True})


def an_output(request_id, token_ids, finish_reason=None):
    """As vLLM's RequestOutput, with what is new since the request's last one."""
    completion = SimpleNamespace(token_ids=token_ids, text="", finish_reason=finish_reason)
    return SimpleNamespace(
        request_id=request_id, outputs=[completion], finished=finish_reason is not None
    )


def test_steps_are_taken_until_one_finishes_a_request_or_the_time_is_over(monkeypatch):
    engine = VLLMEngine.__new__(VLLMEngine)
    engine._unfinished = {}
    steps = iter([
        [an_output("0", [1]), an_output("1", [2])],
        [],
        [an_output("0", [3, 4]), an_output("1", [5], "length")],
        [an_output("0", [6], "stop")],
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
        ({"model": "org/name", "revision": "abc"}, True),
        ({"model": "/"}, False),
        ({"model": "org/name", "load_format": "dummy"}, False),
        ({"model": "org/name", "download_dir": "/data"}, False),
    ],
)
def test_weights_are_fetched_before_the_engine_starts(options, is_fetched, monkeypatch):
    calls = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, **options: calls.append((name, options)) or "",
    )
    engine_options.fetch_weights(options)
    unneeded = ["*.pth", "*.gguf", "original/*"]
    assert calls == [("org/name", {"revision": "abc", "ignore_patterns": unneeded})] * is_fetched


pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's, as vllm is imported

PIECES = [
    *"aeiou 0123=+\n",
    " the",
    " naïve",
    "é",
    "ß",
    "中文",
    "日本語",
    "한국어",
    "🙂",
    "👩‍👩‍👧",
    "\\frac{1}{2}",
    "عربي",
    "�",
]
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


def texts():
    rng = random.Random(7)
    return ["".join(rng.choices(PIECES, k=12)) for _ in range(400)]


def test_texts_in_many_scripts_cut_after_each_token(any_tokenizer):
    prompt_ids = any_tokenizer(PROMPT)["input_ids"]
    for text in texts():
        ids = any_tokenizer(text, add_special_tokens=False)["input_ids"]
        for count, expected in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == expected, (
                text,
                count,
            )


def test_any_ids_special_ones_beside_each_other_too(any_tokenizer):
    rng, prompt_ids = random.Random(8), any_tokenizer(PROMPT)["input_ids"]
    # a model's ids may go beyond its vocabulary
    every, added = range(len(any_tokenizer) + 3), list(any_tokenizer.added_tokens_decoder)
    for _, kinds in product(range(40), ([every], [every, added], [added])):
        ids = [rng.choice(rng.choice(kinds) or every) for _ in range(20)]
        for count, expected in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == expected, ids[
                :count
            ]
    assert decode_completion(any_tokenizer, prompt_ids, []) == ""
