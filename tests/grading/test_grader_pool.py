import io
import os
import re
import signal
import sys
import textwrap
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from harness.errors import GraderError
from harness.grading import Grade, GradeJob, GraderPool, grader_worker
from tests.conftest import run_program

STARTED_BEFORE = set()
"""Processes that other tests started, such as the resource tracker of multiprocessing."""
LIMITS = {"Max address space": 512 * 2**20, "Max core file size": 0, "Max file size": 0}


def children():
    return [process for process in psutil.Process().children() if process not in STARTED_BEFORE]


def suspend_worker():
    """Suspend the only worker, so that the next events happen in the middle of its job."""
    # its thread has just begun, or its process is not yet the program
    while not any("serve" in "".join(process.cmdline()) for process in children()):
        time.sleep(0.01)
    (worker,) = children()
    worker.suspend()
    return worker


def sum_job(number, text=""):
    """A job with a right answer in other words, which a worker has to compare."""
    return GradeJob(completion=rf"{text}\boxed{{x+{number}}}", target=f"{number}+x")


def audit_job(completion, prompt=""):
    return GradeJob(prompt=prompt, completion=completion, target="3")


def run_job(pool, job):
    """Submit a job to an idle pool and return its result."""
    pool.submit("only", job)
    ((_, result),) = pool.drain()
    return result


@pytest.fixture(autouse=True)
def _processes_of_other_tests():
    STARTED_BEFORE.update(psutil.Process().children())


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(grader_worker, "GRADER_DEADLINE_S", 2.0)
    with GraderPool(worker_count=1) as pool:
        assert run_job(pool, sum_job(1)).correct
        yield pool
    assert children() == []


@pytest.fixture
def auditing(monkeypatch):
    monkeypatch.setattr(grader_worker, "GRADER_DEADLINE_S", 2.0)
    with GraderPool(worker_count=1, with_audit=True) as pool:
        assert run_job(pool, sum_job(1)).correct
        yield pool


def test_each_tag_is_returned_once(pool):
    tags = [("a", number) for number in range(20)]
    for tag in tags:
        pool.submit(tag, GradeJob(completion=rf"\boxed{{x+{tag[1]}}}", target="x+3"))
    pool.submit("no box", GradeJob(completion="3", target="3"))
    first = pool.poll(timeout_s=10)
    results = dict(first) | dict(pool.drain())
    assert results.pop("no box").verdict == "no_box"
    assert first and list(pool.drain()) == [] and pool.poll(5) == []
    assert {tag for tag, grade in results.items() if grade.correct} == {("a", 3)}
    assert set(results) == set(tags)


def test_poll_returns_at_once_while_a_worker_starts():
    with GraderPool(worker_count=1) as pool:
        pool.submit(1, sum_job(1))
        # It is never ready: a poll that waited for it would kill and replace it.
        worker = suspend_worker()
        assert pool.poll() == [] and children() == [worker]


def test_a_killed_worker_is_one_crash_and_the_pool_continues(pool):
    worker = suspend_worker()
    pool.submit("lost", sum_job(5))
    pool.submit("next", sum_job(6))
    os.kill(worker.pid, signal.SIGKILL)
    results = dict(pool.drain())
    reason = "the grader ended with exit code -9"
    assert results["lost"] == Grade(verdict="crashed", answer="x+5", reason=reason)
    assert results["next"].correct
    assert run_job(pool, sum_job(5)).correct  # a crash is not remembered


def test_a_hung_worker_is_killed_at_the_deadline_and_its_timeout_is_not_remembered(pool):
    worker = suspend_worker()
    started = time.monotonic()
    grade = run_job(pool, sum_job(5))
    assert grade == Grade(verdict="timeout", answer="x+5", reason="over 2 s")
    assert time.monotonic() - started > 1.9
    assert not psutil.pid_exists(worker.pid)
    assert run_job(pool, sum_job(5)).correct


def test_a_long_job_is_submitted_at_once_and_survives_the_absence_of_the_parent(auditing):
    worker = suspend_worker()
    auditing.submit("long", audit_job("word " * 60_000 + r"\boxed{3}"))
    # If `submit` had waited for the worker, which reads nothing, it would have killed it.
    assert children() == [worker]
    worker.resume()
    time.sleep(2.5)
    ((_, audit),) = auditing.drain()
    assert audit.audit_reason is None and audit.authors_rule_strict and audit.math_verify


def test_hostile_mathematics_costs_one_column_and_not_the_others(monkeypatch):
    """lm-eval's call of math_verify has no limit: it tries to compute this number."""
    monkeypatch.setattr(grader_worker, "GRADER_CPU_LIMIT_S", 1)
    with GraderPool(worker_count=1, with_audit=True) as pool:
        audit = run_job(pool, audit_job(r"\boxed{(9^{9^9})!}"))
        assert audit.verdict == "refused" and audit.authors_rule is False
        assert audit.audit_reason == "math_verify: over 1 s of CPU time"
        assert run_job(pool, sum_job(1)).correct


def test_time_in_which_other_processes_use_the_cores_does_not_count(monkeypatch):
    monkeypatch.setattr(grader_worker, "GRADER_CPU_LIMIT_S", 1)
    with GraderPool(worker_count=1) as pool:
        run_job(pool, sum_job(1))
        worker = suspend_worker()
        pool.submit("waits", sum_job(5))
        time.sleep(1.5)
        worker.resume()
        assert dict(pool.drain())["waits"].correct


def test_an_audit_continues_after_a_lost_step(auditing):
    worker = suspend_worker()
    auditing.submit(1, audit_job(r"\boxed{3}"))
    os.kill(worker.pid, signal.SIGKILL)
    ((_, audit),) = auditing.drain()
    assert audit.authors_rule is None
    assert audit.audit_reason == "authors_rule: the grader ended with exit code -9"
    assert audit.correct and audit.reason is None and audit.math_verify
    worker = suspend_worker()
    auditing.submit(2, audit_job(r"\boxed{2+1}"))
    os.kill(worker.pid, signal.SIGKILL)
    ((_, audit),) = auditing.drain()
    assert (audit.verdict, audit.reason) == ("crashed", "the grader ended with exit code -9")
    assert audit.audit_reason is None and audit.math_verify and not audit.authors_rule_strict


def test_out_of_memory_is_one_crash(monkeypatch):
    monkeypatch.setattr(grader_worker, "GRADER_MEMORY_LIMIT_BYTES", 2**28)
    with GraderPool(worker_count=1) as pool:
        bomb = run_job(pool, GradeJob(completion=r"\boxed{x}", target="y" * 200_000_000))
        assert (bomb.verdict, bomb.reason) == ("crashed", "the grader ended with exit code 1")
        assert run_job(pool, sum_job(1)).correct


def test_limits_priority_session_descriptors_and_modules_of_a_worker(monkeypatch):
    libraries = Path(find_spec("torch").origin).parent / "lib"
    monkeypatch.setenv("LD_PRELOAD", str(libraries / "libgomp.so.1"))  # as vLLM does on a CPU
    monkeypatch.setattr(grader_worker, "GRADER_MEMORY_LIMIT_BYTES", 512 * 2**20)
    with GraderPool(worker_count=1) as pool:
        run_job(pool, sum_job(1))
        (worker,) = children()
        folder = Path(f"/proc/{worker.pid}")
        limits = (folder / "limits").read_text()
        for name, value in LIMITS.items():
            assert re.search(rf"^{name} +{value} +{value} ", limits, re.MULTILINE)
        assert worker.nice() >= min(19, psutil.Process().nice() + 5)
        assert os.getsid(worker.pid) == worker.pid
        # Replies have descriptors of their own, so no output of a library is read as a reply.
        assert {os.readlink(folder / "fd" / str(number)) for number in range(3)} == {os.devnull}
        loaded = (folder / "maps").read_text()
        assert "torch" not in loaded and "pyarrow" not in loaded
        assert worker.num_threads() == 1


def test_workers_die_with_a_killed_parent_even_when_hung():
    code = textwrap.dedent(r"""
        import os, psutil, signal
        from harness.grading import GradeJob, GraderPool
        pool = GraderPool(worker_count=1)
        pool.submit(0, GradeJob(completion=r"\boxed{x+1}", target="1+x"))
        list(pool.drain())
        (worker,) = psutil.Process().children()
        worker.suspend()
        pool.submit(1, GradeJob(completion=r"\boxed{x+2}", target="2+x"))
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    parent = run_program(sys.executable, "-c", code)
    assert parent.returncode == -signal.SIGKILL
    worker = int(parent.stdout)

    def is_alive():
        return psutil.pid_exists(worker) and psutil.Process(worker).status() != "zombie"

    deadline = time.monotonic() + 60
    while is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive()


def test_workers_outlive_the_thread_that_started_them():
    with GraderPool(worker_count=1) as pool:
        thread = threading.Thread(target=run_job, args=[pool, sum_job(1)])
        thread.start()
        thread.join()
        workers = children()
        assert run_job(pool, sum_job(2)).correct and children() == workers


@pytest.mark.parametrize(
    ("pool_name", "make_job"),
    [("pool", partial(sum_job, 5)), ("auditing", partial(audit_job, r"\boxed{2+1}"))],
    ids=["answer", "audit"],
)
def test_equal_jobs_are_done_once_and_remembered(request, pool_name, make_job):
    pool = request.getfixturevalue(pool_name)
    worker = suspend_worker()
    for tag in range(5):
        pool.submit(tag, make_job(f"{tag} "))
    assert len(pool._future_by_key) == 2  # that of the fixture too
    worker.resume()
    results = dict(pool.drain())
    (result,) = set(results.values())
    assert len(results) == 5 and result.correct
    suspend_worker()  # from here on only the cache can answer
    assert run_job(pool, make_job("again ")) == result


def test_long_text_and_unusual_characters_are_graded(auditing):
    text = "\udc80\x00\u2028é\n" + "word " * 400_000 + r"\boxed{3}"
    for tag in range(3):
        auditing.submit(tag, audit_job(text, prompt=str(tag)))
    results = [audit for _, audit in auditing.drain()]
    assert len(results) == 3
    assert all(audit.authors_rule_strict for audit in results)
    job = GradeJob(completion="\ud800\x00 \\boxed{\udfff + 1}", target="x")
    assert run_job(auditing, job).verdict in {"incorrect", "refused", "crashed"}


NONSENSE = [
    b"no JSON",
    b"3",
    b'{"verdict": "superb", "reason": null}',
    b'{"verdict": "correct"}',
    # a reply to an audit, which this job is not
    b'{"step": "math_verify", "fields": {"math_verify": true}, "remark": null}',
]


def test_a_worker_that_answers_nonsense_or_half_a_line_is_a_crash_and_is_replaced(pool):
    replies = [(line + b"\n", "answered nonsense") for line in NONSENSE]
    # half a line comes from a worker that died while it wrote
    replies.append((b'[{"verdict": "corr', "ended with exit code -9"))
    for number, (reply, end) in enumerate(replies, start=50):
        worker = suspend_worker()  # its own reply does not matter
        pool._processes[0]._process.stdout.close()
        pool._processes[0]._process.stdout = io.BytesIO(reply)
        grade = run_job(pool, sum_job(number))
        assert (grade.verdict, grade.reason) == ("crashed", f"the grader {end}"), reply
        assert not psutil.pid_exists(worker.pid)
        assert run_job(pool, sum_job(number)).correct


def test_a_broken_installation_is_one_clear_error(tmp_path, monkeypatch):
    code = "print('x' * 10**5, file=__import__('sys').stderr)\nbroken()\n"
    (tmp_path / "mpmath.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    message = r"no grader worker can be started.*name 'broken' is not defined"
    with GraderPool(worker_count=1) as pool, pytest.raises(GraderError, match=message):
        run_job(pool, sum_job(1))
    assert children() == []


def test_any_program_can_use_a_pool_in_any_folder(tmp_path):
    """Without a guard of `__name__`, in a folder with another `harness` and another `mpmath`."""
    (tmp_path / "harness").mkdir()
    for path in ("harness/__init__.py", "mpmath.py"):
        (tmp_path / path).write_text("raise ImportError('the wrong module')\n")
    code = textwrap.dedent(r"""
        from harness.grading import GradeJob, GraderPool
        with GraderPool() as pool:
            pool.submit(1, GradeJob(completion=r"\boxed{x+1}", target="1+x"))
            print([grade.verdict for _, grade in pool.drain()])
    """)
    process = run_program(sys.executable, "-P", "-c", code, cwd=tmp_path)
    assert (process.stdout, process.stderr) == ("['correct']\n", "")
