"""The real engine, killed in every way: finished samples stay, and the run continues after them.

All of these tests are in `make test-long`.
"""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch

from harness import load_run
from harness.runs.run_files import RunFiles
from harness.runs.stored_files import is_stored, open_stored
from tests.conftest import ENGINE_FLAGS, PATIENCE, gpu_share_options, run_program
from tests.engines.test_lifetime import alive
from tests.make import TOY_CONFIG, with_cases

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MLESS = str(Path(sys.executable).with_name("mless"))

FORKING = """
import multiprocessing, sys, vllm.v1.engine.utils
vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
from harness.cli import main
sys.exit(main())
"""
"""The command with a forked engine, vLLM's default on CUDA. On a CPU vLLM always spawns it."""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def start(folder, *, environment=None, program=(MLESS,), options=()):
    """The run of the fixture `our_run`, into another folder."""
    flags = [*ENGINE_FLAGS, *gpu_share_options(), *options]
    command = [*program, "run", TOY_CONFIG, "--output", str(folder), "--quiet", *flags]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    _RUNS.append(run)
    return run


_RUNS = []


@pytest.fixture(autouse=True)
def _end_runs():
    """A run that a failed test leaves must not disturb the tests after it."""
    yield
    for run in _RUNS:
        if run.poll() is None:
            run.kill()
            run.communicate(timeout=PATIENCE)
    _RUNS.clear()


def count_samples(folder):
    path = Path(folder) / "journal.jsonl"
    if not is_stored(path):
        return 0
    with open_stored(path) as stream:
        return stream.read().count(b'"problem_id":')


def wait_for(run, folder, count):
    """Wait until the journal holds so many samples, or the run has ended."""
    deadline = time.monotonic() + PATIENCE
    while count_samples(folder) < count and run.poll() is None:
        if time.monotonic() > deadline:
            run.kill()
            pytest.fail(
                f"{count_samples(folder)} samples, expected {count}: {run.communicate()[1]}"
            )
        time.sleep(0.02)


def end(run, code=0):
    """Wait for the end of a run; return what it has written to standard error."""
    _, stderr = run.communicate(timeout=PATIENCE)
    assert run.returncode == code, stderr
    return stderr


def finish(folder, our_run):
    """The same command finishes the run, with the results of a run that was never stopped."""
    end(start(folder))
    check_verdicts(folder, our_run)


def check_verdicts(folder, our_run):
    assert read_verdicts(folder) == read_verdicts(our_run)


def descendants(run):
    return psutil.Process(run.pid).children(recursive=True)


def read_verdicts(folder):
    """All lines of the table, and every verdict with its completion."""
    frame = load_run(folder).sort_values(["layout", "condition", "problem_id"])
    columns = "layout condition problem_id verdict answer completion completion_tokens".split()
    page = run_program(MLESS, "table", folder, "--format", "csv", check=True).stdout
    # the receipt names the folder
    table = [line for line in page.splitlines() if not line.startswith("#")]
    return table, frame[columns].to_csv(index=False)


def have_ended(processes):
    # Ray's agents look for their run once a minute
    _, remaining = psutil.wait_procs(processes, timeout=120)
    return alive(remaining) == []


def loaded_cores(folder):
    """The processes of a run's engines that have loaded the model."""
    log = folder / "libraries.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    return [psutil.Process(int(pid)) for pid in re.findall(r"pid=(\d+)\).* init engine", text)]


def find_cores(processes):
    """Those of some processes that are vLLM's engines."""
    return [process for process in processes if "EngineCore" in " ".join(process.cmdline())]


PROGRAMS = {"spawned": (MLESS,), "forked": (sys.executable, "-c", FORKING)}


@with_cases
def test_a_run_that_is_killed_and_finished_has_the_same_verdicts_and_leaves_no_process(
    our_run, folder, engine
):
    total = count_samples(our_run)
    run = start(folder, program=PROGRAMS[engine], environment={"VLLM_LOGGING_LEVEL": "ERROR"})
    wait_for(run, folder, random.Random(1).randrange(1, total // 3))
    # the journal does not grow, however long it takes to list the processes
    run.send_signal(signal.SIGSTOP)
    family = descendants(run)
    run.kill()
    run.communicate(timeout=PATIENCE)
    first = count_samples(folder)
    assert 0 < first < total
    assert have_ended(family)  # neither an engine nor a grader outlives the run
    finish(folder, our_run)
    receipt = RunFiles(folder).receipt
    assert len(receipt["sessions"]) == 2 and receipt["timing"]["samples"] == total - first


INTERRUPTED = "mless: interrupted: "


@with_cases
def test_a_run_that_is_ended_leaves_no_process_and_the_same_command_continues(
    our_run, folder, victim, name, message
):
    number = signal.Signals[name]
    total = count_samples(our_run)
    run = start(folder, environment={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "15"})
    wait_for(run, folder, 20)
    family = descendants(run)
    (engine,) = find_cores(family)
    send = {
        "engine": engine.send_signal,
        "run": run.send_signal,
        "group": partial(os.killpg, run.pid),
    }
    send[victim](number)
    last_line = end(run, 130 if message == INTERRUPTED else 2).splitlines()[-1]
    count = count_samples(folder)
    assert last_line.startswith(message) and "Traceback" not in last_line
    assert "un the same command again to continue." in last_line
    if message == INTERRUPTED:
        assert f"interrupted: {count} of {total} samples are safe" in last_line
    assert 0 < count < total and have_ended(family)
    finish(folder, our_run)


TWO_ENGINES = ("--engines", "2", "--set", "model.model_args.max_num_seqs=8")
"""Few sequences at once, so that both engines generate for some seconds."""

STEPS = {
    "importing": "",
    "starting vLLM": "INFO",
    "loading weights": "Starting to load model",
    "compiling": "Warming up model for the compilation",
}
"""The text that vLLM has written when a step of its start has begun."""


def engine_processes(run):
    """The engine processes of a run, without their workers. They name themselves after a while."""
    processes = []
    for process in descendants(run):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "EngineCore" in command or "multiprocessing.spawn" in command:
                processes.append(process)
    return [process for process in processes if process.parent() not in processes]


def worker_processes(run):
    """The processes that the engine processes of a run have started."""
    workers = chain.from_iterable(engine.children() for engine in engine_processes(run))
    return [worker for worker in workers if "resource_tracker" not in " ".join(worker.cmdline())]


def wait_for_step(run, folder, step, processes=engine_processes):
    """Wait until vLLM's start has reached a step; return processes of the engine."""
    log, deadline = folder / "libraries.log", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()[1]
        text = log.read_text(errors="replace") if log.exists() else ""
        if STEPS[step] in text and (victims := processes(run)):
            return victims
        time.sleep(0.02)
    pytest.fail(f"The start has not reached {step!r}.")


def interrupt(run, send, message=INTERRUPTED):
    """Interrupt a run: it says that it was interrupted, and no process remains."""
    family = descendants(run)
    send()
    stderr = end(run, 130)
    assert stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in stderr
    assert have_ended(family)


@with_cases
def test_a_start_that_a_signal_ends_names_it(folder, step, options, victim, message):
    run = start(folder, options=options.split())
    processes = {"engine": engine_processes, "worker": worker_processes}[victim]
    process = wait_for_step(run, folder, step, processes)[0]
    if step == "importing":
        time.sleep(0.5)  # the process has only just been started
    family = descendants(run)
    process.kill()
    stderr = end(run, 2)
    assert "Traceback" not in stderr and have_ended(family)
    assert stderr.splitlines()[-1].startswith(f"mless: vLLM did not start. {message}")


def test_a_run_does_not_wait_for_an_engine_that_notes_sigterm_and_ends_after_loading(folder):
    run = start(folder)
    engine = wait_for_step(run, folder, "loading weights")[0]
    family = descendants(run)
    engine.terminate()
    line = end(run, 2).splitlines()[-1]
    message = "mless: vLLM did not start. The engine process ended or hung just after"
    assert line.startswith(message), line
    assert have_ended(family)


def test_ctrl_c_while_an_engine_starts_is_an_interruption(folder):
    run = start(folder)
    wait_for_step(run, folder, "loading weights")
    interrupt(run, lambda: os.killpg(run.pid, signal.SIGINT), f"{INTERRUPTED}0 of ")


def ray_files():
    """The files that Ray could leave: its folders, and a token in the home folder."""
    return {*Path("/tmp").glob("mless-ray-*"), *Path.home().glob(".ray/*")}


def wait_until(is_true, process, pause):
    """Wait for something that happens before the process ends."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(pause)


LOST = "mless: an engine is lost; another is started in its place. "


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two engines need two GPUs")
@with_cases
def test_if_one_or_both_of_two_engines_are_killed_the_run_continues_with_the_same_verdicts(
    our_run, folder, environment, pattern, killed, message
):
    """An engine within its actor starts in half the time; else it is a process of its own."""
    before = ray_files()
    run = start(folder, options=TWO_ENGINES, environment=environment)
    wait_for(run, folder, 1)
    family = descendants(run)
    engines = [process for process in family if pattern in " ".join(process.cmdline())]
    for process in engines[:killed]:
        process.kill()
    family += descendants(run)
    assert f"{LOST}{message}" in end(run)
    assert count_samples(folder) == count_samples(our_run)
    check_verdicts(folder, our_run)
    (session,) = RunFiles(folder).receipt["sessions"]
    assert session["engine"]["engines"] == 2
    assert have_ended(family)  # neither Ray nor an engine outlives the run
    assert ray_files() == before


def test_ctrl_c_stops_two_engines_cleanly(folder):
    run = start(folder, options=TWO_ENGINES)
    wait_for(run, folder, 20)
    interrupt(run, lambda: os.killpg(run.pid, signal.SIGINT))


def test_sigterm_while_ray_starts_is_an_interruption_too(folder):
    before = ray_files()
    run = start(folder, options=TWO_ENGINES)
    wait_until(lambda: ray_files() != before, run, 0.01)  # Ray starts when its folder is there
    time.sleep(1)
    interrupt(run, run.terminate, f"{INTERRUPTED}0 of ")
    assert ray_files() == before


CLUSTER = """
import sys, ray
options = {"num_cpus": 1, "num_gpus": 2, "include_dashboard": False, "_temp_dir": sys.argv[1]}
ray.init(address="local", object_store_memory=2**27, **options)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
"""A cluster of one machine that is said to have two GPUs, until its standard input is closed."""


def test_a_run_has_an_engine_on_each_gpu_of_a_cluster_and_loses_one(folder):
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as temporary,  # a short path: sockets lie in it
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER, temporary],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as cluster,
    ):
        environment["RAY_ADDRESS"] = cluster.stdout.readline().strip()
        options = ("--engines", "auto", "--limit=12", *TWO_ENGINES[2:])
        run = start(folder, options=options, environment=environment)
        wait_for(run, folder, 1)
        first = loaded_cores(folder)[0]
        first.suspend()  # so that the run does not end before the other engine has loaded
        wait_until(lambda: len(loaded_cores(folder)) == 2, run, 0.1)
        first.kill()
        assert LOST in end(run)
        family = descendants(cluster)
        assert cluster.poll() is None  # the run must not stop a cluster of the user
        cluster.communicate()
    assert have_ended(family)
    columns = ["layout", "condition", "problem_id"]
    assert load_run(folder).value_counts(columns).tolist() == [1] * 96
    cards = RunFiles(folder).receipt["timing"]["cards"]
    # an engine that takes the place of another gets its card
    assert sorted(cards[:2]) == [["0"], ["1"]] and len(cards) <= 3
