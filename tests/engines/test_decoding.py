"""A completion decoded once is what vLLM's own decoder writes token by token, wherever it is cut."""

import random
from itertools import product
from types import SimpleNamespace

import pytest

from harness.experiment.tokenizer import decode_completion

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, as vllm is imported

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
    request = SimpleNamespace(request_id="0", prompt_token_ids=list(prompt_ids), sampling_params=parameters)
    decoder = FastIncrementalDetokenizer(tokenizer, request)
    for one in token_ids:
        decoder.update([one], False)
        yield decoder.output_text


def texts():
    rng = random.Random(7)
    return ["".join(rng.choices(PIECES, k=12)) for _ in range(2000)]


def test_texts_in_many_scripts_cut_after_each_token(any_tokenizer):
    prompt_ids = any_tokenizer(PROMPT)["input_ids"]
    for text in texts():
        ids = any_tokenizer(text, add_special_tokens=False)["input_ids"]
        for count, wanted in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == wanted, (text, count)


def test_any_ids_special_ones_beside_each_other_too(any_tokenizer):
    rng, prompt_ids = random.Random(8), any_tokenizer(PROMPT)["input_ids"]
    every, added = range(len(any_tokenizer)), list(any_tokenizer.added_tokens_decoder)
    for _, kinds in product(range(40), ([every], [every, added], [added])):
        ids = [rng.choice(rng.choice(kinds) or every) for _ in range(20)]
        for count, wanted in enumerate(as_vllm(any_tokenizer, prompt_ids, ids), start=1):
            assert decode_completion(any_tokenizer, prompt_ids, ids[:count]) == wanted, ids[:count]
    assert decode_completion(any_tokenizer, prompt_ids, []) == ""
