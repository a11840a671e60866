"""Run the jobs of a list at the same time, each with its own time limit and its own log file.

    python tests/gpu/run_jobs.py claims --at-once 12 --seconds 300 --logs FOLDER

The list is claims.jobs in this folder, with a line `name|time limit in seconds|command` for each job. Jobs start
in the list's order, so the most important ones come first. A command finds pytest, with its
options, in $PYTEST.

A table of all jobs is printed at the end. FOLDER/claims.json holds the same facts, and is written
whenever a job ends, so that something remains if this program is stopped. The exit code is 1 unless
every job passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

FOLDER = Path(__file__).resolve().parent
PYTEST = f"{sys.executable} -m pytest -p no:cacheprovider -W ignore -m gpu -q -s"
"""Warnings are ignored: a deprecation in another version of torch or vLLM refutes no claim."""
MEASUREMENT_PREFIX = "measured: "
"""A line that begins so reports a number of a claim, which the table repeats."""
LOOK_SECONDS = 0.5
STOP_SECONDS = 10


@dataclass
class Job:
    """A line of a list, and how it ended.

    Attributes:
        limit: Seconds after which it is stopped.
        outcome: `passed`, `failed`, `cut off` (it was stopped) or `not started`.
    """

    name: str
    limit: float
    command: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    start: float = 0.0
    seconds: float = 0.0
    outcome: str = "not started"

    def launch(self, environment: dict[str, str]) -> None:
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                ["bash", "-c", self.command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.start = time.monotonic()

    def update_outcome(self) -> bool:
        """Note how it ended, and kill it if its time is over; returns whether it has ended."""
        assert self.process is not None
        self.seconds = time.monotonic() - self.start
        code = self.process.poll()
        if code is not None:
            self.outcome = "failed" if code else "passed"
        elif self.seconds > self.limit:
            self.stop()
        return self.outcome != "not started"

    def stop(self) -> None:
        """Kill the job and what it started; a run has its own session, so its process group is not enough."""
        assert self.process is not None
        self.outcome = "cut off"
        job = psutil.Process(self.process.pid)
        processes = [*job.children(recursive=True), job]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(STOP_SECONDS)
        psutil.wait_procs(processes, timeout=STOP_SECONDS)

    def describe(self) -> dict[str, object]:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        measured = [line.removeprefix(MEASUREMENT_PREFIX) for line in lines if line.startswith(MEASUREMENT_PREFIX)]
        return {
            "job": self.name,
            "seconds": round(self.seconds),
            "outcome": self.outcome,
            "measured": measured,
            "last_line": lines[-1] if lines else "",
        }


def read_jobs(list_name: str, logs: Path, limit_factor: float) -> list[Job]:
    jobs = []
    for line in (FOLDER / f"{list_name}.jobs").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, seconds, command = line.split("|", 2)
            log = logs / f"{list_name}-{name}.log"
            log.unlink(missing_ok=True)
            jobs.append(Job(name, float(seconds) * limit_factor, command, log))
    return jobs


def job_environment(at_once: int) -> dict[str, str]:
    """This environment, with a share of the cores for each job where it sets none."""
    threads = max(1, (os.cpu_count() or 1) // at_once)
    # Inductor compiles for a short time only, so its processes may be more than a share
    shares = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    return {**shares, **os.environ, "PYTEST": PYTEST, "PYTHONUNBUFFERED": "1"}


def run_jobs(jobs: list[Job], at_once: int, seconds: float, summary: Path) -> None:
    """Run all jobs until they have ended or the time is over."""
    environment = job_environment(at_once)
    end = time.monotonic() + seconds
    waiting, running = list(jobs), []
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                job.launch(environment)
                running.append(job)
            time.sleep(LOOK_SECONDS)
            still_running = [job for job in running if not job.update_outcome()]
            if len(still_running) < len(running):
                write_summary(jobs, summary)
            running = still_running
    finally:
        for job in running:
            job.stop()
        write_summary(jobs, summary)


def write_summary(jobs: list[Job], path: Path) -> None:
    path.write_text(json.dumps([job.describe() for job in jobs], indent=1) + "\n")


def print_table(jobs: list[Job]) -> None:
    print(f"{'job':<22} {'seconds':>7}  {'outcome':<11}  last line of its log")
    for facts in map(Job.describe, jobs):
        columns = f"{facts['job']:<22} {facts['seconds']:>7}  {facts['outcome']:<11}"
        print(f"{columns}  {facts['last_line'][:150]}")
        for line in facts["measured"]:
            print(f"{'':<22}          {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("list", help="the list's name, such as claims")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at the same time")
    parser.add_argument("--seconds", type=float, default=300, help="time for all jobs together")
    parser.add_argument("--logs", type=Path, required=True, help="folder for logs and the summary")
    parser.add_argument("--only", help="comma-separated names of jobs; the others are left out")
    parser.add_argument("--limit-factor", type=float, default=1, help="multiplies each job's time limit")
    options = parser.parse_args()
    # a scheduler's SIGTERM stops the jobs too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.logs.mkdir(parents=True, exist_ok=True)
    jobs = read_jobs(options.list, options.logs, options.limit_factor)
    if options.only:
        names = options.only.split(",")
        unknown = set(names) - {job.name for job in jobs}
        if unknown:
            parser.error(f"no job {unknown.pop()!r}; expected any of {', '.join(j.name for j in jobs)}")
        jobs = [job for job in jobs if job.name in names]
    begin = time.monotonic()
    run_jobs(jobs, options.at_once, options.seconds, options.logs / f"{options.list}.json")
    print_table(jobs)
    passed = sum(job.outcome == "passed" for job in jobs)
    print(f"{passed} of {len(jobs)} jobs passed after {time.monotonic() - begin:.0f} s")
    return int(passed < len(jobs))


if __name__ == "__main__":
    sys.exit(main())
