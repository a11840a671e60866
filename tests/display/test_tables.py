import io
import json
import re

import numpy as np
import pandas
import pytest
from markdown_it import MarkdownIt

from harness.analysis.baseline_comparison import COMPARISON_COLUMNS
from harness.analysis.mediators_and_audit import MEDIATOR_COLUMNS, audit_table
from harness.analysis.result_tables import list_rows, make_leaderboard
from harness.display.comparison_tables import make_comparison_table
from harness.display.printed_tables import Column, Table, render
from harness.display.side_tables import make_shown_side_tables
from harness.display.table_page import table_csv, table_json
from harness.display.value_texts import (
    EN_DASH,
    MINUS,
    format_p_value,
    format_signed_number,
    visible,
)
from harness.runs.versions_and_hashes import receipt_line
from tests.make import (
    CONFIG,
    CONTROL,
    GREEDY_RUN,
    REGISTERED,
    ROOT,
    by_condition,
    drawn,
    evaluation,
    find_log,
    make_board,
    one_line,
    read_data,
    right,
    table_data,
    table_page,
    verdicts_by_count,
    with_cases,
    write_run,
)

REAL = {"wo": 0.4, "mless": 0.7, "mful": 0.4, "random": 0.15}
"""Chances of right answers whose differences 200 problems detect."""
REPEATED = {"wo": 0.5, "wo again": 0.5, "mless": 0.6, "mless again": 0.6}
WRONG_ONLY = ["incorrect"]


def make_grid(header, *rows, title="T", notes=()):
    """A table of significant rows with these columns. Those with the name `word` hold words."""
    columns = [
        Column(f"c{index}", name, str, is_numeric=name != "word")
        for index, name in enumerate(header)
    ]
    data = [dict(zip([column.field_names for column in columns], row, strict=True)) for row in rows]
    return Table(title, [{"verdict": "better", **row} for row in data], columns, notes)


def cells_by_condition(grid):
    """A grid's cells by condition, then by column."""
    headings = [column.heading for column in grid.columns]
    rows = [dict(zip(headings, row, strict=True)) for row in grid.cells]
    return {row["condition"].text: row for row in rows}


def notes_with(grid, start):
    return [note for note in grid.notes if note.startswith(start)]


def read_csv(text):
    """The rows of a table in CSV, as docs/tables.md says that it is read."""
    return list_rows(pandas.read_csv(io.StringIO(text), comment="#"))


def widest_line(page):
    return max(map(len, page.splitlines()))


def test_verdicts_are_words_and_only_significant_ones_are_bold():
    board = make_board(drawn(3, 200, 1, REAL, WRONG_ONLY), **REGISTERED)
    rows = cells_by_condition(make_comparison_table(board))
    assert {name: row["verdict"].text for name, row in rows.items()} == {
        "w/o": EN_DASH,
        "w/ Mless *": "better",
        "w/ Mful": "inconclusive",
        "Random sentence": "worse",
    }
    for name, row in rows.items():
        bold_columns = [column for column, cell in row.items() if cell.is_bold]
        assert bold_columns == ["verdict"] * (name in ("w/ Mless *", "Random sentence"))


@with_cases
def test_the_notes_name_the_tests_that_there_are(models, facts, note, absent):
    runs = [evaluation(drawn(3, 60, 1, REAL), model=name, **facts) for name in models]
    grid = make_comparison_table(make_leaderboard(runs))
    notes = " ".join([*(column.heading for column in grid.columns), *grid.notes])
    assert note in notes and absent not in notes


@with_cases
def test_texts_and_numbers_of_a_row(counts, texts):
    board = make_leaderboard([evaluation(verdicts_by_count(counts))])
    row = cells_by_condition(make_comparison_table(board))["w/ Mless"]
    assert {name: row[name].text for name in texts} == texts


def test_the_noise_of_a_difference_stands_below_the_table():
    verdicts = drawn(5, 100, 2, {**REPEATED, "mful": 0.5}, WRONG_ONLY)
    is_right = {name: np.array(problems) == "correct" for name, problems in verdicts.items()}
    repeated = [(is_right[name], is_right[f"{name} again"]) for name in ("wo", "mless")]
    before, after = (100 * (second.mean() - first.mean()) for first, second in repeated)
    # [problem, sample, repeat sample]
    flips = sum((first[:, :, None] != second[:, None]).sum() / 8 for first, second in repeated)
    run = evaluation(verdicts)
    completions = run.samples["replicate"] * (run.samples["sample_index"] == 0)
    samples = run.samples.assign(completion=completions.astype(str))
    object.__setattr__(run, "samples", samples)
    grid = make_comparison_table(make_leaderboard([run]))
    (note,) = notes_with(grid, "A/A")
    moves = f"and the difference changes by {format_signed_number(after - before)} points."
    noise = f"200 of 400 completions differ, {flips:.1f} problems flip, {moves}"
    assert f"w/ Mless and its baseline: {noise}" in note
    assert note.endswith("points.")  # greedy samples have no seeds
    sampled = make_comparison_table(make_board(verdicts, greedy=False))
    assert sampled.warnings == grid.warnings  # noise is not a verdict
    (note,) = notes_with(sampled, "A/A")
    assert "both have the same seeds, and the repeat run has others." in note
    baseline = cells_by_condition(grid)["w/o"]
    assert baseline["difference [95 %]"].text == baseline["+/-"].text == EN_DASH
    one_side = make_board(drawn(5, 9, 1, {**REAL, "wo again": 0.5}, WRONG_ONLY))
    # one side alone has no difference
    assert not notes_with(make_comparison_table(one_side), "A/A")


@with_cases
def test_remarks_on_the_number_of_problems(counts, facts, remark, has_remark):
    frame = evaluation(verdicts_by_count(counts), **facts)
    notes = make_comparison_table(make_leaderboard([frame])).notes
    assert (remark in " ".join(notes)) == has_remark


@with_cases
def test_reference_conditions_are_in_no_table_for_people(chances, contrasts):
    facts = {"contrasts": contrasts, "reference_conditions": CONTROL}
    board = make_board(drawn(7, 100, 1, chances), **facts)
    labels = ["w/o", "w/ Mless", "w/ Mful"]
    assert list(cells_by_condition(make_comparison_table(board))) == [*labels, "mless - mful"]
    # programs get all conditions
    assert set(board.side_tables["mediators"]["condition"]) == set(chances)
    tables = make_shown_side_tables(board)
    assert list(cells_by_condition(tables.pop("together"))) == ["all 3 conditions"]
    assert list(tables) == ["mediators", "audit"]
    for table in tables.values():
        assert list(cells_by_condition(table)) == labels


def test_the_positive_control_shows_whether_the_run_was_sensitive():
    def read_note(control, k=1):
        chances = {"wo": 0.5, "mless": 0.55, "control": control}
        board = make_board(drawn(3, 200, k, chances), reference_conditions=CONTROL)
        (note,) = notes_with(make_comparison_table(board), "Positive control")
        return note, by_condition(board).loc["control"]

    for k in (1, 3):
        note, control = read_note(0.1, k=k)
        assert f"{format_signed_number(control['difference'])} [" in note
        assert ": detected, so grader and pairing work." in note
    note, _ = read_note(0.5)
    assert "NOT DETECTED, so effects that this run does not find may still exist." in note
    assert "NOT DETECTED" in read_note(0.9)[0]  # accuracy did not fall


def test_the_noise_stands_for_each_model_and_layout_and_is_not_pooled():
    settings = [("m", "raw"), ("m", "chat"), ("n", "raw")]
    runs = []
    for seed, (model, layout) in enumerate(settings):
        verdicts = drawn(seed, 60, 1, {**REPEATED, "control": 0.1})
        facts = {"layout": layout, "reference_conditions": CONTROL}
        runs.append(evaluation(verdicts, model=model, **facts))
    board = make_leaderboard(runs)
    grid = make_comparison_table(board)
    table = board.comparison.set_index(["model", "layout", "condition"])
    for model, layout in settings:
        moved = format_signed_number(table.loc[(model, layout, "mless"), "aa_difference"])
        (noise,) = notes_with(grid, f"A/A, {model}, {layout}, w/ Mless and its baseline: ")
        assert f"the difference changes by {moved} points" in noise
        assert len(notes_with(grid, f"Positive control, {model}, {layout} ")) == 1


def test_splits_by_subject_and_level_have_rows_in_order():
    board = make_leaderboard([evaluation(drawn(1, 50, 1, {"wo": 0.5, "mless": 0.5}))], by=["level"])
    assert board.comparison["level"].tolist() == np.repeat(range(1, 6), 2).tolist()
    grid = make_comparison_table(board)
    assert grid.columns[0].heading == "level"
    assert not [note for note in grid.notes if "A/A" in note or "Positive control" in note]
    assert table_page(GREEDY_RUN, by=["level", "level"]) == table_page(GREEDY_RUN, by=["level"])


def test_no_table_is_wider_than_a_terminal(monkeypatch):
    verdicts = drawn(5, 60, 2, {**REAL, "wo again": 0.4, "mless again": 0.7})
    names = ("Qwen2.5-Math-1.5B-Instruct", "short")
    models = [evaluation(verdicts, model=name, **REGISTERED) for name in names]
    for board in (make_leaderboard(models[:1]), make_leaderboard(models)):
        receipts = [receipt_line(receipt) for receipt in board.receipts]
        grids = [make_comparison_table(board), *make_shown_side_tables(board).values()]
        for grid in grids:
            page = render([grid], receipts)
            assert widest_line(page) <= 80, page
    keys = "together mediators audit".split()
    assert widest_line(table_page(GREEDY_RUN, requested_keys=keys)) <= 80
    short, explained = (
        table_page(GREEDY_RUN, requested_keys=["mediators"], explain=explain)
        for explain in (False, True)
    )
    assert "--explain" in short and "--explain" not in explained
    monkeypatch.setenv("COLUMNS", "140")
    assert 80 < widest_line(render([grids[0]])) <= 140
    monkeypatch.delenv("COLUMNS")
    split = table_page(GREEDY_RUN, by=["subject"])
    assert widest_line(split) <= 80
    assert split.count("\n\nAlgebra\nw/o ") == 1  # a heading above its rows


def test_no_character_of_a_label_controls_a_terminal():
    label = "a\x1b[2Jb\x9bc\u202ed\u2028e\nf\x00g\u061ch"
    page = render([make_grid(["word"], (label,), title=label, notes=(label,))], [label])
    assert page.replace("\n", "").isprintable()
    assert page.count("<U+001B>[2Jb<U+009B>c<U+202E>d<U+2028>e<U+000A>f<U+0000>g<U+061C>h") == 4


def test_no_text_is_markup_in_markdown():
    texts = [*read_data("hostile_texts"), r"*a* _b_ `c` | [d](e) ~~f~~ \| # g", "# h"]
    grid = make_grid(["%|"], *[[text] for text in texts], title="*T*", notes=["# *n*"])
    page = render([grid], ["> _r_"], output_format="markdown")
    tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(page)
    shown = [token.children for token in tokens if token.type == "inline"]
    assert {child.type for children in shown for child in children} == {"text"}
    lines = ["".join(child.content for child in children) for children in shown]
    assert lines == ["*T*", "%|", *map(visible, texts), "# *n*", "> _r_"]


LATEX = r"""T

\begin{tabular}{lr}
word & c \\
\hline
{[}m\_1] \& 50 \% \#2 \$x\$ \{y\} $\backslash$z & {*} $-$5 $|$ $<$ $>$ $\sim$ \^{} \\
\end{tabular}

a\_b"""


def test_no_text_is_a_command_in_latex():
    row = (r"[m_1] & 50 % #2 $x$ {y} \z", f"* {MINUS}5 | < > ~ ^")
    assert render([make_grid(["word", "c"], row)], ["a_b"], output_format="latex") == LATEX


def test_json_has_the_documented_columns_and_csv_the_same_numbers():
    data = table_data(GREEDY_RUN)
    assert data["schema"] == "mless-table/2" and data["primary"] == "mless - wo"
    assert data["contrasts"] == REGISTERED["contrasts"]
    assert all(list(row) == list(COMPARISON_COLUMNS) for row in data["rows"])
    columns = ["model", "layout", "condition", *MEDIATOR_COLUMNS]
    assert all(list(row) == columns for row in data["mediators"])
    (receipt,) = data["receipt"]
    assert receipt["versions"]["mless"] and receipt["name"] == str(GREEDY_RUN)
    documented = (ROOT / "docs" / "tables.md").read_text()
    assert not [name for name in (*data, *receipt) if f"`{name}`" not in documented]
    for row, csv_row in zip(
        data["rows"], read_csv(table_page(GREEDY_RUN, output_format="csv")), strict=True
    ):
        for name in ("accuracy", "verdict", "p_adjusted"):
            assert csv_row[name] == row[name]
    notes = table_page(GREEDY_RUN, output_format="csv", requested_keys=["together"]).splitlines()
    assert json.loads(notes[-1].removeprefix("# ")) == {"together": data["together"]}
    assert data["together"][0]["all_right"] <= min(row["accuracy"] for row in data["rows"])
    for form in ("text", "csv"):
        receipt_text = table_page(GREEDY_RUN, output_format=form).split("inconclusive")[-1]
        assert "09e2316a" in receipt_text  # the dataset's hash
    nan = table_json(make_board({"wo": [["correct"]]}))
    assert "NaN" not in nan and json.loads(nan)["rows"][0]["difference"] is None


@with_cases
def test_a_label_with_a_hash_is_read_back_from_csv_as_the_documents_say(label):
    board = make_board({"wo": [["correct"]], "mless": [["incorrect"]]}, model=label)
    wo, mless = read_csv(table_csv(board))
    assert wo["model"] == mless["model"] == label
    assert (wo["accuracy"], mless["accuracy"]) == (100, 0)
    assert wo["within_margin"] is None and mless["within_margin"] is not None
    assert wo["repeats"] == mless["repeats"] == 1


@with_cases
def test_rounding_never_puts_p_on_the_other_side_of_alpha(p, text):
    assert format_p_value(p) == text


def test_the_audit_has_each_graders_difference():
    verdicts = {"wo": [["correct"], ["incorrect"], ["timeout"]], "mless": [["correct"]] * 3}
    frame = evaluation(verdicts).samples
    frame.loc[1, ["math_verify", "authors_rule"]] = [True, None]
    audit = audit_table(frame).set_index("condition")
    graders = ["by_mless", "math_verify", "authors_rule"]
    assert audit.loc["wo", graders].tolist() == pytest.approx([100 / 3, 200 / 3, 50])
    # the problem that authors_rule did not judge is left out of its difference
    differences = audit.loc["mless", [f"{grader}_difference" for grader in graders]]
    assert differences.tolist() == pytest.approx([200 / 3, 100 / 3, 50])
    assert audit["by_mless_difference"].isna().tolist() == [True, False]


def test_tables_repeat_run_and_contrasts_use_the_baseline_of_the_run(tmp_path):
    def answer(request, target):
        return right(request, "no such answer" if "short" in request.task else target)

    conditions = [
        {"name": name, "instruction": f"Answer {name}, within \\boxed{{}}."}
        for name in ("short", "long")
    ]
    settings = {"conditions": conditions, "replicates": 2, "dataset": {"make": "products"}}
    run = write_run(tmp_path / "made", answer, limit=12, **settings)
    data = table_data(run)
    assert (data["baseline"], data["contrasts"]) == ("short", ["long - short"])
    columns = ("verdict", "aa_difference", "aa_samples", "aa_changed")
    rows = [[row[name] for name in columns] for row in data["rows"]]
    assert rows == [[None] * 4, ["better", 0, 24, 0]]
    assert table_data(run, baseline="long")["contrasts"] is None
    page = one_line(table_page(run))
    assert re.match(r"\w+, raw, 12 problems, 1 sample each ", page)
    assert "least 299 problems;" in page


def test_lm_evals_output_gives_the_same_table():
    ours, theirs = map(table_data, (GREEDY_RUN, find_log("wo").parent))
    assert theirs["audit"] == ours["audit"]
    for row, expected in zip(theirs["rows"], ours["rows"], strict=True):
        # a log does not know the registered contrasts, so its tests share alpha in another way
        assert row == {**expected, "primary": row["primary"], "tests": row["tests"]}
    for fact in ("model", "sampling", "greedy", "seed"):
        assert theirs["receipt"][0][fact] == ours["receipt"][0][fact]


def test_a_table_of_words_with_a_long_path_keeps_its_last_column():
    path = "/a" * 60
    page = render([make_grid(("word", "word"), ("model", path))])
    assert f"\nmodel  {path}" in page


@with_cases
def test_a_model_that_never_answers_stands_beside_one_that_does(tmp_path, expected):
    for name, answer in (("a", right), ("b", lambda *_: ("I do not know.", "stop"))):
        write_run(tmp_path / name, answer, model={**CONFIG["model"], "label": name})
    page = table_page(tmp_path / "a", tmp_path / "b", output_format="csv")
    rows = [[row["model"], row["condition"], row["accuracy"]] for row in read_csv(page)]
    assert rows == expected
