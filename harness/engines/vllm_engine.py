"""The vLLM engine: requests in, completions out as they finish. All of vLLM's API that mless uses is used here.

vLLM's own `LLM.generate` returns nothing before everything is finished, so its synchronous engine is fed and stepped by
hand. This works with vLLM 0.28 and newer; differences between versions are settled here.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engines import engine_processes
from harness.engines.devices import RESERVED, gpu_driver, use_all_cores
from harness.engines.interventions import check_arms
from harness.engines.start_errors import (
    ChildErrors,
    explain_start_error,
    known_cause,
    make_start_error,
)
from harness.errors import ConfigError, EngineError, ModelError, list_near
from harness.experiment.plan import Request
from harness.experiment.tokenizer import decode_completion, fetch_repository

QUEUE_PER_SEQUENCE = 2
"""Requests in an engine, running or waiting, for each that it can run at once. So it never waits for us."""
COUNTED_TOKENS = 64
"""An engine tells how far a completion is whenever it has so many more tokens."""
STEPS_SECONDS = 0.1
"""Seconds for which an engine takes steps that finish nothing, before the run looks at its graders and
its progress again. On a GPU a step takes about a tenth of this."""
CLOSE_SECONDS = {False: 2.0, True: 10.0}
"""An engine may take this long to end by itself, the second on several GPUs, whose workers must leave each other; then
it is killed. Nothing in it is wanted any more."""
READY_SECONDS = 60
"""Seconds that vLLM waits for the last message of a start, which the engine sends before it reports that
it has started."""
CPU_KV_CACHE_BYTES = 2**30
"""Size of the KV cache on a CPU. vLLM would reserve nearly all memory; 1 GiB is ample for a small model."""
CPU_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache on a CPU, the unit in which prompts share a prefix. Instruction and filler together
are shorter than vLLM's 128, so that nothing would ever be shared; smaller ones must be multiples of 32."""
CPU_BATCHED_TOKENS = 8192
"""At least so many tokens fit into one step on a CPU, where prompts are prefilled whole."""

FINISHED = ("stop", "length", "repetition")
"""The finish reasons of a completion. `abort` and `error` end a request without one."""

SPAWN_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"

RENAMED = {"pretrained": "model", "max_length": "max_model_len"}
"""lm-eval's names of engine arguments, with vLLM's."""
PROMPT_CHANGING = ("add_bos_token", "think_end_token", "truncation_side")
NOT_OF_THE_ENGINE = (
    *("batch_size", "max_batch_size", "max_gen_toks", "device", "data_parallel_size"),
    *("chat_template_args", "enable_thinking"),
)
"""Model arguments that lm-eval, the pool of engines or the prompts use."""

_OF_VLLM = ("VLLM_", "TRITON_F32_")
"""How the variables begin that an engine reads."""
_alive: list[VLLMEngine] = []
"""The engines of this process that are not closed."""

ENGINE_FACTS = {
    "model_config": ("max_model_len", "quantization", "enforce_eager"),
    "scheduler_config": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "async_scheduling",
    ),
    "cache_config": ("enable_prefix_caching", "block_size", "num_gpu_blocks"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size"),
}
"""Settings that a run's receipt records, without their `enable_`, by the part of vLLM's config that has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One finished completion.

    Attributes:
        text: The completion. Special tokens other than the end are kept, as lm-eval keeps them.
        token_ids: Its tokens, with the one that ended it; None where the backend does not say.
        completion_tokens: Their number; None where the backend does not say.
        request_id: The engine's name of the request; empty for other backends.
        finish_reason: `stop` (end of text or stop string) or `length`; `repetition` if vLLM was asked to look for it;
            None where the backend does not say.
        attention: Of a recorded prompt the sums of attention [layer, set, head, key]: see `Request.record`.
    """

    text: str
    request_id: str = ""
    token_ids: Sequence[int] | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    attention: NDArray[np.float32] | None = None


class VLLMEngine:
    """A loaded model that answers requests in one stream.

    Args:
        arguments: lm-eval's model arguments. All but a few are vLLM's own engine arguments and pass through.
            `batch_invariant: true` switches on vLLM's batch-invariant kernels (recent GPUs only).
        sampled: Whether any request will be sampled. A CPU then needs whole prompts prefilled in one step.

    Attributes:
        so_far: How many tokens each unfinished request has, by its number; up to COUNTED_TOKENS too few.

    Raises:
        ConfigError: an argument is unknown, changes prompts or cannot work on a CPU, or `batch_invariant` is another
            than that of an engine that is not closed.
        ModelError: vLLM does not start. The message names the cause where it is known.
    """

    def __init__(self, arguments: Mapping[str, Any], *, sampled: bool = True) -> None:
        self._before = {
            name: value for name, value in os.environ.items() if name.startswith(_OF_VLLM)
        }
        try:
            self._start(arguments, sampled=sampled)
        except BaseException:
            with suppress(AttributeError):  # there is an engine, and its check failed
                self._engine.engine_core.shutdown()
            self._put_environment_back()
            raise
        _alive.append(self)

    def _start(self, arguments: Mapping[str, Any], *, sampled: bool) -> None:
        given = engine_arguments(arguments)
        self._invariant = bool(given.get("batch_invariant"))
        if any(one._invariant != self._invariant for one in _alive):
            raise ConfigError(
                "batch_invariant is another than that of an engine that is alive: close that one first."
            )
        if given.pop("batch_invariant", False):
            os.environ["VLLM_BATCH_INVARIANT"] = (
                "1"  # read in the engine's processes, and here for each request
            )
        if str(given.get("dtype")).removeprefix("torch.") in ("float32", "float"):
            # vLLM's attention for float32 is a Triton kernel, whose default on NVIDIA GPUs is tf32: 10 bits of mantissa
            os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
        _prepare_environment()
        try:
            from vllm import EngineArgs, LLMEngine, envs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
        except (
            Exception
        ) as error:  # a wheel for another driver or another torch raises whatever it likes
            raise ModelError(explain_start_error(str(given.get("model")), error)) from error
        changes = given.pop("interventions", None)
        layers = self._opened = changes and check_arms.open_layers(given, changes["layers"])
        known = [field.name for field in fields(EngineArgs)]
        if unknown := [name for name in given if name not in known]:
            near = list_near(unknown[0], [*known, *RENAMED, *NOT_OF_THE_ENGINE], most=3)
            raise ConfigError(
                f"model.model_args has {unknown[0]!r}, which this vLLM does not know. Near it: {near}."
            )
        if current_platform.is_cpu():
            fit_to_cpu(given, sampled=sampled)
        given.setdefault("stream_interval", COUNTED_TOKENS)
        given.setdefault(
            "disable_log_stats", True
        )  # as in vLLM's own `LLM`: nobody reads them, and they take time
        given.setdefault("worker_extension_cls", engine_processes.WORKER_EXTENSION)
        fetch_weights(given)
        self._errors = ChildErrors()
        try:
            # the same defaults (sequences at once, batched tokens) as vLLM's own offline `LLM`, not a server's
            with (
                engine_processes.dying_with_us(layers),
                engine_processes.started_processes() as processes,
                self._errors.inherited(),
            ):
                limit = envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS
                self._calls = engine_processes.WatchedCalls(processes, limit, self._died)
                self._engine = self._calls.start(
                    lambda: LLMEngine.from_engine_args(
                        EngineArgs(**given), usage_context=UsageContext.LLM_CLASS
                    )
                )
        except (
            Exception
        ) as error:  # vLLM and what it calls raise anything, AssertionError and ImportError too
            log = self._errors.close()
            exit_codes = [process.exitcode for process in processes]
            raise make_start_error(str(given.get("model")), error, log, exit_codes) from error
        self._errors.forget()  # messages of the start explain no later death
        self._aborted = False
        self.so_far: dict[int, int] = {}
        tokenizer = self._engine.get_tokenizer()
        self._tokenizer = (
            tokenizer if tokenizer is not None and getattr(tokenizer, "is_fast", False) else None
        )
        self._undecoded: dict[str, Sequence[int]] = {}
        self._recorded: dict[str, str] = {}
        """The names of recordings, by request; a request's number may come again, a recording's name never."""
        self._attention: dict[str, NDArray[np.float32]] = {}
        """What was recorded, by name, of requests that are not finished."""
        self._numbers = count()
        self._parts: dict[str, tuple[list[int], list[str]]] = {}
        config = self._engine.vllm_config
        self.max_model_len: int = config.model_config.max_model_len
        self.max_num_seqs: int = config.scheduler_config.max_num_seqs
        asked = (changes or {}).get("reference")
        self._agreement = asked and self._calls.call(
            lambda: check_arms.check_engine(self._engine, asked)
        )

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Finished]]]:
        """Generate all requests, begun in their order; yield one list for each engine step, often an empty one.

        Until nothing is left, the engine always has more to do than it can run at once. Between two steps the caller
        may do its own work; a GPU goes on meanwhile.

        Raises:
            EngineError: a request does not fit, or the engine process has died, hangs or is shutting down. It then
                calls its unfinished requests finished, as `abort`; those are no samples.
        """
        waiting = deque(enumerate(requests))
        running: dict[str, Request] = {}
        while waiting or running:
            while waiting and len(running) < QUEUE_PER_SEQUENCE * self.max_num_seqs:
                number, request = waiting.popleft()
                refuse_too_long(request, self.max_model_len)
                self.submit(str(number), request)
                running[str(number)] = request
            yield [(running.pop(done.request_id), done) for done in self.step()]

    def submit(self, request_id: str, request: Request) -> None:
        """Give one request to the engine, under a number that no other in it has. For `step`; `stream` does both.

        Raises:
            EngineError: the engine process has died or hangs, or refuses the request.
        """
        assert request.prompt_token_ids, (
            "the plan of a run with vLLM has the tokens of every prompt"
        )
        recording = ""
        if request.record:
            recording = self._recorded[request_id] = f"recorded {next(self._numbers)}"
        prompt = check_arms.salted_prompt(request.prompt_token_ids, request.intervention, recording)
        parameters = sampling_parameters(request, recording)
        if self._tokenizer and not request.sampling.stop:
            parameters.detokenize = False
            self._undecoded[request_id] = request.prompt_token_ids
        self._calls.call(lambda: self._engine.add_request(request_id, prompt, parameters))

    def step(self) -> list[Finished]:
        """Have the engine do steps until one finishes completions, or for STEPS_SECONDS; return these completions.

        Raises:
            EngineError: as `stream`; after an abort at the step that follows, so that no completion is lost.
        """
        if self._aborted:
            raise self._died()
        outputs = self._calls.call(self._take_steps)
        if (
            self._opened and not self._engine.has_unfinished_requests()
        ):  # no further step would look at the last one
            self._calls.call(lambda: self._engine.collective_rpc("mless_check_rows"))
        finished, self._aborted = read_outputs(outputs)
        return [self._add_attention(self._decode(done)) for done in finished]

    def _take_steps(self) -> list[Any]:
        """Take steps in the thread of the calls; return vLLM's outputs of the requests that the last one finished.

        Most steps finish nothing. To hand each of them over to the caller's thread would cost two switches of threads.
        """
        until = time.monotonic() + STEPS_SECONDS
        finished: list[Any] = []
        while not finished and time.monotonic() < until:
            finished = [output for output in self._engine.step() if self._add_output(output)]
        return finished

    def _add_output(self, output: Any) -> bool:
        """Add an output to the earlier ones of its request; if the request is finished, the output then has all."""
        completion = output.outputs[0]
        token_ids, texts = self._parts.setdefault(output.request_id, ([], []))
        token_ids += completion.token_ids
        texts.append(completion.text)
        if output.finished:
            completion.token_ids, completion.text = token_ids, "".join(texts)
            del self._parts[output.request_id]
            self.so_far.pop(int(output.request_id), None)  # a request of one step has nothing there
        else:
            self.so_far[int(output.request_id)] = len(token_ids)
        return bool(output.finished)

    def _add_attention(self, done: Finished) -> Finished:
        """Add what was recorded of a finished prompt.

        The engine answers such a call between two steps only. So all that is recorded is taken at once.
        """
        recording = self._recorded.pop(done.request_id, None)
        if recording is None:
            return done
        if recording not in self._attention:
            ranks = self._calls.call(lambda: self._engine.collective_rpc("mless_take_attention"))
            for name in ranks[0]:  # each rank has some of the heads
                parts = (rank[name] for rank in ranks)
                heads = [np.frombuffer(data, np.float32).reshape(shape) for shape, data in parts]
                self._attention[name] = np.concatenate(heads, axis=2)
        return replace(done, attention=self._attention.pop(recording))

    def _decode(self, done: Finished) -> Finished:
        """Decode a finished completion as a whole, which is cheaper than vLLM's decoding of each token as it comes."""
        prompt_ids = self._undecoded.pop(done.request_id, None)
        if prompt_ids is None:
            return done
        assert self._tokenizer and done.token_ids is not None
        written = done.token_ids[:-1] if done.finish_reason == "stop" else done.token_ids
        return replace(done, text=decode_completion(self._tokenizer, prompt_ids, written))

    def _died(self) -> EngineError:
        cause = known_cause(self._errors.last()) or "It was killed, or what it printed says why."
        return EngineError(
            f"The engine process died in the middle of the run. {cause} {engine_processes.CONTINUE}"
        )

    def facts(self) -> dict[str, Any]:
        """What generates, for the run's receipt: the device, and the settings that vLLM made of the arguments.

        The values are plain JSON, None where vLLM does not tell. This never raises.
        """
        config = self._engine.vllm_config
        workers: list[dict[str, Any]] = []
        with suppress(Exception):  # a worker class of the user's own may have no such method
            workers = self._calls.call(lambda: self._engine.collective_rpc("mless_facts"))
        first = workers[0] if workers else {}
        facts: dict[str, Callable[[], Any]] = {
            "device": device_type,
            "device_names": lambda: [worker["device_name"] for worker in workers] or None,
            "device_uuids": lambda: (
                [worker["device_uuid"] for worker in workers if worker["device_uuid"]] or None
            ),
            "compilation_mode": lambda: config.compilation_config.mode.name,
            "cudagraph_mode": lambda: config.compilation_config.cudagraph_mode.name,
            "driver": gpu_driver,
            "model_runner": lambda: "V2" if config.use_v2_model_runner else "V1",
            "dtype": lambda: str(config.model_config.dtype).removeprefix("torch."),
            "kv_cache_dtype": lambda: str(config.cache_config.cache_dtype),
            "multiprocessing": lambda: os.environ.get(SPAWN_VARIABLE),
            "reserved_cores": lambda: os.environ.get(RESERVED),
        }
        return {
            "engines": 1,
            **({"interventions": self._agreement} if self._agreement else {}),
            **{name: engine_processes.known(fact) for name, fact in facts.items()},
            **{
                name.removeprefix("enable_"): engine_processes.known(
                    partial(attrgetter(f"{part}.{name}"), config)
                )
                for part, names in ENGINE_FACTS.items()
                for name in names
            },
            **{
                name: value
                for name, value in first.items()
                if name not in ("device_name", "device_uuid")
            },
        }

    def close(self) -> None:
        """Shut the engine process down and drop what is unfinished. A second Ctrl-C must not leave it behind."""
        with engine_processes.undisturbed():
            self._calls.close()
            several = self._engine.vllm_config.parallel_config.world_size > 1
            self._engine.engine_core.shutdown(timeout=CLOSE_SECONDS[several])
            self._errors.close()
            _alive.remove(self)
            self._put_environment_back()

    def _put_environment_back(self) -> None:
        """Undo what we and vLLM set for this engine, before the next one reads it; some is read at each request."""
        for name in [name for name in os.environ if name.startswith(_OF_VLLM)]:
            del os.environ[name]
        os.environ.update(self._before)


def engine_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's model arguments as vLLM's engine arguments.

    Raises:
        ConfigError: no model is named, or an argument changes prompts.
    """
    if not arguments.get("pretrained"):
        raise ConfigError(
            "The model arguments name no model: expected `pretrained`, a model folder or hub name."
        )
    if changing := [name for name in PROMPT_CHANGING if arguments.get(name) is not None]:
        raise ConfigError(
            f"The model argument {changing[0]!r} changes prompts after they were checked. Remove it."
        )
    return {
        RENAMED.get(name, name): value
        for name, value in arguments.items()
        if value is not None and name not in NOT_OF_THE_ENGINE
    }


def fetch_weights(given: Mapping[str, Any]) -> None:
    """Download a hub's model before the engine starts, whose time to be ready would run meanwhile.

    Args:
        given: The engine arguments. A folder, and what `download_dir` or the loader fetches by itself, is left to vLLM.

    Raises:
        ModelError: the hub refuses or cannot be reached, and the files are not in its cache.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    name = str(given["model"])
    is_hubs = (
        name.count("/") == 1
        and not Path(name).exists()
        and not given.keys() & {"download_dir", "load_format"}
    )
    if is_hubs and not HF_HUB_OFFLINE:
        fetch_repository(name, given.get("revision"), weights=True)


def fit_to_cpu(given: dict[str, Any], *, sampled: bool) -> None:
    """Fill in the engine arguments that vLLM needs on a CPU, and give it all cores where there are few.

    Args:
        given: The engine arguments; changed in place.
        sampled: Whether any request will be sampled.

    Raises:
        ConfigError: the engine would die in the middle of the run.
    """
    use_all_cores()
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        given.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    given.setdefault("block_size", CPU_BLOCK_SIZE)
    if not given.setdefault("enable_chunked_prefill", False):
        length = int(given.get("max_model_len") or 0)
        if length:  # without chunks the longest prompt must fit into one step
            most = max(int(given.get("max_num_batched_tokens") or 0), length, CPU_BATCHED_TOKENS)
            given["max_num_batched_tokens"] = most
    elif sampled:
        raise ConfigError(
            "enable_chunked_prefill is true, and on a CPU a seeded sampled request that is prefilled in chunks kills "
            "vLLM. Remove it, or use `gen_kwargs: greedy`."
        )


def device_type() -> str | None:
    """The kind of device that vLLM would use: `cpu`, `cuda`, `rocm`, `xpu`, `tpu`; None without vLLM or a device.

    This starts no engine, and vLLM does not initialise CUDA for it.
    """
    _prepare_environment()
    try:
        from vllm.platforms import current_platform
    except Exception:  # not installed, or built for another system
        return None
    return (
        "rocm" if current_platform.is_rocm() else current_platform.device_type or None
    )  # which calls ROCm `cuda`


def _prepare_environment() -> None:
    """Set the variables that vLLM reads when it is imported, in this process and in those that it starts."""
    # Forked, which is vLLM's default on CUDA, an engine would hold our journal, locks and pipes.
    os.environ.setdefault(SPAWN_VARIABLE, "spawn")
    # While the model loads, vLLM itself notices a dead process. This limit is of the last message only.
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(READY_SECONDS))
    # nvidia-smi and CUDA then mean the same card by a number.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # Its errors belong beside those of Python; standard output is for results.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def refuse_too_long(request: Request, max_model_len: int) -> None:
    """Raise EngineError if a request does not fit into the model's context."""
    change = request.intervention or {}
    size = len(request.prompt_token_ids or ()) + (change["size"] if "phantom" in change else 0)
    if size + request.sampling.max_tokens > max_model_len:
        raise EngineError(
            f"Problem {request.problem_id} of {request.task} has {size} prompt tokens: with max_gen_toks "
            f"{request.sampling.max_tokens} it is over the context of {max_model_len}."
        )


def read_outputs(outputs: Sequence[Any]) -> tuple[list[Finished], bool]:
    """The completions among vLLM's RequestOutputs, and whether any request ended without a completion."""
    ended = [output for output in outputs if output.finished]
    finished = [
        Finished(
            request_id=output.request_id,
            text=output.outputs[0].text,
            token_ids=tuple(output.outputs[0].token_ids),
            completion_tokens=len(output.outputs[0].token_ids),
            finish_reason=output.outputs[0].finish_reason,
        )
        for output in ended
        if output.outputs[0].finish_reason in FINISHED
    ]
    return finished, len(finished) < len(ended)


def sampling_parameters(request: Request, recording: str = "") -> Any:
    """One request's parameters as vLLM's SamplingParams; `recording` names what is recorded of its prompt."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra: dict[str, Any] = (
        {engine_processes.PLUGIN: dict(request.intervention)} if request.intervention else {}
    )
    if request.record:
        extra[engine_processes.RECORD] = {"name": recording, "sets": request.record}
    return SamplingParams(
        **request.sampling.vllm(),
        seed=request.seed,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        extra_args=extra or None,
        output_kind=RequestOutputKind.DELTA,  # of cumulative ones vLLM sends one at every token
    )
