"""The complete study with four tiny models of its architectures, killed in each of its stages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from harness.errors import ConfigError
from harness.execution import run_study
from harness.execution.run_study import FIGURES, _steps
from tests.conftest import gpu_share_options
from tests.make import TOY_MODEL, write_records
from tests.tiny_models import build_language_model

PROBLEMS = 40
OPTIONS = [
    f"--limit={PROBLEMS}",
    "--set=max_gen_toks=48",
    "--set=layouts=[raw]",
    "--set=replicates=1",
    "--set=model.model_args.dtype=float32",
    "--set=gen_kwargs.temperature=2",
]
"""At this temperature the trained model solves half of the problems, and some of them flip."""
MOMENTS = ("model 2 of 5", "trained: attention", "trained: figure llama-heads-20-25-26")
"""Announcements after which the study is killed. Only problems of the trained model flip."""


RUN_PROMPTS = 'prompts={"run": "a: b", "layout": null}'


@pytest.fixture
def models(tmp_path):
    """Folders of random models, of a trained Qwen2, and of none."""
    names = {"qwen": "qwen2", "llama": "llama", "gemma": "gemma3_text"}
    tokenizer = AutoTokenizer.from_pretrained(TOY_MODEL)
    for seed, (name, kind) in enumerate(names.items()):
        build_language_model(kind, seed).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "trained").symlink_to(TOY_MODEL)
    return [str(tmp_path / name) for name in (*names, "missing", "trained")]


def start(models, folder):
    options = [*OPTIONS, *gpu_share_options(), "--output", str(folder)]
    return subprocess.Popen(
        [str(Path(sys.executable).with_name("mless")), "study", *models, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.engine
@pytest.mark.slow
def test_the_study_continues_after_a_kill_in_each_stage_and_without_a_model_that_fails(
    models, tmp_path
):
    folder = tmp_path / "study"
    for moment in MOMENTS:
        study = start(models, folder)
        assert any(moment in line for line in study.stderr), moment
        os.killpg(study.pid, signal.SIGKILL)
        study.communicate()
    receipt = folder / "qwen/run.json"
    written_at = receipt.stat().st_mtime_ns
    study = start(models, folder)
    page, messages = study.communicate()
    assert study.returncode == 0, messages[-3000:]
    assert receipt.stat().st_mtime_ns == written_at, "a finished run is not repeated"
    assert (folder / "table.txt").read_text() == page
    finished = [Path(model).name for model in models if not model.endswith("missing")]
    assert all(name in page for name in finished)
    assert "missing: run: Model folder " in page.partition("Not completed:")[2]
    assert "qwen: attention: " in page, "no problem of a random model flips"
    for name in finished:
        for figure in FIGURES:
            assert (folder / name / "figures" / f"{figure}.png").exists()
        assert (folder / name / "report.html").exists()
    assert f"of {PROBLEMS} problems, changed" in (folder / "trained/flipped.txt").read_text()
    assert [*(folder / "trained/flipped.traces").glob("*.safetensors")]


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ([], []),
        (["model.model_args.dtype=float32", "max_gen_toks=9"], []),
        (["dataset={make: sums}"], [RUN_PROMPTS]),
        (["model.model_args.revision=old"], [RUN_PROMPTS]),
        (["model.model_args.hf_overrides={rope_theta: 9}"], [RUN_PROMPTS]),
        (["instruction=Answer.", "layouts=[raw]"], [RUN_PROMPTS.replace("null", '"raw"')]),
    ],
)
def test_figures_have_the_prompts_of_the_run_unless_it_is_of_the_study(overrides, options):
    steps = dict(_steps("people/model", Path("a: b"), overrides, None, "1"))
    for name in FIGURES:
        arguments = steps[f"figure {name}"]
        assert [text for text in arguments if text.startswith("prompts=")] == options
        assert ("seed_document=null" in arguments) == bool(options)


def test_figures_average_all_problems_of_a_small_file(tmp_path, monkeypatch):
    rows = [{"problem": f"{number}+1?", "answer": number + 1} for number in range(6)]
    write_records(tmp_path / "six.jsonl", rows)
    monkeypatch.setenv("MATH500_PATH", str(tmp_path / "six.jsonl"))
    steps = dict(_steps("people/model", Path("a"), [], None, "1"))
    assert "prompts.n=6" in steps[f"figure {FIGURES[0]}"]


def test_layers_are_those_of_the_config_that_the_overrides_load(tmp_path):
    (tmp_path / "own.py").write_text(
        "from transformers import PretrainedConfig\n"
        "class Own(PretrainedConfig):\n    model_type, num_hidden_layers = 'own', 2\n"
    )
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "own.Own"}}')
    overrides = ["model.model_args.trust_remote_code=true"]
    with pytest.raises(ConfigError, match=r"--layers 3: .* has 2 layers\."):
        run_study.run_study([str(tmp_path)], tmp_path, overrides=overrides, limit=None, layers="3")


COMMAND = """#!{python}
import os, pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("stopped").touch()
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
print("started", file=sys.stderr, flush=True)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(100)
"""


@pytest.mark.usefixtures("interruptible")
def test_a_command_ends_with_its_caller_that_alone_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "python"
    program.write_text(COMMAND.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(run_study.sys, "executable", str(program))
    monkeypatch.setattr(run_study, "INTERRUPTION_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        run_study.call_command([])
    assert (tmp_path / "stopped").exists()


def test_a_study_in_which_no_model_loads_names_every_reason(mless, tmp_path):
    process = mless("study", "./one", "./two", "--limit=1", "-o", str(tmp_path))
    assert process.returncode == 2
    for name in ("one", "two"):
        assert f"./{name}: run: Model folder ./{name} does not exist" in process.stderr
    assert "no model has a finished run" in process.stderr
