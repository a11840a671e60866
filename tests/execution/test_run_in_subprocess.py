import subprocess
import sys

import pytest

import harness
from harness.errors import RunError
from tests.conftest import PATIENCE
from tests.make import TOY_CONFIG

SCRIPT = """
import harness, sys
from pathlib import Path
from harness.experiment.config import load_config
config = load_config(Path(sys.argv[1]), [f"model.backend={sys.argv[3]}"])
engines = {"engines": 1} if sys.argv[3] == "vllm" else {}
run = harness.run(config, limit=2, output=sys.argv[2], **engines)
print(run.about["model"], len(run.samples))
"""


@pytest.mark.parametrize("backend", ["dummy", pytest.param("vllm", marks=(pytest.mark.slow, pytest.mark.engine))])
def test_a_script_without_a_main_guard_runs_and_reads_the_result(tmp_path, backend):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(TOY_CONFIG), str(tmp_path / "run"), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "mless-demo 8\n" and "8/8 samples" in done.stderr, done.stderr


def test_what_the_command_refuses_is_raised_with_its_words(tmp_path, capfd):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    with pytest.raises(RunError, match="already holds files"):
        harness.run(TOY_CONFIG, limit=1, output=tmp_path / "full")
