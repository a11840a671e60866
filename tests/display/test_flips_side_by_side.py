"""The changed problems as people read them: what is shown, how, and that a terminal obeys nothing a model wrote."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from harness import load_run
from harness.analysis import compare
from harness.analysis.flips import Criterion
from harness.analysis.leaderboard import records
from harness.analysis.selection import Selection, select, selected_problems
from harness.commands.flips import RULES
from harness.display.flips_side_by_side import FlipEntry, print_page, shorten, spell_out
from harness.display.table_pages import make_table
from harness.display.words import MINUS, define_flips, signed
from harness.experiment.prompt import Segment, hash_text
from harness.runs.prompt_source import read_source
from harness.runs.run_prompts import Problem, RunPrompt
from tests.commands.test_cli import here, refused
from tests.example_runs import GREEDY_RUN, REGISTERED, passing_folder, small_run

RUN = small_run(passing_folder() / "run", 125)
"""Read by almost every test here, so it is small."""
EXAMPLE = Path(__file__).resolve().parents[2] / "results" / "example"
FLIPS = {"wrong_to_right": (False, True), "right_to_wrong": (True, False)}
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link [bold red]markup[/] [/] :smile: "
    "\rover \x08\x7f\x9b2J \u202eright to left\u2066 \u200bzero \ud800 tab\there \N{GREEK SMALL LETTER PI}"
)


@pytest.fixture(scope="module")
def frame():
    """What the command looks at unless told otherwise: the first sample of everything, the baseline's first run."""
    frame = load_run(RUN)
    return frame[(frame["replicate"] == 0) & (frame["sample_index"] == 0)]


@pytest.fixture
def flips(capsys, monkeypatch):
    def run(*arguments, columns=80, path=RUN):
        monkeypatch.setenv("COLUMNS", str(columns))
        return here(capsys, monkeypatch, "flips", str(path), *arguments)

    return run


def changed(frame, to, direction):
    """Problems whose verdict changed in this direction, in the prompts' order."""
    right = {name: frame[frame["condition"] == name].set_index("problem_id")["correct"] for name in ("wo", to)}
    return [problem for problem in right["wo"].index if (right["wo"][problem], right[to][problem]) == FLIPS[direction]]


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def write(folder, name, lines):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The demo run, but every completion is hostile and so are the wrong answers."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(RUN, folder)
    samples, scores = read(folder, "journal.jsonl"), read(folder, "scores.jsonl")
    write(folder, "journal.jsonl", [{**line, "completion": HOSTILE} if "task" in line else line for line in samples])
    wrong = [{**line, "answer": HOSTILE} if line.get("verdict") == "incorrect" else line for line in scores]
    write(folder, "scores.jsonl", wrong)
    return folder


def made(verdicts, *, completions=None):
    """A problem with several samples; a sample's answer is its number."""
    prompts = {}
    for condition, given in verdicts.items():
        prompts[condition] = RunPrompt(
            condition=condition,
            layout="raw",
            problem_id="p",
            text=condition,
            sha256=hash_text(condition),
            segments=(Segment(role="instruction", text="Do."), Segment(role="problem", text="What is it?")),
            completions=completions or tuple(f"{condition} wrote {n}" for n in range(len(given))),
            verdicts=given,
            answers=tuple(map(str, range(len(given)))),
            target="7",
        )
    return Problem(id="p", subject="Algebra", level=1, prompts=prompts)


def printed(problem, outcome, *, width=80, limit=None, repeats="first", encoding="utf-8", terminal=False):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = Console(file=stream, width=width, force_terminal=terminal, markup=False, emoji=False, highlight=False)
    print_page(console, [FlipEntry.of(problem, outcome, Criterion(flip="changed", repeats=repeats))], limit=limit)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("to", ["mless", "mful", "random"])
@pytest.mark.parametrize("direction", ["wrong_to_right", "right_to_wrong"])
def test_the_problems_shown_are_those_whose_verdict_changed(flips, frame, to, direction):
    entries = json.loads(flips("--condition", to, "--direction", direction, "--format", "json").stdout)
    assert [entry["problem_id"] for entry in entries] == changed(frame, to, direction)
    rows = frame.set_index(["condition", "problem_id"])
    for entry in entries:
        for side, condition in zip(entry["sides"], ("wo", to), strict=True):
            row = rows.loc[condition, entry["problem_id"]]
            assert side["condition"] == condition
            assert [side[name] for name in ("verdict", "answer", "completion")] == [
                row["verdict"],
                row["answer"],
                row["completion"],
            ]
            assert entry["target"] == row["target"]


def test_both_directions_are_shown_unless_one_is_asked_for(flips):
    both = [one for way in FLIPS for one in changed(load_run(GREEDY_RUN), "random", way)]
    entries = json.loads(flips("--condition", "random", "--format", "json", path=GREEDY_RUN).stdout)
    assert len(both) > 2 and sorted(both) == sorted(entry["problem_id"] for entry in entries)


def head_of(done):
    """What is printed, with the lines of its head in one piece; none of them was wider than a terminal."""
    assert all(len(line) <= 80 for line in done.stdout.split("\n\n")[0].splitlines()[1:])
    return re.sub(r"\n {12}", " ", done.stdout).splitlines()


def test_subject_and_level_narrow_the_problems_and_their_counts(flips, frame):
    of = frame.drop_duplicates("problem_id").set_index("problem_id")
    every = [one for way in FLIPS for one in changed(frame, "random", way)]
    level, subject = int(of["level"][every[0]]), of["subject"][every[0]]
    wanted = [one for one in every if of["level"][one] == level and of["subject"][one] == subject]
    arguments = ("--condition", "random", "--level", str(level), "--subject", subject)
    entries = json.loads(flips(*arguments, "--format", "json").stdout)
    assert wanted and sorted(entry["problem_id"] for entry in entries) == sorted(wanted)
    inside = int(((of["level"] == level) & (of["subject"] == subject)).sum())
    listed = f"listed      {len(wanted)} of {inside} problems (subject {subject}, level {level}), changed"
    assert head_of(flips(*arguments))[4].startswith(listed)


def test_a_wide_terminal_has_both_sides_beside_each_other_and_a_narrow_one_under_each_other(flips):
    arguments = ("--condition", "mful", "--direction", "right_to_wrong")
    entry, *others = json.loads(flips(*arguments, "--format", "json", path=GREEDY_RUN).stdout)
    wide = flips(*arguments, path=GREEDY_RUN, columns=140).stdout.splitlines()[4:]
    narrow = flips(*arguments, path=GREEDY_RUN, columns=70).stdout.splitlines()[4:]
    assert max(map(len, wide)) == 140 and max(map(len, narrow)) <= 70
    before, after = (re.escape(str(side["answer"])) for side in entry["sides"])
    head = rf"│ w/o  correct  answer {before} .*│ w/ Mful  {entry['sides'][1]['verdict']}  answer {after} .*│"
    assert any(re.fullmatch(head, line) for line in wide)
    assert sum(line.startswith("w/o  ") for line in narrow) == sum(line.startswith("w/ Mful  ") for line in narrow)
    for lines in (wide, narrow):
        text = " ".join(" ".join(lines).split())
        assert f"right to wrong {entry['problem_id']} level {entry['level']} {entry['subject']}" in text
        assert f"problem {' '.join(entry['text'].split())} target {entry['target']}" in text
        assert sum(line.startswith("target  ") for line in lines) == 1 + len(others)


def test_above_the_problems_stands_what_all_of_them_say(flips, frame):
    lines = head_of(flips("--condition", "mless"))
    row = compare(load_run(RUN), **REGISTERED).set_index("condition").loc["mless"]
    ends = f"[{row['low']:+.1f}, {row['high']:+.1f}]"
    up, down = (len(changed(frame, "mless", name)) for name in FLIPS)
    assert lines[0].endswith(f"raw: mless - wo, {row['n']} problems")
    assert lines[1] == f"difference  {row['difference']:+.1f} {ends} points, 95 % interval"
    assert lines[2] == f"flips       {up} / {down}: problems from wrong to right and from right to wrong"
    assert lines[3] == "A/A         wo was run once, so how many problems flip by themselves is not known"
    assert lines[4] == f"listed      {up + down} of {row['n']} problems, changed"


def test_of_several_samples_there_is_one_count_of_flips_in_table_and_list(flips):
    """And what a list holds is said by its rule: problems, of how many. The report's: see test_report."""
    rows = records(compare(load_run(EXAMPLE)))
    row = next(row for row in rows if row["condition"] == "mless")
    count, defined = f"{row['wrong_to_right']:.1f} / {row['right_to_wrong']:.1f}", define_flips(5)
    assert "mean over pairs of samples" in defined
    table = " ".join(make_table([str(EXAMPLE)]).split())
    assert count in table and f"+ / -: flips, {defined}" in table
    moved = [row["problems_up"], row["problems_down"]]
    for rule in ("share", "first"):
        lines = head_of(flips("--repeats", rule, "--direction", "wrong_to_right", path=EXAMPLE))
        assert lines[2] == f"flips       {count}: {defined}"
        listed = re.fullmatch(rf"listed      (\d+) of 200 problems, wrong to right {RULES[rule]}, another .*", lines[4])
        assert listed and (rule != "share" or int(listed[1]) == moved[0])
    drawn = head_of(flips("--n", "3", path=EXAMPLE))
    assert drawn[4].startswith(
        f"listed      3 drawn from {sum(moved)} of 200 problems, changed {RULES['share']}, another"
    )
    assert sum(" of 5 right  demo/" in line for line in drawn) == 3


def test_a_second_run_of_the_baseline_is_set_beside_and_never_mixed_in(flips, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    journal = [line for line in read(run, "journal.jsonl") if not line.get("replicate")]
    scores = read(run, "scores.jsonl")
    graded = {line["key"]: line for line in scores if "key" in line}
    firsts = [line for line in journal if line.get("task") == "demo_wo" and line["sample_index"] == 0]
    spoilt = [line["key"] for line in firsts if graded[line["key"]]["verdict"] == "correct"][:3]
    for sample in [line for line in journal if line.get("task") == "demo_wo"]:
        again = {**sample, "replicate": 1, "key": f"again {sample['key']}"}
        verdict = "incorrect" if sample["key"] in spoilt else graded[sample["key"]]["verdict"]
        journal.append(again)
        scores.append({**graded[sample["key"]], "key": again["key"], "verdict": verdict})
    write(run, "journal.jsonl", journal)
    write(run, "scores.jsonl", scores)
    lines = head_of(flips("--condition", "mless", path=run))
    noise = compare(load_run(run, replicates=True)).iloc[0]
    assert noise["aa_right_to_wrong"] > 0
    told = f"{noise['aa_wrong_to_right']:g} / {noise['aa_right_to_wrong']:g}"
    assert lines[3] == f"A/A         {told}: flips of wo against itself"
    assert lines[1:3] == head_of(flips("--condition", "mless"))[1:3]
    for one, other in zip(read_source(run).problems, read_source(RUN).problems, strict=True):
        assert {name: prompt.verdicts for name, prompt in one.prompts.items()} == {
            name: prompt.verdicts for name, prompt in other.prompts.items()
        }


def test_that_nothing_changed_is_a_result(flips, frame, tmp_path):
    of = frame.drop_duplicates("problem_id").set_index("problem_id")
    touched = {(of["subject"][one], of["level"][one]) for way in FLIPS for one in changed(frame, "mless", way)}
    subject, level = next(pair for pair in zip(of["subject"], of["level"], strict=True) if pair not in touched)
    arguments = ("--condition", "mless", "--subject", subject, "--level", str(level))
    done = flips(*arguments)
    assert done.returncode == 0 and re.search(r"^listed      0 of \d+ problems \(subject", done.stdout, re.M)
    saved = tmp_path / "selection.json"
    refused(flips(*arguments, "-o", str(saved)), "Expected at least one problem with changed")
    assert not saved.exists()


def test_what_is_saved_is_a_selection_that_says_it_was_made_on_outcome(flips, frame, tmp_path):
    path = tmp_path / "selection.json"
    done = flips("--condition", "random", "--controls", "-o", str(path))
    assert done.stdout.endswith(f"\nselection  {path}\n")
    source = read_source(RUN)
    selection = Selection.load(path)
    assert selection.on_outcome and selection.criterion.flip == "changed"
    assert selection == select(source, Criterion(flip="changed", condition="random", controls=True))
    flipped = [one.problem_id for one in selection.problems if not one.control]
    assert sorted(flipped) == sorted(one for way in FLIPS for one in changed(frame, "random", way))
    assert len(selected_problems(selection, source)) == 2 * len(flipped)
    assert not any(one.problem_id in done.stdout for one in selection.problems if one.control)


@pytest.mark.parametrize("columns", [70, 140])
def test_a_terminal_obeys_nothing_that_a_model_wrote(flips, hostile, columns):
    text = flips("--condition", "random", columns=columns, path=hostile).stdout
    assert {char for char in text if not char.isprintable()} == {"\n"}
    if columns > 100:  # there the two sides' lines alternate
        return
    flat = re.sub(r"\s+", "", text)
    for piece in (
        "<U+001B>[31mred<U+001B>[0m",
        "<U+001B>]0;title<U+0007>",
        "[boldred]markup[/][/]:smile:",
        "<U+000D>over<U+0008><U+007F><U+009B>2J<U+202E>",
        "<U+D800>",
        "\N{GREEK SMALL LETTER PI}",
    ):
        assert flat.count(piece) >= 2, piece


def test_colours_on_a_terminal_are_ours_alone():
    problem = made({"wo": ("incorrect",), "mless": ("correct",)}, completions=(HOSTILE,))
    text = printed(problem, "wrong_to_right", terminal=True)
    assert "\x1b[" in text, "or this test shows nothing"
    assert {char for char in re.sub(r"\x1b\[[\d;]*m", "", text) if not char.isprintable()} == {"\n"}


def test_spelling_out_keeps_line_breaks_and_every_printable_character():
    assert spell_out("a\nb\tc\r\n[red]").plain == "a\nb    c<U+000D>\n[red]"
    assert not spell_out("[red]x[/red]").spans
    assert spell_out("\N{GREEK SMALL LETTER PI}", "ascii").plain == "<U+03C0>"


def test_letters_that_the_terminal_does_not_have_are_spelt_out():
    problem = made({"wo": ("incorrect",), "mless": ("correct",)}, completions=("\N{GREEK SMALL LETTER PI} = 3",))
    assert printed(problem, "wrong_to_right", encoding="ascii").count("<U+03C0> = 3") == 2
    assert printed(problem, "wrong_to_right", encoding="ascii", width=120).count("<U+03C0> = 3") == 2


def test_a_long_completion_is_shown_by_its_beginning_and_its_end():
    text = "begin " + "x" * 5000 + r" \boxed{7}"
    problem = made({"wo": ("incorrect",), "mless": ("correct",)}, completions=(text,))
    short = printed(problem, "wrong_to_right", limit=1000)
    assert (
        re.search(r"begin\s+x", short)
        and r"\boxed{7}" in short
        and f"[{len(text) - 1000:,} characters left out]" in short
    )
    assert re.sub(r"\s", "", printed(problem, "wrong_to_right")).count("x" * 5000) == 2
    head, left_out, tail = shorten(text, 1000)
    assert (len(head) + len(tail), left_out + 1000) == (1000, len(text)) and text.startswith(head)


def test_of_several_samples_one_is_shown_that_did_what_the_outcome_says():
    problem = made({"wo": ("correct", "incorrect", "incorrect"), "mless": ("incorrect", "correct", "correct")})
    by_majority = printed(problem, "wrong_to_right", repeats="majority")
    assert "w/o  incorrect  answer 1  (sample 2 of 3; 1 right)" in by_majority
    assert "w/ Mless  correct  answer 1  (sample 2 of 3; 2 right)" in by_majority and "mless wrote 1" in by_majority
    assert by_majority.startswith("\n1 to 2 of 3 right  p  level 1  Algebra")
    first = printed(problem, "right_to_wrong")
    assert "w/o  correct  answer 0  (sample 1 of 3; 1 right)" in first and "wo wrote 0" in first


def test_what_was_not_recorded_is_said():
    prompts = made({"wo": ("incorrect",), "mless": ("correct",)}).prompts
    bare = {
        name: RunPrompt(
            condition=name,
            layout="raw",
            problem_id="p",
            text=name,
            sha256=hash_text(name),
            segments=p.segments,
            verdicts=p.verdicts,
        )
        for name, p in prompts.items()
    }
    text = printed(Problem(id="p", subject="", level=0, prompts=bare), "wrong_to_right")
    assert text.count("no completion is recorded") == 2 and "w/o  incorrect  answer -" in text and "target   -" in text


def test_harmless_edits_of_the_prompt_are_no_conditions(flips):
    said = "edit-01 is a rewording, which conditions are held against: expected one of wo, mless, mful, random, "
    refused(flips("--condition", "edit-01", path=EXAMPLE), said)
    whole = compare(load_run(EXAMPLE, replicates=True), **REGISTERED).set_index("condition").loc["mless"]
    told = head_of(flips(path=EXAMPLE))
    assert told[1].startswith(f"difference  {signed(whole['difference'])} [{whole['low']:+.1f}, ".replace(MINUS, "-"))
    up, down = whole["aa_wrong_to_right"], whole["aa_right_to_wrong"]
    assert told[3] == f"A/A         {up:.1f} / {down:.1f}: flips of wo against itself"


def test_a_sample_log_of_lm_eval_is_read_too(flips, tmp_path):
    for file in GREEDY_RUN.glob("samples_*.jsonl"):
        shutil.copy(file, tmp_path)
    entries = [
        json.loads(flips("--condition", "random", "--format", "json", path=path).stdout)
        for path in (GREEDY_RUN, tmp_path)
    ]
    assert entries[0] == entries[1] and entries[0]
    ours, theirs = (flips("--condition", "random", path=path).stdout.splitlines() for path in (GREEDY_RUN, tmp_path))
    assert ours[1:] == theirs[1:]
    named = [f"{name}={next(tmp_path.glob(f'samples_demo_{name}_*'))}" for name in ("random", "wo")]
    assert (
        json.loads(flips(*named[1:], "--condition", "random", "--format", "json", path=named[0]).stdout) == entries[0]
    )
    refused(flips(str(GREEDY_RUN)), "Expected one run, got 2: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--condition", "nope"),
            "has no condition 'nope', so nothing flips from 'wo' to 'nope'. It has wo, mless, mful, random",
        ),
        (("--baseline", "mless"), "A flip compares two conditions, got 'mless' twice"),
        (("--subject", "Botany"), "has no problem of the subject 'Botany': expected one of Algebra"),
        (("--layout", "chat"), "holds the layouts raw, not chat"),
        (("--condition", "mless", "--n", "499"), "Expected 499 problems with changed from wo to mless"),
    ],
)
def test_mistakes_are_one_line(flips, arguments, message):
    refused(flips(*arguments), message)
