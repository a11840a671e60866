import pandas
import pytest

from tests.analysis.test_pair import log
from tests.commands.test_cli import here, refused
from tests.make import GREEDY_RUN


@pytest.fixture
def regrade(capsys, monkeypatch):
    """Regrade a file; return the output in one line. With a message, the file must be refused."""

    def run(path, *options, message=None):
        result = here(capsys, monkeypatch, "regrade", str(path), *options)
        if message:
            refused(result, message)
        else:
            assert result.returncode == 0, result.stderr
        return " ".join(result.stdout.split())

    return run


def test_a_log_of_our_own_task_has_the_verdicts_that_it_had(regrade):
    output = regrade(next(GREEDY_RUN.glob("samples_demo_mless_2*")))
    assert output.startswith("500 samples: right by mless 8") and "; they differ on 0." in output


def test_a_log_of_another_task_is_graded_and_compared_with_its_metric(tmp_path, regrade):
    path = log(
        tmp_path / "samples_gsm8k.jsonl",
        [1, 0],
        resps=[[r"so \boxed{3}"]],
        filtered_resps=["3"],
        target="a\n#### 3.0",
    )
    accuracies = "right by mless 100.0%, by the log's metric 50.0%; they differ on 1"
    assert f"2 samples: {accuracies}. Verdicts: correct 2." in regrade(path)
    unboxed = log(
        tmp_path / "samples_last.jsonl",
        [1, 0],
        resps=[["first\nnone"]],
        filtered_resps=["7"],
        target="7",
    )
    output = regrade(unboxed, "--metric", "exact_match,loose")
    assert "right by mless 100.0%" in output


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_table_of_completions_is_graded(suffix, tmp_path, regrade):
    path = tmp_path / f"mine.{suffix}"
    rows = [("a", r"\boxed{\frac12}", "0.5"), ("b", "I think\n13", "14"), ("c", r"\boxed{2}", "2")]
    table = pandas.DataFrame(rows, columns=["id", "text", "answer"])
    if suffix == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_json(path, orient="records", lines=True)
    output = regrade(path, "--completion", "text", "--gold", "answer")
    assert output.startswith("3 samples: right by mless 66.7%. Verdicts: correct 2, incorrect 1.")
    assert "b 14 13 incorrect" in output
    regrade(path, message="has no column 'completion': expected one of id, text, answer")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.csv", "completion,gold\n", "none.csv holds no completion."),
        ("odd.jsonl", "not json", "is no CSV or JSONL of completions"),
    ],
)
def test_a_file_without_completions_is_refused(name, text, message, tmp_path, regrade):
    (tmp_path / name).write_text(text)
    regrade(tmp_path / name, message=message)


def test_what_stands_in_the_reasoning_of_a_completion_is_no_answer(tmp_path, regrade):
    facts = {"resps": [[r"It is \boxed{7}. But"]], "filtered_resps": ["7"], "target": "7"}
    for name, prompt, verdict in (
        ("open", "2 + 5? <think>\n", "unfinished"),
        ("closed", "2 + 5? <think></think>", "correct"),
    ):
        arguments = {"gen_args_0": {"arg_0": prompt, "arg_1": {}}}
        path = log(tmp_path / f"samples_{name}.jsonl", [1, 0], arguments=arguments, **facts)
        assert f"Verdicts: {verdict} 2." in regrade(path)
    table = tmp_path / "mine.csv"
    table.write_text(
        "completion,gold\n[THINK]\\boxed{3}[/THINK]\\boxed{4},4\n[THINK]\\boxed{3}[/THINK]4,4\n"
        "[THINK]\\boxed{4},4\n[THINK]4,4\n"
    )
    assert "Verdicts: correct 2, unfinished 2." in regrade(table)


def test_an_empty_completion_has_no_box(tmp_path, regrade):
    (tmp_path / "silent.csv").write_text("completion,gold\n,14\n")
    assert "Verdicts: no_box 1." in regrade(tmp_path / "silent.csv")
