"""A leaderboard as people see it: which columns, in which words, and what must be said below."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.leaderboard import LABELS, Leaderboard, records
from harness.rendering import Cell, Grid

if TYPE_CHECKING:
    import pandas

    from harness.reference import Reference

Row = Mapping[str, Any]
NONE = "-"
PASSED = ("better", "worse")
"""Verdicts whose test was passed: the only ones in bold."""


def comparison_grid(board: Leaderboard) -> Grid:
    """One row a condition: accuracy, difference from the baseline, adjusted p, verdict, flips."""
    rows = _shown(board, board.comparison)
    accuracy: tuple[str, Callable[[Row], str]] = ("acc. %", lambda r: f"{r['accuracy']:.1f}")
    ranked = any(row["null_p"] is not None for row in rows)
    if not board.by and not ranked:  # with either the table would be too wide
        accuracy = (
            "accuracy % [95 %]",
            lambda r: f"{r['accuracy']:.1f} {_interval(r['accuracy_low'], r['accuracy_high'])}",
        )
    columns: list[tuple[str, Callable[[Row], str]]] = [
        accuracy,
        (
            "difference [95 %]",
            lambda r: _difference(r) if r["aa_p"] is None or r["verdict"] != "baseline" else _noise(r),
        ),
        ("p adj.", lambda r: _p(r["p_adjusted"])),
        ("verdict", _verdict),
        ("+ / -", lambda r: _pair(r, "" if r["wrong_to_right"] is not None else "aa_")),
    ]
    if ranked:
        columns.append(("rank p", lambda r: _p(r["null_p"])))
    title, words = _heading(board, rows)
    return Grid(
        title=title,
        header=(*words, *(name for name, _ in columns)),
        words=frozenset([*words, "verdict"]),
        rows=tuple(
            (
                *(Cell(text=_word(row, name)) for name in words.values()),
                *(
                    Cell(text=write(row), strong=name == "verdict" and row["verdict"] in PASSED)
                    for name, write in columns
                ),
            )
            for row in rows
        ),
        notes=(*_about_tests(board, rows), *_about_noise(board, rows)),
    )


def leaderboard_grid(board: Leaderboard) -> Grid:
    """One row a model and layout, best baseline first: the primary difference whole, the others as bare numbers."""
    rows = _shown(board, board.comparison)
    others = [name for name in dict.fromkeys(row["condition"] for row in rows) if name != board.baseline]
    main = next((name for name in others if name in board.primary), others[0] if others else None)
    rest = [name for name in others if name != main]
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    keys = ("model", "layout", *board.by)
    for row in rows:
        lines.setdefault(tuple(row[key] for key in keys), {})[row["condition"]] = row
    ordered = sorted(lines.values(), key=lambda line: -line[board.baseline]["accuracy"])
    title, words = _heading(board, rows)
    words.pop("condition", None)
    header = [f"{_label(board.baseline)} %"]
    if main is not None:
        header += [f"{_label(main)} [95 %]", "p adj.", "verdict"]
    body = []
    for line in ordered:
        base = line[board.baseline]
        cells = [Cell(text=_word(base, name)) for name in words.values()]
        cells.append(Cell(text=f"{base['accuracy']:.1f}"))
        if main is not None:
            row = line.get(main, {})
            cells += [
                Cell(text=_difference(row)),
                Cell(text=_p(row.get("p_adjusted"))),
                Cell(text=_verdict(row) if row else "not run", strong=row.get("verdict") in PASSED),
            ]
        for name in rest:
            row = line.get(name, {})
            cells.append(Cell(text=_signed(row.get("difference")), strong=row.get("verdict") in PASSED))
        body.append(tuple(cells))
    return Grid(
        title=title,
        header=(*words, *header, *map(_label, rest)),
        words=frozenset([*words, "verdict"]),
        rows=tuple(body),
        notes=(
            "Best baseline first. Every condition's number is its difference from "
            f"{_label(board.baseline)}; only those that passed their test are bold.",
            *_about_tests(board, rows),
            *_about_noise(board, rows),
        ),
    )


def mediator_grid(board: Leaderboard) -> Grid:
    """What else a condition changes, and how the difference splits into format and answer."""
    rows = _shown(board, board.mediators)
    _, words = _heading(board, rows)
    columns = {
        "no box %": ("no_box", "{:.1f}"),
        "truncated": ("truncated", "{:.1f}"),
        "refused": ("refused", "{:.1f}"),
        "timed out": ("timed_out", "{:.1f}"),
        "tokens": ("completion_tokens", "{:.0f}"),
        "looping": ("looping", "{:.1f}"),
        "format moved": ("format_changed", "{:.1f}"),
        "by format": ("format_difference", "{:+.1f}"),
        "by answer": ("answer_difference", "{:+.1f}"),
    }
    return _plain_grid(
        "What else changed: percent of the samples; points of the difference",
        rows,
        words,
        {header: _number(name, form) for header, (name, form) in columns.items()},
        (
            "no box, truncated, refused, timed out: without a graded answer, by reason. looping: the last 100 "
            "characters occur at least 4 times in the completion.",
            "The difference is the sum of two parts, by pairs of samples of one problem: by format, where only one of "
            "the two has a graded answer, and by answer, where both have; format moved: pairs with one, or that lack "
            "it for different reasons.",
        ),
    )


def audit_grid(board: Leaderboard) -> Grid:
    """Each grader's accuracy of the same completions, and its difference from the baseline."""
    from harness.grading import COLUMNS as GRADERS

    rows = _shown(board, board.audit)
    _, words = _heading(board, rows)
    headers = {
        "ours": "ours",
        "math_verify": "math_verify",
        "exact_match": "sentence",
        "exact_match_boxed": "boxed",
        "authors_rule": "authors'",
        "authors_rule_strict": "strict",
        "first_box": "first box",
    }

    def write(name: str) -> Callable[[Row], str]:
        def said(row: Row) -> str:
            if row[name] is None:
                return NONE
            change = row[f"{name}_difference"]
            return f"{row[name]:.1f}" + ("" if change is None else f" {_signed(change)}")

        return said

    most = max(
        ((r[f"{g}_only_ours"] + r[f"{g}_only_theirs"], g, r) for r in rows for g in GRADERS if g != "exact_match"),
        key=lambda item: item[0],
        default=None,
    )
    notes = [
        "Percent right by each grader, and its difference from the baseline in points. sentence and boxed are "
        "lm-eval's exact_match on its own sentence and on the last box; authors' is the study's rule (the answer may "
        "be a substring of the gold), strict the same without substrings.",
    ]
    if most is not None and most[0]:
        notes.append(
            f"Most at odds with ours: {most[1]}, {_label(most[2]['condition'])}: {most[2][f'{most[1]}_only_ours']} "
            f"samples are right by ours only, {most[2][f'{most[1]}_only_theirs']} by it only."
        )
    return _plain_grid(
        "The same completions by every grader",
        rows,
        words,
        {header: write(name) for name, header in headers.items()},
        notes,
    )


def reference_grid(table: pandas.DataFrame, reference: Reference, differences: Sequence[str]) -> Grid:
    """Published numbers beside ours."""
    rows = records(table)
    words = {name: name for name in ("model", "layout", "condition")}
    title = f"Reference: {reference.source}"
    if len({row["layout"] for row in rows if row["layout"]}) < 2:
        words.pop("layout")
    if len({row["model"] for row in rows}) == 1:
        words.pop("model")
        title += f", {rows[0]['model']}"
    columns: dict[str, Callable[[Row], str]] = {
        "ours % [95 %]": lambda r: (
            "not run" if r["accuracy"] is None else f"{r['accuracy']:.1f} {_interval(r['low'], r['high'])}"
        ),
        "authors'": _number("authors_rule", "{:.1f}"),
        "theirs": lambda r: f"{r['reference']:.1f}{_agreement(r['agrees'])}",
        "our difference": lambda r: _difference({**r, "low": r["difference_low"], "high": r["difference_high"]}),
        "their difference": lambda r: f"{_signed(r['reference_difference'])}{_agreement(r['difference_agrees'])}",
    }
    note = "agrees: their number lies in our 95 % interval" + (
        "; their own noise is not stated."
        if reference.exact
        else f", give or take {reference.uncertainty:g} points of reading error."
    )
    return _plain_grid(title, rows, words, columns, [note, *differences])


def plain_grid(table: pandas.DataFrame) -> Grid:
    """`leaderboard.accuracy_table`: accuracies alone, of runs that have no baseline to compare with."""
    headers = {"n": "n", "no_box": "no box", "truncated": "truncated", "ungraded": "ungraded"}
    words = {name: name for name in ("model", "layout", "condition")}
    columns: dict[str, Callable[[Row], str]] = {
        "accuracy %": lambda r: f"{r['accuracy']:.1f}",
        "SE": lambda r: NONE if r["standard_error"] is None else f"{r['standard_error']:.1f}",
        **{header: _number(name, "{}") for name, header in headers.items()},
    }
    note = "Accuracies alone: there is no baseline condition among them that others could be compared with."
    return _plain_grid("Accuracy", records(table), words, columns, [note])


def receipt_lines(board: Leaderboard) -> list[str]:
    """The receipt in words, one paragraph a run."""
    return [_receipt(entry) for entry in board.receipt]


def _receipt(entry: Row) -> str:
    sampling, versions = entry.get("sampling") or {}, entry.get("versions") or {}
    drawn = ", ".join(f"{name} {sampling[name]:g}" for name in ("temperature", "top_p", "top_k") if sampling.get(name))
    facts = {
        "": entry.get("model"),
        "weights": _hash(entry.get("model_sha256")),
        "dataset": " ".join(filter(None, [entry.get("dataset_name"), _hash(entry.get("dataset"))])),
        "prompts": _hash(entry.get("prompts_sha256")),
        "task": entry.get("task_version"),
        "grader": entry.get("grader_version") or entry.get("metric"),
        "sampling": "greedy" if entry.get("greedy") else drawn,
        "seed": entry.get("seed"),
        "by": entry.get("engine") or entry.get("backend"),
        **{name: versions.get(name) for name in ("mless", "lm-eval")},
        "at": str(entry.get("git_revision") or "")[:7],
        "on": str(entry.get("created") or "")[:10],
    }
    said = ", ".join(f"{name} {value}".strip() for name, value in facts.items() if value not in (None, ""))
    return f"receipt: {entry['name']}: {said}"


def _hash(value: Any) -> str:
    return str(value)[:8] if value else ""


def _shown(board: Leaderboard, table: pandas.DataFrame) -> list[Row]:
    """The rows without those of the prompt null, which stand in a note."""
    return [row for row in records(table) if row["condition"] not in board.edits]


def _heading(board: Leaderboard, rows: Sequence[Row]) -> tuple[str, dict[str, str]]:
    """The title, which says what is the same in all rows, and the columns of words for what is not."""
    whole = records(board.comparison)
    words = {"model": "model", "layout": "layout", **{name: name for name in board.by}, "condition": "condition"}
    said = []
    for name in ("model", "layout"):
        values = {row[name] for row in whole}
        if len(values) == 1:
            said.append(str(values.pop()))
            words.pop(name)
    for name, singular in (("n", "problem"), ("k", "sample")):
        values = {row[name] for row in whole}
        if len(values) == 1:
            number = int(values.pop())
            said.append(f"{number} {singular}{'s' * (number != 1)}" + (" each" if name == "k" else ""))
        else:
            words[name] = name
    return ", ".join(said) or "Differences from the baseline", words


def _plain_grid(
    title: str,
    rows: Sequence[Row],
    words: Mapping[str, str],
    columns: Mapping[str, Callable[[Row], str]],
    notes: Sequence[str],
) -> Grid:
    shown = {header: name for header, name in words.items() if name not in ("n", "k")}
    return Grid(
        title=title,
        header=(*shown, *columns),
        words=frozenset(shown),
        rows=tuple(
            (
                *(Cell(text=_word(row, name)) for name in shown.values()),
                *(Cell(text=write(row)) for write in columns.values()),
            )
            for row in rows
        ),
        notes=tuple(notes),
    )


def _about_tests(board: Leaderboard, rows: Sequence[Row]) -> list[str]:
    tested = [row for row in rows if row["p_adjusted"] is not None]
    if not tested:
        return ["One condition only: nothing is compared."]
    test = {"mcnemar": "exact McNemar test", "sign-flip": "sign-flip permutation test"}
    tests = " or ".join(dict.fromkeys(test[row["test"]] for row in tested))
    families = {row["family"]: f"{row['tests']} test{'s' * (row['tests'] != 1)}" for row in tested}
    said = {
        "all": "all {}",
        "primary": f"the primary contrast ({', '.join(map(_label, board.primary))}), {{}}",
        "secondary": "the others, {}",
    }
    holm = " and, apart, ".join(said[name].format(number) for name, number in sorted(families.items()))
    margin = f"{tested[0]['margin']:g}"
    return [
        f"Differences from {_label(board.baseline)} in points, paired by problem, with score intervals; + / -: "
        f"problems from wrong to right and from right to wrong; p: {tests}, adjusted by Holm over {holm}.",
        f"better, worse: adjusted p < 0.05; equivalent: the 90 % interval lies between -{margin} and +{margin} points; "
        "otherwise inconclusive, which is no evidence of no effect.",
    ]


def _about_noise(board: Leaderboard, rows: Sequence[Row]) -> list[str]:
    notes = []
    if again := [row for row in rows if row["aa_p"] is not None and row["verdict"] == "baseline"]:
        greedy = all(entry.get("greedy") for entry in board.receipt)
        what = (
            "under greedy decoding this measures only what the engine does not repeat exactly"
            if greedy
            else "it was drawn with other seeds, so differences of this size need no cause"
        )
        told = "; ".join(f"{row['model']} {_signed(row['aa_difference'])}, {_pair(row, 'aa_')}" for row in again)
        notes.append(f"A/A: the baseline run again, in another order, against itself ({told}): {what}.")
    null = [r["difference"] for r in records(board.comparison) if r["condition"] in board.edits]
    if null:
        notes.append(
            f"Prompt null (harmless edits of the prompt, without filler: {len(board.edits)}): accuracy moves by "
            f"{_signed(min(null))} to {_signed(max(null))} points; rank p: (1 + edits at least as far) / (1 + edits)."
        )
    return notes


def _number(name: str, form: str) -> Callable[[Row], str]:
    return lambda row: NONE if row[name] is None else _zero(form.format(row[name]))


def _verdict(row: Row) -> str:
    if row["verdict"] == "baseline":
        return NONE
    if row["verdict"] in PASSED and row["within_margin"]:
        return f"{row['verdict']} (< {row['margin']:g})"
    return str(row["verdict"])


def _difference(row: Row) -> str:
    if row.get("difference") is None:
        return NONE
    return f"{_signed(row['difference'])} [{_signed(row['low'])}, {_signed(row['high'])}]"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.1f}, {high:.1f}]"


def _agreement(value: bool | None) -> str:
    return "" if value is None else ", agrees" if value else ", differs"


def _noise(row: Row) -> str:
    return f"A/A {_signed(row['aa_difference'])}"


def _pair(row: Row, of: str) -> str:
    """Flips, of a difference or of the baseline against itself."""
    up, down = row[f"{of}wrong_to_right"], row[f"{of}right_to_wrong"]
    return NONE if up is None or down is None else f"{_count(up)} / {_count(down)}"


def _count(value: float) -> str:
    return f"{value:.0f}" if math.isclose(value, round(value), abs_tol=1e-9) else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return NONE if value is None else _zero(f"{value:+.1f}")


def _zero(text: str) -> str:
    """Zero has no sign."""
    return text[1:] if text in ("+0.0", "-0.0") else text


def _p(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _word(row: Row, name: str) -> str:
    return _label(row[name]) if name == "condition" else str(row[name])


def _label(condition: Any) -> str:
    return LABELS.get(str(condition), str(condition))
