import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from harness.errors import GraderError
from harness.grading import Audit, AuditJob, Grade, GradeJob, GraderPool

FORMULA = (r"so \boxed{x+1}", "1 + x")
"""Equal, but not as text: a worker has to look at it."""
STARTED_BEFORE = set()
"""Processes of other tests, such as the resource tracker of multiprocessing, that live as long as pytest does."""
LIMITS = {"Max address space": 512 * 2**20, "Max core file size": 0, "Max file size": 0}


def children():
    return [process for process in psutil.Process().children() if process not in STARTED_BEFORE]


def audit_job(completion, **changes):
    return AuditJob(
        **{"prompt": "", "completion": completion, "target": "3", "solution": "", **changes}
    )


def grade_many(pool, pairs):
    for place, (completion, target) in enumerate(pairs):
        pool.submit(place, GradeJob(completion=completion, target=target))
    results = dict(pool.drain())
    return [results[place] for place in range(len(pairs))]


@pytest.fixture(autouse=True)
def _processes_of_other_tests():
    STARTED_BEFORE.update(psutil.Process().children())


@pytest.fixture
def pool():
    with GraderPool(workers=1, deadline_s=2.0) as pool:
        assert grade_many(pool, [FORMULA])[0].correct
        yield pool
    assert children() == []


@pytest.fixture
def auditing():
    with GraderPool(workers=1, audits=True, deadline_s=2.0) as pool:
        assert grade_many(pool, [FORMULA])[0].correct
        yield pool


def test_the_streaming_form_hands_out_each_tag_once(pool):
    tags = [("a", n) for n in range(20)]
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
    with GraderPool(workers=1) as pool:
        pool.submit(1, GradeJob(completion=FORMULA[0], target=FORMULA[1]))
        (worker,) = children()
        worker.suspend()  # it is never ready: a poll that waited for it would kill and replace it
        assert pool.poll() == [] and children() == [worker]


def test_grades_go_before_audits(auditing):
    auditing.submit("first", audit_job(r"\boxed{1}"))  # at the worker already
    auditing.submit("audit", audit_job(r"\boxed{2}"))
    auditing.submit("grade", GradeJob(completion=r"\boxed{x+7}", target="7+x"))
    assert [tag for tag, _ in auditing.drain()] == ["first", "grade", "audit"]


def test_a_killed_worker_is_one_crash_and_the_rest_goes_on(pool):
    (worker,) = children()
    worker.suspend()  # so that the kill comes in the middle of the job
    pool.submit("lost", GradeJob(completion=r"\boxed{x+5}", target="5+x"))
    pool.submit("next", GradeJob(completion=r"\boxed{x+6}", target="6+x"))
    os.kill(worker.pid, signal.SIGKILL)
    results = dict(pool.drain())
    assert results["lost"] == Grade(
        verdict="crashed", answer="x+5", reason="the grader was killed by signal 9"
    )
    assert results["next"].correct
    assert grade_many(pool, [(r"\boxed{x+5}", "5+x")])[0].correct  # a crash is not remembered


def test_a_hung_worker_is_killed_at_the_deadline_and_not_remembered(pool):
    (worker,) = children()
    worker.suspend()
    started = time.monotonic()
    (grade,) = grade_many(pool, [(r"\boxed{x+5}", "5+x")])
    assert grade == Grade(verdict="timeout", answer="x+5", reason="over 2 s")
    assert time.monotonic() - started > 1.9
    assert not psutil.pid_exists(worker.pid)
    assert grade_many(pool, [(r"\boxed{x+5}", "5+x")])[0].correct


def test_a_long_job_is_submitted_at_once_and_not_judged_by_the_parents_absence(auditing):
    (worker,) = children()
    worker.suspend()
    auditing.submit("long", audit_job("word " * 60_000 + r"\boxed{3}"))
    assert children() == [worker], (
        "it did not wait: the worker can read nothing, and would have been killed"
    )
    worker.resume()
    time.sleep(2.5)
    ((_, audit),) = auditing.drain()
    assert audit.reason is None and audit.authors_rule_strict and audit.math_verify


def test_what_was_said_in_time_is_heard_after_any_absence(auditing):
    auditing.submit("audit", audit_job(r"\boxed{3}"))
    (before,) = [audit for _, audit in auditing.drain()]  # lm-eval's graders are loaded now
    (worker,) = children()
    auditing.submit("audit", audit_job(r"so \boxed{3}"))
    auditing.submit("grade", GradeJob(completion=r"\boxed{x+4}", target="4+x"))
    time.sleep(
        2.5
    )  # all four replies of the audit wait in the pipe; the grade has not been handed out
    results = dict(auditing.drain())
    assert results["audit"] == before and before.reason is None and results["grade"].correct
    assert children() == [worker]


def test_a_reply_that_comes_while_the_parent_sleeps_behind_its_look_is_heard(pool):
    pool.submit("grade", GradeJob(completion=r"\boxed{x+4}", target="4+x"))
    look, looks = pool._selector.select, []

    def slow(timeout):
        looks.append(timeout)
        if len(looks) > 1:
            return look(timeout)
        time.sleep(2.5)  # nothing was there yet; then the machine had no time for us
        return []

    pool._selector.select = slow
    assert [(tag, grade.verdict) for tag, grade in pool.drain()] == [("grade", "correct")]


def test_hostile_mathematics_costs_one_column_and_not_the_others(auditing):
    """math_verify as lm-eval calls it has no gate: it tries to compute this."""
    auditing.submit(
        1, audit_job(r"\boxed{3} and $(9^{9^{9}})!$ so $7^{7^{7^{7}}} = \sin(9^{9^{9}})$")
    )
    ((_, audit),) = auditing.drain()
    assert audit.authors_rule and audit.exact_match_boxed
    assert audit.math_verify is None or audit.reason is None
    assert grade_many(auditing, [FORMULA])[0].correct


def test_an_audit_goes_on_behind_the_step_that_was_lost(auditing):
    (worker,) = children()
    worker.suspend()
    auditing.submit(1, audit_job(r"\boxed{3}"))
    os.kill(worker.pid, signal.SIGKILL)
    ((_, audit),) = auditing.drain()
    assert audit.boxes_after_first is None
    assert audit.reason == "boxes_after_first: the grader was killed by signal 9"
    assert audit.authors_rule and audit.math_verify and audit.exact_match_boxed


def test_out_of_memory_is_one_crash():
    with GraderPool(workers=1, memory_bytes=2**28, deadline_s=60) as pool:
        pool.submit("bomb", GradeJob(completion=r"\boxed{x}", target="y" * 200_000_000))
        pool.submit("next", GradeJob(completion=FORMULA[0], target=FORMULA[1]))
        results = dict(pool.drain())
    assert (results["bomb"].verdict, results["bomb"].reason) == (
        "crashed",
        "the grader ended with exit code 1",
    )
    assert results["next"].correct


@pytest.mark.skipif(sys.platform != "linux", reason="reads the limits from /proc")
def test_limits_priority_session_descriptors_and_modules_of_a_worker():
    with GraderPool(workers=1, memory_bytes=512 * 2**20) as pool:
        pool.submit(1, audit_job(r"\boxed{3}"))
        list(pool.drain())
        (worker,) = children()
        lines = Path(f"/proc/{worker.pid}/limits").read_text().splitlines()
        for name, value in LIMITS.items():
            assert (
                next(line for line in lines if line.startswith(name))[26:].split()[:2]
                == [str(value)] * 2
            )
        assert worker.nice() >= psutil.Process().nice() + 5
        assert os.getsid(worker.pid) == worker.pid
        # what a library prints cannot pass for a reply: the protocol has descriptors of its own
        assert {os.readlink(f"/proc/{worker.pid}/fd/{n}") for n in range(3)} == {os.devnull}
        loaded = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "torch" not in loaded and "pyarrow" not in loaded
        assert worker.num_threads() == 1


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a busy worker outlives its parent until its job ends"
)
def test_workers_die_with_a_killed_parent_even_when_hung():
    code = textwrap.dedent(r"""
        import os, psutil, signal
        from harness.grading import GradeJob, GraderPool
        pool = GraderPool(workers=1)
        pool.submit(0, GradeJob(completion=r"\boxed{x+1}", target="1+x"))
        list(pool.drain())
        (worker,) = psutil.Process().children()
        worker.suspend()
        pool.submit(1, GradeJob(completion=r"\boxed{x+2}", target="2+x"))
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    worker = int(done.stdout)
    until = time.monotonic() + 60
    while (
        psutil.pid_exists(worker)
        and psutil.Process(worker).status() != "zombie"
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    assert not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie"


def test_equal_jobs_are_done_once_and_remembered(auditing):
    (worker,) = children()
    worker.suspend()
    for tag in range(5):
        auditing.submit(tag, GradeJob(completion=f"{tag}" + r" \boxed{x+5}", target="5+x"))
        auditing.submit(tag + 10, audit_job("same"))
    assert len(auditing._waiting) == 2
    worker.resume()
    results = dict(auditing.drain())
    assert len(results) == 10 and all(results[tag].correct for tag in range(5))
    assert len({results[tag + 10] for tag in range(5)}) == 1
    children()[0].suspend()  # from here on only the cache can answer
    assert grade_many(auditing, [(r"again \boxed{x+5}", "5+x")])[0].correct
    auditing.submit("audit", audit_job("same"))
    assert auditing.poll() == [("audit", results[10])]


def test_long_and_odd_text_passes(auditing):
    text = "\udc80\x00\u2028é\n" + "word " * 400_000 + r"\boxed{3}"
    for tag in range(3):
        auditing.submit(tag, audit_job(text, prompt=str(tag)))
    results = [audit for _, audit in auditing.drain()]
    assert len(results) == 3
    assert all(isinstance(audit, Audit) and audit.authors_rule_strict for audit in results)
    assert grade_many(auditing, [("\ud800\x00 \\boxed{\udfff + 1}", "x")])[0].verdict in {
        "incorrect",
        "refused",
        "crashed",
    }


def test_a_worker_that_answers_nonsense_is_a_crash_and_is_replaced(pool):
    lines = [
        b"no JSON",
        b"3",
        b'{"verdict": "superb", "reason": null}',
        b'{"verdict": "correct"}',
        b'{"step": "math_verify", "fields": {"math_verify": true}, "remark": null}',  # of an audit, which this is not
        b'{"ready": true}',  # it has said so before
    ]
    for number, line in enumerate(lines):
        (worker,) = children()
        pool._workers[0].received = line + b"\n"  # as if it stood before the worker's own answer
        pair = (rf"\boxed{{x+{number}+50}}", f"x+50+{number}")
        (grade,) = grade_many(pool, [pair])
        assert (grade.verdict, grade.reason) == ("crashed", "the grader answered nonsense"), line
        assert not psutil.pid_exists(worker.pid)
        assert grade_many(pool, [pair])[0].correct


def test_a_full_folder_for_temporary_files_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: open("/dev/full", "w+b", 0))
    with GraderPool(workers=1) as pool, pytest.raises(GraderError, match="No space left"):
        grade_many(pool, [("\\boxed{x+1}", "\\sin(x)")])


def test_a_broken_installation_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "mpmath.py").write_text(
        "print('x' * 10**5, file=__import__('sys').stderr)\nbroken()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        GraderPool(workers=1) as pool,
        pytest.raises(GraderError, match=r"3 tries.*name 'broken' is not defined"),
    ):
        grade_many(pool, [FORMULA])
    assert children() == []


def test_any_program_can_hold_a_pool_wherever_it_stands(tmp_path):
    """Not guarded by `__name__`, from a folder that has another `harness` and another `mpmath` in it."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise ImportError('the wrong harness')\n")
    (tmp_path / "mpmath.py").write_text("raise ImportError('the wrong mpmath')\n")
    code = (
        "from harness.grading import GradeJob, GraderPool\n"
        f"job = GradeJob(completion={FORMULA[0]!r}, target={FORMULA[1]!r})\n"
        "with GraderPool() as pool:\n    pool.submit(1, job)\n    print([one.verdict for _, one in pool.drain()][0])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["correct"] and done.stderr == ""
