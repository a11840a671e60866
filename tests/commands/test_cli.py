import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml

from attention_probe.model.first_layers import load_model
from attention_probe.prompts.prompts_config import PromptsConfig
from harness import Run, cli, resources
from harness.experiment.prompts.tokenizer import load_model_config, load_tokenizer
from tests.conftest import run_program
from tests.display.test_progress import run_in_terminal
from tests.make import (
    CONFIG,
    GREEDY_RUN,
    TOY_DATA,
    TOY_MODEL,
    make_trace,
    module_fixture,
    one_line,
    with_cases,
    write_traces,
)


def refused(process, message):
    """Check that a command printed this message in its last line, and no traceback.

    On a busy machine lines of progress may stand before it.
    """
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    *progress, line = process.stderr.splitlines()
    assert line.startswith("mless: ") and message in line
    assert all(
        re.fullmatch(r"mless: \w+: \d+ of \d+|mless: .* is read with --columns .*", text)
        for text in progress
    )


@pytest.fixture
def dry_run(succeed):
    """The words that a dry run prints, separated by single blanks."""

    def run(*arguments):
        return one_line(succeed("run", *arguments, "--dry-run"))

    return run


@pytest.fixture
def config(tmp_path):
    """The path of a small config."""
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@module_fixture
def parser():
    """The command line as typer parses it."""
    return typer.main.get_command(cli.app)


def test_every_command_is_listed_in_a_group_and_has_an_example_that_can_be_parsed(parser, capsys):
    def read_help(*arguments):
        with pytest.raises(SystemExit):
            parser.main([*arguments, "-h"])
        return capsys.readouterr().out

    help_text = read_help()
    assert "..." not in help_text.partition("\nRun:")[2]
    assert all(f"\n{group}:\n" in help_text for group in cli.COMMANDS)
    examples = {
        module.rpartition(".")[2]: example
        for modules in cli.COMMANDS.values()
        for module, example in modules.items()
    }
    assert examples.keys() == parser.commands.keys()
    for command, example in examples.items():
        assert f"Example: {example}" in one_line(read_help(command))
        program, name, *arguments = shlex.split(example)
        if program == "mless":
            parser.commands[name].make_context(name, arguments, resilient_parsing=False)


def test_the_version_is_printed(command):
    assert command("--version").stdout == f"mless {version('mless')}\n"


LIMITED = ("--set", f"dataset={TOY_DATA}", "--limit", "4")


def test_a_model_runs_without_a_config(command, dry_run, tmp_path):
    output = dry_run("--model", TOY_MODEL, *LIMITED)
    assert "mless chat 55" in output
    assert "requests 28: mless 2 times, wo 2 times, positive control" in output
    data = tmp_path / "own.jsonl"
    data.write_text('{"question": "What is 7 times 8?", "answer": "56"}')
    own_data = ("--model", TOY_MODEL, "--dataset", str(data), "--conditions", "wo, mful")
    output = dry_run(*own_data, "--max-gen-toks", "9")
    assert "requests 5: mful 2 times, wo 2 times" in output and "at most 45 generated" in output


def test_the_layout_follows_from_the_chat_template_or_from_an_option(command, dry_run, tmp_path):
    model = shutil.copytree(TOY_MODEL, tmp_path / "a model")
    (model / "chat_template.jinja").unlink()
    without_template = ("--model", str(model), *LIMITED)
    output = dry_run(*without_template)
    assert "mless raw 55" in output
    assert "raw: no chat template is known; before text outside" in output
    options = ("--no-apply-chat-template", "--num-fewshot", "2")
    output = dry_run("--model", TOY_MODEL, *LIMITED, *options)
    assert "mless raw 55" in output and "Q: " in output
    process = command("run", *without_template, "--dry-run", "--apply-chat-template")
    refused(process, "and the layout `chat` needs one")


def test_a_problem_is_shown(command):
    prompt = next(prompt for prompt in Run.load(GREEDY_RUN).prompts if prompt.condition == "mless")
    process = command("show", GREEDY_RUN, prompt.problem_id, "--condition", "mless")
    words = one_line(process.stdout)
    for text in (
        prompt.prompt,
        prompt.completions[0],
        f"-> completion: {prompt.verdicts[0]}, answer {prompt.graded_samples[0][1].answer}",
        f"answer {prompt.doc['answer']}",
    ):
        assert one_line(text) in words


SLOW = """
import sys, time
from harness.display.progress import report_slow_start
with report_slow_start():
    time.sleep(2.5)
"""


def test_within_two_seconds_a_terminal_shows_that_the_command_works():
    assert run_in_terminal(SLOW).splitlines()[0] == "mless: working"
    process = run_program(sys.executable, "-c", SLOW)
    assert process.stderr == ""  # a log needs no sign of life


def test_a_tilde_is_the_home_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    called = []
    monkeypatch.setattr(cli, "app", called.append)
    words = ["run", "--output=~/runs", "--set", "name=~", "--dataset=~", "--name=~x", "a~/b"]
    monkeypatch.setattr(sys, "argv", ["mless", *words])
    cli.main()
    words[1], words[4] = f"--output={tmp_path}/runs", f"--dataset={tmp_path}"
    assert called == [words]
    (tmp_path / "model").symlink_to(TOY_MODEL)
    assert load_tokenizer("~/model").name_or_path == str(tmp_path / "model")
    assert load_model_config("~/model").num_hidden_layers
    assert load_model("~/model", layer_indices=[0]).name == str(tmp_path / "model")
    assert PromptsConfig(run="~/runs").run == tmp_path / "runs"


NOISY = """
import os, subprocess, sys, warnings
from pathlib import Path
from harness.engines.library_messages import library_log
with library_log(Path(sys.argv[1])):
    os.write(2, b"from a library ")
    subprocess.run(["sh", "-c", "echo from a process >&2"])
    warnings.warn("from Python")
    print("from us", file=sys.stderr)
print("afterwards", file=sys.stderr)
"""


def test_the_output_of_libraries_goes_to_a_separate_file(tmp_path):
    process = run_program(sys.executable, "-c", NOISY, tmp_path / "log")
    assert process.stderr == "from us\nafterwards\n"
    log = (tmp_path / "log").read_text()
    assert all(f"from {name}" in log for name in ("a library", "a process", "Python"))
    assert "us" not in log.split()


@with_cases
def test_a_full_standard_output_is_reported_in_one_line(argument):
    command = [str(Path(sys.executable).with_name("mless")), argument]
    with open("/dev/full", "w") as full:
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    message = "mless: standard output is full: no space left on device. Redirect it elsewhere.\n"
    assert (process.returncode, process.stderr) == (2, message)


@with_cases
def test_the_choices_of_an_option_are_listed_and_another_value_is_refused(
    parser, capsys, monkeypatch, name, option, choices
):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as error:
        parser.main([name, "run", option, "other"])
    output = capsys.readouterr()
    assert (error.value.code, output.out) == (2, "")
    message = output.err.splitlines()[-1]
    assert option in message
    assert message.endswith(f"'other' is not one of {', '.join(map(repr, choices.split()))}.")
    with pytest.raises(SystemExit):
        parser.main([name, "--help"])
    assert choices.replace(" ", "|") in capsys.readouterr().out


def test_a_dry_run_prints_the_plan(succeed, config):
    page = succeed("run", config, "--dry-run", "--limit", "10")
    assert "requests  20" in page and "tokens    " in page
    assert "mless raw 55 23-78 91 " in one_line(page)
    assert page.count("«/ / ... /»") == 1
    # a path cannot be broken, and that of the problems' file may be long
    lines = [line for line in page.splitlines() if TOY_DATA["path"] not in line]
    assert max(map(len, lines)) <= 80


@with_cases
def test_invalid_yaml_is_refused_with_the_reason(tmp_path, command, value, count, reason):
    (tmp_path / "t.yaml").write_text(f"seed: 1\nname: {value * count}\n")
    process = command("run", tmp_path / "t.yaml", "--dry-run")
    refused(process, "t.yaml is not valid YAML: ")
    assert reason in process.stderr


def test_a_used_output_folder_is_refused_before_the_plan_is_made(
    command, monkeypatch, config, tmp_path
):
    monkeypatch.setattr("harness.execution.prepared_run.make_plan", None)
    refused(command("run", config, "--output", tmp_path), "already holds files")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in (resources.folder("configs") / "runs").glob("*.yaml"))
)
def test_every_shipped_config_is_accepted_by_dry_run(name, dry_run, tmp_path):
    tokenizer = f"model.model_args.tokenizer={TOY_MODEL}"
    assert "requests" in dry_run(name, "--limit", "3", "--set", tokenizer, "-o", tmp_path / "new")


@with_cases
def test_traces_that_cannot_be_used_are_refused(command, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_traces(tmp_path / "t.traces", [make_trace(condition=name) for name in ("wo", "mless")])
    refused(command(*shlex.split(arguments.format(run=GREEDY_RUN))), message)
    assert [path.name for path in tmp_path.iterdir()] == ["t.traces"]
