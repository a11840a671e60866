"""Scores of other harnesses and of tables: what is read, and wrong pairings that are refused."""

import json
import re

import pyarrow
from pyarrow import parquet

from tests.commands.test_cli import refused
from tests.make import ROOT, log_line, with_cases, write_log

LOGS = ROOT / "tests/data/harness_logs"


def write_details(folder, *, first=30, order=1, results=None, **changes):
    """Write details as lighteval does, with other values in all rows: `doc.id`."""
    rows = parquet.read_table(LOGS / "lighteval/details_sums_wo.parquet").to_pylist()[:first]
    ids = [row["doc"]["id"] for row in rows][::order]
    for number, row in enumerate(rows):
        row["doc"]["id"] = ids[number]
        row["model_response"]["truncated_tokens_count"] = folder.name == "new"  # no copies
        for key, value in changes.items():
            field, _, name = key.partition("__")
            row[field][name] = value
    path = folder / "details/org/model/DATE/details_sums_DATE.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    config = json.loads((LOGS / "lighteval/results.json").read_bytes())
    config["config_general"]["model_config"]["generation_parameters"] |= results or {}
    file = folder / "results/org/model/results_DATE.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(config))
    return path


def write_side(folder, content):
    """A side of a case.

    A text is a CSV file: its header, a colon, and a row in which N is the row's number and M counts
    down; perhaps `x` and their number instead of 20.
    """
    folder.mkdir()
    if "lighteval" in content:
        return write_details(folder, **content["lighteval"])
    if "lm_eval" in content:
        facts = dict(content["lm_eval"])
        filters, ids = facts.pop("filters", ["none"]), range(facts.pop("first", 20))
        lines = [log_line(number, filter=name) for number in ids for name in filters]
        return write_log(folder / "logs", lines, **facts)
    path = folder / content.get("name", "a.csv") if isinstance(content, dict) else folder / "a.csv"
    if isinstance(content, dict):
        path.write_text(content["text"], encoding=content.get("encoding", "utf-8"))
        return path
    header, row, count = re.fullmatch("(.*?): (.*?)(?: x(\\d+))?", content).groups()
    rows = [row.replace("N", str(n)).replace("M", str(19 - n)) for n in range(int(count or 20))]
    path.write_text("\n".join([header, *rows]))
    return path


@with_cases
def test_wrong_pairings_are_refused(old, new, options, message, tmp_path, command):
    sides = [write_side(tmp_path / name, side) for name, side in {"old": old, "new": new}.items()]
    refused(command("compare", *sides, *options.split()), message)


@with_cases
def test_other_differences_are_said(old, new, options, sentence, tmp_path, command):
    sides = [write_side(tmp_path / name, side) for name, side in {"old": old, "new": new}.items()]
    process = command("compare", *sides, *options.split())
    assert process.returncode == 0, process.stderr
    assert sentence in " ".join(process.stdout.split())
