"""The public names: what `import mless` gives, and the types that a user's type checker sees."""

import doctest
import re
import sys

import pytest

import harness
import mless
from tests.conftest import ignore_warnings, run_program
from tests.make import ROOT

SCRIPT = """
import mless
config = mless.load_config("a.yaml", {"seed": 1})
mless.load_config("a.yaml", ["seed=1"])  # arg-type
run = mless.run(config, limit=20, output="results/a")
mless.run(config, limit="20")  # arg-type
mless.run(config, limits=20)  # call-arg
config.max_gen_toks + run.samples["correct"].mean()
run.sample  # attr-defined
frame = mless.load_run(run.name, replicates=True)
mless.load_run(123)  # arg-type
mless.compare(frame, contrasts=run.about["contrasts"])
mless.compare(run)  # arg-type
mless.grade("4", "4").verdict.upper()
mless.grade("4", 4)  # arg-type
mless.attention("smollm2", [[1, 2]], layers=[1]).show().upper()
mless.attention(["smollm2"], ["text"])  # arg-type
mless.nothing  # attr-defined
"""
MYPY = """
[mypy]
cache_dir = {cache}
follow_imports = silent
[mypy-torch.*,vllm.*,transformers.*,lm_eval.*,datasets.*,scipy.*,pyarrow.*,ray.*,matplotlib.*,rich.*]
follow_imports = skip
ignore_missing_imports = true
"""


def test_the_package_has_its_public_names_also_as_mless():
    assert mless.load_run is harness.load_run and set(mless.__all__) == set(harness.__all__)
    assert all(getattr(harness, name) is not None for name in harness.__all__)
    assert set(harness.__all__) <= set(dir(mless))
    with pytest.raises(AttributeError, match="module 'harness' has no attribute 'nothing'"):
        _ = mless.nothing


# the filter of the other tests makes errors of the warnings of vLLM and torch
WITH_ENGINE = (pytest.mark.slow, pytest.mark.engine, ignore_warnings)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=WITH_ENGINE if name in ("attention", "run") else ())
        for name in mless.__all__
    ],
)
def test_the_example_of_a_public_name_is_right(name, tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/example").symlink_to(ROOT / "results/example")
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(mless, name), name, globs={"mless": mless})
    assert doctest.DocTestRunner().run(example).failed == 0 and example.examples


def test_mypy_finds_wrong_arguments_in_the_script_of_a_user(tmp_path):
    script = tmp_path / "script.py"
    names = [f"reveal_type(mless.{name})\n" for name in mless.__all__]
    script.write_text("".join([SCRIPT, *names]))
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY.format(cache=tmp_path / "cache"))
    command = ("-m", "mypy", "--config-file", config, script)
    output = run_program(sys.executable, *command, env={"MYPYPATH": str(ROOT)}).stdout
    errors = re.findall(r"script.py:(\d+): error: .*\[([\w-]+)\]", output)
    lines = [*enumerate(SCRIPT.splitlines(), start=1)]
    expected = [(str(number), line.partition("  # ")[2]) for number, line in lines if " # " in line]
    assert errors == expected, output
    types = re.findall('Revealed type is "(.*)"', output)
    assert len(types) == len(names) and not {"Any"} & {*types}
