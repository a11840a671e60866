"""Each known cause of a failed start is named, from the very text that vLLM, torch or Triton prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from harness import resources
from harness.engines.backends import open_backend
from harness.engines.start_errors import ChildErrors, explain_start_error, read_causes
from harness.errors import ConfigError
from tests.commands.test_cli import here, refused
from tests.conftest import PATIENCE

SEE_ABOVE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
"""All that the process which starts the engine is told."""

LOGGED = "(EngineCore pid=16286) ERROR 11-21 23:41:07 [core.py:1505] "
"""What vLLM puts before each line of its log."""

FULL = (
    "ValueError: Free memory on device cuda:0 (12.1/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)

TEXTS = [
    # vllm/v1/worker/utils.py
    (FULL, "The GPU's memory is in use: 12.1 of 79.1 GiB are free, and gpu_memory_utilization 0.9 asks for 71.19 GiB."),
    # torch, c10/cuda/CUDACachingAllocator.cpp
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 23.64 "
        "GiB of which 312.44 MiB is free. Including non-PyTorch memory, this process has 23.32 GiB memory in use.",
        "The GPU ran out of memory: 1.02 GiB more were wanted, 312.44 MiB of 23.64 GiB were free.",
    ),
    ("RuntimeError: CUDA error: out of memory", "The GPU ran out of memory."),
    # vllm/v1/core/kv_cache_utils.py
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine (this flag also controls CPU memory reservation on the CPU backend).",
        "The weights leave no memory for the KV cache. Raise model.arguments.gpu_memory_utilization (at most 1)",
    ),
    (
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is needed,"
        " which is larger than the available KV cache memory (3.2 GiB). Based on the available memory, the estimated "
        "maximum model length is 26208. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        "too small for one request of max_model_len 131072: 16.0 GiB wanted, 3.2 given. Based on the available memory, "
        "the estimated maximum model length is 26208. Lower model.arguments.max_model_len",
    ),
    # vllm/v1/worker/gpu_worker.py
    (
        "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 75.3 GiB.",
        "Another process freed GPU memory while vLLM measured its own.",
    ),
    # torch, c10/cuda/CUDAFunctions.cpp
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU "
        "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx",
        "The NVIDIA driver is too old for this build of torch and vLLM",
    ),
    # vllm/config/device.py
    ("RuntimeError: Failed to infer device type, please set VLLM_LOGGING_LEVEL=DEBUG", "vLLM sees no device"),
    # vllm/config/parallel.py
    (
        "  Value error, World size (8) is larger than the number of available GPUs (2) in this node. If this is "
        "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.",
        "tensor_parallel_size times pipeline_parallel_size is 8, and 2 GPUs are visible. Lower",
    ),
    # NCCL, src/misc/shmutils.cc, and Python's multiprocessing
    (
        "Error while creating shared memory segment /dev/shm/nccl-9GHgQB (size 9637888), error: No space left on "
        "device (28)\ntorch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94",
        "/dev/shm, the shared memory between the engine's processes, is full or too small.",
    ),
    ("OSError: [Errno 28] No space left on device: '/psm_0a1b2c3d'", "/dev/shm, the shared memory"),
    # vllm/distributed/device_communicators/pynccl_wrapper.py
    (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "NCCL, the connection between GPUs, failed. Run again with NCCL_DEBUG=INFO",
    ),
    # vllm/v1/engine/core_client.py
    (
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
        "loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
        "The engine was not ready after 600 seconds",
    ),
    # triton/runtime/build.py, gcc, torch/_inductor/exc.py
    (
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set "
        "triton.knobs.build.impl.",
        "No C compiler was found",
    ),
    ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in", "No C compiler"),
    (
        "/tmp/tmpa/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory\nsubprocess."
        "CalledProcessError: Command '['/usr/bin/gcc', ...]' returned non-zero exit status 1.",
        "Python's header files are missing",
    ),
    (
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "nvcc was not found, and FlashInfer compiles with it.",
    ),
    # vllm/platforms/cuda.py
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has "
        "compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI",
        "This GPU (Tesla T4) cannot compute in bfloat16. Use `dtype: float16`",
    ),
    # vllm/config/model.py
    ("ValueError: Unknown dtype: 'flot32'", "model.arguments.dtype is 'flot32'. Expected auto, float32"),
    # vllm/model_executor/model_loader/default_loader.py
    (
        "RuntimeError: Cannot find any model weights with `/models/empty`",
        "/models/empty has no weights. Expected *.saf",
    ),
    (
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file "
        "not fully covered",
        "A weights file of some/model is damaged or incomplete (incomplete metadata, file not fully covered). Fetch",
    ),
    # Python's multiprocessing/spawn.py
    (
        "RuntimeError: \n        An attempt has been made to start a new process before the\n        current process "
        "has finished its bootstrapping phase.",
        "The script that starts it has no main guard: the engine's process imports the script again, which starts an "
        'engine again. Put the call under `if __name__ == "__main__":`.',
    ),
    (
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
        "The library libcudart.so.13 is missing",
    ),
    (
        "1 validation error for ModelConfig\n  Value error, Model architectures ['FooForCausalLM'] are not supported "
        "for now. Supported architectures: dict_keys(['AfmoeForCausalLM']) [type=value_error, input_value=(",
        "This vLLM cannot run the model's architecture ('FooForCausalLM').",
    ),
    (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\ngpu_memory_utilization\n"
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=2, input_type=int]",
        "vLLM refuses model.arguments.gpu_memory_utilization: Input should be less than or equal to 1, got 2.",
    ),
    (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n  Value error, "
        "max_num_batched_tokens (256) is smaller than max_model_len (1024). [type=value_error, input_value=ArgsKwargs",
        "vLLM refuses model.arguments: max_num_batched_tokens (256) is smaller than max_model_len (1024).",
    ),
    (
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url",
        "The hub refuses some/model (401/403)",
    ),
    (
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
        "specified revision on the local disk and outgoing traffic has been disabled.",
        "The hub could not be reached for some/model, and it is not in the local cache.",
    ),
]


@pytest.mark.parametrize(("text", "message"), TEXTS)
def test_a_known_cause_is_named_from_what_the_engine_printed(text, message, nvidia_smi):
    logged = "".join(f"{LOGGED}{line}\n" for line in ["Traceback (most recent call last):", *text.splitlines()])
    for said in (f"Process EngineCore:\n{text}\n", logged):
        told = explain_start_error("some/model", SEE_ABOVE, said)
        assert told.startswith("vLLM did not start. ") and message in told, told
        assert "spelling" not in told or "The hub" in told


def test_a_warning_is_no_cause(nvidia_smi):
    warning = LOGGED.replace("ERROR", "WARNING") + TEXTS[0][0]
    told = explain_start_error("some/model", SEE_ABOVE, f"{warning}\n{LOGGED}ValueError: Unknown dtype: 'fp'\n")
    assert "model.arguments.dtype is 'fp'" in told and "memory" not in told


def test_every_cause_has_a_text_here(nvidia_smi):
    import re

    flat = [" ".join(text.split()) for text, _ in TEXTS]
    patterns = ["|".join(cause["patterns"]) for cause in read_causes()["causes"]]
    missing = [pattern for pattern in patterns if not any(re.search(pattern, text) for text in flat)]
    assert missing == []


def test_who_holds_the_gpu_is_named_an_orphan_first_with_how_to_end_it(nvidia_smi):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    number = int(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)
    try:
        nvidia_smi(f"{os.getpid()}, /usr/bin/python3, 40000", f"{number}, VLLM::EngineCore, 30000", "1, [N/A], [N/A]")
        told = explain_start_error("some/model", SEE_ABOVE, FULL)
    finally:
        os.kill(number, 9)
    assert (
        f"It is held by VLLM::EngineCore (process {number}, an orphan of a run that was killed, 30,000 MiB), "
        f"/usr/bin/python3 (process {os.getpid()}, 40,000 MiB), [N/A] (process 1, 0 MiB). "
        f"End the orphan with `kill -9 {number}`. Otherwise lower model.arguments.gpu_memory_utilization."
    ) in told


def test_without_nvidia_smi_nobody_is_blamed(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert "nvidia-smi names no process that holds it." in explain_start_error("some/model", SEE_ABOVE, FULL)


def test_an_unknown_cause_is_quoted_without_advice():
    said = (
        'Process VllmWorker-0:\nTraceback (most recent call last):\n  File "worker.py", line 3\n'
        "KeyError: 'model.layers.9.weight'\nProcess EngineCore:\nTraceback (most recent call last):\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace\n"
    )
    told = explain_start_error("some/model", SEE_ABOVE, said)
    assert told == "vLLM did not start. Its last error: KeyError: 'model.layers.9.weight'"
    told = explain_start_error("some/model", AssertionError("tp must divide heads"))
    assert told == "vLLM did not start. Its last error: AssertionError: tp must divide heads"


def test_what_children_write_is_passed_on_and_kept(capfd):
    errors = ChildErrors()
    code = (
        "import sys, time; print('early', file=sys.stderr, flush=True); time.sleep(1); print('late', file=sys.stderr)"
    )
    with errors.inherited():
        child = subprocess.Popen([sys.executable, "-c", code])
    print("ours", file=sys.stderr)
    child.wait()
    assert errors.last() == "early\nlate\n", "for the child's whole life, and only of the child"
    assert errors.close() == "early\nlate\n"
    assert sorted(capfd.readouterr().err.split()) == ["early", "late", "ours"]
    assert errors.last() == "early\nlate\n", "closed, it still knows"


def test_an_unknown_backend_is_told_the_nearest():
    arguments = {"pretrained": str(resources.demo_model())}
    with pytest.raises(ConfigError) as caught, open_backend("vlm", arguments, sampled=False):
        pass
    told = str(caught.value)
    assert "is 'vlm', and there is no such backend. Expected vllm, or one of lm-eval's: vllm, vllm-vlm, " in told


@pytest.fixture
def weightless(tmp_path):
    """The bundled model without its weights."""
    ignored = shutil.ignore_patterns("*.safetensors")
    return shutil.copytree(resources.demo_model(), tmp_path / "model", ignore=ignored)


SCRIPT = """
import json, sys
from harness import resources
from harness.engines.vllm import VLLMEngine

{guard}
    arguments = dict(pretrained=str(resources.demo_model()), dtype="float32", max_model_len=1024, enforce_eager=True)
    VLLMEngine(arguments | json.loads(sys.argv[1])).close()
"""


@pytest.fixture
def engine_error(tmp_path):
    """Starts an engine from a script and returns the error that it ended in."""

    def start(guard='if __name__ == "__main__":', **arguments):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(guard=guard))
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, str(script), json.dumps(arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        return done.stderr.splitlines()[-1]

    return start


@pytest.mark.engine
@pytest.mark.slow
def test_a_model_without_weights_is_named_from_what_its_worker_printed(mless, weightless, tmp_path):
    flags = ("--set", f"model.arguments.pretrained={weightless}", "--limit", "1", "--output", str(tmp_path / "run"))
    done = mless("run", "demo.yaml", "--quiet", *flags)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"mless: vLLM did not start. {weightless} has no weights. Expected *.safetensors or *.bin beside its "
        "config.json: fetch the model again."
    )
    assert "Traceback (most recent call last)" in done.stderr, "what the engine's processes printed is passed on"


MISSPELT = (
    "model.arguments has 'gpu_memory_utilisation', and this vLLM has no such engine argument. Expected one of its "
    "EngineArgs: gpu_memory_utilization, "
)


def test_a_dry_run_tells_a_misspelt_engine_argument_the_nearest(capsys, monkeypatch):
    flags = ("--dry-run", "--set", "model.arguments.gpu_memory_utilisation=0.5")
    refused(here(capsys, monkeypatch, "run", "demo.yaml", *flags), MISSPELT)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_memory_utilisation": 0.5}, MISSPELT),
        ({"dtype": "flot32"}, "vLLM refuses model.arguments.dtype: Input should be 'auto', 'half', 'float16'"),
        ({"gpu_memory_utilization": 2}, "gpu_memory_utilization: Input should be less than or equal to 1, got 2."),
        ({"kv_cache_memory_bytes": 1_000_000}, "The KV cache is too small for one request of max_model_len 1024"),
        ({"guard": "if True:"}, "The script that starts it has no main guard"),
    ],
    ids=str,
)
def test_a_start_that_fails_on_this_machine_names_its_cause(engine_error, arguments, message):
    assert message in engine_error(**arguments)
