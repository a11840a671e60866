"""Our vLLM engine as a model of lm-eval's, under the name `mless-vllm`.

Use it with lm-eval's own command (`--model mless-vllm`). `mless run` uses the engine itself: see `backends`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from harness.constants import DEFAULT_SEED, MAX_GEN_TOKS
from harness.engines.engine_pool import check_engines, open_engines
from harness.engines.vllm import engine_arguments
from harness.errors import ConfigError
from harness.experiment.plan import Request
from harness.experiment.prompt import hash_text
from harness.experiment.sampling import from_lm_eval, sample_seed
from harness.experiment.tokenizer import ModelTokenizer, apply_chat_template, encode, hash_token_ids

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class Completion(str):
    """A completion that carries what else is known about it. lm-eval passes it on unchanged, so the grader sees it.

    Attributes:
        finish_reason: vLLM's: `stop`, `length` or `abort`; None where unknown.
        graded: The grades as JSON text, where they are known already; see `hooks.grade_responses`.
    """

    finish_reason: str | None
    graded: str | None

    def __new__(cls, text: str, *, finish_reason: str | None, graded: str | None = None) -> Self:
        """The text with its record."""
        self = super().__new__(cls, text)
        self.finish_reason, self.graded = finish_reason, graded
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain string: the record stays in the process that generated it."""
        return str, (str(self),)


@register_model("mless-vllm")
class MlessVLLM(LM):  # type: ignore[misc]
    """A loaded vLLM engine as a model of lm-eval's. It only generates: no task of mless asks for likelihoods.

    Args:
        seed: Every sample's own seed is derived from it.
        sampled: Whether any request will be sampled.
        max_gen_toks: Tokens generated at most, where a task does not say.
        arguments: lm-eval's model arguments; see `vllm.VLLMEngine`. `data_parallel_size` is the number of engines.
    """

    def __init__(
        self, *, seed: int = DEFAULT_SEED, sampled: bool = True, max_gen_toks: int = MAX_GEN_TOKS, **arguments: Any
    ) -> None:
        super().__init__()
        engine_arguments(arguments)  # refuses those that name no model
        model = ModelTokenizer.from_arguments(arguments)
        assert model is not None
        self._model = model
        self._seed, self._max_gen_toks = int(seed), int(max_gen_toks)
        engines = check_engines(None, arguments)
        self._engine = open_engines({"seed": self._seed, **arguments}, engines, sampled=sampled)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Complete lm-eval's requests, in order. Repeats of a request get seeds of their own."""
        from tqdm import tqdm

        ours = self._requests(requests)
        completions: dict[int, str] = {}  # the very requests come back
        with tqdm(total=len(ours), disable=disable_tqdm, desc="mless-vllm") as bar:
            for finished in self._engine.stream(ours):
                for request, done in finished:
                    completions[id(request)] = Completion(done.text, finish_reason=done.finish_reason)
                bar.update(len(finished))
        return [completions[id(request)] for request in ours]

    def _requests(self, instances: list[Instance]) -> list[Request]:
        seen: Counter[tuple[str, str]] = Counter()
        requests = []
        for instance in instances:
            text, arguments = instance.args
            sampling = from_lm_eval(arguments, max_tokens=self._max_gen_toks)
            task, problem = str(instance.task_name), str(instance.doc.get("id", instance.doc_id))
            index = seen[task, problem]
            seen[task, problem] += 1
            token_ids, _ = encode(text, self._model.tokenizer)
            requests.append(
                Request(
                    task=task,
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
        """The name under which lm-eval caches its requests."""
        return self._model.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's own template, for lm-eval's results file."""
        return str(self._model.tokenizer.chat_template or "")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The turns as the model's template renders them, with a fixed date."""
        return apply_chat_template(
            self._model.tokenizer,
            chat_history,
            add_generation_prompt=add_generation_prompt,
            switches=self._model.switches,
        )

    def loglikelihood(self, requests: list[Instance]) -> list[Any]:
        """Refuse: use lm-eval's own `vllm` model for tasks that ask for likelihoods."""
        raise ConfigError("mless-vllm only generates. For likelihood tasks use `--model vllm`.")

    loglikelihood_rolling = loglikelihood
