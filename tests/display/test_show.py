import io
import re

from rich.console import Console

from harness import Run, load_run
from harness.analysis.problem_selection import Criterion, select
from harness.display.problem_listing import print_changes, spell_out
from harness.runs.prompt_sources import AnsweredProblem
from tests.make import (
    EXAMPLE,
    GREEDY_RUN,
    answered_prompt,
    one_line,
    right,
    source_of,
    with_cases,
)

HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link "
    "[bold red]markup[/] [/] :smile: \rover \x08\x7f\x9b2J "
    "\u202eright to left\u2066 \u200bzero tab\there \N{GREEK SMALL LETTER PI}"
)


@with_cases
def test_exactly_the_problems_whose_verdict_changed_are_listed_with_both_answers(
    command, monkeypatch, direction
):
    monkeypatch.setenv("COLUMNS", "80")
    rows = load_run(GREEDY_RUN).query("condition in ['wo', 'random']")
    correct = rows.pivot(index="problem_id", columns="condition", values="correct")
    changed = correct.loc[rows["problem_id"].unique()].query("wo != random")
    outcomes = changed["random"].map({True: "wrong to right", False: "right to wrong"})
    assert len(changed)
    words = direction.replace("_", " ")
    if direction != "changed":
        outcomes = outcomes[outcomes == words]
    options = ("--changed", "--condition", "random", "--direction", direction)
    page = command("show", GREEDY_RUN, *options).stdout
    listed = re.findall(r"^((?:right|wrong) to (?:right|wrong))  (\S+)", page, re.MULTILINE)
    assert listed == [(outcome, name) for name, outcome in outcomes.items()]
    for row in rows[rows["problem_id"].isin(outcomes.index)].to_dict("records"):
        assert f"-> completion: {row['verdict']}, answer {row['answer']}" in page
        assert re.sub(r"\s", "", row["completion"]) in re.sub(r"\s", "", page)
    head, *_ = page.split("\n\n")
    # the path of the run may be wider than a terminal
    assert all(len(line) <= 80 for line in head.replace(str(GREEDY_RUN), "").splitlines())
    counts = f"{len(outcomes)} of {len(correct)} problems, {words} A problem can change by"
    assert one_line(head).startswith(f"{GREEDY_RUN}, raw, random - wo: {counts}")


@with_cases
def test_changes_are_of_the_primary_or_the_first_contrast(
    contrasts, options, contrast, command, make_run
):
    conditions = ["wo", *({"name": name, "unit": "/", "count": 5} for name in ("dots", "he"))]
    run = make_run(right, limit=4, conditions=conditions, **contrasts)
    head, *_ = command("show", run, "--changed", *options).stdout.split("\n\n")
    assert f", raw, {contrast}: 0 of " in one_line(head)


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
    return source_of(AnsweredProblem(id="p", subject="Algebra", level=1, prompts=prompts))


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


def test_a_terminal_executes_nothing_that_a_model_wrote():
    """All colours are ours, and letters that the terminal lacks are spelt out."""
    verdicts = {"wo": ("incorrect",), "mless": ("correct",)}
    source = make_source(verdicts, completions=(HOSTILE,), answers=(HOSTILE,))
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
    assert improved.startswith("\nwrong to right  p  gold answer 7")
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
