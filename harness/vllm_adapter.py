"""The one place that touches vLLM: requests in, finished completions out.

vLLM's synchronous engine is fed and stepped by hand, because its own `LLM.generate` returns nothing before everything
is finished. Works with vLLM 0.24 and newer; what differs between versions is settled here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.errors import ConfigError, EngineError, MissingDependencyError, ModelError
from harness.sampling import Sampling
from harness.tokenization import explain_hub_error
from harness.vllm_plugin import OWNER_VARIABLE, PLUGIN

CPU_KV_CACHE_BYTES = 2**30
"""On a CPU vLLM reserves nearly all memory for its cache unless told otherwise; 1 GiB is ample for a small model."""

CPU_BLOCK_SIZE = 32
"""Tokens in a block of the cache, the unit in which prompts share a prefix: on a CPU vLLM takes 128 unless told, and
instruction and filler together are shorter than that, so that nothing would ever be shared."""

FINISHED = ("stop", "length", "repetition")
"""What ends a completion; `abort` and `error` end a request without one."""

LOOK_SECONDS = 1.0
"""Between two looks at whether the engine process lives, while a step is waited for."""

CLOSE_SECONDS = 2.0
"""For the engine to end by itself before it is killed: nothing in it is wanted any more."""

_OURS = {"pretrained": "model", "max_length": "max_model_len"}
"""lm-eval's names of two engine arguments."""
_PROMPT_CHANGING = ("add_bos_token", "chat_template_args", "enable_thinking", "think_end_token", "truncation_side")
_LM_EVAL_ONLY = ("batch_size", "max_batch_size", "max_gen_toks", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One finished completion, as vLLM returns it.

    Attributes:
        request_id: As given to `add`.
        text: The completion; special tokens other than the end are kept, as lm-eval keeps them.
        completion_tokens: Tokens generated; None where the backend does not say.
        finish_reason: `stop` (end of text or stop string) or `length`; `repetition` if vLLM was asked to look for it.
        cached_tokens: Prompt tokens that prefix caching saved.
    """

    request_id: str
    text: str
    completion_tokens: int | None
    finish_reason: str | None
    cached_tokens: int = 0


class VLLMEngine:
    """A loaded model behind `add` and `step`.

    Args:
        arguments: lm-eval's model arguments; all but a few are vLLM's own engine arguments and pass through.
            `batch_invariant: true` switches on vLLM's batch-invariant kernels (recent GPUs only).
        sampled: Whether any request will be sampled; a CPU then needs whole prompts prefilled in one step.

    Raises:
        MissingDependencyError: vLLM is not installed.
        ConfigError: an argument that changes prompts, data parallelism, or one that cannot work on a CPU.
        ModelError: vLLM refuses the model or its arguments.
    """

    def __init__(self, arguments: Mapping[str, Any], *, sampled: bool = True) -> None:
        given = engine_arguments(arguments)
        if given.pop("batch_invariant", False):
            os.environ["VLLM_BATCH_INVARIANT"] = "1"  # vLLM reads it at import
        name = str(given.get("model"))
        try:
            from vllm import EngineArgs, LLMEngine
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"The engine needs the package {error.name!r}. Install `mless[gpu]` on a GPU machine, `mless[cpu]` "
                "elsewhere; `mless doctor` checks the result."
            ) from error
        if current_platform.is_cpu():
            fit_to_cpu(given, sampled=sampled)
        given.setdefault("disable_log_stats", True)  # as in vLLM's own `LLM`: nobody reads them, and they take time
        others = set(multiprocessing.active_children())
        try:
            # the same defaults (sequences at once, batched tokens) as vLLM's own offline `LLM`, not a server's
            with _dying_with_us():
                self._engine = LLMEngine.from_engine_args(EngineArgs(**given), usage_context=UsageContext.LLM_CLASS)
        except (ValueError, KeyError, OSError, TypeError, RuntimeError) as error:
            raise ModelError(f"vLLM did not start: {explain_hub_error(name, error)}") from error
        self._aborted = False
        self._processes = [p for p in multiprocessing.active_children() if p not in others]
        config = self._engine.vllm_config
        self.max_model_len: int = config.model_config.max_model_len
        self.max_num_seqs: int = config.scheduler_config.max_num_seqs

    def add(self, request_id: str, prompt_token_ids: Sequence[int], sampling: Sampling, seed: int | None) -> None:
        """Queue one request.

        Raises:
            EngineError: the engine process has died, or refuses the request.
        """
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            **sampling.vllm(),
            seed=seed,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            self._engine.add_request(request_id, TokensPrompt(prompt_token_ids=list(prompt_token_ids)), parameters)
        except Exception as error:
            raise _stopped(error) from error

    def step(self) -> list[Finished]:
        """Wait for the engine's next step and return what it finished, possibly nothing.

        Raises:
            EngineError: the engine process has died or is shutting down. It then calls its unfinished requests
                finished, as `abort`; those are no samples.
        """
        if self._aborted:
            raise _stopped(_EngineDied())
        try:
            with self._watched():
                outputs = self._engine.step()
        except Exception as error:
            raise _stopped(error) from error
        self._aborted = any(o.finished and o.outputs[0].finish_reason not in FINISHED for o in outputs)
        return [
            Finished(
                request_id=output.request_id,
                text=output.outputs[0].text,
                completion_tokens=len(output.outputs[0].token_ids),
                finish_reason=output.outputs[0].finish_reason,
                cached_tokens=output.num_cached_tokens or 0,
            )
            for output in outputs
            if output.finished and output.outputs[0].finish_reason in FINISHED
        ]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise if the engine process dies, before or meanwhile: vLLM itself (0.28 to 0.32) then waits for ever.

        The kernel tells a parent of a child's death by a signal, which also wakes it from waiting for a queue. One look
        can come too early (another thread of vLLM's may be just reaping the child), so a timer looks again.
        """

        def look(*_: Any) -> None:
            if any(not process.is_alive() for process in self._processes):
                raise _EngineDied

        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        before = {number: signal.signal(number, look) for number in (signal.SIGCHLD, signal.SIGALRM)}
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        try:
            look()
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Shut the engine process down; what is unfinished is dropped. A second Ctrl-C must not leave it behind."""
        with _undisturbed():
            self._engine.engine_core.shutdown(timeout=CLOSE_SECONDS)


def engine_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's model arguments as vLLM's engine arguments.

    Raises:
        ConfigError: an argument that changes prompts, or data parallelism.
    """
    changing = [name for name in _PROMPT_CHANGING if arguments.get(name) is not None]
    if changing:
        raise ConfigError(
            f"The model argument {changing[0]!r} changes prompts after they were checked. Remove it: the run config's "
            "layouts and conditions decide what a prompt is."
        )
    if int(arguments.get("data_parallel_size", 1)) != 1:
        raise ConfigError(
            f"data_parallel_size is {arguments['data_parallel_size']}, and one run is one engine. Start "
            "`mless run CONFIG --shard 1/N` to `--shard N/N`, one for each GPU, then `mless merge` them."
        )
    given = {_OURS.get(name, name): value for name, value in arguments.items() if name not in _LM_EVAL_ONLY}
    return {name: value for name, value in given.items() if value is not None and name != "data_parallel_size"}


def fit_to_cpu(given: dict[str, Any], *, sampled: bool) -> None:
    """Fill in what vLLM on a CPU needs; refuse what would kill the engine in the middle of a run."""
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        given.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    given.setdefault("block_size", CPU_BLOCK_SIZE)
    if sampled and given.get("enable_chunked_prefill"):
        raise ConfigError(
            "enable_chunked_prefill is true, and on a CPU a seeded sampled request whose prompt is prefilled in chunks "
            "kills vLLM. Remove it, or use `sampling: greedy`."
        )
    if not given.setdefault("enable_chunked_prefill", False):
        # without chunks the longest prompt must fit into one step
        length = int(given.get("max_model_len") or 0)
        if length:
            given["max_num_batched_tokens"] = max(int(given.get("max_num_batched_tokens") or 0), length, 8192)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM; only the main thread ever gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _dying_with_us() -> Iterator[None]:
    """What vLLM starts meanwhile ends with this process: see `vllm_plugin`."""
    chosen = os.environ.get("VLLM_PLUGINS")
    os.environ[OWNER_VARIABLE] = str(os.getpid())
    if chosen is not None and PLUGIN not in chosen.split(","):
        os.environ["VLLM_PLUGINS"] = f"{chosen},{PLUGIN}".lstrip(",")
    try:
        yield
    finally:
        del os.environ[OWNER_VARIABLE]


class _EngineDied(Exception):
    """A process of the engine is gone."""


def _stopped(error: Exception) -> EngineError:
    if isinstance(error, _EngineDied) or type(error).__name__ == "EngineDeadError":
        return EngineError(
            "The engine process died in the middle of the run (killed, or out of memory: see its last messages above). "
            "Everything finished is in the journal: run the same command again to continue, with a lower "
            "gpu_memory_utilization, kv_cache_memory_bytes or max_num_seqs if memory was the cause."
        )
    return EngineError(
        f"vLLM stopped: {type(error).__name__}: {' '.join(str(error).split())[:400]} Everything finished is in the "
        "journal: mend the cause and run the same command again to continue."
    )
