"""The vLLM engine: requests go in, and completions come out as they finish.

vLLM is used here, in `completions`, in `interventions` and, inside its processes, in
`engine_processes`. vLLM's own `LLM.generate` returns nothing before everything is finished, so its
synchronous engine is fed and stepped here. A request may also ask for the attention of its prompt,
which is summed in the engine: a recording (`attention_sums`).
This works with vLLM 0.28 and newer; differences between versions are settled here.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engines.completions import (
    Completion,
    FinishedRequests,
    read_outputs,
    refuse_too_long_request,
    sampling_parameters,
)
from harness.engines.devices import gpu_driver_version, use_all_cores
from harness.engines.engine_options import (
    ENGINE_DEFAULTS,
    compilation_settings,
    engine_arguments,
    fit_to_cpu,
)
from harness.engines.engine_processes import (
    CONTINUE_ADVICE,
    end_processes_with_run,
    ignored_signals,
    read_fact,
    started_processes,
)
from harness.engines.interventions import intervention_check
from harness.engines.interventions.open_layers import add_open_layers
from harness.engines.library_messages import NewMessages
from harness.engines.start_errors import explain_known_cause, explain_start_error, make_start_error
from harness.engines.watched_calls import WatchedCalls
from harness.errors import EngineError, ModelError
from harness.experiment.plan import Request

REQUESTS_PER_SEQUENCE = 2
"""The number of requests in an engine, running or waiting, for each sequence that it can run at
once. With two of them the engine never waits for new requests."""
STEP_LOOP_SECONDS = 0.1
"""Seconds for which an engine takes steps that finish nothing, before the run looks at its graders
and its progress again. On a GPU a step takes about a tenth of this."""
CLOSE_SECONDS = 2.0
"""Seconds that an engine has to end by itself before it is killed. None of its unfinished requests
is needed any more."""
SEVERAL_GPUS_CLOSE_SECONDS = 10.0
"""The same on several GPUs, where the workers first end their connections with each other."""
READY_SECONDS = 60
"""Seconds that vLLM waits for the last message of a start, which the engine sends before it reports
that it has started."""

_VLLM_PREFIXES = ("VLLM_", "TRITON_F32_")
"""Prefixes of the environment variables that vLLM reads."""

CONFIG_FACT_PATHS = (
    "model_config.max_model_len",
    "model_config.quantization",
    "model_config.enforce_eager",
    "compilation_config.custom_ops",
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.async_scheduling",
    "cache_config.enable_prefix_caching",
    "cache_config.block_size",
    "cache_config.num_gpu_blocks",
    "parallel_config.tensor_parallel_size",
    "parallel_config.pipeline_parallel_size",
)
"""Settings in vLLM's config that a run's receipt records, without the prefix `enable_`."""


class VLLMEngine:
    """A loaded model that answers requests in one stream.

    Args:
        arguments: lm-eval's model arguments. All but a few are vLLM's own engine arguments and pass
            through. `batch_invariant: true` switches on vLLM's batch-invariant kernels (recent GPUs
            only).
        has_sampled_requests: Whether any request will be sampled. A CPU then needs prompts that are
            prefilled in one step.

    Raises:
        ConfigError: an argument is unknown or cannot work on a CPU.
        ModelError: vLLM does not start. The message names the cause where it is known.
    """

    _engine: Any

    def __init__(self, arguments: Mapping[str, Any], *, has_sampled_requests: bool = True) -> None:
        self._original_environment = {
            name: value for name, value in os.environ.items() if name.startswith(_VLLM_PREFIXES)
        }
        """The variables of vLLM as they were before this engine changed them."""
        self._has_aborted_request = False
        """Whether a request has ended without a completion: see `stream`."""
        self._recording_numbers = count()
        self._recording_name_by_request: dict[str, str] = {}
        """The name of each request's recording. Ids of requests are used again, names are not."""
        self._attention_by_recording: dict[str, NDArray[np.float32]] = {}
        """The recorded attention of requests whose completions have not been returned yet."""
        try:
            self._start(arguments, has_sampled_requests)
        except BaseException:
            # `_engine` is missing if the start has failed, and present if the check has failed
            with suppress(AttributeError):
                self._engine.engine_core.shutdown()
            self._restore_environment()
            raise

    def _start(self, arguments: Mapping[str, Any], has_sampled_requests: bool) -> None:
        """Make vLLM's arguments and environment of these arguments, and start vLLM.

        If they have reference answers of Hugging Face for the run's interventions, the engine is
        checked against them.
        """
        options = _choose_kernels(engine_arguments(arguments))
        # before vLLM is imported, because the import reads the environment
        _prepare_environment()
        try:
            from vllm import EngineArgs, LLMEngine
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
        except Exception as error:  # vLLM's build for another driver or torch raises anything
            raise ModelError(explain_start_error(str(options["model"]), error)) from error
        intervention_options = options.pop("interventions", {})
        self._layers_by_use = intervention_options.get("layers")
        """The open layers, by what is changed or recorded there: see `open_recorder` in
        `attention_sums`. None without interventions and recordings."""
        if self._layers_by_use:
            add_open_layers(options, self._layers_by_use)
        if current_platform.is_cpu():
            use_all_cores()
            options = fit_to_cpu(options, has_sampled_requests)
        options = ENGINE_DEFAULTS | options
        self._start_in_thread(
            str(options["model"]),
            # LLM_CLASS: vLLM chooses its numbers of sequences and tokens in a step as for its own
            # offline `LLM`, not as for a server
            lambda: LLMEngine.from_engine_args(
                EngineArgs(**options), usage_context=UsageContext.LLM_CLASS
            ),
        )
        self._agreement = None
        """How well the engine agrees with the reference answers; None without interventions."""
        if reference_answers := intervention_options.get("reference"):
            self._agreement = self._calls.call(
                lambda: intervention_check.check_engine(self._engine, reference_answers)
            )

    def _start_in_thread(self, model_name: str, make_engine: Callable[[], Any]) -> None:
        """Start vLLM in the thread that makes all later calls to it.

        `make_engine` starts vLLM's processes and returns its engine.
        """
        from vllm import envs

        self._messages = NewMessages()
        try:
            with end_processes_with_run(), started_processes() as processes:
                self._calls = WatchedCalls(
                    processes, envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, self._make_death_error
                )
                self._engine = self._calls.start(make_engine)
        except Exception as error:  # vLLM raises anything, AssertionError and ImportError too
            # a process that still runs has the exit code None
            exit_codes = [process.exitcode or 0 for process in processes]
            raise make_start_error(model_name, error, self._messages.read(), exit_codes) from error
        # a later death has another cause than those that the messages of the start name
        self._messages.forget()

    @property
    def token_counts(self) -> list[int]:
        """The number of tokens of each unfinished request."""
        # a copy, because another thread adds requests meanwhile
        request_states = list(self._engine.output_processor.request_states.values())
        return [state.detokenizer.num_output_tokens() for state in request_states]

    def stream(self, requests: Sequence[Request]) -> Iterator[FinishedRequests]:
        """Generate all requests in their order; yield a list, often an empty one, for each `step`.

        Until the last requests, the engine always has more to do than it can run at once. Between
        two steps the caller may do its own work; a GPU computes meanwhile.

        Raises:
            EngineError: a request does not fit, or the engine process has died, hangs or is
                shutting down. In the last case it reports its unfinished requests as finished, with
                `abort`; those are not samples.
        """
        config = self._engine.vllm_config
        most_requests = REQUESTS_PER_SEQUENCE * config.scheduler_config.max_num_seqs
        queue = deque(enumerate(requests))
        request_by_id: dict[str, Request] = {}
        while queue or request_by_id:
            while queue and len(request_by_id) < most_requests:
                number, request = queue.popleft()
                refuse_too_long_request(request, config.model_config.max_model_len)
                self.submit(str(number), request)
                request_by_id[str(number)] = request
            yield [
                (request_by_id.pop(completion.request_id), completion) for completion in self.step()
            ]

    def submit(self, request_id: str, request: Request) -> None:
        """Hand the engine one request, under a number that no other unfinished request has.

        The completion comes from `step`. `stream` calls both.

        Raises:
            EngineError: the engine process has died or hangs, or refuses the request.
        """
        assert request.prompt_token_ids, "the plan of a vLLM run has the tokens of every prompt"
        recording_name = ""
        if request.query_sets:
            recording_name = f"recorded {next(self._recording_numbers)}"
            self._recording_name_by_request[request_id] = recording_name
        prompt = intervention_check.salted_prompt(
            request.prompt_token_ids, request.intervention, recording_name
        )
        parameters = sampling_parameters(request, recording_name)
        self._calls.call(lambda: self._engine.add_request(request_id, prompt, parameters))

    def step(self) -> list[Completion]:
        """Take steps until one finishes completions, or for STEP_LOOP_SECONDS; return them.

        Raises:
            EngineError: as `stream`; after an abort in the next call, so that no completion is
                lost.
        """
        if self._has_aborted_request:
            raise self._make_death_error()
        outputs = self._calls.call(self._take_steps)
        if self._layers_by_use and not self._engine.has_unfinished_requests():
            # Each step checks the tokens that an intervention changed in the step before. After the
            # last request no step follows.
            self._calls.call(lambda: self._engine.collective_rpc("mless_check_rows"))
        completions, self._has_aborted_request = read_outputs(
            outputs, self._engine.output_processor.tokenizer
        )
        return [self._add_attention(completion) for completion in completions]

    def _take_steps(self) -> list[Any]:
        """Take steps in the thread of the calls; return vLLM's outputs of finished requests.

        Most steps finish nothing. To hand each of them over to the caller's thread would cost two
        switches of threads.
        """
        deadline = time.monotonic() + STEP_LOOP_SECONDS
        outputs: list[Any] = []
        while not outputs and time.monotonic() < deadline:
            outputs = self._engine.step()
        return outputs

    def _add_attention(self, completion: Completion) -> Completion:
        """The completion with the attention that was recorded of its prompt, if any was."""
        recording_name = self._recording_name_by_request.pop(completion.request_id, None)
        if recording_name is None:
            return completion
        if recording_name not in self._attention_by_recording:
            self._calls.call(self._read_attention)
        return replace(completion, attention=self._attention_by_recording.pop(recording_name))

    def _read_attention(self) -> None:
        """Read the attention of all finished prompts into `_attention_by_recording`.

        The engine answers such a call between two steps only, so it is not made for each prompt.
        """
        # each rank of tensor parallelism has for each recording the arguments of `numpy.memmap`
        arguments_by_rank = self._engine.collective_rpc("mless_take_attention")
        for recording_name in arguments_by_rank[0]:
            # [layer, set, head, key]: each rank has some of the heads
            self._attention_by_recording[recording_name] = np.concatenate(
                [np.memmap(*arguments[recording_name]) for arguments in arguments_by_rank], axis=2
            )

    def _make_death_error(self) -> EngineError:
        """The error for an engine process that has died, with its cause if the log has one."""
        cause = (
            explain_known_cause(self._messages.read())
            or "It was killed, or what it printed says why."
        )
        return EngineError(
            f"The engine process died in the middle of the run. {cause} {CONTINUE_ADVICE}"
        )

    def facts(self) -> dict[str, Any]:
        """The device, and the settings that vLLM made of the arguments, for the run's receipt.

        The values are plain JSON, None where vLLM does not report them. This never raises.
        """
        config = self._engine.vllm_config
        facts_by_worker: list[dict[str, Any]] = [{}]
        with suppress(Exception):  # a worker class of the user's own may have no such method
            facts_by_worker = self._calls.call(lambda: self._engine.collective_rpc("mless_facts"))

        def list_worker_fact(name: str) -> list[Any] | None:
            """The fact of this name of each worker that knows it; None if no worker does."""
            return [
                worker_facts[name] for worker_facts in facts_by_worker if worker_facts.get(name)
            ] or None

        facts: dict[str, Any] = {"engines": 1}
        if self._agreement:
            facts["interventions"] = self._agreement
        getter_by_name = {
            "device": device_type,
            "device_names": lambda: list_worker_fact("device_name"),
            "cards": lambda: list_worker_fact("card"),
            "compilation_mode": lambda: config.compilation_config.mode.name,
            "cudagraph_mode": lambda: config.compilation_config.cudagraph_mode.name,
            "driver": gpu_driver_version,
            "model_runner": lambda: "V2" if config.use_v2_model_runner else "V1",
            "dtype": lambda: str(config.model_config.dtype).removeprefix("torch."),
            "kv_cache_dtype": lambda: str(config.cache_config.cache_dtype),
        }
        facts |= {name: read_fact(getter) for name, getter in getter_by_name.items()}
        for path in CONFIG_FACT_PATHS:
            name = path.rpartition(".")[2].removeprefix("enable_")
            facts[name] = read_fact(partial(attrgetter(path), config))
        # all other facts are the same for all workers, so the first worker's are enough
        return facts | {
            name: fact
            for name, fact in facts_by_worker[0].items()
            if name not in ("device_name", "card")
        }

    def close(self) -> None:
        """Shut the engine process down and drop unfinished requests.

        A second Ctrl-C must not leave the process behind.
        """
        with ignored_signals():
            self._calls.close()
            worker_count = self._engine.vllm_config.parallel_config.world_size
            limit_seconds = SEVERAL_GPUS_CLOSE_SECONDS if worker_count > 1 else CLOSE_SECONDS
            self._engine.engine_core.shutdown(timeout=limit_seconds)
            self._restore_environment()

    def _restore_environment(self) -> None:
        """Undo what we and vLLM set for this engine; the next engine would read it."""
        for name in list(os.environ):
            if name.startswith(_VLLM_PREFIXES):
                del os.environ[name]
        os.environ.update(self._original_environment)


def device_type() -> str | None:
    """The kind of device that vLLM would use: `cpu`, `cuda`, `rocm`, `xpu` or `tpu`.

    It is None without vLLM or a device. This starts no engine, and vLLM does not initialise CUDA.
    """
    _prepare_environment()
    try:
        from vllm.platforms import current_platform
    except Exception:  # not installed, or built for another system
        return None
    if current_platform.is_rocm():
        return "rocm"  # its device type is `cuda` too
    return current_platform.device_type or None


def _choose_kernels(options: Mapping[str, Any]) -> dict[str, Any]:
    """Set the variables that choose kernels, and return the engine arguments that do so.

    They lack `batch_invariant`, because it is not an argument of vLLM's. If it is true,
    `compilation_config` gets vLLM's own kernel for RMSNorm.
    """
    options = dict(options)
    if options.get("dtype") == "float32":
        # vLLM's attention for float32 is a Triton kernel. Its default on NVIDIA GPUs is tf32,
        # with 10 bits of mantissa.
        os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    if options.pop("batch_invariant", False):
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
        # The compiled RMSNorm is not batch invariant. `+rms_norm` keeps vLLM's own kernel.
        if device_type() == "cuda":
            compilation = compilation_settings(options)
            custom_operations = [*compilation.get("custom_ops", ()), "+rms_norm"]
            options["compilation_config"] = {**compilation, "custom_ops": custom_operations}
    return options


def _prepare_environment() -> None:
    """Set the variables that vLLM reads when it is imported, here and in its processes."""
    # a forked engine, which is vLLM's default on CUDA, would keep our journal, locks and pipes open
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # This limit applies only to the last message of a start. A process that dies before that, while
    # the model loads, is noticed by vLLM itself.
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(READY_SECONDS))
    # nvidia-smi and CUDA then give a card the same number.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    # vLLM's errors belong on standard error, because standard output is for results.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
