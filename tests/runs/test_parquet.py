"""A run as a Parquet file: the same samples, described columns, the receipt inside."""

from __future__ import annotations

import json
import shutil

import pandas
import pyarrow.parquet
import pytest

from harness import load_run
from harness.errors import ConfigError, RunError
from harness.grading import COLUMNS as GRADERS
from harness.runs.parquet import export_samples, read_receipt_of
from harness.runs.read_run import read_run
from harness.runs.records import COLUMNS
from harness.runs.sample_frame import read_receipt
from tests.commands.test_cli import here, refused
from tests.example_runs import GREEDY_RUN, right, write_run


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet") / "samples.parquet"
    assert export_samples(read_run(GREEDY_RUN), path) == len(load_run(GREEDY_RUN))
    assert [file.name for file in path.parent.iterdir()] == ["samples.parquet"]
    return path


def test_the_file_holds_what_load_run_gives(exported):
    ours, theirs = load_run(GREEDY_RUN), pandas.read_parquet(exported)
    assert list(ours.columns) == list(theirs.columns) == list(COLUMNS)
    for name in COLUMNS:
        assert theirs[name].isna().tolist() == ours[name].isna().tolist(), name
        there = ours[name].notna()
        assert theirs[name][there].tolist() == ours[name][there].tolist(), name
    assert list(theirs["condition"].cat.categories) == list(ours["condition"].cat.categories)


def test_logs_of_lm_eval_are_exported_as_the_run_is(exported, tmp_path):
    logs = shutil.copytree(GREEDY_RUN, tmp_path / "logs", ignore=shutil.ignore_patterns("run.json", "journal*"))
    run = read_run(logs)
    assert export_samples(run, tmp_path / "logs.parquet") == len(load_run(GREEDY_RUN))
    ours, theirs = pandas.read_parquet(exported), pandas.read_parquet(tmp_path / "logs.parquet")
    for name in (*"condition problem_id completion verdict answer target completion_tokens".split(), *GRADERS):
        assert ours[name].tolist() == theirs[name].tolist(), name
    assert read_receipt_of(tmp_path / "logs.parquet")["source"] == "lm-eval"


def test_the_file_holds_replicates_and_rewordings_too(tmp_path):
    run = write_run(tmp_path / "run", right, replicates=2, prompt_null=2, sampling={"temperature": 1}, limit=3)
    assert export_samples(read_run(run), tmp_path / "samples.parquet") == 3 * (2 + 1 + 2)
    found = pandas.read_parquet(tmp_path / "samples.parquet")
    assert set(found["replicate"]) == {0, 1} and {"edit-01", "edit-02"} <= set(found["condition"])


def test_a_name_that_ends_in_csv_gives_csv(capsys, monkeypatch, tmp_path, exported):
    output = tmp_path / "s.csv"
    assert here(capsys, monkeypatch, "export", str(GREEDY_RUN), "-o", str(output)).returncode == 0
    ours, theirs = pandas.read_csv(output, dtype={"answer": str, "target": str}), pandas.read_parquet(exported)
    assert list(ours.columns) == list(COLUMNS) and len(ours) == len(theirs)
    for name in ("completion", "target", "correct", "filler_tokens", "condition"):
        there = theirs[name].notna()
        assert ours[name][there].tolist() == theirs[name][there].tolist() and ours[name][~there].isna().all(), name
    with pytest.raises(ConfigError, match=r"s\.csv is no Parquet file"):
        read_receipt_of(output)


def test_every_column_says_what_it_is_and_the_receipt_is_inside(exported):
    schema = pyarrow.parquet.read_schema(exported)
    assert {field.name: field.metadata[b"description"].decode() for field in schema} == {
        name: meaning for name, (_, meaning) in COLUMNS.items()
    }
    assert read_receipt_of(exported) == read_receipt(GREEDY_RUN)


def test_half_a_surrogate_pair_is_spelt_out(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(GREEDY_RUN, run)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'"completion":' in line)
    sample = json.loads(lines[place])
    sample["completion"] = "half \ud800 a pair, \N{GREEK SMALL LETTER PI}"
    lines[place] = json.dumps(sample).encode() + b"\n"
    (run / "journal.jsonl").write_bytes(b"".join(lines))
    export_samples(read_run(run), tmp_path / "s.parquet")
    found = pandas.read_parquet(tmp_path / "s.parquet")
    assert "half \\ud800 a pair, \N{GREEK SMALL LETTER PI}" in found["completion"].tolist()


def test_what_cannot_be_read_or_written_is_said(tmp_path, exported):
    with pytest.raises(RunError, match="holds no finished run"):
        export_samples(read_run(tmp_path), tmp_path / "s.parquet")
    export_samples(read_run(GREEDY_RUN), tmp_path / "nowhere" / "s.parquet")
    with pytest.raises(ConfigError, match=r"s\.parquet cannot be written: Not a directory\. Choose another file\."):
        export_samples(read_run(GREEDY_RUN), tmp_path / "nowhere" / "s.parquet" / "s.parquet")
    with pytest.raises(ConfigError, match=r"README\.md is no Parquet file: .* Expected one of `mless export`"):
        read_receipt_of(GREEDY_RUN / "README.md")
    pandas.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(ConfigError, match=r"other\.parquet holds no receipt: expected a file of `mless export`"):
        read_receipt_of(tmp_path / "other.parquet")


def test_a_folder_is_no_file_and_nothing_is_left_in_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for output in (".", "/", "folder", ".."):
        done = here(capsys, monkeypatch, "export", str(GREEDY_RUN), "-o", output)
        refused(done, f"{output} cannot be written: Is a directory. Choose another file.")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_the_command_says_how_many_samples_and_where(capsys, monkeypatch, tmp_path):
    done = here(capsys, monkeypatch, "export", str(GREEDY_RUN), "-o", str(tmp_path / "s.parquet"))
    assert (done.returncode, done.stdout) == (
        0,
        f"{len(load_run(GREEDY_RUN)):,} samples  {tmp_path / 's.parquet'}\n",
    )
    refused(here(capsys, monkeypatch, "export", str(tmp_path)), "holds no finished run")


@pytest.mark.parametrize("command", ["export", "report", "flips"])
def test_no_output_replaces_a_file_of_the_run(capsys, monkeypatch, tmp_path, command):
    shutil.copytree(GREEDY_RUN, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    for name in ("run.json", "journal.jsonl", "scores.jsonl"):
        output = tmp_path / "run" / name
        done = here(capsys, monkeypatch, command, str(tmp_path / "run"), "-o", str(output))
        refused(done, f"{output} is a file of a run or of traces, and would be lost. Choose another name.")
    assert before == {path: path.read_bytes() for path in before}
