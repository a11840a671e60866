"""lm-eval's model object over vLLM: one load, one pool of requests, samples streaming out as they finish.

`mless run` streams from it into the journal; lm-eval itself can use it as a model (`mless-vllm`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from harness.engines.vllm import Finished, VLLMEngine
from harness.errors import ConfigError, EngineError
from harness.experiment.documents import Model
from harness.experiment.prompt import hash_text
from harness.experiment.requests import Request
from harness.experiment.sampling import from_lm_eval, sample_seed
from harness.experiment.tokens import apply_chat_template, encode, hash_token_ids

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

QUEUE_PER_SEQUENCE = 2
"""Requests in the engine, running or waiting, for each that it can run at once: it never waits for us."""


class Completion(str):
    """A completion that remembers what else is known of it. lm-eval passes it on as it is, so the grader sees it.

    Attributes:
        finish_reason: vLLM's: `stop`, `length` or `abort`; None where unknown.
        graded: The grades as JSON text, where they are known already; see `hooks.grade_responses`.
    """

    finish_reason: str | None
    graded: str | None

    def __new__(cls, text: str, *, finish_reason: str | None, graded: str | None = None) -> Self:
        """A string with its record."""
        self = super().__new__(cls, text)
        self.finish_reason, self.graded = finish_reason, graded
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain string: the record stays in the process that generated it."""
        return str, (str(self),)


@register_model("mless-vllm")
class MlessVLLM(LM):  # type: ignore[misc]
    """A loaded vLLM engine as an lm-eval model. Generation only: no task of ours asks for likelihoods.

    Args:
        arguments: lm-eval's model arguments; see `vllm.VLLMEngine`.
        sampled: Whether any request will be sampled.
        seed: From which every sample's own seed is derived when lm-eval is the caller.
    """

    def __init__(self, *, seed: int = 1234, sampled: bool = True, **arguments: Any) -> None:
        super().__init__()
        model = Model.from_arguments(arguments)
        if model is None:
            raise ConfigError("mless-vllm needs `pretrained`, a model folder or hub name. Add it to --model_args.")
        self._model = model
        self._seed = int(seed)
        self._max_gen_toks = int(arguments.pop("max_gen_toks", 2048))
        self._engine = VLLMEngine({"seed": int(seed), **arguments}, sampled=sampled)

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Finished]]]:
        """Generate all requests in one pool, in their order; one list for each engine step, often empty.

        The engine always has more to do than it can run at once, until nothing is left. Between two steps the caller
        may do its own work; that of a GPU goes on meanwhile.

        Raises:
            EngineError: the engine died, or a request does not fit.
        """
        waiting = deque(enumerate(requests))
        running: dict[str, Request] = {}
        room = QUEUE_PER_SEQUENCE * self._engine.max_num_seqs
        while waiting or running:
            while waiting and len(running) < room:
                number, request = waiting.popleft()
                self._submit(str(number), request)
                running[str(number)] = request
            yield [(running.pop(done.request_id), done) for done in self._engine.step()]

    def facts(self) -> dict[str, Any]:
        """What generates, for the run's receipt; see `VLLMEngine.facts`."""
        return self._engine.facts()

    def _submit(self, number: str, request: Request) -> None:
        assert request.prompt_token_ids is not None
        length = len(request.prompt_token_ids) + request.sampling.max_tokens
        if length > self._engine.max_model_len:
            raise EngineError(
                f"Problem {request.problem_id} of {request.task} has {len(request.prompt_token_ids)} prompt tokens, "
                f"and with {request.sampling.max_tokens} generated ones that is over the context of "
                f"{self._engine.max_model_len}. Lower max_gen_toks, or raise max_model_len if the model allows it."
            )
        self._engine.add(number, request.prompt_token_ids, request.sampling, request.seed, request.replay)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Complete lm-eval's requests, in order; repeats of a request get seeds of their own."""
        from tqdm import tqdm

        ours = self._requests(requests)
        completions: dict[tuple[str, str, int], str] = {}
        with tqdm(total=len(ours), disable=disable_tqdm, desc="mless-vllm") as bar:
            for finished in self.stream(ours):
                for request, done in finished:
                    completions[_place(request)] = Completion(done.text, finish_reason=done.finish_reason)
                bar.update(len(finished))
        return [completions[_place(request)] for request in ours]

    def _requests(self, instances: list[Instance]) -> list[Request]:
        seen: Counter[tuple[str, str]] = Counter()
        requests = []
        for instance in instances:
            text, arguments = instance.args
            sampling = from_lm_eval(arguments, max_tokens=self._max_gen_toks)
            problem = str(instance.doc.get("id", instance.doc_id))
            index = seen[str(instance.task_name), problem]
            seen[str(instance.task_name), problem] += 1
            token_ids, _ = encode(text, self._model.tokenizer)
            requests.append(
                Request(
                    task=str(instance.task_name),
                    problem_id=problem,
                    sample_index=index,
                    seed=None if sampling.greedy else sample_seed(self._seed, problem, index),
                    prompt=text,
                    prompt_token_ids=token_ids,
                    prompt_sha256=hash_text(text),
                    prompt_token_sha256=hash_token_ids(token_ids),
                    sampling=sampling,
                )
            )
        return requests

    @property
    def tokenizer_name(self) -> str:
        """Names lm-eval's cache of requests."""
        return self._model.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's own template, for lm-eval's results file."""
        return str(self._model.tokenizer.chat_template or "")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as the model's template renders them, dates pinned."""
        return apply_chat_template(self._model.tokenizer, chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Refused: use lm-eval's own `vllm` model for such tasks."""
        raise ConfigError("mless-vllm only generates. For likelihood tasks use `--model vllm`.")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Refused: use lm-eval's own `vllm` model for such tasks."""
        raise ConfigError("mless-vllm only generates. For likelihood tasks use `--model vllm`.")

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Mapping[str, Any] | None = None) -> Self:
        """As lm-eval creates its models."""
        more = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**{**arg_dict, **more})

    def close(self) -> None:
        """Shut the engine down."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(request: Request) -> tuple[str, str, int]:
    """What no two of lm-eval's requests share; see `MlessVLLM._requests`."""
    return request.task, request.problem_id, request.sample_index
