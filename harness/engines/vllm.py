"""The one place that touches vLLM: requests in, finished completions out.

vLLM's synchronous engine is fed and stepped by hand, because its own `LLM.generate` returns nothing before everything
is finished. Works with vLLM 0.24 and newer; what differs between versions is settled here.
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from queue import Empty, SimpleQueue
from typing import Any

from harness.engines.gpus import gpus
from harness.engines.lifetime import OWNER_VARIABLE, PLUGIN, TOLD_BY_WORKERS, WORKER_EXTENSION, known, process_identity
from harness.engines.start_errors import ChildErrors, explain_start_error, known_cause
from harness.errors import ConfigError, EngineError, MissingDependencyError, ModelError
from harness.experiment.config import RunConfig
from harness.experiment.sampling import Sampling

CPU_KV_CACHE_BYTES = 2**30
"""On a CPU vLLM reserves nearly all memory for its cache unless told otherwise; 1 GiB is ample for a small model."""

CPU_BLOCK_SIZE = 32
"""Tokens in a block of the cache, the unit in which prompts share a prefix: on a CPU vLLM takes 128 unless told, and
instruction and filler together are shorter than that, so that nothing would ever be shared."""

FINISHED = ("stop", "length", "repetition")
"""What ends a completion; `abort` and `error` end a request without one."""

LOOK_SECONDS = 1.0
"""Between two looks at whether the engine process lives, while it is waited for."""

STALL_FACTOR = 2
"""The engine may keep us waiting for this many times VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, vLLM's own limit for one step
of its workers (300 s). Where vLLM enforces its limit, its own error therefore comes first. No step of ours takes as
long: the longest are the first ones, in which kernels are compiled. NCCL gives up after 600 s too."""

CLOSE_SECONDS = 2.0
"""For the engine to end by itself before it is killed: nothing in it is wanted any more."""

SPAWN_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
INVARIANT_VARIABLE = "VLLM_BATCH_INVARIANT"
TRITON_VARIABLE = "TRITON_F32_DEFAULT"

_Call = tuple[Callable[[], Any], "SimpleQueue[tuple[Any, Exception | None]]"]
"""A method of vLLM's engine, and where its answer or its error goes."""

_OURS = {"pretrained": "model", "max_length": "max_model_len", "replay_solutions": "enable_trace_replay"}
"""Engine arguments by lm-eval's names or, the last one, by ours."""
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
            `batch_invariant: true` switches on vLLM's batch-invariant kernels (recent GPUs only). `replay_solutions:
            true` has the engine do all its work and then write the reference solutions (vLLM 0.29 on a GPU), to measure
            speed with random weights.
        sampled: Whether any request will be sampled; a CPU then needs whole prompts prefilled in one step.

    Raises:
        MissingDependencyError: vLLM is not installed.
        ConfigError: an argument that changes prompts, data parallelism, or one that cannot work on a CPU.
        ModelError: vLLM does not start; the message names the cause where it is known.
    """

    def __init__(self, arguments: Mapping[str, Any], *, sampled: bool = True) -> None:
        given = engine_arguments(arguments)
        self._before = {name: os.environ.get(name) for name in (INVARIANT_VARIABLE, TRITON_VARIABLE)}
        if given.pop("batch_invariant", False):
            os.environ[INVARIANT_VARIABLE] = "1"  # vLLM reads it in the engine's processes, and here for each request
        if str(given.get("dtype")).removeprefix("torch.") in ("float32", "float"):
            _ask_for_true_float32()
        _prepare_environment()
        try:
            from vllm import EngineArgs, LLMEngine, envs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"The engine needs the package {error.name!r}. Install `mless[gpu]` on a GPU machine, `mless[cpu]` "
                "elsewhere; `mless doctor` checks the result."
            ) from error
        except Exception as error:  # a wheel for another driver or another torch raises whatever it likes
            raise ModelError(explain_start_error(str(given.get("model")), error)) from error
        _refuse_unknown(given, {field.name for field in fields(EngineArgs)})
        if current_platform.is_cpu():
            fit_to_cpu(given, sampled=sampled)
        given.setdefault("disable_log_stats", True)  # as in vLLM's own `LLM`: nobody reads them, and they take time
        given.setdefault("worker_extension_cls", WORKER_EXTENSION)
        self._stall_seconds = STALL_FACTOR * envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
        self._errors = ChildErrors()
        others = set(multiprocessing.active_children())
        try:
            # the same defaults (sequences at once, batched tokens) as vLLM's own offline `LLM`, not a server's
            with _dying_with_us(), self._errors.inherited():
                self._engine = LLMEngine.from_engine_args(EngineArgs(**given), usage_context=UsageContext.LLM_CLASS)
        except Exception as error:  # vLLM and what it calls raise anything, AssertionError and ImportError too
            said = self._errors.close()
            raise ModelError(explain_start_error(str(given.get("model")), error, said)) from error
        self._errors.forget()  # what it said while it started explains no later death
        self._aborted = False
        self._processes = [p for p in multiprocessing.active_children() if p not in others]
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="mless-engine", daemon=True).start()
        config = self._engine.vllm_config
        self.max_model_len: int = config.model_config.max_model_len
        self.max_num_seqs: int = config.scheduler_config.max_num_seqs

    def add(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: Sampling,
        seed: int | None,
        replay: Sequence[int] | None = None,
    ) -> None:
        """Queue one request; `replay` are the tokens to generate where the engine replays.

        Raises:
            EngineError: the engine process has died or hangs, or refuses the request.
        """
        from vllm import TokensPrompt

        parameters = sampling_parameters(sampling, seed, replay)
        prompt = TokensPrompt(prompt_token_ids=list(prompt_token_ids))
        self._call(lambda: self._engine.add_request(request_id, prompt, parameters))

    def step(self) -> list[Finished]:
        """Wait for the engine's next step and return what it finished, possibly nothing.

        Raises:
            EngineError: the engine process has died, hangs or is shutting down. It then calls its unfinished requests
                finished, as `abort`; those are no samples.
        """
        if self._aborted:
            raise self._stopped(_EngineDied())
        finished, self._aborted = read_outputs(self._call(self._engine.step))
        return finished

    def _call(self, method: Callable[[], Any]) -> Any:
        """Call vLLM in its thread and wait for the answer; raise EngineError if its process dies or hangs meanwhile.

        vLLM's client itself (0.24 to 0.33) then waits for ever, in a wait that only a signal to the main thread could
        interrupt. So it is another thread that waits there, and callers in any thread wait here.
        """
        answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self._calls.put((method, answers))
        looks = 0  # counted, as the clock also runs while this process is stopped by Ctrl-Z or a scheduler
        while True:
            error: Exception | None
            try:
                answer, error = answers.get(timeout=LOOK_SECONDS)
            except Empty:
                looks += 1
                if any(not process.is_alive() for process in self._processes):
                    error = _EngineDied()
                elif looks * LOOK_SECONDS > self._stall_seconds:
                    error = _EngineStalled()
                else:
                    continue
            if error is not None:
                raise self._stopped(error) from error
            return answer

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            method, answers = call
            try:
                answers.put((method(), None))
            except Exception as error:
                answers.put((None, error))

    def _stopped(self, error: Exception) -> EngineError:
        """What to tell of an engine that gave an error instead of an answer."""
        kept = "Everything finished is in the journal"
        if isinstance(error, _EngineStalled):
            return EngineError(
                f"The engine has not answered for {self._stall_seconds} seconds, and its process lives: a hung GPU, "
                f"driver or connection between GPUs (look into `dmesg` for Xid). {kept}: run the same command again to "
                "continue. If steps really take that long, raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; this limit is "
                f"{STALL_FACTOR} times it."
            )
        if isinstance(error, _EngineDied) or type(error).__name__ == "EngineDeadError":
            cause = known_cause(self._errors.last()) or (
                "It was killed, or its last messages above say why; if memory was the cause, lower "
                "gpu_memory_utilization, kv_cache_memory_bytes or max_num_seqs."
            )
            return EngineError(
                f"The engine process died in the middle of the run. {cause} {kept}: run the same command again to "
                "continue."
            )
        return EngineError(
            f"vLLM stopped: {type(error).__name__}: {' '.join(str(error).split())[:400]} {kept}: mend the cause and "
            "run the same command again to continue."
        )

    def facts(self) -> dict[str, Any]:
        """What generates, for the run's receipt: the device, and what vLLM made of the arguments.

        Plain JSON values; None where vLLM does not tell. It never raises.
        """
        config = self._engine.vllm_config
        workers: list[dict[str, Any]] = []
        with suppress(Exception):  # a worker class of the user's own may have no such method
            workers = self._call(lambda: self._engine.collective_rpc("mless_facts"))
        first = workers[0] if workers else {}
        facts: dict[str, Callable[[], Any]] = {
            "device": device_type,
            "device_names": lambda: [worker["device_name"] for worker in workers] or None,
            "driver": lambda: next((gpu.driver for gpu in gpus()), None),
            "model_runner": lambda: "V2" if config.use_v2_model_runner else "V1",
            "dtype": lambda: str(config.model_config.dtype).removeprefix("torch."),
            "max_model_len": lambda: config.model_config.max_model_len,
            "max_num_seqs": lambda: config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": lambda: config.scheduler_config.max_num_batched_tokens,
            "chunked_prefill": lambda: config.scheduler_config.enable_chunked_prefill,
            "prefix_caching": lambda: config.cache_config.enable_prefix_caching,
            "block_size": lambda: config.cache_config.block_size,
            "kv_cache_dtype": lambda: str(config.cache_config.cache_dtype),
            "quantization": lambda: config.model_config.quantization,
            "enforce_eager": lambda: config.model_config.enforce_eager,
            "tensor_parallel_size": lambda: config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": lambda: config.parallel_config.pipeline_parallel_size,
            "multiprocessing": lambda: os.environ.get(SPAWN_VARIABLE),
        }
        return {**{name: known(fact) for name, fact in facts.items()}, **{k: first.get(k) for k in TOLD_BY_WORKERS}}

    def first_logprobs(self, prompt_token_ids: Sequence[int], top: int) -> dict[int, float]:
        """Log-probabilities of the first generated token's most likely `top` values; see `logit_check`.

        Raises:
            EngineError: the engine process has died or hangs, or refuses the request.
        """
        from vllm import SamplingParams, TokensPrompt

        parameters = SamplingParams(temperature=0, max_tokens=1, logprobs=top)
        prompt = TokensPrompt(prompt_token_ids=list(prompt_token_ids))
        self._call(lambda: self._engine.add_request("logprobs", prompt, parameters))
        while not (outputs := [output for output in self._call(self._engine.step) if output.finished]):
            pass
        return {token: entry.logprob for token, entry in outputs[0].outputs[0].logprobs[0].items()}

    def close(self) -> None:
        """Shut the engine process down; what is unfinished is dropped. A second Ctrl-C must not leave it behind."""
        with _undisturbed():
            self._calls.put(None)
            self._engine.engine_core.shutdown(timeout=CLOSE_SECONDS)
            self._errors.close()
        for name, value in self._before.items():  # another engine in this process may be asked for otherwise
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def device_type() -> str | None:
    """What vLLM would run on: `cpu`, `cuda`, `rocm`, `xpu`, `tpu`; None without vLLM or a device. Starts nothing.

    vLLM finds this out without initialising CUDA in this process.
    """
    _prepare_environment()
    try:
        from vllm.platforms import current_platform
    except Exception:  # not installed, or built for another system
        return None
    return "rocm" if current_platform.is_rocm() else current_platform.device_type or None  # which calls ROCm `cuda`


def _prepare_environment() -> None:
    """What vLLM reads from the environment, at its import in this process and in those that it starts."""
    # Forked, which is vLLM's default on CUDA, an engine would hold our journal, locks and pipes.
    os.environ.setdefault(SPAWN_VARIABLE, "spawn")
    # Its errors belong beside those of Python; standard output is for results.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def _ask_for_true_float32() -> None:
    """Have Triton multiply float32 in float32. On NVIDIA GPUs its default is tf32, with 10 bits of mantissa.

    vLLM's attention for float32 is a Triton kernel that does not choose. Triton's cache of compiled kernels knows the
    difference.
    """
    chosen = os.environ.setdefault(TRITON_VARIABLE, "ieee")
    if chosen != "ieee":
        print(
            f"mless: dtype is float32, and {TRITON_VARIABLE} is {chosen!r} in your environment, where mless would set "
            f"'ieee'. It stays {chosen!r}: on a GPU attention is then not computed in float32.",
            file=sys.stderr,
        )


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


def check_arguments(config: RunConfig) -> None:
    """Refuse what vLLM must not be given, before any prompt is built; other backends have rules of their own.

    Raises:
        ConfigError: see `engine_arguments`.
    """
    if config.model.backend == "vllm":
        engine_arguments(config.model_arguments())


def read_outputs(outputs: Sequence[Any]) -> tuple[list[Finished], bool]:
    """The completions among vLLM's RequestOutputs, and whether a request ended without one."""
    ended = [output for output in outputs if output.finished]
    finished = [
        Finished(
            request_id=output.request_id,
            text=output.outputs[0].text,
            completion_tokens=len(output.outputs[0].token_ids),
            finish_reason=output.outputs[0].finish_reason,
            cached_tokens=output.num_cached_tokens or 0,
        )
        for output in ended
        if output.outputs[0].finish_reason in FINISHED
    ]
    return finished, len(finished) < len(ended)


def sampling_parameters(sampling: Sampling, seed: int | None, replay: Sequence[int] | None = None) -> Any:
    """One request's parameters as vLLM's SamplingParams; see `VLLMEngine.add`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        **sampling.vllm(),
        **({} if replay is None else {"trace_decode_token_ids": list(replay)}),
        seed=seed,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


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


def _refuse_unknown(given: Mapping[str, Any], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *_OURS, *_LM_EVAL_ONLY], n=3)
            raise ConfigError(
                f"model.arguments has {name!r}, and this vLLM has no such engine argument. "
                + (f"Did you mean {' or '.join(near)}?" if near else "Remove it, or look it up in vLLM's EngineArgs.")
            )


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
    """What vLLM starts meanwhile ends with this process: see `lifetime`."""
    chosen = os.environ.get("VLLM_PLUGINS")
    os.environ[OWNER_VARIABLE] = process_identity(os.getpid())
    if chosen is not None and PLUGIN not in chosen.split(","):
        os.environ["VLLM_PLUGINS"] = f"{chosen},{PLUGIN}".lstrip(",")
    try:
        yield
    finally:
        del os.environ[OWNER_VARIABLE]
        if chosen is not None:
            os.environ["VLLM_PLUGINS"] = chosen


class _EngineDied(Exception):
    """A process of the engine is gone."""


class _EngineStalled(Exception):
    """The engine lives and does not answer."""
