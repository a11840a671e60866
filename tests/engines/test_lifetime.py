"""Processes that watch their owner end with it only. Tests with the real engine: test_faults.py."""

import os
import subprocess
import sys
import time

import psutil

from harness.engines.engine_processes import OWNER_VARIABLE, process_identity
from tests.make import with_cases

WATCHING = (
    "import time; from harness.engines.engine_processes import die_with_parent; "
    "die_with_parent(); time.sleep(60)"
)
"""What an engine process does, started anew (spawn)."""

NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WATCHING!r}])"

OWNER = """
import os, subprocess, sys, threading, time
from harness.engines import engine_processes
def start(code={watching!r}):
    subprocess.Popen([sys.executable, "-c", code])
os.environ[engine_processes.OWNER_VARIABLE] = engine_processes.process_identity(os.getpid())
{start}
del os.environ[engine_processes.OWNER_VARIABLE]
# a bystander: it is not the engine's, so the hook does not end it
print(os.fork() or time.sleep(60), flush=True)
time.sleep(60)
"""


def alive(processes):
    running = [process for process in processes if process.is_running()]
    return [process for process in running if process.status() != psutil.STATUS_ZOMBIE]


@with_cases
def test_an_engine_process_ends_with_its_owner_and_no_other_does(count, start):
    code = OWNER.format(watching=WATCHING, start=start.format(nested=NESTED))
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    family = []
    try:
        bystander = psutil.Process(int(owner.stdout.readline()))
        while len(family) < count + 1:
            family = psutil.Process(owner.pid).children(recursive=True)
        time.sleep(1)
        assert len(alive(family)) == count + 1  # no process ends while its owner lives
        owner.kill()
        owner.wait()
        psutil.wait_procs([process for process in family if process != bystander], timeout=20)
        assert alive(family) == [bystander]
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        for process in alive(family):
            process.kill()


def watch(owner):
    """The exit code of a process that watches `owner`; it stops by itself after three seconds."""
    command = [sys.executable, "-c", WATCHING.replace("60", "3")]
    return subprocess.run(command, env={**os.environ, OWNER_VARIABLE: owner}).returncode


def test_a_process_whose_owner_has_ended_already_ends_at_once():
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    identity = process_identity(owner.pid)
    owner.kill()
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    assert watch(identity) == -9  # ended, and not yet reaped
    owner.wait()
    assert watch(identity) == -9


def test_another_process_with_the_owners_id_is_not_taken_for_the_owner():
    identity = process_identity(os.getpid())
    assert watch(identity) == 0
    number, _, start_time = identity.partition(":")
    assert watch(f"{number}:{int(start_time) + 1}") == -9
