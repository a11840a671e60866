import os
import subprocess
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import lm_eval
import pytest
from torch.utils import collect_env

from tests.conftest import PATIENCE

collect_env.get_pretty_env_info = cache(collect_env.get_pretty_env_info)  # 3 s, asked anew by each evaluation


@pytest.fixture(scope="session")
def without_mless(tmp_path_factory):
    """A command's runner in a virtual environment that has all packages of this one but ours."""
    place = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    ours = {file.parts[0] for file in distribution("mless").files}
    for entry in Path(lm_eval.__file__).parents[1].iterdir():
        if entry.name not in ours:
            (site / entry.name).symlink_to(entry)

    def run(*arguments):
        own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MATH500_PATH")}
        return subprocess.run(
            [str(place / "bin" / "python"), *arguments],
            capture_output=True,
            text=True,
            env={**own, "OMP_NUM_THREADS": "1"},  # of several threads most time is waiting on a busy machine
            cwd=place,
            timeout=PATIENCE,
            check=False,
        )

    for name in ("harness", "mless", "attention_probe"):
        assert f"No module named '{name}'" in run("-c", f"import {name}").stderr
    return run
