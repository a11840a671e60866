"""lm-eval's model object for a run: any of its backends, and for vLLM the reason why each completion ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.errors import MissingDependencyError, ModelError, PromptMismatchError
from harness.tokenization import explain_hub_error, hash_token_ids, refuse_missing_folder, template_arguments

if TYPE_CHECKING:
    from lm_eval.api.model import LM


class Completion(str):
    """A completion that remembers why it ended. lm-eval passes completions on as they are, so the grader sees it.

    Attributes:
        finish_reason: vLLM's: `stop`, `length` or `abort`; None where unknown.
        prompt_token_ids: The prompt as the engine ran it.
        completion_tokens: Tokens generated.
    """

    finish_reason: str | None
    prompt_token_ids: tuple[int, ...]
    completion_tokens: int

    def __new__(
        cls, text: str, *, finish_reason: str | None, prompt_token_ids: tuple[int, ...], completion_tokens: int
    ) -> Completion:
        """A string with its record."""
        self = super().__new__(cls, text)
        self.finish_reason = finish_reason
        self.prompt_token_ids = prompt_token_ids
        self.completion_tokens = completion_tokens
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain string: the record stays in the process that generated it."""
        return str, (str(self),)


def load_model(backend: str, arguments: Mapping[str, Any], *, checked_prompts: frozenset[str] | None = None) -> LM:
    """Load the model once.

    Args:
        backend: lm-eval's name of it.
        arguments: lm-eval's model arguments.
        checked_prompts: Hashes of the token ids that were checked; with vLLM any other prompt is refused.

    Raises:
        ModelError: no such backend, no such model, or the backend refuses its arguments.
        MissingDependencyError: the backend's package is not installed.
    """
    from lm_eval.api.registry import get_model

    name = str(arguments.get("pretrained") or "")
    if name:
        refuse_missing_folder(name)
    try:
        kind = _recording_vllm() if backend == "vllm" else get_model(backend)
        model: LM = kind.create_from_arg_obj({"batch_size": "auto", **arguments})
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"The backend {backend!r} needs the package {error.name!r}. Install `mless[gpu]` on a GPU machine, "
            "`mless[cpu]` elsewhere; `mless doctor` checks the result."
        ) from error
    except (ValueError, KeyError, OSError, TypeError, RuntimeError) as error:
        raise ModelError(f"The backend {backend!r} did not start: {explain_hub_error(name, error)}") from error
    model.checked_prompts = checked_prompts
    if hasattr(model, "chat_template_args"):
        model.chat_template_args = {**template_arguments(), **(model.chat_template_args or {})}
    return model


def _recording_vllm() -> type[LM]:
    from lm_eval.models.vllm_causallms import VLLM

    class RecordingVLLM(VLLM):  # type: ignore[misc]
        """lm-eval's vLLM backend; its completions keep what vLLM said of them."""

        def _model_generate(self, *args: Any, **kwargs: Any) -> Any:
            outputs = super()._model_generate(*args, **kwargs)
            self._outputs.extend(outputs)
            return outputs

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            # lm-eval reorders requests by length; equal prompts share their record, as greedy decoding shares them
            prompts = self.tok_encode([request.args[0] for request in requests])
            self._refuse_unchecked(prompts)
            self._outputs: list[Any] = []
            texts = super().generate_until(requests, disable_tqdm)
            by_prompt = {tuple(output.prompt_token_ids): output for output in self._outputs}
            completions: list[str] = []
            for text, prompt in zip(texts, prompts, strict=True):
                output = by_prompt.get(tuple(prompt))
                if output is None:
                    raise ModelError(
                        f"A prompt of {len(prompt)} tokens was cut before generation: with max_gen_toks it exceeds the "
                        "context. Lower sampling.max_gen_toks or raise max_model_len."
                    )
                completions.append(
                    Completion(
                        text,
                        finish_reason=output.outputs[0].finish_reason,
                        prompt_token_ids=tuple(prompt),
                        completion_tokens=len(output.outputs[0].token_ids),
                    )
                )
            return completions

        def _refuse_unchecked(self, prompts: list[list[int]]) -> None:
            if self.checked_prompts is None:
                return
            for prompt in prompts:
                if hash_token_ids(prompt) not in self.checked_prompts:
                    raise PromptMismatchError(
                        "The engine would run other token ids than those that were checked. A model argument that "
                        "changes prompts (add_bos_token, chat_template_args, enable_thinking) was set: remove it."
                    )

    return RecordingVLLM
