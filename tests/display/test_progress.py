import os
import pty
import re
import subprocess
import sys
import textwrap
import time

from harness.display import progress as progress_module
from harness.display.progress import Progress

RUN = """
    import time
    from harness.display.progress import Progress
    progress = Progress({"wo": 4, "mless": 2}, most=600, quiet=QUIET)
    progress.count_recorded("wo")
    with progress:
        time.sleep(0.2)
        for task in ("wo", "mless", "wo"):
            progress.sample(task, 500)
            time.sleep(0.1)
        progress.score("wo", "correct")
        progress.score("wo", "correct")
        progress.score("wo", "incorrect")
        progress.score("mless", "correct")
"""


def in_terminal(code):
    """What a program writes to a terminal of 120 columns as its standard error."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 2**16):
            written += piece
    except OSError:  # what Linux says when the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


def test_a_terminal_shows_each_task_and_all_together():
    rows = {
        line.split()[0]: line
        for line in in_terminal(RUN.replace("QUIET", "False")).splitlines()
        if "/" in line
    }
    assert list(rows) == ["wo", "mless", "all"]
    assert "3/4" in rows["wo"] and "66.7% correct" in rows["wo"]
    assert "1/2" in rows["mless"] and "100.0% correct" in rows["mless"]
    assert re.search(r" 4/6 [1-9][\d,]* tokens/s, 0:00:0\d left\s*$", rows["all"])
    assert max(len(row.rstrip()) - len(row.split()[0]) for row in rows.values()) < 60, (
        "80 with the name of a task"
    )


def test_quiet_shows_lines_in_a_terminal_too():
    written = in_terminal(RUN.replace("QUIET", "True")).strip()
    assert re.fullmatch(
        r"mless: 4/6 samples, [\d,]+ tokens/s, 0:00:0\d left \| wo 3/4 66\.7%,\s+mless 1/2 100\.0%",
        written,
    )
    assert max(map(len, written.splitlines())) <= 80


def test_tokens_of_unfinished_samples_count_and_the_time_left_is_that_of_the_tokens_left(capsys):
    progress = Progress({"wo": 2, "mless": 3}, most=100)
    progress.running = lambda: [("wo", 30), ("wo", 60), ("mless", 0)]
    with progress:
        time.sleep(0.5)
        progress.print_line()
        speed, left = re.search(
            r"0/5 samples, (\d+) tokens/s, 0:00:(\d+) left", capsys.readouterr().err
        ).groups()
        assert 0 < int(speed) <= 180, "90 tokens in half a second, or what it took"
        assert abs(int(left) - (20 + 20 + 150) / int(speed)) <= 1, (
            "30 of 50, 60 of halfway to 100, and three of 50"
        )
        progress.running = lambda: [("wo", 10), ("mless", 20)]
        progress.sample("wo", 90)
        progress.sample("mless", 20)
        progress.print_line()
        speed, left = re.search(
            r"(\d+) tokens/s, 0:00:(\d+) left", capsys.readouterr().err
        ).groups()
        assert abs(int(left) - (80 + 40 + 20) / int(speed)) <= 1, (
            "as long as those of their task that are finished"
        )


def test_a_model_that_loads_shows_life_and_its_step(capsys, tmp_path):
    log = tmp_path / "libraries.log"
    log.write_text("INFO Capturing CUDA graphs, of an earlier session\n")
    with progress_module.loading(log):
        time.sleep(1.5)
        with log.open("a") as file:
            file.write(
                "(Worker pid=7) INFO 11-25 [cpu_model_runner.py:68] Starting to load model x...\n"
            )
        time.sleep(1.0)
    assert re.fullmatch(
        r"mless: loading, 1 s: importing\nmless: loading, \d s: loading weights\n",
        capsys.readouterr().err,
    )


def test_a_log_has_a_line_now_and_then_and_one_at_the_end(capsys, monkeypatch):
    progress = Progress({"wo": 2}, most=100)
    with progress:
        progress.sample("wo", 10)
        progress.tick()
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
        progress.tick()
        assert capsys.readouterr().err.startswith("mless: 1/2 samples, ")
        progress.sample("wo", None)
    assert re.fullmatch(
        r"mless: 2/2 samples, [\d,]+ tokens/s \| wo 2/2 -\n", capsys.readouterr().err
    )


def test_the_time_left_is_told_from_this_sessions_samples(capsys):
    progress = Progress({"wo": 1000}, most=10)
    for _ in range(900):
        progress.count_recorded("wo")
    started = time.monotonic()
    with progress:
        time.sleep(0.5)
        progress.sample("wo", 10)
        progress.sample("wo", 10)
        progress.print_line()
        counts, minutes, seconds = re.match(
            r"mless: (.+), 0:(\d+):(\d+) left", capsys.readouterr().err
        ).groups()
    left = 60 * int(minutes) + int(seconds)
    elapsed = time.monotonic() - started
    assert counts.startswith("902/1000 samples") and 24 <= left <= 49 * elapsed + 1, (
        "98 at 0.25 s, or what it took"
    )
