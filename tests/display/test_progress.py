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
    progress = Progress({"wo": 4, "mless": 2}, most_tokens=600, quiet=QUIET)
    progress.count_recorded("wo")
    with progress:
        time.sleep(0.2)
        for task in ("wo", "mless", "wo"):
            progress.count_finished(task, 500)
            time.sleep(0.1)
        for task, verdict in (("wo", "correct"), ("wo", "correct"), ("wo", "incorrect")):
            progress.count_graded(task, verdict)
        progress.count_graded("mless", "correct")
"""


def run_in_terminal(code):
    """The standard error that a program writes to a terminal of 120 columns."""
    terminal, program_end = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=program_end, env=environment
    )
    os.close(program_end)
    output = b""
    try:
        while chunk := os.read(terminal, 2**16):
            output += chunk
    except OSError:  # Linux raises it when the other end is closed
        pass
    os.close(terminal)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())


def match_line(pattern, capsys):
    """The groups of a pattern in the line that was printed."""
    return re.search(pattern, capsys.readouterr().err).groups()


def test_a_terminal_shows_each_task_and_the_total():
    lines = run_in_terminal(RUN.replace("QUIET", "False")).splitlines()
    rows = {line.split()[0]: line for line in lines if "/" in line}
    assert list(rows) == ["wo", "mless", "all"]
    assert "3/4" in rows["wo"] and "66.7% correct" in rows["wo"]
    assert "1/2" in rows["mless"] and "100.0% correct" in rows["mless"]
    assert re.search(r" 4/6 [1-9][\d,]* tokens/s, 0:00:0\d left\s*$", rows["all"])
    # with the name of a task at most 80 columns
    assert max(len(row.rstrip()) - len(name) for name, row in rows.items()) < 60


def test_a_quiet_run_prints_lines_in_a_terminal_too():
    output = run_in_terminal(RUN.replace("QUIET", "True")).strip()
    total = r"mless: 4/6 samples, [\d,]+ tokens/s, 0:00:0\d left"
    assert re.fullmatch(total + r" \| wo 3/4 66\.7%, mless 1/2 100\.0%", output)


def test_the_speed_and_time_left_count_tokens_of_unfinished_samples_and_of_this_session(capsys):
    progress = Progress({"wo": 902, "mless": 3}, most_tokens=100)
    for _ in range(900):
        progress.count_recorded("wo")
    progress.list_running_tokens = lambda: [30, 60, 0]
    with progress:
        time.sleep(0.5)
        progress.print_line()
        pattern = r" 900/905 samples, (\d+) tokens/s, 0:00:(\d+) left"
        speed, seconds_left = map(int, match_line(pattern, capsys))
        assert 0 < speed <= 180  # 90 tokens in at least half a second
        # five samples of half of the limit, less the tokens that are there
        assert abs(seconds_left - (5 * 50 - 90) / speed) <= 1
        progress.list_running_tokens = lambda: [10, 20]
        progress.count_finished("wo", 90)
        progress.count_finished("mless", 20)
        progress.print_line()
        speed, seconds_left = map(int, match_line(r"(\d+) tokens/s, 0:00:(\d+) left", capsys))
        # three samples as long as the mean of the finished ones, 55
        assert abs(seconds_left - (3 * 55 - 30) / speed) <= 1


def test_a_log_has_a_line_per_interval_and_one_at_the_end(capsys, monkeypatch):
    with Progress({"wo": 2}, most_tokens=100) as progress:
        progress.count_finished("wo", 10)
        progress.print_line_if_due()
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LINES", 0.0)
        progress.print_line_if_due()
        assert capsys.readouterr().err.startswith("mless: 1/2 samples, ")
        progress.count_finished("wo", None)
    last_line = r"mless: 2/2 samples, [\d,]+ tokens/s \| wo 2/2 -\n"
    assert re.fullmatch(last_line, capsys.readouterr().err)
