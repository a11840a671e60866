import csv
import io
import json
import math
import re
import shutil

import numpy as np
import pandas
import pytest

from harness.analysis.compare_with_baseline import COMPARISON_COLUMNS
from harness.analysis.count_correct import accuracy_table
from harness.analysis.mediators_and_audit import MEDIATOR_COLUMNS, audit_table
from harness.analysis.result_tables import as_csv, as_json, make_leaderboard
from harness.display.comparison_tables import show_comparison, show_leaderboard
from harness.display.format_table import Column, Table, render
from harness.display.format_values import MINUS, NONE, p_value, signed
from harness.display.side_tables import show_side_tables
from harness.errors import ComparisonError, ConfigError
from harness.runs.read_runs import Run
from harness.runs.versions_and_hashes import receipt_line
from tests.make import (
    CONTROL,
    GREEDY_RUN,
    REGISTERED,
    ROOT,
    drawn,
    evaluation,
    right,
    table_page,
    write_run,
)

REAL = {"wo": 0.4, "mless": 0.7, "mful": 0.4, "random": 0.15}
"""Chances to be right that are found with 200 problems."""


def made(header, *rows, title="T", notes=(), strong=None):
    """A table of one column after the other; what is called `word` holds words. All rows passed their test."""
    columns = [
        Column(f"c{place}", name, str, numeric=name != "word", strong=place == strong)
        for place, name in enumerate(header)
    ]
    data = [
        {"verdict": "better", **{f"c{place}": text for place, text in enumerate(row)}}
        for row in rows
    ]
    return Table(title, data, columns, notes)


def rows(grid):
    """A grid's cells by condition, then by column."""
    place = grid.header.index("condition")
    return {row[place].text: dict(zip(grid.header, row, strict=True)) for row in grid.cells}


def test_accuracies_alone_have_errors_over_problems():
    frame = evaluation(
        {"wo": [["correct"]] * 6 + [["no_box"], ["truncated"], ["incorrect"], ["crashed"]]}
    ).samples
    (wo,) = accuracy_table(frame).to_dict("records")
    assert (wo["problems"], wo["accuracy"]) == (10, 60.0)
    assert wo["standard_error"] == pytest.approx(100 * (0.24 / 9) ** 0.5)
    compared = make_leaderboard(
        [evaluation({"wo": frame["verdict"].map(lambda v: [v]).tolist()})]
    ).comparison
    same = ["problems", "repeats", "accuracy", "standard_error", "accuracy_low", "accuracy_high"]
    assert [wo[name] for name in same] == compared[same].iloc[0].tolist(), "one computation"
    doubled = accuracy_table(pandas.concat([frame, frame.assign(sample_index=1)]))
    assert doubled["standard_error"].tolist() == [wo["standard_error"]], (
        "samples of a problem are averaged first"
    )
    again = accuracy_table(pandas.concat([frame, frame.assign(replicate=1, correct=False)]))
    assert again["accuracy"].tolist() == [60.0], "replicates are for the noise floor"


def test_verdicts_in_words_and_only_what_passed_is_bold():
    board = make_leaderboard([evaluation(drawn(3, 200, 1, REAL, ["incorrect"]), **REGISTERED)])
    found = rows(show_comparison(board))
    words = {
        "w/o": NONE,
        "w/ Mless *": "better",
        "w/ Mful": "inconclusive",
        "Random sentence": "worse",
    }
    assert {name: row["verdict"].text for name, row in found.items()} == words
    strong = [
        (name, column) for name, row in found.items() for column, cell in row.items() if cell.strong
    ]
    assert strong == [("w/ Mless *", "verdict"), ("Random sentence", "verdict")]
    text = " ".join(show_comparison(board).notes)
    assert (
        "adjusted by Holm over the 3 tests registered beforehand (w/ Mless, w/ Mful, Random sentence)"
        in text
    )
    none = make_leaderboard([evaluation(drawn(3, 60, 1, REAL), primary=None, contrasts=[])])
    for grid in (show_comparison(none), show_leaderboard(none)):
        text = " ".join(grid.notes)
        assert (
            "No test was registered beforehand, so all are exploratory" in text
            and "Holm" not in text
        )


@pytest.mark.parametrize(
    ("changes", "margin", "shown"),
    [
        (
            {"wo": 990, "mless": 1000},
            3,
            {"verdict": "better (< 3)", "+ / -": "10 / 0", "p adj.": "0.002"},
        ),
        (
            {"wo": 0, "mless": 1000},
            1,
            {"verdict": "better", "+ / -": "1000 / 0", "p adj.": "< 0.001"},
        ),
        (
            {"wo": 0, "mless": 0},
            1,
            {"+ / -": "0 / 0", "difference [95 %]": f"0.0 [{MINUS}0.4, +0.4]"},
        ),
    ],
    ids=["real, within the margin", "all", "zero has no sign"],
)
def test_a_rows_words_and_numbers(changes, margin, shown):
    verdicts = {
        name: [["correct"]] * n + [["incorrect"]] * (1000 - n) for name, n in changes.items()
    }
    row = rows(show_comparison(make_leaderboard([evaluation(verdicts)], margin=margin)))["w/ Mless"]
    assert {name: row[name].text for name in shown} == shown


def test_the_noise_of_a_difference_stands_below_the_table():
    chances = {"wo": 0.5, "wo again": 0.5, "mless": 0.6, "mless again": 0.6, "mful": 0.5}
    verdicts = drawn(5, 100, 2, chances, ["incorrect"])
    for checksums, differ in ((False, ""), (True, "200 of 400 completions differ, and ")):
        run = evaluation(verdicts)
        if checksums:
            texts = run.samples["replicate"] * (run.samples["sample_index"] == 0)
            object.__setattr__(run, "samples", run.samples.assign(completion_checksum=texts))
        grid = show_comparison(make_leaderboard([run]))
        mean = {
            name: np.mean([[v == "correct" for v in p] for p in of])
            for name, of in verdicts.items()
        }
        moved = 100 * (mean["mless again"] - mean["wo again"] - mean["mless"] + mean["wo"])
        (note,) = (note for note in grid.notes if note.startswith("A/A"))
        assert note.endswith(
            f"w/ Mless and its baseline: {differ}the difference changes by {signed(moved)} points."
        )
    assert rows(grid)["w/o"]["difference [95 %]"].text == rows(grid)["w/o"]["+ / -"].text == NONE
    none = show_comparison(
        make_leaderboard([evaluation(drawn(5, 9, 1, {**REAL, "wo again": 0.5}, ["incorrect"]))])
    )
    assert not any(note.startswith("A/A") for note in none.notes), (
        "one side alone has no difference"
    )


def test_reference_conditions_are_in_no_table_for_people():
    chances = {"wo": 0.5, "mless": 0.6, "mful": 0.5, "control": 0.1}
    facts = {"contrasts": ["mless - wo", "mless - mful"], "reference_conditions": CONTROL}
    board = make_leaderboard([evaluation(drawn(7, 100, 1, chances), **facts)])
    assert list(rows(show_comparison(board))) == ["w/o", "w/ Mless", "w/ Mful", "mless - mful"]
    assert set(board.side_tables["mediators"]["condition"]) == set(chances), (
        "programs get all of them"
    )
    tables = show_side_tables(board)
    assert list(tables) == ["mediators", "audit"]
    for table in tables.values():
        assert list(rows(table)) == ["w/o", "w/ Mless", "w/ Mful"]


def test_the_positive_control_says_whether_the_run_could_see_anything():
    def note(control, k=1, **facts):
        chances = {"wo": 0.5, "mless": 0.55, "control": control}
        board = make_leaderboard(
            [evaluation(drawn(3, 200, k, chances), reference_conditions=CONTROL, **facts)]
        )
        (found,) = [
            note for note in show_comparison(board).notes if note.startswith("Positive control")
        ]
        assert found in show_leaderboard(board).notes
        return found, board.comparison.set_index("condition")

    for k in (1, 3):
        seen, table = note(0.1, k=k)
        assert (
            f"{signed(table.loc['control', 'difference'])} [" in seen
            and ": detected, so grader and pairing work." in seen
        )
    assert table.loc["control", "role"] == "reference"
    assert table.loc["control", ["tests", "p_adjusted", "verdict"]].isna().all()
    assert "NOT DETECTED, so this run may be unable to detect any effect" in note(0.5)[0]
    assert "NOT DETECTED" in note(0.9)[0], "it did no harm"


def test_the_noise_is_told_for_each_model_and_layout_and_never_pooled():
    settings = [("m", "raw"), ("m", "chat"), ("n", "raw")]
    chances = {"wo": 0.5, "wo again": 0.5, "mless": 0.6, "mless again": 0.6, "control": 0.1}
    parts = [
        evaluation(
            drawn(i, 60, 1, chances), model=model, layout=layout, reference_conditions=CONTROL
        )
        for i, (model, layout) in enumerate(settings)
    ]
    board = make_leaderboard(parts)
    notes = show_comparison(board).notes
    table = board.comparison.set_index(["model", "layout", "condition"])
    for model, layout in settings:
        again = signed(table.loc[(model, layout, "mless"), "aa_difference"])
        said = f"A/A, {model}, {layout}, w/ Mless and its baseline: the difference changes by {again} points"
        assert sum(note.startswith(said) for note in notes) == 1
        assert sum(note.startswith(f"Positive control, {model}, {layout} ") for note in notes) == 1


def test_splits_by_subject_and_level_have_rows_in_order():
    board = make_leaderboard([evaluation(drawn(1, 50, 1, {"wo": 0.5, "mless": 0.5}))], by=["level"])
    assert board.comparison["level"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert board.comparison["tests"].dropna().unique().tolist() == [5]
    assert "level" in show_comparison(board).header
    assert table_page(GREEDY_RUN, by=["level", "level"]) == table_page(GREEDY_RUN, by=["level"])
    notes = show_comparison(board).notes
    assert not [note for note in notes if "A/A" in note or "Positive control" in note]


@pytest.mark.parametrize(
    ("options", "error", "value"),
    [
        ({"by": ["colour"]}, ValueError, "'colour'"),
        ({"baseline": "plain"}, ComparisonError, "'plain'"),
        ({"margin": 0}, ComparisonError, "margin: "),
        (
            {"form": "csv", "side_tables": ["audit", "mediators"]},
            ConfigError,
            "CSV has one table",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(options, error, value):
    with pytest.raises(error, match=value):
        table_page(GREEDY_RUN, **options)


def test_the_leaderboard_has_one_line_a_model_best_baseline_first(tmp_path):
    models = [
        evaluation(drawn(i, 200, 1, {**REAL, "wo": w}), model=f"m{i}", **REGISTERED)
        for i, w in enumerate((0.3, 0.5))
    ]
    grid = show_leaderboard(make_leaderboard(models))
    assert [row[0].text for row in grid.cells] == ["m1", "m0"]
    assert grid.header == (
        "model",
        "w/o %",
        "w/ Mless * [95 %]",
        "p adj.",
        "verdict",
        "w/ Mful",
        "Random sentence",
    )
    strong = [
        [name for name, cell in zip(grid.header, row, strict=True) if cell.strong]
        for row in grid.cells
    ]
    verdicts = make_leaderboard(models).comparison.set_index(["model", "condition"])["verdict"]
    headers = {"verdict": "mless", "w/ Mful": "mful", "Random sentence": "random"}
    for row, names in zip(grid.cells, strong, strict=True):
        assert names == [
            h for h, c in headers.items() if verdicts[row[0].text, c] in ("better", "worse")
        ]
    half = evaluation(drawn(9, 200, 1, {"wo": 0.4}), model="m9", **REGISTERED)
    last = show_leaderboard(make_leaderboard([*models, half])).cells[1]
    assert [cell.text for cell in last][2:] == [NONE, NONE, "not run", NONE, NONE]
    fewer = evaluation(
        drawn(3, 60, 1, REAL), primary="mless - wo", contrasts=["mless - wo", "mful - wo"]
    )
    (row,) = show_leaderboard(make_leaderboard([fewer])).cells
    assert row[-1].text.startswith("(") and not row[-2].text.startswith("("), (
        "what is exploratory is in brackets"
    )


def test_no_table_is_wider_than_a_terminal():
    name = "Qwen2.5-Math-1.5B-Instruct"
    verdicts = drawn(5, 60, 2, {**REAL, "wo again": 0.4, "mless again": 0.7})
    models = [evaluation(verdicts, model=m, **REGISTERED) for m in (name, "short")]
    for board in (make_leaderboard(models[:1]), make_leaderboard(models)):
        for grid in (
            show_comparison(board),
            show_leaderboard(board),
            *show_side_tables(board).values(),
        ):
            page = render([grid], "text", [receipt_line(one) for one in board.receipt])
            assert max(map(len, page.splitlines())) <= 80, page
    for parts in ({"side_tables": ["mediators", "audit"]}, {"reference": "study-table-1"}):
        assert max(map(len, table_page(GREEDY_RUN, **parts).splitlines())) <= 80
    short, whole = (
        table_page(GREEDY_RUN, side_tables=["mediators"], explain=explain)
        for explain in (False, True)
    )
    assert [len(part.splitlines()) for part in short.split("\n\n")[2:-1:3]] == [4, 4], (
        "below each of the tables"
    )
    assert (
        short.split("\n\n")[2].startswith("*: ")
        and "--explain" in short
        and "--explain" not in whole
    )
    split = table_page(GREEDY_RUN, by=["subject"])
    assert max(map(len, split.splitlines())) <= 80
    assert split.count("\n\nAlgebra\nw/o ") == 1, "a heading above its rows"


def test_markdown_and_latex_are_escaped():
    row = ("1", "x_{y}|&")
    grid = made(
        ["a|b", "word"], row, title="100 % of a_b", notes=("p < 0.05 ±1 ^ ~ \\ #",), strong=1
    )
    markdown = render([grid], "markdown", ["a_b"])
    head, rule, row = (line.replace(" ", "") for line in markdown.splitlines()[2:5])
    assert (head, row) == ("|a\\|b|word|", "|1|**x\\_{y}\\|\\&**|") and re.fullmatch(
        r"\|-+:\|:-+\|", rule
    )
    latex = render([grid], "latex", ["receipt: 100 %"])
    assert r"\caption{100 \% of a\_b}" in latex and re.search(
        r"1 & \\textbf\{x\\_\\\{y\\\}\|\\&} +\\\\", latex
    )
    assert r"p $<$ 0.05 $\pm$1 \textasciicircum{} \textasciitilde{} \textbackslash{} \#" in latex
    assert latex.endswith("% receipt: 100 %")
    rows = [(text, f"{MINUS}0.4 [{MINUS}1.0, 0.2]") for text in ("[2cm]", "*", NONE)]
    latex = render([made(["[word]", "x"], *rows)], "latex")
    cells = [line.split(" &")[0].strip() for line in latex.splitlines() if line.endswith(r"\\")]
    assert cells == ["{}[word]", "{}[2cm]", "{}*", "--"], (
        "no cell is an argument of the line before"
    )
    assert latex.count("$-$0.4 [$-$1.0, 0.2]") == 3


def test_a_label_is_no_link_image_entity_or_formula_in_markdown():
    from markdown_it import MarkdownIt

    hostile = (
        "![p](http://evil/x.png) [q][r] ~~s~~ &lt; $x$ <b> www.evil.org a@evil.org `c` *d* __e__"
    )
    page = render(
        [made(["word"], (hostile,), title=hostile, notes=(hostile,))], "markdown", [hostile]
    )
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    words = re.sub(
        r"</?(table|thead|tbody|tr|th|td|p|ul|li|strong|sub)[ >]", " ", parser.render(page)
    )
    assert not re.search(r"<(a|img|s|em|code|b)\b", words) and words.count("&amp;lt;") == 4
    assert "$x$" not in page and "http://" not in page and "www.evil" not in page, (
        "which GitHub would read"
    )
    assert render([made(["word"], ("1.0 [2.0, 3.0]",))], "markdown").count("\\") == 0


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_no_character_of_a_label_gives_a_terminal_an_order(form):
    label = "a\x1b[2Jb\x9bc\u202ed\u2028e\nf\x00g\u061ch"
    page = render([made(["word"], (label,), title=label, notes=(label,))], form, [label])
    assert page.replace("\n", "").isprintable()
    spelt = page.replace("\\", "").replace("$", "")
    assert spelt.count("<U+001B>[2Jb<U+009B>c<U+202E>d<U+2028>e<U+000A>f<U+0000>g<U+061C>h") == 4


def test_json_has_the_documented_columns_and_csv_the_same_numbers():
    data = json.loads(table_page(GREEDY_RUN, form="json"))
    assert data["schema"] == "mless-table/1" and data["primary"] == "mless - wo"
    assert data["contrasts"] == REGISTERED["contrasts"]
    assert all(list(row) == list(COMPARISON_COLUMNS) for row in data["rows"])
    assert all(
        list(row) == ["model", "layout", "condition", *MEDIATOR_COLUMNS]
        for row in data["mediators"]
    )
    assert data["receipt"][0]["versions"]["mless"] and data["receipt"][0]["name"] == str(GREEDY_RUN)
    lines = [
        line for line in table_page(GREEDY_RUN, form="csv").splitlines() if not line.startswith("#")
    ]
    for row, line in zip(data["rows"], csv.DictReader(io.StringIO("\n".join(lines))), strict=True):
        assert float(line["accuracy"]) == row["accuracy"] and line["verdict"] == (
            row["verdict"] or ""
        )
        assert (line["p_adjusted"] == "") == (row["p_adjusted"] is None)
    documented = (ROOT / "docs" / "tables.md").read_text()
    assert not [name for name in (*data, *data["receipt"][0]) if f"`{name}`" not in documented]
    audit = table_page(GREEDY_RUN, form="csv", side_tables=["audit"])
    assert audit.startswith('"model","layout","condition","ours","ours_difference","math_verify",')
    for form in ("text", "markdown", "latex", "csv"):
        assert "09e2316a" in table_page(GREEDY_RUN, form=form).split("inconclusive")[-1], (
            "the dataset's hash"
        )
    nan = as_json(make_leaderboard([evaluation({"wo": [["correct"]]})]))
    assert "NaN" not in nan and json.loads(nan)["rows"][0]["standard_error"] is None


def test_a_label_with_a_hash_is_read_back_from_csv_as_the_documents_say():
    verdicts = {"wo": [["correct"]], "mless": [["incorrect"]]}
    for label in ("a#1", "# x", 'a,"b"\n# c'):
        board = make_leaderboard([evaluation(verdicts, model=label)])
        found = pandas.read_csv(io.StringIO(as_csv(board.comparison, board)), comment="#")
        assert found["model"].tolist() == [label, label] and found["accuracy"].tolist() == [100, 0]
        assert found["within_margin"].isna().tolist() == [True, False] and found[
            "repeats"
        ].tolist() == [1, 1]


def test_rounding_never_puts_p_on_the_other_side_of_alpha():
    below = math.nextafter(0.05, 0)
    shown = [
        p_value(p) for p in (0.0496, 0.04996, 0.0504, 0.05, 0.0514, 0.049, 0.00099, below, None)
    ]
    assert shown == [
        *("0.0496", "0.04996", "0.050", "0.050", "0.051", "0.049", "< 0.001"),
        "0.049999999999999996",
        NONE,
    ]


def test_the_audit_has_each_graders_difference():
    frame = evaluation(
        {"wo": [["correct"], ["incorrect"], ["timeout"]], "mless": [["correct"]] * 3}
    ).samples
    frame.loc[1, ["math_verify", "authors_rule"]] = [True, None]
    found = audit_table(frame).set_index("condition")
    assert found.loc["wo", ["ours", "math_verify", "authors_rule"]].tolist() == pytest.approx(
        [100 / 3, 200 / 3, 50]
    )
    # the problem that authors_rule did not judge is left out of its difference
    assert found.loc[
        "mless", ["ours_difference", "math_verify_difference", "authors_rule_difference"]
    ].tolist() == (pytest.approx([200 / 3, 100 / 3, 50]))
    assert found["ours_difference"].isna().tolist() == [True, False]


def test_a_runs_own_baseline_is_that_of_its_tables_its_second_run_and_its_contrasts(tmp_path):
    def answer(request, target):
        return right(request, "no such answer" if "short" in request.task else target)

    instructed = [
        {"name": name, "instruction": f"Answer {name}, within \\boxed{{}}."}
        for name in ("short", "long")
    ]
    own = {"conditions": instructed, "replicates": 2, "dataset": {"make": "products"}}
    run = write_run(tmp_path / "made", answer, limit=12, **own)
    data = json.loads(table_page(run, form="json"))
    assert (data["baseline"], data["contrasts"]) == ("short", ["long - short"])
    assert [(row["verdict"], row["aa_difference"]) for row in data["rows"]] == [
        (None, None),
        ("better", 0),
    ]
    assert [(row["aa_samples"], row["aa_changed"]) for row in data["rows"]] == [
        (None, None),
        (24, 0),
    ]
    assert json.loads(table_page(run, form="json", baseline="long"))["contrasts"] is None
    said = " ".join(table_page(run).split())
    assert (
        re.match(r"\w+, raw, 12 problems in 1\d clusters, 1 sample each ", said)
        and "least 299 clusters;" in said
    )


def test_lm_evals_output_gives_the_same_table(tmp_path):
    for file in [*GREEDY_RUN.glob("samples_*"), *GREEDY_RUN.glob("results_*")]:
        shutil.copy(file, tmp_path)
    ours, theirs = (json.loads(table_page(path, form="json")) for path in (GREEDY_RUN, tmp_path))
    assert theirs["mediators"] == ours["mediators"] and theirs["audit"] == ours["audit"]
    for row, known in zip(theirs["rows"], ours["rows"], strict=True):
        # a log does not know what was registered, so its tests share alpha in another way
        registered = {name: row[name] for name in ("primary", "tests")}
        assert row == {**known, **registered}
    facts = ("model", "task_version", "sampling", "greedy", "seed")
    assert [theirs["receipt"][0][f] for f in facts] == [ours["receipt"][0][f] for f in facts]


def test_a_made_run_with_replicates_and_several_sentences(tmp_path):
    calls = []

    def answer(request, target):
        calls.append(
            (
                request.task,
                request.problem_id,
                request.sample_index,
                request.replicate,
                request.seed,
            )
        )
        wrong = request.replicate and request.sample_index == 0 and request.task == "demo_wo"
        return right(request, "no such answer" if wrong else target)

    run = write_run(
        tmp_path / "made",
        answer,
        conditions=["wo", *({"name": f"unrelated-{n}", "sentence": n} for n in (1, 2))],
        replicates=2,
        gen_kwargs={"temperature": 0.7},
        repeats=2,
        primary="unrelated-1 - wo",
        audit=False,
    )
    tasks = ["demo_wo", "demo_unrelated-1", "demo_unrelated-2"]
    first = [call for call in calls if call[3] == 0]
    again = [call for call in calls if call[3] == 1]
    assert len(calls) == 2 * 6 * (3 + 2) and calls == [*first, *again], "replicates come last"
    assert {call[0] for call in again} == {"demo_wo", "demo_unrelated-1"} and {
        call[0] for call in first
    } == set(tasks)
    order, other = (
        [call[1:3] for call in calls if call[0] == "demo_wo"] for calls in (first, again)
    )
    assert sorted(order) == sorted(other) and order != other
    assert {call[4] for call in again}.isdisjoint({call[4] for call in first}), "other seeds"
    board = make_leaderboard([Run.load(run)])
    table = board.comparison.set_index("condition")
    assert board.primary == "unrelated-1 - wo"
    assert table["accuracy"].tolist() == [100] * 3
    assert table.loc["unrelated-1", ["aa_difference", "aa_samples", "aa_changed"]].tolist() == [
        50,
        24,
        6,
    ]
    assert table.loc["unrelated-2", ["aa_difference", "aa_samples", "aa_changed"]].isna().all()
    assert json.loads((run / "run.json").read_text())["config"]["replicates"] == 2
    logged = next(run.glob("samples_demo_wo_2*.jsonl")).read_text().splitlines()
    assert len(logged) == 6 and len(json.loads(logged[0])["resps"][0]) == 2, (
        "lm-eval's logs have the first replicate"
    )
    assert (run / "journal.jsonl").read_text().count("no such answer") == 6
    assert not any("no such answer" in line for line in logged), "and nothing of the second"


def test_a_table_of_words_with_a_long_path_keeps_its_last_column():
    path = "/a" * 60
    page = render([made(("word", "word"), ("model", path))])
    assert path in page and "model" in page
