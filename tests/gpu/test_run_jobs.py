import os
import re
from pathlib import Path

from tests.conftest import run_program
from tests.make import with_cases


@with_cases
def test_a_job_passes_fails_or_is_cut_off(tmp_path, lines, outcomes):
    (tmp_path / "list").write_text("# name|seconds|command\n" + "\n".join(lines))
    command = [Path(__file__).with_name("run_jobs.sh"), tmp_path / "list", tmp_path / "logs"]
    environment = {**os.environ, "SECONDS_IN_ALL": "5"}
    process = run_program(*command, env=environment)
    summary = (tmp_path / "logs" / "summary.txt").read_text()
    assert process.returncode != 0 and process.stdout == summary
    pattern = r"^(\w+) .*(passed   end\nmeasured: 3 of 4|failed|cut off|not started)"
    assert dict(re.findall(pattern, summary, re.MULTILINE)) == outcomes
    process = run_program(*command, "good")
    assert process.returncode == 0 and process.stdout.count("\n") == 2
