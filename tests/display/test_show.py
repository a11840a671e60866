import io
import re

import pytest
from rich.console import Console

from harness import Run, load_run
from harness.analysis.choose_problems import Criterion, select
from harness.display.show_problems import print_changes, spell_out
from harness.runs.prompt_sources import Problem
from tests.make import EXAMPLE, answered_prompt, passing_folder, small_run, source_of

RUN = small_run(passing_folder() / "run", 125)
"""It is small, because almost every test here reads it."""
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link "
    "[bold red]markup[/] [/] :smile: \rover \x08\x7f\x9b2J "
    "\u202eright to left\u2066 \u200bzero tab\there \N{GREEK SMALL LETTER PI}"
)


@pytest.fixture(scope="module")
def frame():
    return load_run(RUN)


@pytest.fixture
def show(command, monkeypatch):
    def run(*arguments, path=RUN):
        monkeypatch.setenv("COLUMNS", "80")
        return command("show", path, "--changed", *arguments)

    return run


def changed_problems(frame, condition, direction):
    """The problems whose verdict changed in this direction, in the prompts' order."""
    correct = frame.pivot(index="problem_id", columns="condition", values="correct")
    correct = correct.loc[frame["problem_id"].unique()]
    is_changed = (correct["wo"] != correct[condition]) & (
        correct[condition] == (direction == "wrong_to_right")
    )
    return list(correct.index[is_changed])


def listed_problems(result):
    """The direction and the id of each problem in the output, in its order."""
    return re.findall(r"^((?:right|wrong) to (?:right|wrong))  (\S+)", result.stdout, re.MULTILINE)


def read_head(result):
    """The lines above the problems in one line; none of them is wider than a terminal."""
    head = result.stdout.split("\n\n")[0]
    # the path of the run may be wider
    lines = head.replace(str(EXAMPLE), "").replace(str(RUN), "").splitlines()
    assert all(len(line) <= 80 for line in lines)
    return " ".join(head.split())


@pytest.mark.parametrize("condition", ["mless", "mful", "random"])
@pytest.mark.parametrize("direction", ["wrong_to_right", "right_to_wrong"])
def test_exactly_the_problems_whose_verdict_changed_are_listed_with_both_answers(
    show, frame, condition, direction
):
    result = show("--condition", condition, "--direction", direction)
    problem_ids = changed_problems(frame, condition, direction)
    outcome = direction.replace("_", " ")
    assert listed_problems(result) == [(outcome, problem) for problem in problem_ids]
    pairs = frame[
        frame["problem_id"].isin(problem_ids) & frame["condition"].isin(["wo", condition])
    ]
    for row in pairs.to_dict("records"):
        assert f"-> completion: {row['verdict']}, answer {row['answer']}" in result.stdout
        assert re.sub(r"\s", "", row["completion"]) in re.sub(r"\s", "", result.stdout)


def test_problems_of_both_directions_are_listed_and_counted(show, frame):
    flips = changed_problems(frame, "random", "wrong_to_right")
    flips += changed_problems(frame, "random", "right_to_wrong")
    result = show("--condition", "random")
    assert sorted(problem for _, problem in listed_problems(result)) == sorted(flips) != []
    counts = f"{len(flips)} of {frame['problem_id'].nunique()} problems"
    assert f"random - wo: {counts}, changed " in read_head(result)


def test_with_several_draws_of_examples_a_problem_is_listed_for_each(show):
    frame = load_run(EXAMPLE)
    correct = frame.pivot(index=["problem_id", "draw"], columns="condition", values="correct")
    flips = f"{(correct['wo'] != correct['mless']).sum()} of {len(correct)} problems by draw"
    head = read_head(show(path=EXAMPLE))
    assert head.startswith(f"{EXAMPLE}, raw, mless - wo: {flips}, changed A problem can change by")


def make_source(verdicts, *, completions=(), answers=()):
    """A source of one problem with several samples. A sample's answer is its number by default."""
    prompts = {}
    for condition, sample_verdicts in verdicts.items():
        numbers = range(len(sample_verdicts))
        prompts[condition] = answered_prompt(
            condition,
            sample_verdicts,
            completions=completions or [f"{condition} wrote {number}" for number in numbers],
            answers=answers or list(map(str, numbers)),
            doc={"answer": "7"},
        )
    return source_of(Problem(id="p", subject="Algebra", level=1, prompts=prompts))


def print_source(source, *, encoding="utf-8", terminal=False):
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding=encoding, newline="\n")
    console = Console(
        file=stream, width=80, force_terminal=terminal, markup=False, emoji=False, highlight=False
    )
    criterion = Criterion(flip="changed")
    print_changes(console, select(source, criterion), criterion)
    stream.flush()
    return output.getvalue().decode(encoding)


IMPROVED = {"wo": ("incorrect",), "mless": ("correct",)}


def test_a_terminal_executes_nothing_that_a_model_wrote():
    """All colours are ours, and letters that the terminal lacks are spelt out."""
    source = make_source(IMPROVED, completions=(HOSTILE,), answers=(HOSTILE,))
    plain, coloured = print_source(source), print_source(source, terminal=True)
    assert "\x1b[" in coloured, "without colours this test shows nothing"
    for text in (plain, re.sub(r"\x1b\[[\d;]*m", "", coloured)):
        assert {character for character in text if not character.isprintable()} == {"\n"}
    without_blanks = re.sub(r"\s+", "", plain)
    for text in (
        "<U+001B>[31mred<U+001B>[0m",
        "<U+001B>]0;title<U+0007>",
        "[boldred]markup[/][/]:smile:",
        "<U+000D>over<U+0008><U+007F><U+009B>2J<U+202E>",
        "\N{GREEK SMALL LETTER PI}",
    ):
        assert without_blanks.count(text) == 4, text
    assert print_source(source, encoding="ascii").count("\\u03c0") == 4
    assert spell_out("a\nb\tc\r\n[red]") == "a\nb    c<U+000D>\n[red]"


def test_the_printed_sample_has_the_outcome_of_the_problem():
    samples = {
        "wo": ("correct", "incorrect", "incorrect"),
        "mless": ("incorrect", "correct", "correct"),
    }
    improved = print_source(make_source(samples))
    assert improved.startswith("\nwrong to right  p  level 0    gold answer 7")
    assert "w/o\n-> completion 2 of 3: incorrect, answer 1" in improved
    assert "mless wrote 1" in improved
    samples = {"wo": ("incorrect", "correct"), "mless": ("incorrect", "incorrect")}
    worsened = print_source(make_source(samples))
    assert "w/o\n-> completion 2 of 2: correct, answer 1" in worsened
    assert "w/ Mless\n-> completion 1 of 2: incorrect, answer 0" in worsened


def test_the_repeat_run_of_the_baseline_is_not_read():
    prompts = [prompt for prompt in Run.load(EXAMPLE).prompts if prompt.condition == "wo"]
    # a sample of each draw, and none of the repeat run
    assert {len(prompt.verdicts) for prompt in prompts} == {1}
