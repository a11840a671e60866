import json

import pytest

from tests.analysis.test_pair import log
from tests.commands.test_cli import here, refused
from tests.make import GREEDY_RUN


def graded(capsys, monkeypatch, *arguments):
    result = here(capsys, monkeypatch, "regrade", *map(str, arguments))
    assert result.returncode == 0, result.stderr
    return " ".join(result.stdout.split())


def test_a_log_of_our_own_task_is_graded_as_it_was(tmp_path, capsys, monkeypatch):
    path = next(GREEDY_RUN.glob("samples_demo_mless_2*"))
    output = graded(capsys, monkeypatch, path)
    assert output.startswith("500 samples: right by mless 8") and "; they differ on 0." in output


def test_a_log_of_another_task_is_graded_beside_its_metric(tmp_path, capsys, monkeypatch):
    path = log(
        tmp_path / "samples_gsm8k.jsonl",
        [1, 0],
        resps=[[r"so \\boxed{3}"]],
        filtered_resps=["3"],
        target="a\n#### 3.0",
    )
    output = graded(capsys, monkeypatch, path)
    assert (
        "2 samples: right by mless 100.0%, by the log's metric 50.0%; they differ on 1. Verdicts: correct 2."
        in output
    )
    unboxed = log(
        tmp_path / "samples_last.jsonl",
        [1, 0],
        resps=[["first\nnone"]],
        filtered_resps=["7"],
        target="7",
    )
    assert "right by mless 100.0%" in graded(
        capsys, monkeypatch, unboxed, "--metric", "exact_match,loose"
    )


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_completions_is_graded(suffix, tmp_path, capsys, monkeypatch):
    path = tmp_path / f"mine.{suffix}"
    rows = [("a", r"\boxed{\frac12}", "0.5"), ("b", "I think\n13", "14"), ("c", r"\boxed{2}", "2")]
    if suffix == "csv":
        path.write_text(
            "id,said,answer\n" + "".join(f'{name},"{said}",{gold}\n' for name, said, gold in rows)
        )
    else:
        lines = [
            {"id": name, "said": completion, "answer": gold} for name, completion, gold in rows
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = graded(capsys, monkeypatch, path, "--completion", "said", "--gold", "answer")
    assert (
        output.startswith("3 samples: right by mless 66.7%. Verdicts: correct 2, incorrect 1.")
        and "b 14 13 incorrect" in output
    )
    refused(
        here(capsys, monkeypatch, "regrade", str(path)),
        "has no column 'completion': expected one of id, said, answer",
    )
    (tmp_path / "none.csv").write_text("completion,gold\n")
    refused(
        here(capsys, monkeypatch, "regrade", str(tmp_path / "none.csv")),
        "none.csv holds no completion.",
    )
    (tmp_path / "silent.csv").write_text("completion,gold\n,14\n")
    assert "Verdicts: no_box 1." in graded(capsys, monkeypatch, tmp_path / "silent.csv")
    (tmp_path / "odd.jsonl").write_text("not json")
    refused(
        here(capsys, monkeypatch, "regrade", str(tmp_path / "odd.jsonl")),
        "is no CSV or JSONL of completions",
    )
