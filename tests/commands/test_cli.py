import os
import pty
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml

from harness import resources
from harness.runs.read_runs import Run
from tests.experiment.test_refusals import MINIMAL
from tests.make import GREEDY_RUN, TOY_DATA, TOY_MODEL, make_trace, write_traces


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "t.yaml"
        path.write_text(
            yaml.safe_dump({**MINIMAL, "dataset": TOY_DATA, "layouts": ["raw"], **changes})
        )
        return str(path)

    return write


def here(capsys, monkeypatch, *arguments):
    """The command in this process: what it prints and its exit code, without ten seconds of imports each time."""
    from harness import cli

    monkeypatch.setattr(sys, "argv", ["mless", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    return subprocess.CompletedProcess(arguments, ended.value.code or 0, printed.out, printed.err)


def refused(done, message):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("mless: ") and message in line


def test_every_command_stands_in_a_group_with_an_example_of_itself(built, capsys):
    from harness.cli import COMMANDS

    with pytest.raises(SystemExit):
        built.main(["-h"])
    listed = capsys.readouterr().out
    assert (
        all(f"\n{command.group}:\n" in listed for command in COMMANDS)
        and "..." not in listed.partition("\nRun:")[2]
    )
    examples = {command.name: command.example for command in COMMANDS}
    assert set(examples) == set(built.commands)
    for name, example in examples.items():
        with pytest.raises(SystemExit):
            built.main([name, "--help"])
        assert f"Example: {example}" in " ".join(capsys.readouterr().out.split())
        if example.startswith("mless "):
            _, command, *arguments = shlex.split(example)
            built.commands[command].make_context(command, arguments, resilient_parsing=False)


def test_the_version_is_printed(capsys, monkeypatch):
    assert here(capsys, monkeypatch, "--version").stdout == f"mless {version('mless')}\n"


def test_a_model_runs_without_a_config_of_its_own(capsys, monkeypatch, tmp_path):
    ask = ("--set", f"dataset={TOY_DATA}", "--limit", "4", "--dry-run")
    done = here(capsys, monkeypatch, "run", "--model", TOY_MODEL, *ask)
    assert done.returncode == 0 and "mless chat 55" in " ".join(done.stdout.split())
    assert "requests  28: mless 2 times, wo 2 times, 1 positive control" in done.stdout
    (tmp_path / "own.jsonl").write_text('{"question": "What is 7 times 8?", "answer": "56"}')
    own = (
        "--dataset",
        str(tmp_path / "own.jsonl"),
        "--conditions",
        "wo, mful",
        "--max-gen-toks",
        "9",
        "--dry-run",
    )
    done = here(capsys, monkeypatch, "run", "--model", TOY_MODEL, *own)
    assert (
        "requests  5: mful 2 times, wo 2 times" in done.stdout
        and "at most 45 generated" in done.stdout
    ), done.stderr
    refused(
        here(capsys, monkeypatch, "run", "--model", TOY_MODEL, *own, "--repeats", "2"),
        "repeats is 2",
    )
    shutil.copytree(TOY_MODEL, tmp_path / "a model")
    (tmp_path / "a model" / "chat_template.jinja").unlink()
    base = ("run", "--model", str(tmp_path / "a model"), *ask)
    bare = here(capsys, monkeypatch, *base)
    assert bare.returncode == 0 and "mless raw 55" in " ".join(bare.stdout.split())
    forced = here(
        capsys,
        monkeypatch,
        *base[:2],
        TOY_MODEL,
        *ask,
        "--no-apply-chat-template",
        "--num-fewshot",
        "2",
    )
    assert forced.returncode == 0 and "mless raw 55" in " ".join(forced.stdout.split()), (
        forced.stderr
    )
    assert "\nQ: " in forced.stdout
    refused(
        here(capsys, monkeypatch, *base, "--apply-chat-template"), "and the layout `chat` needs one"
    )
    refused(
        here(capsys, monkeypatch, "run"), "Expected a run config or --model ORG/NAME, got neither"
    )
    refused(
        here(capsys, monkeypatch, "run", "x.yaml", "--model", TOY_MODEL),
        "got both. Give one of the two.",
    )
    refused(
        here(capsys, monkeypatch, "run", "--model", "./nowhere", *ask),
        "Model folder ./nowhere does not exist",
    )


def test_a_run_and_its_problems_are_shown(capsys, monkeypatch):
    run = str(GREEDY_RUN)
    done = here(capsys, monkeypatch, "show", run)
    assert done.returncode == 0 and "500 problems, raw: wo, mless, mful, random" in done.stdout
    right = int(Run.load(GREEDY_RUN).samples["correct"].sum())
    said = " ".join(done.stdout.split())
    assert f"correct {right:,} {right / 2000:.1%}" in said and f"mless show {run} --changed" in said
    assert max(map(len, done.stdout.split("\n\n")[0].splitlines())) <= 80
    problem = Run.load(GREEDY_RUN).prompts[0]
    done = here(capsys, monkeypatch, "show", run, problem.problem_id, "--condition", "mless")
    shown = " ".join(done.stdout.split())
    mine = next(
        one
        for one in Run.load(GREEDY_RUN).prompts
        if (one.problem_id, one.condition) == (problem.problem_id, "mless")
    )
    assert " ".join(mine.prompt.split()) in shown and " ".join(mine.completions[0].split()) in shown
    assert (
        f"-> completion: {mine.verdicts[0]}, answer {mine.answers[0]}" in shown
        and f"answer {mine.doc['answer']}" in shown
    )
    refused(here(capsys, monkeypatch, "show", run, "nope"), "has no nope: expected one of ")
    other = here(capsys, monkeypatch, "show", run, problem.problem_id, "--condition", "x")
    refused(other, "expected one of wo (raw), mless (raw)")


SLOW = """
import sys, time
from harness.display.progress import sign_of_life
with sign_of_life():
    time.sleep(2.5)
"""


def test_a_terminal_hears_within_two_seconds_that_something_is_done():
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", SLOW], stderr=theirs, check=True)
    os.close(theirs)
    with open(ours, encoding="utf-8") as terminal:
        assert terminal.readline() == "mless: working\n"
    silent = subprocess.run(
        [sys.executable, "-c", SLOW], capture_output=True, text=True, check=True
    )
    assert silent.stderr == "", "a log needs none"


NOISY = """
import os, subprocess, sys, warnings
from pathlib import Path
from harness.execution.generate_samples import library_log
with library_log(Path(sys.argv[1])):
    os.write(2, b"from a library ")
    subprocess.run(["sh", "-c", "echo from a process >&2"])
    warnings.warn("from Python")
    print("from us", file=sys.stderr)
print("afterwards", file=sys.stderr)
"""


def test_what_libraries_say_goes_to_a_file_of_its_own(tmp_path):
    command = [sys.executable, "-c", NOISY, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "from us\nafterwards\n"
    said = (tmp_path / "log").read_text()
    assert (
        all(f"from {who}" in said for who in ("a library", "a process", "Python"))
        and "us" not in said.split()
    )


@pytest.mark.parametrize("arguments", [["tasks"], ["--help"]])
def test_a_full_standard_output_is_told_in_one_line(arguments):
    command = [str(Path(sys.executable).with_name("mless")), *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "mless: standard output is full: no space left on device. Redirect it elsewhere.\n"
    )


FIXED = {
    ("table", "--format"): "text markdown csv latex json",
    ("table", "--by"): "subject level",
    ("plot", "--kind"): "accuracy forest completion-lengths dose instructions causes",
    ("probe", "--flip"): "wrong_to_right right_to_wrong both_right both_wrong changed",
    ("probe", "--queries"): "prompt completion",
    ("probe", "--dtype"): "float32 bfloat16 float16",
    ("heads", "--format"): "text csv json",
    ("show", "--direction"): "wrong_to_right right_to_wrong both_right both_wrong changed",
    ("report", "--definition"): "common published",
}


@pytest.fixture(scope="module")
def built():
    from harness import cli

    return typer.main.get_command(cli.app)


@pytest.mark.parametrize(("command", "option"), FIXED)
def test_a_value_out_of_a_fixed_set_is_listed_and_another_refused(
    built, capsys, monkeypatch, command, option
):
    monkeypatch.setenv("COLUMNS", "200")
    values = FIXED[command, option].split()
    with pytest.raises(SystemExit) as ended:
        built.main([command, "run", option, "other"])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    said = printed.err.splitlines()[-1]
    assert option in said and said.endswith(
        f"'other' is not one of {', '.join(map(repr, values))}."
    )
    with pytest.raises(SystemExit):
        built.main([command, "--help"])
    assert "|".join(values) in capsys.readouterr().out


def test_tasks_prints_the_include_path(mless):
    assert mless("tasks").stdout.strip() == str(resources.folder("tasks"))


def test_dry_run_prints_the_plan_without_loading_a_model(capsys, monkeypatch, config):
    done = here(capsys, monkeypatch, "run", config(), "--dry-run", "--limit", "10")
    assert done.returncode == 0
    assert "requests  20" in done.stdout and "tokens    " in done.stdout
    assert "mless raw 55 + 3 23-78" in " ".join(done.stdout.split())
    assert done.stdout.count("«/ / ... /»") == 1
    # a path cannot be broken, and that of the problems' file may be long
    lines = [line for line in done.stdout.splitlines() if TOY_DATA["path"] not in line]
    assert max(map(len, lines)) <= 80


BASE = {"model": {"backend": "hf", "model_args": {"pretrained": TOY_MODEL}}}


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"colour": 1}, [], "unknown key 'colour'"),
        ({"conditions": ["wo", "mles"]}, [], "got 'mles'"),
        (
            {"conditions": [{"name": "x", "unit": "qxzvkj"}]},
            [],
            "the tokenizer splits the unit 'qxzvkj'",
        ),
        ({"conditions": ["wo", {"name": "x", "sentence": 9999}]}, [], "condition 'x': sentence: "),
        ({"dataset": {"path": "nowhere.jsonl"}}, [], "Data file nowhere.jsonl: No such file"),
        (
            {},
            ["--set", "model.model_args.pretrained=./nowhere"],
            "Model folder ./nowhere does not exist",
        ),
        (
            {},
            ["--set", "model.model_args.pretrained=some/model"],
            "The hub could not be reached for some/model",
        ),
        ({}, ["--set", "model.model_args.max_model_len=256"], "exceed the context length of 256"),
        (
            {},
            ["--set", "model.model_args.max_model_len=4k"],
            "expected a whole number above 0, got '4k'.",
        ),
        ({}, ["--set", "model.model_args.data_parallel_size=0"], "data_parallel_size is '0'"),
        ({}, ["--engines", "two"], "--engines is 'two'"),
        (BASE, ["--engines", "2"], "--engines is 2, and model.backend is 'hf'"),
        (
            {"layouts": ["raw"]},
            ["--set", "model.model_args.enable_thinking=true"],
            "reads no switch 'enable_thinking'",
        ),
        ({}, ["--set", "model.backend=vlm"], "no model.backend 'vlm'"),
        ({}, ["--set", "repeats=3"], "repeats is 3, and the sampling is greedy"),
        (
            {},
            ["--set", "gen_kwargs={temperature: .inf}"],
            "gen_kwargs.temperature: Input should be a finite number",
        ),
        ({}, ["-o", "/dev/null"], "/dev/null cannot be used: Not a directory"),
    ],
    ids=str,
)
def test_what_would_fail_in_a_run_is_refused_by_its_dry_run(
    config, changes, arguments, message, capsys, monkeypatch
):
    refused(
        here(
            capsys, monkeypatch, "run", config(**changes), *arguments, "--limit", "2", "--dry-run"
        ),
        message,
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2024-13-45", "month must be in 1..12"),
        ("!!bool maybe", "'maybe'"),
        ("[" * 3000, "recursion"),
    ],
    ids=lambda one: one[:12],
)
def test_yaml_without_a_value_is_refused_with_its_place(tmp_path, capsys, monkeypatch, name, why):
    (tmp_path / "t.yaml").write_text(f"seed: 1\nname: {name}\n")
    done = here(capsys, monkeypatch, "run", str(tmp_path / "t.yaml"), "--dry-run")
    refused(done, "t.yaml is not valid YAML: ")
    assert why in done.stderr


def test_a_used_output_folder_is_refused_before_the_plan_is_built(
    capsys, monkeypatch, config, tmp_path
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    monkeypatch.setattr("harness.experiment.plan.make_plan", None)
    refused(
        here(capsys, monkeypatch, "run", config(), "--output", str(tmp_path / "full")),
        "already holds files",
    )


def test_an_error_that_quotes_control_characters_is_one_line_of_plain_ones(capsys, monkeypatch):
    done = here(capsys, monkeypatch, "table", "no\x1b[2Jsuch\nfol\u202eder\x9b")
    refused(done, "no<U+001B>[2Jsuch fol<U+202E>der<U+009B> has no finished run: expected run.json")
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    "name", sorted(p.name for p in (resources.folder("configs") / "runs").glob("*.yaml"))
)
def test_every_shipped_config_is_accepted_by_dry_run(name, capsys, monkeypatch):
    arguments = (
        "run",
        name,
        "--dry-run",
        "--limit",
        "3",
        "--set",
        f"model.model_args.tokenizer={TOY_MODEL}",
    )
    done = here(capsys, monkeypatch, *arguments)
    assert done.returncode == 0 and "requests" in done.stdout


def test_fetch_names_what_is_out_of_reach(mless, config):
    done = mless("fetch", config())
    assert done.returncode == 0
    assert "is a folder: nothing to fetch" in done.stdout and "500 problems" in done.stdout
    refused_line = mless("fetch", config(), "--set", "model.model_args.pretrained=some/model")
    assert refused_line.returncode == 2
    assert "The hub could not be reached for some/model" in refused_line.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("report", str(GREEDY_RUN), "--traces", "t.traces", "--head", "1", "--head", "1"),
            "t.traces: traces of the model tiny",
        ),
        (
            ("report", str(GREEDY_RUN), "--traces", "t.traces", "--head", "9"),
            "Head 9 is not in these traces: counted from 1",
        ),
        (
            ("heads", "t.traces", "--condition", ""),
            "Expected a contrast of different conditions, got none against",
        ),
    ],
    ids=lambda one: " ".join(one[-2:]) if isinstance(one, tuple) else "",
)
def test_what_cannot_be_used_is_one_line(capsys, monkeypatch, config, tmp_path, arguments, said):
    config()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    write_traces(tmp_path / "t.traces", [make_trace(condition=name) for name in ("wo", "mless")])
    refused(here(capsys, monkeypatch, *arguments), said)
    assert (tmp_path / "file").read_text() == "mine"
