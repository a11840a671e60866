import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.engines.library_messages import SEARCHED_LOG_BYTES, NewMessages, library_log
from harness.engines.start_errors import (
    KNOWN_CAUSES,
    explain_start_error,
    make_start_error,
)
from tests.conftest import installed, needs_vllm, slow_engine
from tests.make import TOY_CONFIG, TOY_MODEL, one_line, read_data, with_cases

SEE_ABOVE = RuntimeError(
    "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
"""All that vLLM reports to the process which starts the engine."""

LOGGED = "(EngineCore pid=16286) ERROR 11-21 23:41:07 [core.py:1505] "
"""What vLLM puts before each line of its log."""

CAUSES = [(cause["text"], cause["message"]) for cause in read_data("start_errors")]
TEXTS = [text for text, _ in CAUSES]
(FULL,) = (text for text in TEXTS if "Free memory on device" in text)
(MISSING_GCC,) = (text.splitlines()[0] for text in TEXTS if "Failed to find C compiler" in text)

explain = partial(explain_start_error, "some/model", SEE_ABOVE)


@pytest.mark.parametrize(("text", "message"), CAUSES)
def test_a_cause_is_named_from_what_the_engine_printed(text, message):
    lines = ["Traceback (most recent call last):", *text.splitlines()]
    logged = "".join(f"{LOGGED}{line}\n" for line in lines)
    for stderr in (f"Process EngineCore:\n{text}\n", logged):
        explanation = explain(stderr)
        assert explanation.startswith("vLLM did not start. ") and message in explanation


MEMORY_PROFILING = ("v1/worker/gpu_worker.py", "Error in memory profiling. ")
LAST_MESSAGE = ("v1/engine/core_client.py", "Timed out waiting for engine core processes")
VLLM_MESSAGES = (MEMORY_PROFILING, LAST_MESSAGE)


def read_source(module):
    """The source of a module of the installed vLLM."""
    return (Path(find_spec("vllm").origin).parent / module).read_text()


def read_message(module, beginning):
    """The message of an error in vLLM's source, with 7 for every value in it."""
    for node in ast.walk(ast.parse(read_source(module))):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for piece in node.values:
                text += piece.value if isinstance(piece, ast.Constant) else "7"
            if text.startswith(beginning):
                return text
    raise AssertionError(f"vLLM's {module} has no message that begins with {beginning!r}")


@needs_vllm
def test_where_other_processes_disturb_vllms_measurement_a_fixed_cache_is_the_remedy():
    text = read_message(*MEMORY_PROFILING)
    assert "release GPU memory while vLLM is profiling" in text
    message = explain(f"{LOGGED}AssertionError: {text}\n")
    assert "Another process freed GPU memory while vLLM measured its own." in message
    assert "`--set model.model_args.kv_cache_memory_bytes=8589934592`" in message


@needs_vllm
def test_an_engine_that_is_silent_after_its_start_has_ended_or_hangs():
    text = read_message(*LAST_MESSAGE)
    message = explain_start_error("some/model", TimeoutError(text))
    assert message == (
        "vLLM did not start. The engine process ended or hung just after it had loaded the model. "
        "Run the same command again; see `dmesg` if it happens again."
    )


WARMING_UP = f"{LOGGED.replace('ERROR', 'INFO')}Warming up FlashInfer attention.\n"
QUOTED = {
    "logged": LOGGED,
    "warning": LOGGED.replace("ERROR", "WARNING"),
    "warming_up": WARMING_UP,
    "full": FULL,
    "gcc": MISSING_GCC,
    "no_reason": "Exception: WorkerProc initialization failed due to an exception in a background "
    "process. See stack trace\n",
}
"""What the logs of the cases contain."""


@with_cases
def test_a_signal_from_outside_is_distinguished_from_an_error(log, exit_codes, message):
    caught = make_start_error("some/model", SEE_ABOVE, log.format(**QUOTED), exit_codes)
    assert str(caught).startswith(f"vLLM did not start. {message.format(**QUOTED)}")


def test_after_an_error_of_its_own_vllm_ends_the_process():
    error = make_start_error("some/model", KeyError("vocab"), WARMING_UP, [-signal.SIGTERM])
    assert str(error) == "vLLM did not start. Its last error: KeyError: 'vocab'"


@needs_vllm
def test_vllm_says_that_a_worker_died():
    assert "Worker proc %s died unexpectedly" in read_source("v1/executor/multiproc_executor.py")


@needs_vllm
def test_every_pattern_matches_a_text_of_these_tests():
    texts = TEXTS + [read_message(*source) for source in VLLM_MESSAGES]
    lines = [one_line(text) for text in texts]
    for cause in KNOWN_CAUSES:
        for pattern in cause["patterns"]:
            assert any(re.search(pattern, line) for line in lines), pattern


def test_the_messages_of_children_are_read_while_and_after_these_go_to_a_file(tmp_path, capfd):
    code = (
        "import sys, time; print('early', file=sys.stderr, flush=True); time.sleep(1); "
        "print('late', file=sys.stderr)"
    )
    log = tmp_path / "cache" / "libraries.log"
    with library_log(log):
        os.write(2, b"before\n")
        messages = NewMessages()
        child = subprocess.Popen([sys.executable, "-c", code])
    print("ours", file=sys.stderr)
    child.wait()
    assert messages.read() == messages.read() == "early\nlate\n"
    messages.forget()
    assert messages.read() == ""
    assert log.read_text() == "before\nearly\nlate\n"
    with log.open("a") as file:
        file.write("x" * SEARCHED_LOG_BYTES + "end")
    assert len(messages.read()) == SEARCHED_LOG_BYTES and messages.read().endswith("end")
    assert capfd.readouterr().err == "ours\n"


SCRIPT = """
import json, sys
from pathlib import Path
from harness.engines.library_messages import library_log
from harness.engines.vllm_engine import VLLMEngine

{guard}
    arguments = dict(pretrained={model!r}, dtype="float32", max_model_len=1024, enforce_eager=True)
    with library_log(Path(__file__).with_suffix(".log")):
        VLLMEngine(arguments | json.loads(sys.argv[1])).close()
"""


@slow_engine
def test_a_model_without_weights_is_named_from_what_its_worker_printed(mless, tmp_path):
    ignored = shutil.ignore_patterns("*.safetensors")
    weightless = shutil.copytree(TOY_MODEL, tmp_path / "model", ignore=ignored)
    options = f"--set model.model_args.pretrained={weightless} --limit 1 --output {tmp_path}/run"
    process = mless("run", TOY_CONFIG, "--quiet", *options.split())
    assert process.returncode == 2
    message = (
        "mless: vLLM did not start. Its last error: RuntimeError: Cannot find any model weights "
        f"with `{weightless}`"
    )
    assert process.stderr.splitlines()[-1] == message
    log = (tmp_path / "run" / "libraries.log").read_text()
    assert "Traceback (most recent call last)" in log  # the processes' output is passed on


@slow_engine
@with_cases
def test_a_start_that_fails_on_this_machine_names_its_cause(tmp_path, guard, arguments, message):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(guard=guard, model=TOY_MODEL))
    python = Path(sys.executable).name
    process = installed(python, str(script), json.dumps(arguments), VLLM_LOGGING_LEVEL="ERROR")
    assert message in process.stderr.splitlines()[-1]
