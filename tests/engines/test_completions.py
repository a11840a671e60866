"""vLLM's outputs as completions. The texts are those of vLLM's own processing of its outputs."""

import random
from types import SimpleNamespace

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from harness.engines.completions import read_outputs, sampling_parameters
from harness.engines.vllm_engine import VLLMEngine
from harness.experiment.generation_settings import Sampling
from harness.smollm2_model import resolve_model
from tests.conftest import ignore_warnings
from tests.engines.test_backends import request
from tests.make import TOY_MODEL, with_cases

TEXT = "Löse 2x² = ½·√π: 你好世界 👩‍👩‍👧 \ufffd </s>\n\n\\boxed{≤7} नमस्ते e\u0301"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def build_tokenizer(model, decoder=None, special="<s> </s> <think>"):
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(special.split())
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def load_tokenizer(name):
    if name == "byte fallback":  # as Llama 2, whose decoder removes the first blank
        replace, fuse = decoders.Replace("▁", " "), decoders.Fuse()
        steps = [replace, decoders.ByteFallback(), fuse, decoders.Strip(" ", 1, 0)]
        vocabulary = {token: index for index, token in enumerate([*BYTES, "▁", "▁a", "b", "你"])}
        model = models.BPE(vocabulary, [], byte_fallback=True, unk_token="b")
        return build_tokenizer(model, decoders.Sequence(steps))
    if name == "words":  # whose tokens are joined by blanks
        return build_tokenizer(models.WordLevel({"a": 0, "##b": 1, ".": 2}, unk_token="a"))
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(TOY_MODEL if name == "toy" else str(resolve_model(name)))


def draw_token_ids(tokenizer, count):
    """Random tokens, texts that are cut anywhere, and a mixture of both."""
    rng = random.Random(7)
    text = tokenizer.encode(TEXT, add_special_tokens=False)
    added = sorted(tokenizer.get_added_vocab().values())
    for _ in range(count):
        size = rng.randrange(len(text))
        # an id that has no token too, as models have more ids than tokenizers
        noise = [rng.randrange(len(tokenizer) + 1) for _ in range(rng.randrange(12))]
        yield rng.choice([text[:size], noise, text[:size] + noise, [*noise, *text[size:]]])
        yield [rng.choice([*added, *text]) for _ in range(9)]


def process(tokenizer, sample, token_ids, finish_reason, **changes):
    """The output of vLLM for a request whose tokens come one after another."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor

    processor = OutputProcessor(tokenizer, log_stats=False)
    engine = VLLMEngine.__new__(VLLMEngine)
    engine._engine = SimpleNamespace(output_processor=processor)
    parameters = sampling_parameters(sample)
    for name, value in changes.items():
        setattr(parameters, name, value)
    names = "mm_features pooling_params lora_request cache_salt data_parallel_rank".split()
    values = dict.fromkeys(names) | {"prompt_token_ids": list(sample.prompt_token_ids)}
    values |= {"sampling_params": parameters, "request_id": "1", "external_req_id": "1"}
    processor.add_request(EngineCoreRequest(arrival_time=0, **values), None)
    for count, token_id in enumerate(token_ids, 1):
        reason = FinishReason[finish_reason.upper()] if count == len(token_ids) else None
        step = EngineCoreOutput(request_id="1", new_token_ids=[token_id], finish_reason=reason)
        if outputs := processor.process_outputs([step]).request_outputs:
            return outputs[0]
        assert engine.token_counts == [count]  # progress


@with_cases
@ignore_warnings
def test_a_text_that_is_decoded_at_the_end_is_that_of_vllms_detokenizer(name, count):
    tokenizer = load_tokenizer(name)
    for prompt in ("1 + 1 =", "</s>"):
        prompt_token_ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
        sample = request("1", prompt_token_ids=prompt_token_ids, sampling=Sampling(max_tokens=99))
        for token_ids in draw_token_ids(tokenizer, count):
            for finish_reason in ("stop", "length") if token_ids else ():
                facts = tokenizer, sample, token_ids, finish_reason
                output, expected = process(*facts), process(*facts, detokenize=True)
                assert output.outputs[0].text == ""  # vLLM has not decoded it
                [completion], is_aborted = read_outputs([output], tokenizer)
                assert completion.text == expected.outputs[0].text, (token_ids, finish_reason)
                assert completion.completion_tokens == len(token_ids) and not is_aborted
    # an aborted request is not a sample
    outputs = [process(tokenizer, sample, (5,), reason) for reason in ("abort", "stop", "error")]
    completions, is_aborted = read_outputs(outputs, tokenizer)
    assert len(completions) == 1 and is_aborted


@with_cases
@ignore_warnings
def test_a_stop_string_ends_the_text_before_it(text, stopped):
    tokenizer = load_tokenizer("toy")
    sample = request("1", prompt_token_ids=(5, 6), sampling=Sampling(max_tokens=99, stop=("\n",)))
    output = process(tokenizer, sample, tokenizer.encode(text), "length")
    [completion], _ = read_outputs([output], tokenizer)
    assert completion.text == stopped
