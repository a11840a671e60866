import io
import re

import pytest
from rich.console import Console

from harness import Run, load_run
from harness.analysis.choose_problems import Criterion, select
from harness.display.format_values import MINUS, define_flips, signed
from harness.display.show_problems import print_changes, spell_out
from harness.runs.prompt_sources import Problem
from harness.runs.run_files import read_identity
from tests.make import (
    EXAMPLE,
    answered_prompt,
    compare_rows,
    passing_folder,
    small_run,
    source_of,
    table_page,
)

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
    """The lines above the problems, unwrapped; none of them is wider than a terminal."""
    assert all(len(line) <= 80 for line in result.stdout.split("\n\n")[0].splitlines()[1:])
    return re.sub(r"\n {12}", " ", result.stdout).splitlines()


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


def test_problems_of_both_directions_can_be_selected_by_subject_and_level(show, frame):
    flips = changed_problems(frame, "random", "wrong_to_right")
    flips += changed_problems(frame, "random", "right_to_wrong")
    listed = listed_problems(show("--condition", "random"))
    assert sorted(problem for _, problem in listed) == sorted(flips)
    problems = frame.drop_duplicates("problem_id").set_index("problem_id")
    level, subject = problems.loc[flips[0], ["level", "subject"]]
    selected = problems[(problems["level"] == level) & (problems["subject"] == subject)].index
    expected = sorted(selected.intersection(flips))
    result = show("--condition", "random", "--level", str(level), "--subject", subject)
    assert sorted(problem for _, problem in listed_problems(result)) == expected != []
    counts = f"{len(expected)} of {len(selected)} problems"
    line = f"listed      {counts} (subject {subject}, level {level}), changed"
    assert read_head(result)[4].startswith(line)


def test_table_and_list_count_flips_of_several_samples_alike(show):
    frame = load_run(EXAMPLE, replicates=True)
    first_run = frame[frame["replicate"] == 0]
    row = compare_rows(first_run).loc["mless"]
    count = f"{row['wrong_to_right']:.1f}/{row['right_to_wrong']:.1f}"
    definition = define_flips(3)
    assert "mean over pairs of samples" in definition
    # plain text omits the flips where the names of conditions are long
    table = " ".join(table_page(EXAMPLE, form="markdown").replace("\\", "").split())
    assert count in table and f"+/-: flips, {definition}" in table
    contrasts = [" - ".join(contrast) for contrast in read_identity(EXAMPLE).contrasts]
    mless = compare_rows(frame, primary="mless - wo", contrasts=contrasts).loc["mless"]
    head = read_head(show(path=EXAMPLE))
    difference = signed(mless["difference"]).replace(MINUS, "-")
    assert head[1].startswith(f"difference  {difference} [{mless['low']:+.1f}, ")
    assert head[2] == f"flips       {count}: {definition}"
    assert mless["aa_difference"] == 0, "greedy, and each draw has its own answers"
    assert head[3] == (
        "A/A         both conditions were run again: 0 of 480 completions differ, "
        "and the difference changes by 0.0 points"
    )
    correct = first_run.pivot(index=["problem_id", "draw"], columns="condition", values="correct")
    flips = f"{(correct['wo'] != correct['mless']).sum()} of {len(correct)} problems by draw"
    assert head[4] == f"listed      {flips}, changed, compared by the share of correct samples"


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


def print_source(source, *, limit=None, encoding="utf-8", terminal=False):
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding=encoding, newline="\n")
    console = Console(
        file=stream, width=80, force_terminal=terminal, markup=False, emoji=False, highlight=False
    )
    criterion = Criterion(flip="changed")
    print_changes(console, select(source, criterion), criterion, limit=limit)
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


def test_of_a_long_completion_the_beginning_and_the_end_are_printed():
    text = "begin " + "x" * 5000 + r" \boxed{7}"
    source = make_source(IMPROVED, completions=(text,))
    shortened = print_source(source, limit=1000)
    assert re.search(r"begin\s+x", shortened) and r"\boxed{7}" in shortened
    assert f"[{len(text) - 1000:,} characters left out]" in shortened
    assert re.sub(r"\s", "", print_source(source)).count("x" * 5000) == 2


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
