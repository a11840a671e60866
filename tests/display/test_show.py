import io
import re

import pytest
from rich.console import Console

from harness import Run, load_run
from harness.analysis import compare
from harness.analysis.choose_problems import Criterion, select
from harness.analysis.result_tables import records
from harness.display.format_values import MINUS, define_flips, signed
from harness.display.show_problems import print_changes, spell_out
from harness.runs.prompt_sources import Problem
from harness.runs.run_files import read_identity
from tests.commands.test_cli import here, refused
from tests.make import EXAMPLE, answered_prompt, passing_folder, small_run, source_of, table_page

RUN = small_run(passing_folder() / "run", 125)
"""Read by almost every test here, so it is small."""
FLIPS = {"wrong_to_right": (False, True), "right_to_wrong": (True, False)}
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link [bold red]markup[/] [/] :smile: "
    "\rover \x08\x7f\x9b2J \u202eright to left\u2066 \u200bzero tab\there \N{GREEK SMALL LETTER PI}"
)


@pytest.fixture(scope="module")
def frame():
    frame = load_run(RUN)
    return frame[(frame["replicate"] == 0) & (frame["sample_index"] == 0)]


@pytest.fixture
def show(capsys, monkeypatch):
    def run(*arguments, columns=80, path=RUN):
        monkeypatch.setenv("COLUMNS", str(columns))
        return here(capsys, monkeypatch, "show", str(path), "--changed", *arguments)

    return run


def changed(frame, to, direction):
    """Problems whose verdict changed in this direction, in the prompts' order."""
    right = {
        name: frame[frame["condition"] == name].set_index("problem_id")["correct"]
        for name in ("wo", to)
    }
    return [
        problem
        for problem in right["wo"].index
        if (right["wo"][problem], right[to][problem]) == FLIPS[direction]
    ]


def listed(result):
    """The outcome and the id of each problem that is printed, in their order."""
    return re.findall(r"^((?:right|wrong) to (?:right|wrong))  (\S+)", result.stdout, re.MULTILINE)


def head_of(result):
    """The unwrapped lines above the problems; none of them was wider than a terminal."""
    assert all(len(line) <= 80 for line in result.stdout.split("\n\n")[0].splitlines()[1:])
    return re.sub(r"\n {12}", " ", result.stdout).splitlines()


@pytest.mark.parametrize("to", ["mless", "mful", "random"])
@pytest.mark.parametrize("direction", FLIPS)
def test_it_lists_exactly_the_problems_whose_verdict_changed_with_both_answers(
    show, frame, to, direction
):
    result = show("--condition", to, "--direction", direction)
    ids = changed(frame, to, direction)
    assert listed(result) == [(direction.replace("_", " "), problem) for problem in ids]
    rows = frame.set_index(["problem_id", "condition"])
    for problem in ids:
        for condition in ("wo", to):
            row = rows.loc[(problem, condition)]
            assert f"-> completion: {row['verdict']}, answer {row['answer']}" in result.stdout
            assert re.sub(r"\s", "", row["completion"]) in re.sub(r"\s", "", result.stdout)


def test_both_directions_subject_and_level(show, frame):
    flipped = [*changed(frame, "random", "wrong_to_right")]
    flipped += changed(frame, "random", "right_to_wrong")
    assert sorted(problem for _, problem in listed(show("--condition", "random"))) == sorted(
        flipped
    )
    problems = frame.drop_duplicates("problem_id").set_index("problem_id")
    level, subject = int(problems["level"][flipped[0]]), problems["subject"][flipped[0]]
    selected = problems[(problems["level"] == level) & (problems["subject"] == subject)].index
    expected = sorted(selected.intersection(flipped))
    result = show("--condition", "random", "--level", str(level), "--subject", subject)
    assert expected and sorted(problem for _, problem in listed(result)) == expected
    counts = f"{len(expected)} of {len(selected)} problems"
    line = f"listed      {counts} (subject {subject}, level {level}), changed"
    assert head_of(result)[4].startswith(line)


def test_of_several_samples_there_is_one_count_of_flips_in_table_and_list(show):
    frame = load_run(EXAMPLE, replicates=True)
    first = frame[frame["replicate"] == 0]
    row = next(row for row in records(compare(first)) if row["condition"] == "mless")
    count, defined = f"{row['wrong_to_right']:.1f} / {row['right_to_wrong']:.1f}", define_flips(3)
    assert "mean over pairs of samples" in defined
    table = " ".join(table_page(EXAMPLE).split())
    assert count in table and f"+ / -: flips, {defined}" in table
    contrasts = [" - ".join(contrast) for contrast in read_identity(EXAMPLE).contrasts]
    comparison = compare(frame, primary="mless - wo", contrasts=contrasts).set_index("condition")
    mless = comparison.loc["mless"]
    head = head_of(show(path=EXAMPLE))
    assert head[1].startswith(
        f"difference  {signed(mless['difference'])} [{mless['low']:+.1f}, ".replace(MINUS, "-")
    )
    assert head[2] == f"flips       {count}: {defined}"
    assert mless["aa_difference"] == 0, "greedy, and each draw's answers are its own"
    assert head[3] == (
        "A/A         both conditions were run again: 0 of 480 completions differ, "
        "and the difference changes by 0.0 points"
    )
    right = first.pivot(index=["problem_id", "draw"], columns="condition", values="correct")
    moved = f"{(right['wo'] != right['mless']).sum()} of {len(right)} problems by draw"
    assert head[4] == f"listed      {moved}, changed, compared by the share of correct samples"


def made(verdicts, *, completions=None, answers=None):
    """A source of one problem with several samples; a sample's answer is its number, unless answers are given."""
    prompts = {}
    for condition, sample_verdicts in verdicts.items():
        numbers = range(len(sample_verdicts))
        prompts[condition] = answered_prompt(
            condition,
            sample_verdicts,
            completions=completions or tuple(f"{condition} wrote {n}" for n in numbers),
            answers=answers or tuple(map(str, numbers)),
            doc={"answer": "7"},
        )
    return source_of(Problem(id="p", subject="Algebra", level=1, prompts=prompts))


def printed(source, *, limit=None, encoding="utf-8", terminal=False):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = Console(
        file=stream, width=80, force_terminal=terminal, markup=False, emoji=False, highlight=False
    )
    criterion = Criterion(flip="changed")
    print_changes(console, select(source, criterion), criterion, limit=limit)
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_a_terminal_obeys_nothing_that_a_model_wrote():
    """Its colours are ours alone, and letters that it lacks are spelt out."""
    verdicts = {"wo": ("incorrect",), "mless": ("correct",)}
    source = made(verdicts, completions=(HOSTILE,), answers=(HOSTILE,))
    plain, coloured = printed(source), printed(source, terminal=True)
    assert "\x1b[" in coloured, "or this test shows nothing"
    for text in (plain, re.sub(r"\x1b\[[\d;]*m", "", coloured)):
        assert {char for char in text if not char.isprintable()} == {"\n"}
    flat = re.sub(r"\s+", "", plain)
    for piece in (
        "<U+001B>[31mred<U+001B>[0m",
        "<U+001B>]0;title<U+0007>",
        "[boldred]markup[/][/]:smile:",
        "<U+000D>over<U+0008><U+007F><U+009B>2J<U+202E>",
        "\N{GREEK SMALL LETTER PI}",
    ):
        assert flat.count(piece) == 4, piece
    assert printed(source, encoding="ascii").count("\\u03c0") == 4
    assert spell_out("a\nb\tc\r\n[red]") == "a\nb    c<U+000D>\n[red]"


def test_a_long_completion_is_shown_by_its_beginning_and_its_end():
    text = "begin " + "x" * 5000 + r" \boxed{7}"
    source = made({"wo": ("incorrect",), "mless": ("correct",)}, completions=(text,))
    short = printed(source, limit=1000)
    assert re.search(r"begin\s+x", short) and r"\boxed{7}" in short
    assert f"[{len(text) - 1000:,} characters left out]" in short
    assert re.sub(r"\s", "", printed(source)).count("x" * 5000) == 2


def test_of_several_samples_one_is_shown_that_did_what_the_outcome_says():
    up = printed(
        made(
            {
                "wo": ("correct", "incorrect", "incorrect"),
                "mless": ("incorrect", "correct", "correct"),
            }
        )
    )
    assert up.startswith("\nwrong to right  p  level 0    gold answer 7")
    assert "w/o\n-> completion 2 of 3: incorrect, answer 1" in up and "mless wrote 1" in up
    down = printed(made({"wo": ("incorrect", "correct"), "mless": ("incorrect", "incorrect")}))
    assert "w/o\n-> completion 2 of 2: correct, answer 1" in down
    assert "w/ Mless\n-> completion 1 of 2: incorrect, answer 0" in down


@pytest.mark.parametrize(
    ("option", "value", "run"),
    [
        ("--condition", "nope", RUN),
        ("--condition", "wo", RUN),
        ("--condition", "no-examples", EXAMPLE),  # the positive control is no condition
        ("--subject", "Botany", RUN),
        ("--layout", "chat", RUN),
    ],
)
def test_what_is_not_there_is_refused(show, option, value, run):
    refused(show(option, value, path=run), value)


def test_a_second_run_of_the_baseline_does_not_change_what_is_read():
    prompts = [prompt for prompt in Run.load(EXAMPLE).prompts if prompt.condition == "wo"]
    assert {len(prompt.verdicts) for prompt in prompts} == {1}, (
        "a sample of each draw, and not that of the second run"
    )
