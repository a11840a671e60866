"""The real engine, killed in every way: what was finished stays, and the run goes on where it was.

Three engine starts in `make test` (two engines, one killed and replaced), many more in `make test-long`.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from harness.engines.start_errors import load_step
from harness.engines.vllm_engine import READY_SECONDS
from harness.runs.journal import is_stored, open_stored
from tests.conftest import ENGINE_FLAGS, PATIENCE, gpu_share_options
from tests.make import TOY_CONFIG

pytestmark = pytest.mark.engine

MLESS = str(Path(sys.executable).with_name("mless"))

FORKING = """
import multiprocessing, sys, vllm.v1.engine.utils
vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
from harness.cli import main
sys.exit(main())
"""
"""The command with its engine forked, as vLLM does on CUDA unless told otherwise; on a CPU it always spawns."""


def start(folder, *, stderr=subprocess.PIPE, environment=None, program=(MLESS,), options=()):
    """The run of the fixture `our_run`, into another folder."""
    flags = [*ENGINE_FLAGS, *gpu_share_options(), *options]
    command = [*program, "run", TOY_CONFIG, "--output", str(folder), "--quiet", *flags]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )
    _STARTED.append(run)
    return run


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_stays_behind():
    """A run that a failed test leaves must not trouble the tests after it."""
    yield
    for run in _STARTED:
        if run.poll() is None:
            run.kill()
            run.communicate(timeout=PATIENCE)
    _STARTED.clear()


def samples(folder):
    path = Path(folder) / "journal.jsonl"
    return read_stored(path).count(b'"problem_id":') if is_stored(path) else 0


def read_stored(path):
    with open_stored(path) as stream:
        return stream.read()


def wait_for(run, folder, count):
    """Until the journal holds so many samples, or the run has ended."""
    deadline = time.monotonic() + PATIENCE
    while samples(folder) < count and run.poll() is None:
        if time.monotonic() > deadline:
            run.kill()
            pytest.fail(f"{samples(folder)} samples, expected {count}: {run.communicate()[1]}")
        time.sleep(0.02)


def end(run, code=0):
    _, told = run.communicate(timeout=PATIENCE)
    assert run.returncode == code, told
    return told


def goes_on(folder, our_run):
    """The same command finishes the run, and it is as if it had never been stopped."""
    end(start(folder))
    assert verdicts(folder) == verdicts(our_run[0])


def descendants(run):
    return psutil.Process(run.pid).children(recursive=True)


def verdicts(folder):
    """The whole table, line for line, and every verdict with what it is about."""
    from harness import load_run

    frame = load_run(folder).sort_values(["layout", "condition", "problem_id"])
    columns = [
        "layout",
        "condition",
        "problem_id",
        "verdict",
        "answer",
        "completion",
        "completion_tokens",
    ]
    command = [MLESS, "table", str(folder), "--format", "csv"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    table = [line for line in lines if not line.startswith("#")]  # the receipt names the folder
    return table, frame[columns].to_csv(index=False)


def kill(run, folder, our_run):
    """End a run in the middle, as if the power failed; returns how many samples it has."""
    family = descendants(run)
    run.kill()
    run.communicate(timeout=PATIENCE)
    assert 0 < samples(folder) < samples(our_run[0])
    assert gone(family), "neither an engine nor a grader outlives the run"
    return samples(folder)


def gone(processes):
    _, alive = psutil.wait_procs(
        processes, timeout=120
    )  # Ray's agents look for their run once a minute
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


FORKED = (sys.executable, "-c", FORKING)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [pytest.param((MLESS,), marks=pytest.mark.gpu), FORKED], ids=["spawned", "forked"]
)
def test_killed_and_finished_it_has_the_same_verdicts_and_no_process_is_left(
    our_run, tmp_path, program
):
    folder = tmp_path / "run"
    total = samples(our_run[0])
    run = start(folder, program=program, environment={"VLLM_LOGGING_LEVEL": "ERROR"})
    wait_for(run, folder, random.Random(1).randrange(1, total // 3))
    run.send_signal(
        signal.SIGSTOP
    )  # it journals no more, however long the look at its processes takes
    first = kill(run, folder, our_run)
    goes_on(folder, our_run)
    receipt = json.loads((folder / "run.json").read_text())
    assert len(receipt["sessions"]) == 2 and receipt["timing"]["samples"] == total - first


INTERRUPTED = "mless: interrupted: "
ENDS = [
    pytest.param(
        "engine",
        signal.SIGKILL,
        2,
        "mless: The engine process died in the mi",
        marks=pytest.mark.gpu,
    ),
    # on SIGTERM vLLM calls everything unfinished finished, as `abort`: none of that may be filed as a sample
    ("engine", signal.SIGTERM, 2, "mless: The engine process died in the middle"),
    (
        "engine",
        signal.SIGSTOP,
        2,
        "mless: The engine has not answered for 30 seconds, and its process lives",
    ),
    ("group", signal.SIGINT, 130, INTERRUPTED),  # as a terminal does: everyone in the group gets it
    ("run", signal.SIGTERM, 130, INTERRUPTED),  # a scheduler's, to the run alone
]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "number", "code", "said"), ENDS)
def test_a_run_that_is_ended_leaves_no_process_and_the_same_command_continues(
    our_run, tmp_path, victim, number, code, said
):
    folder, total = tmp_path / "run", samples(our_run[0])
    run = start(folder, environment={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "15"})
    wait_for(run, folder, 20)
    family = descendants(run)
    (engine,) = [p for p in family if "EngineCore" in " ".join(p.cmdline())]
    {
        "engine": engine.send_signal,
        "run": run.send_signal,
        "group": lambda n: os.killpg(run.pid, n),
    }[victim](number)
    ended = time.monotonic()
    told = end(run, code)
    assert time.monotonic() - ended < 150, "vLLM alone would wait for ever"
    last, kept = told.splitlines()[-1], samples(folder)
    assert (
        last.startswith(said)
        and "un the same command again to continue." in last
        and "Traceback" not in last
    )
    assert f"interrupted: {kept} of {total} samples are safe" in last or said != INTERRUPTED
    assert 0 < kept < total and gone(family)
    reasons = {
        json.loads(line).get("finish_reason")
        for line in read_stored(folder / "journal.jsonl").splitlines()
    }
    assert reasons <= {None, "stop", "length"}
    goes_on(folder, our_run)


COMPILED = ("--set", "model.model_args.enforce_eager=false")

TWO_ENGINES = ("--engines", "2", "--set", "model.model_args.max_num_seqs=8")
"""Few sequences at once, so that both engines generate for some seconds."""

STEPS = ["importing", "starting vLLM", "loading weights", "warming up and compiling"]


def engine_processes(run):
    """The engine processes of a run, without their workers. Python starts them, then they name themselves."""
    processes = []
    for process in descendants(run):
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "EngineCore" in command or "multiprocessing.spawn" in command:
                processes.append(process)
    return [process for process in processes if process.parent() not in processes]


def worker_processes(run):
    """The processes that the engine processes of a run have started."""
    workers = [worker for engine in engine_processes(run) for worker in engine.children()]
    return [worker for worker in workers if "resource_tracker" not in " ".join(worker.cmdline())]


def wait_for_step(run, folder, step, processes=engine_processes):
    """Wait until vLLM's start has reached a step; return the engine's processes."""
    log, deadline = folder / "libraries.log", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert run.poll() is None, run.communicate()[1]
        text = log.read_text(errors="replace") if log.exists() else ""
        if load_step(text) == step and (victims := processes(run)):
            return victims
        time.sleep(0.02)
    pytest.fail(f"The start has not reached {step!r}.")


def end_of_start(run, victim, number, family):
    """Send a signal to a process of a start; return the run's last line, which comes within ten seconds."""
    victim.send_signal(number)
    sent = time.monotonic()
    lines = end(run, 2).splitlines()
    assert time.monotonic() - sent < 10
    assert "Traceback" not in "".join(lines)
    assert gone(family)
    return lines[-1]


def check_ended_start(folder, step, number, engines=1):
    """Send a signal to an engine process at a step of its start, and check what the run says of it."""
    options = TWO_ENGINES if engines == 2 else ()
    compiled = COMPILED if "compiling" in step else ()
    run = start(folder, options=(*options, *compiled))
    engine = wait_for_step(run, folder, step)[0]
    if step == "importing":
        time.sleep(0.5)  # the process has only just been started
    line = end_of_start(run, engine, number, descendants(run))
    # two engines have one log, and the other one may be a step ahead
    steps = "|".join(STEPS) if engines == 2 else step
    engine_message = f"The engine process got {number.name} while it was ({steps})."
    assert re.match(f"mless: vLLM did not start. {engine_message}", line), line
    assert line.endswith("is in the journal: run the same command again to continue."), line


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("engines", [1, 2])
def test_a_start_that_a_signal_ends_names_the_signal_and_the_step(tmp_path, engines, step, number):
    check_ended_start(tmp_path / "run", step, number, engines)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS[2:])
def test_a_start_whose_worker_process_a_signal_ends_says_so(tmp_path, step, number):
    folder = tmp_path / "run"
    run = start(folder, options=COMPILED)
    worker = wait_for_step(run, folder, step, worker_processes)[0]
    line = end_of_start(run, worker, number, descendants(run))
    assert line.startswith("mless: vLLM did not start. The worker process of the engine "), line


@pytest.mark.slow
def test_an_engine_that_only_notes_sigterm_leaves_nobody_waiting_once_it_has_loaded(tmp_path):
    folder = tmp_path / "run"
    # a forked engine skips our plugin; FORKING imports vLLM, which reads this limit, before mless sets it
    limit = {"VLLM_ENGINE_READY_TIMEOUT_S": str(READY_SECONDS)}
    run = start(folder, program=(sys.executable, "-c", FORKING), environment=limit)
    engine = wait_for_step(run, folder, "loading weights")[0]
    family = descendants(run)
    engine.terminate()
    line = end(run, 2).splitlines()[-1]
    assert line.startswith(
        "mless: vLLM did not start. The engine process ended or hung just after"
    ), line
    assert gone(family)


@pytest.mark.slow
def test_ctrl_c_while_an_engine_starts_is_an_interruption(tmp_path):
    folder = tmp_path / "run"
    run = start(folder)
    wait_for_step(run, folder, "loading weights")
    family = descendants(run)
    os.killpg(run.pid, signal.SIGINT)
    lines = end(run, 130).splitlines()
    assert lines[-1].startswith("mless: interrupted: 0 of ") and "Traceback" not in "".join(lines)
    assert gone(family)


@pytest.mark.slow
def test_killed_twenty_times_at_random_it_still_has_the_same_verdicts(our_run, tmp_path):
    folder = tmp_path / "run"
    draw = random.Random(7)
    total, killed = samples(our_run[0]), 0
    while killed < 20:
        run = start(folder)
        family = []
        if draw.random() < 0.3:  # some while it is still loading, the others while it generates
            time.sleep(draw.uniform(0.5, 12))
        else:
            wait_for(
                run, folder, min(samples(folder) + draw.randrange(1, 2 + total // 25), total - 1)
            )
        if run.poll() is None:
            family = descendants(run)
            run.kill()
            killed += 1
        run.communicate(timeout=PATIENCE)
        assert gone(family)
    goes_on(folder, our_run)


def ray_leaves():
    """What Ray could leave behind: its folders, and a token in the home folder."""
    return {*Path("/tmp").glob("mless-ray-*"), *Path.home().glob(".ray/*")}


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def actors(run):
    return [p for p in descendants(run) if p.name().startswith("ray::EngineActor")]


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two engines need two GPUs")
def test_one_of_two_engines_killed_the_run_goes_on_and_has_the_same_verdicts(our_run, tmp_path):
    folder, before = tmp_path / "run", ray_leaves()
    launcher = {
        "VLLM_DP_SIZE": "2",
        "VLLM_DP_RANK": "0",
    }  # an engine that obeyed it would wait for the other rank
    # an engine within its actor starts in half the time; `make test-long` has actors whose engines are processes
    run = start(
        folder, options=TWO_ENGINES, environment={**launcher, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    )
    wait_for(run, folder, 1)
    actors(run)[0].kill()
    family = descendants(run)
    told = end(run)
    assert (
        "mless: an engine is lost; another is started in its place. The process of an engine is gone"
        in told
    )
    assert samples(folder) == samples(our_run[0])
    assert verdicts(folder) == verdicts(our_run[0])
    (session,) = json.loads((folder / "run.json").read_text())["sessions"]
    assert session["engine"]["engines"] == 2
    assert gone(family), "neither Ray nor an engine outlives the run"
    assert ray_leaves() == before


@pytest.mark.slow
def test_every_engine_process_of_two_killed_the_run_goes_on_with_new_ones(our_run, tmp_path):
    folder = tmp_path / "run"
    run = start(folder, options=TWO_ENGINES)
    wait_for(run, folder, 1)
    for process in descendants(run):
        if "EngineCore" in " ".join(process.cmdline()):
            process.kill()
    told = end(run)
    assert (
        "mless: an engine is lost; another is started in its place. The engine process died" in told
    )
    assert verdicts(folder) == verdicts(our_run[0])


@pytest.mark.slow
def test_ctrl_c_stops_two_engines_cleanly(our_run, tmp_path):
    folder = tmp_path / "run"
    run = start(folder, options=TWO_ENGINES)
    wait_for(run, folder, 20)
    family = descendants(run)
    os.killpg(run.pid, signal.SIGINT)
    told = end(run, 130)
    assert told.splitlines()[-1].startswith("mless: interrupted: ") and "Traceback" not in told
    assert gone(family)


@pytest.mark.slow
def test_sigterm_while_ray_starts_is_an_interruption_too(our_run, tmp_path):
    before = ray_leaves()
    run = start(tmp_path / "run", options=TWO_ENGINES)
    deadline = time.monotonic() + PATIENCE
    while ray_leaves() == before:  # Ray starts when its folder is there
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    family = descendants(run)
    run.terminate()
    told = end(run, 130)
    assert told.splitlines()[-1].startswith("mless: interrupted: 0 of ") and "Traceback" not in told
    assert gone(family) and ray_leaves() == before


@pytest.mark.slow
def test_the_engines_of_a_cluster_are_used_and_it_stays(our_run, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    temporary = tempfile.mkdtemp(dir="/tmp")  # short: sockets lie in it
    ray = [
        str(Path(sys.executable).with_name("ray")),
        "start",
        "--head",
        "--block",
        f"--port={port}",
    ]
    flags = [
        "--num-cpus=1",
        "--include-dashboard=false",
        f"--temp-dir={temporary}",
        "--node-ip-address=127.0.0.1",
    ]
    environment = {**os.environ, "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(
        [*ray, *flags], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as cluster:
        try:
            address = {"RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "disabled"}
            deadline = time.monotonic() + PATIENCE
            while not answers(port):
                assert time.monotonic() < deadline and cluster.poll() is None
                time.sleep(0.5)
            run = start(tmp_path / "run", options=TWO_ENGINES, environment=address)
            end(run)
            assert cluster.poll() is None, "it is not ours to stop"
        finally:
            family = descendants(cluster)
            cluster.terminate()
            cluster.wait(60)
            shutil.rmtree(temporary, ignore_errors=True)
    assert gone(family)
    assert verdicts(tmp_path / "run") == verdicts(our_run[0])


FULL_DISK = """
mount -t tmpfs -o size={size}k tmpfs "{folder}"
{command}
echo "first $?" >&2
mount -o remount,size=100m "{folder}"
{command} || exit 9
cp -r "{folder}/run" "{copy}"
"""


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_and_the_same_command_continues(our_run, tmp_path):
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("a small file system of one's own cannot be mounted here")
    mounted = tmp_path / "disk"
    mounted.mkdir()
    prompts, journal = (
        len(read_stored(Path(our_run[0]) / name)) for name in ("prompts.jsonl", "journal.jsonl")
    )
    command = f"{MLESS} run {TOY_CONFIG} --output {mounted}/run --quiet {' '.join(map(repr, ENGINE_FLAGS))}"
    names = {"folder": mounted, "copy": tmp_path / "copy", "command": command}
    script = FULL_DISK.format(size=(prompts + journal // 2) // 1024, **names)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE
    )
    lines = done.stderr.splitlines()
    assert "first 2" in lines, done.stderr
    told = lines[lines.index("first 2") - 1]
    assert (
        told.startswith("mless: ")
        and "cannot grow: No space left on device. Everything before is stored: free" in told
    )
    assert done.returncode == 0, done.stderr
    assert verdicts(tmp_path / "copy") == verdicts(our_run[0])
    assert len(json.loads((tmp_path / "copy" / "run.json").read_text())["sessions"]) == 2
