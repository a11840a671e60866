import io
import re

import pytest
from rich.console import Console

from harness import Run
from harness.display.problem_listing import print_problem, spell_out
from tests.make import EXAMPLE, answered_prompt

HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link "
    "[bold red]markup[/] [/] :smile: \rover \x08\x7f\x9b2J "
    "\u202eright to left\u2066 \u200bzero tab\there \N{GREEK SMALL LETTER PI}"
)


def print_prompts(*prompts, encoding="utf-8", terminal=False):
    """The page of a run's only problem."""
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding=encoding, newline="\n")
    console = Console(
        file=stream, width=80, force_terminal=terminal, markup=False, emoji=False, highlight=False
    )
    run = Run(name="made", about={}, read=pytest.fail, read_prompts=lambda: prompts)
    print_problem(console, run, "p", condition=None, layout=None)
    stream.flush()
    return output.getvalue().decode(encoding)


def test_each_sample_has_its_number_verdict_and_answer():
    page = print_prompts(
        answered_prompt("wo", ["correct", "incorrect"], completions="ab", answers="7"),
        answered_prompt("mless", ["no_box"], completions=["c\n"]),
    )
    for text in (
        "w/o, raw\np wo\n-> completion 1 of 2: correct, answer 7\na\n",
        "-> completion 2 of 2: incorrect, answer -\nb\n\n",
        "w/ Mless, raw\np mless\n-> completion: no_box, answer -\nc\n",
    ):
        assert text in page


def test_a_terminal_executes_nothing_that_a_model_wrote():
    """All colours are ours, and letters that the terminal lacks are spelt out."""
    texts = {"completions": [HOSTILE], "answers": [HOSTILE], "text": HOSTILE}
    prompts = [answered_prompt(name, ["correct"], **texts) for name in ("wo", "mless")]
    plain, coloured = print_prompts(*prompts), print_prompts(*prompts, terminal=True)
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
        assert without_blanks.count(text) == 6, text
    assert print_prompts(*prompts, encoding="ascii").count("\\u03c0") == 6
    assert spell_out("a\nb\tc\r\n[red]") == "a\nb    c<U+000D>\n[red]"


def test_the_repeat_run_of_the_baseline_is_not_read():
    prompts = [prompt for prompt in Run.load(EXAMPLE).prompts if prompt.condition == "wo"]
    # a sample of each draw, and none of the repeat run
    assert {len(prompt.verdicts) for prompt in prompts} == {1}
