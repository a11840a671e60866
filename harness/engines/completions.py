"""Completions of all engines, and how requests and completions look in vLLM.

A backend that is not vLLM's leaves out what it does not report.
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

DECODING = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Arguments of vLLM's SamplingParams that decide which text tokens give."""


@dataclass(frozen=True, kw_only=True)
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


def refuse_too_long(request: Request, max_model_len: int) -> None:
    """Raise EngineError if a request does not fit into the model's context."""
    # a gap in the positions uses up context too
    _, gap_size = find_gap(request.intervention)
    size = len(request.prompt_token_ids or ()) + gap_size
    if size + request.sampling.max_tokens > max_model_len:
        raise EngineError(
            f"Problem {request.problem_id} of {request.task} has {size} prompt tokens: with "
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
        completion = output.outputs[0]
        # an engine that shuts down reports requests that it did not finish with `abort`
        if read_reason(completion.finish_reason) in ("stop", "length"):
            # vLLM has nothing for the first token. `prompt_logprobs=0` requests no alternatives, so
            # each further dict has one entry: the prompt's token
            positions = (output.prompt_logprobs or ())[1:]
            tokens = [next(iter(position.values())) for position in positions]
            completions.append(
                Completion(
                    request_id=output.request_id,
                    text=_read_text(output, tokenizer),
                    completion_tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    prompt_logprobs=[(token.logprob, token.rank) for token in tokens],
                )
            )
    return completions, len(completions) < len(outputs)


def _read_text(output: Any, tokenizer: Any) -> str:
    """The text that vLLM gives if it decodes each token as soon as it is generated.

    To decode all tokens at once takes a third of the time. The text may then differ where bytes
    make no character, or where two added tokens follow each other, as vLLM puts no space between
    these. vLLM's detokenizer then gets the tokens one after another.
    """
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    completion = output.outputs[0]
    if output.prompt_logprobs:  # vLLM must generate a token after a gold answer, which is not used
        return ""
    # before a stop string the text may be empty
    if completion.text or isinstance(completion.stop_reason, str):
        return str(completion.text)
    token_ids = list(completion.token_ids)
    if completion.finish_reason == "stop":
        del token_ids[-1]
    request: Any = SimpleNamespace(
        request_id="",
        prompt_token_ids=output.prompt_token_ids,
        prompt_embeds=None,
        sampling_params=SamplingParams(**DECODING),
    )
    detokenizer: Any = IncrementalDetokenizer.from_new_request(tokenizer, request)
    # A tokenizer that is not fast has no stream. The last bytes may change the text before them, or
    # begin a character, so that there is no text yet.
    with suppress(Exception):
        text: str = detokenizer.stream.step(detokenizer.tokenizer, token_ids)
        is_added = [token_id in detokenizer.added_token_ids for token_id in token_ids]
        if "\ufffd" not in text and (True, True) not in pairwise(is_added):
            return text
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    detokenizer.update(token_ids, False)
    return str(detokenizer.get_next_output_text(True, False))


def sampling_parameters(request: Request, recording: str = "") -> Any:
    """A request's parameters as vLLM's SamplingParams.

    Args:
        request: The request.
        recording: The name of what is recorded of its prompt.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra: dict[str, Any] = {}
    if request.intervention:
        extra[engine_processes.PLUGIN] = request.intervention
    if request.query_sets:
        extra[engine_processes.RECORD] = {"name": recording, "sets": request.query_sets}
    return SamplingParams(
        **request.sampling.vllm_arguments(),
        **DECODING,
        seed=request.seed,
        # else `_read_text` takes half of the time; stop strings are found in the text
        detokenize=bool(request.sampling.stop),
        extra_args=extra or None,
        # vLLM then computes the whole prompt: it reads no cached prefix, whose log-probabilities
        # it would not have
        prompt_logprobs=0 if request.scored_tokens else None,
        # otherwise vLLM makes an output after every token
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
