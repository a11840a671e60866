"""Completions of all engines, and how requests and completions look in vLLM.

The fields of a completion that a backend does not report keep their defaults.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engines import engine_processes
from harness.errors import EngineError
from harness.experiment.intervention_settings import find_gap
from harness.experiment.plan import Request
from harness.finish_reasons import read_reason

DECODING_ARGUMENTS = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Arguments of vLLM's SamplingParams that decide how tokens become text."""


@dataclass(frozen=True)
class Completion:
    """The completion of one request.

    Attributes:
        text: Special tokens other than the end are kept, as lm-eval keeps them.
        reasoning: Reasoning that a server returns apart from the text.
        completion_tokens: The number of its tokens, with the end token; None where the backend does
            not report it.
        request_id: The engine's name of the request; empty for other backends.
        finish_reason: As the backend reports it; see `finish_reasons.read_reason`.
        prompt_tokens: Tokens of the prompt by a server's count; None where it reports none.
        attention: The sums of attention [layer, set, head, key] if the prompt is recorded: see
            `Request.query_sets`.
        prompt_logprobs: The log-probability and the rank of each token of the prompt after the
            first, if the request has tokens to score.
    """

    text: str
    reasoning: str = ""
    request_id: str = ""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    attention: NDArray[np.float32] | None = None
    prompt_logprobs: Sequence[tuple[float, int]] = ()


FinishedRequests = list[tuple[Request, Completion]]
"""Requests that an engine has finished since the last time, with their completions."""


def refuse_too_long_request(request: Request, max_model_len: int) -> None:
    """Raise EngineError if a request does not fit into the model's context."""
    # a gap in the positions uses up context too
    _, gap_size = find_gap(request.intervention)
    prompt_size = len(request.prompt_token_ids or ()) + gap_size
    if prompt_size + request.sampling.max_tokens > max_model_len:
        raise EngineError(
            f"Problem {request.problem_id} of {request.task} has {prompt_size} prompt tokens: with "
            f"max_gen_toks {request.sampling.max_tokens} it is over the context of {max_model_len}."
        )


def read_outputs(outputs: Sequence[Any], tokenizer: Any) -> tuple[list[Completion], bool]:
    """The completions in vLLM's outputs, and whether any request ended without a completion.

    Args:
        outputs: vLLM's outputs of finished requests.
        tokenizer: vLLM's tokenizer, which decodes what vLLM has not decoded.
    """
    completions = []
    for output in outputs:
        vllm_completion = output.outputs[0]
        # an engine that shuts down reports its unfinished requests with the finish reason `abort`
        if read_reason(vllm_completion.finish_reason) in ("stop", "length"):
            # The first token has no log-probability. At the other positions vLLM gives that of the
            # prompt's own token alone, because `sampling_parameters` requests no others.
            logprobs = [
                next(iter(logprob_by_token.values()))
                for logprob_by_token in (output.prompt_logprobs or ())[1:]
            ]
            completions.append(
                Completion(
                    request_id=output.request_id,
                    text=_read_text(output, tokenizer),
                    completion_tokens=len(vllm_completion.token_ids),
                    finish_reason=vllm_completion.finish_reason,
                    prompt_logprobs=[(logprob.logprob, logprob.rank) for logprob in logprobs],
                )
            )
    return completions, len(completions) < len(outputs)


def _read_text(output: Any, tokenizer: Any) -> str:
    """The text of a finished request: vLLM's if vLLM has decoded it, else that of its tokens."""
    vllm_completion = output.outputs[0]
    # Only the prompt is scored. vLLM generates a token after it all the same, which is dropped.
    if output.prompt_logprobs:
        return ""
    # vLLM has decoded the text if it looks for stop strings; it is empty if one of them came first
    if vllm_completion.text or isinstance(vllm_completion.stop_reason, str):
        return str(vllm_completion.text)
    token_ids = list(vllm_completion.token_ids)
    if vllm_completion.finish_reason == "stop":
        del token_ids[-1]  # the end token, which is not part of the text
    return _decode_tokens(token_ids, output.prompt_token_ids, tokenizer)


def _decode_tokens(token_ids: list[int], prompt_token_ids: Any, tokenizer: Any) -> str:
    """The text that vLLM gives if it decodes each token as soon as it is generated.

    To decode all tokens at once takes a third of the time, so this is tried first.
    """
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    vllm_request: Any = SimpleNamespace(
        request_id="",
        prompt_token_ids=prompt_token_ids,
        prompt_embeds=None,
        sampling_params=SamplingParams(**DECODING_ARGUMENTS),
    )
    detokenizer: Any = IncrementalDetokenizer.from_new_request(tokenizer, vllm_request)
    text: str | None = None
    # a slow tokenizer has no `stream`, and `step` fails if the last bytes change earlier text
    with suppress(Exception):
        text = detokenizer.stream.step(detokenizer.tokenizer, token_ids)
    # `text` is None if the last bytes only begin a character, and it has the replacement character
    # for bytes that make no character
    if text is not None and "\ufffd" not in text:
        # a detokenizer of a tokenizer without added tokens has no such attribute
        added_token_ids = getattr(detokenizer, "added_token_ids", ())
        is_added_by_position = [token_id in added_token_ids for token_id in token_ids]
        # vLLM would put no space between two added tokens that follow each other
        if (True, True) not in pairwise(is_added_by_position):
            return text
    # a new detokenizer, because the first one has already taken the tokens
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, vllm_request)
    detokenizer.update(token_ids, False)
    return str(detokenizer.get_next_output_text(True, False))


def sampling_parameters(request: Request, recording_name: str = "") -> Any:
    """A request's parameters as vLLM's SamplingParams.

    Args:
        request: The request.
        recording_name: The name of the recording of its prompt; empty without one.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra_args: dict[str, Any] = {}
    if request.intervention:
        extra_args[engine_processes.PLUGIN_NAME] = request.intervention
    if request.query_sets:
        extra_args[engine_processes.RECORD_KEY] = {
            "name": recording_name,
            "sets": request.query_sets,
        }
    return SamplingParams(
        **request.sampling.vllm_arguments(),
        **DECODING_ARGUMENTS,
        seed=request.seed,
        # vLLM finds stop strings in its own text; without them, `_read_text` is faster
        detokenize=bool(request.sampling.stop),
        extra_args=extra_args or None,
        # 0 requests no alternatives to the prompt's tokens. vLLM then computes the whole prompt,
        # because its cached prefixes have no log-probabilities.
        prompt_logprobs=0 if request.scored_tokens else None,
        # otherwise vLLM makes an output after every token
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
