"""Scores of other harnesses and of tables: what is read, and wrong pairings that are refused."""

import json
import re
import sys

import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet

from harness import Run, compare
from harness.analysis.result_tables import make_leaderboard
from harness.errors import ConfigError
from harness.runs.joined_runs import stack_samples
from tests.commands.test_cli import refused
from tests.conftest import WITH_INSPECT, needs_inspect, run_program
from tests.make import ROOT, log_line, one_line, with_cases, write_log

LOGS = ROOT / "tests/data/harness_logs"
CHANGED = """
import sys
from pathlib import Path
from inspect_ai.log import read_eval_log, write_eval_log
from harness import cli

folder, new, change, *options = sys.argv[1:]
log = read_eval_log(f"{folder}/inspect/slashes.json")
samples, config = log.samples, log.plan.config
exec(change)
write_eval_log(log, new)
if "cut" in change:
    Path(new).write_bytes(Path(new).read_bytes()[:cut])
sys.argv = ["mless", "compare", f"{folder}/inspect/wo.eval", new, *options]
cli.main()
"""


def write_details(folder, *, first=30, order=1, results=None, **changes):
    """Write details as lighteval does, with other values in all rows: `doc.id`."""
    rows = parquet.read_table(LOGS / "lighteval/details_sums_wo.parquet").to_pylist()[:first]
    ids = [row["doc"]["id"] for row in rows][::order]
    for number, row in enumerate(rows):
        row["doc"]["id"] = ids[number]
        row["model_response"]["truncated_tokens_count"] = sum(map(ord, folder.name))  # no copies
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
def test_other_differences_are_said(old, new, options, sentence, tmp_path, succeed):
    sides = [write_side(tmp_path / name, side) for name, side in {"old": old, "new": new}.items()]
    assert sentence in one_line(succeed("compare", *sides, *options.split()))


def make_frame(**scores):
    """A frame of conditions with these scores."""
    return pandas.DataFrame(
        [
            {"item": f"i{number}", "condition": name, "score": score}
            for name, column in scores.items()
            for number, score in enumerate(column)
        ]
    )


HALF, UPPER = [0, 1] * 40, [0, 1, 1, 1] * 20


@pytest.mark.parametrize("spell", [int, bool, str, float, lambda score: "IC"[score]])
def test_right_and_wrong_are_compared_as_samples_of_runs_are(spell):
    frame = make_frame(a=[spell(score) for score in HALF], b=[spell(score) for score in UPPER])
    row = compare(Run.load(frame).samples, baseline="a").iloc[1]
    assert (row["accuracy"], row["wrong_to_right"], row["right_to_wrong"]) == (75, 20, 0)
    assert row["p"] == pytest.approx(2**-19) and row["verdict"] == "better"


@with_cases
def test_numbers_are_compared_by_their_means(scale, shift, clusters, verdict, score):
    old = scale * np.random.default_rng(1).random(clusters)
    frame = make_frame(a=old, b=old + shift * np.where(np.arange(clusters) % 5, 1, -1))
    board = make_leaderboard([Run.load(frame)], baseline="a")
    row = board.comparison.iloc[1]
    unit = 100 if score == "fraction" else 1
    assert board.score == score and row["verdict"] == verdict
    assert row["difference"] == pytest.approx(unit * shift * 0.6, abs=1e-3)
    assert row["low"] < row["difference"] < row["high"] and pandas.isna(row["wrong_to_right"])


def test_models_without_conditions_are_compared_and_clusters_count_once():
    frame = make_frame(x=HALF, y=UPPER).rename(columns={"condition": "model"})
    run = Run.load(frame.assign(group=frame["item"].str[-1]), columns="cluster=group")
    board = make_leaderboard([run], baseline="x")
    assert board.comparison["condition"].tolist() == ["x", "y"] and board.cluster_count == 10


def test_several_scores_are_in_one_table_and_one_family(tmp_path, succeed):
    path = write_details(tmp_path / "a", metric__f1=0)
    other = write_details(tmp_path / "b", metric__f1=1)
    names = ["em:strip_strings=True&type_exact_match=suffix", "f1"]
    options = [f"--metric={name}" for name in names]
    output = succeed("table", f"a={path}", f"b={other}", *options, "--baseline=a", "--format=json")
    rows = [row for row in json.loads(output)["rows"] if row["condition"] == "b"]
    assert [row["metric"] for row in rows] == names and [row["tests"] for row in rows] == [2, 2]
    assert [row["difference"] for row in rows] == [0, 100]


@with_cases
def test_what_a_table_cannot_do_is_refused(arguments, message, tmp_path, command):
    path = write_side(tmp_path / "given_twice", "item,score: wN,1")
    refused(command(*arguments.format(a=path).split()), message)


@with_cases
def test_runs_of_other_seeds_are_pooled(settings, options, outcome, tmp_path, command):
    seeds = {name: write_details(tmp_path / name, results=settings.get(name, {})) for name in "xyz"}
    sides = [f"a={seeds['x']}", f"b={seeds['y']}", f"b={seeds['z']}"]
    if options:
        sides.append(f"a={write_details(tmp_path / 'w', results={'seed': 9})}")
    process = command("table", *sides, *options.split(), "--baseline=a")
    assert outcome in one_line(process.stdout + process.stderr)


@pytest.mark.slow
@needs_inspect
@with_cases
def test_logs_of_inspect_are_compared_or_refused(change, options, outcome, tmp_path):
    arguments = [LOGS, tmp_path / "new.eval", change, *options.split()]
    output = run_program(sys.executable, "-c", CHANGED, *arguments, env=WITH_INSPECT)
    assert outcome in one_line(output.stdout + output.stderr)


@with_cases
def test_the_clusters_of_one_table_are_those_of_both(columns, clusters):
    """`columns` has the clusters of each side; a blank means that the row names no cluster."""
    runs = []
    for name, groups in columns.items():
        rows = [{"id": f"i{n}", "score": n % 2, "cluster": g} for n, g in enumerate(groups)]
        runs.append(Run.load(pandas.DataFrame(rows).assign(condition=name)))
    samples = stack_samples([run.samples for run in runs])
    assert samples.groupby("problem_id")["cluster"].nunique().eq(1).all()
    assert samples["cluster"].nunique() == clusters


def test_a_table_has_no_columns_of_completions():
    rows = [{"id": f"i{n}", "condition": name, "score": 1} for n in range(9) for name in "ab"]
    tables = make_leaderboard([Run.load(pandas.DataFrame(rows))], baseline="a").side_tables
    assert tables["audit"].empty and tables["mediators"].empty


def test_a_frame_of_scores_is_not_a_frame_of_samples():
    with pytest.raises(ConfigError, match="has no column model, layout"):
        compare(pandas.DataFrame({"condition": ["a"], "problem_id": [1], "score": [1]}))


def test_the_direction_of_numbers_is_unknown_and_conditions_have_colons(tmp_path, command):
    rows = [f"q{n},x:{c},{n % 7 / 10 + c / 10 + 0.05}" for c in (1, 2) for n in range(60)]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(["id,condition,score", *rows]))
    output = command("compare", f"{path}:x:1", f"{path}:x:2").stdout
    assert "+10.0" in output and "higher" in output
