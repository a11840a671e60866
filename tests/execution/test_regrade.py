import json

import pandas
import pytest

from tests.analysis.test_pair import log
from tests.make import find_log, log_line, with_cases, write_records


def write_line(folder, number=7, **changes):
    """Write a log of one line."""
    path = folder / "samples_task.jsonl"
    path.write_text(json.dumps(log_line(number, **changes)))
    return path


def test_a_log_of_our_own_task_has_the_verdicts_that_it_had(regrade):
    output = regrade(find_log("mless"))
    assert output.startswith("500 samples: right by mless 8") and "; they differ on 0." in output


def test_a_log_of_another_task_is_graded_and_compared_with_its_metric(tmp_path, regrade):
    path = log(
        tmp_path / "samples_gsm8k.jsonl",
        [1, 0],
        resps=[[r"so \boxed{3}"]],
        filtered_resps=["3"],
        target="a\n#### 3.0",
    )
    accuracies = (
        "right by mless 100.0%, by the log's metric exact_match,strict 50.0%; they differ on 1"
    )
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
    output = regrade(path, "--columns", "completion=text,gold=answer")
    assert output.startswith("3 samples: right by mless 66.7%. Verdicts: correct 2, incorrect 1.")
    assert "b 14 13 incorrect" in output
    regrade(path, message="Type --columns completion=COLUMN,gold=COLUMN.")


@with_cases
def test_a_file_without_completions_is_refused(name, text, message, tmp_path, regrade):
    (tmp_path / name).write_text(text)
    regrade(tmp_path / name, message=message)


@with_cases
def test_what_follows_reasoning_that_the_prompt_began_is_not_an_answer(
    prompt, verdict, tmp_path, regrade
):
    facts = {"resps": [[r"It is \boxed{7}. But"]], "filtered_resps": ["7"]}
    arguments = {"gen_args_0": {"arg_0": prompt, "arg_1": {}}}
    assert f"Verdicts: {verdict} 1." in regrade(write_line(tmp_path, arguments=arguments, **facts))


def test_what_stands_in_the_reasoning_of_a_completion_is_not_an_answer(tmp_path, regrade):
    table = tmp_path / "mine.csv"
    table.write_text(
        "completion,gold\n[THINK]\\boxed{3}[/THINK]\\boxed{4},4\n[THINK]\\boxed{3}[/THINK]4,4\n"
        "[THINK]\\boxed{4},4\n[THINK]4,4\n"
    )
    assert "Verdicts: correct 2, unfinished 2." in regrade(table)


@with_cases
def test_what_a_filter_took_from_finished_reasoning_is_not_an_answer(
    extracted, verdict, tmp_path, regrade
):
    text = "<think>The answer is (C)? No.</think>The Correct answer is (B)."
    facts = {"resps": [[text]], "filtered_resps": [extracted], "target": extracted}
    assert f"Verdicts: {verdict} 1." in regrade(write_line(tmp_path, **facts))


def test_an_empty_completion_has_no_box(tmp_path, regrade):
    (tmp_path / "silent.csv").write_text("completion,gold\n,14\n")
    assert "Verdicts: no_box 1." in regrade(tmp_path / "silent.csv")


@with_cases
def test_messages_and_lists_are_taken_apart(completions, summary, tmp_path, regrade):
    path = tmp_path / "saved.jsonl"
    path.write_text(json.dumps({"completion": completions, "gold": "7"}))
    assert regrade(path).startswith(summary)
    log_path = write_line(tmp_path, filtered_resps=[completions], resps=[completions])
    assert regrade(log_path).startswith(summary.partition(".")[0])


@with_cases
def test_an_object_that_is_not_a_message_is_refused_with_its_line(completion, tmp_path, regrade):
    path = tmp_path / "saved.jsonl"
    write_records(path, [{"completion": text, "gold": "7"} for text in ("7", completion)])
    message = "saved.jsonl, line 2: expected a text, or messages with `role` and `content`, got ["
    regrade(path, message=message)


@with_cases
def test_a_gold_answer_that_is_not_text_is_refused_with_its_line(gold, message, tmp_path, regrade):
    path = tmp_path / "saved.jsonl"
    path.write_text(json.dumps({"completion": "7", "gold": gold}))
    regrade(path, message=message.replace("{place}", f"{path}, line 1"))


def test_a_gold_answer_that_is_a_worked_solution_is_the_answer_in_its_box(tmp_path, regrade):
    solution = r"Half of \boxed{} is $\boxed{\frac{7}{2}}$, so we are done."
    facts = {"resps": [["The answer is 3.5."]], "filtered_resps": ["3.5"]}
    output = regrade(write_line(tmp_path, target=solution, **facts))
    assert output.startswith(
        "1 samples: right by mless 100.0%, by the log's metric exact_match,none 100.0%;"
    )


def test_a_filter_that_changes_only_the_spelling_extracts_no_answer(tmp_path, regrade):
    text = "We add. The Answer is 7."
    lower = text.lower().replace(".", "")
    output = regrade(write_line(tmp_path, resps=[[text]], filtered_resps=[lower]))
    assert "they differ on 0. Verdicts: correct 1. Forms of the answers: answer is 1." in output


@pytest.mark.parametrize("prompt", ["table", "turns"])
def test_reasoning_that_an_unknown_prompt_opened_is_not_an_answer(prompt, tmp_path, regrade):
    texts = [r"\boxed{3}?</think>It is \boxed{7}.", r"It is \boxed{7}. But"]
    path = tmp_path / "saved.jsonl"
    lines = [{"completion": text, "gold": "7"} for text in texts]
    if prompt == "turns":
        path = tmp_path / "samples_served.jsonl"
        turns = [{"role": "user", "content": "2 + 5?"}]
        facts = {"arguments": {"gen_args_0": {"arg_0": turns, "arg_1": {}}}, "target": "7"}
        lines = [
            log_line(number, resps=[[text]], filtered_resps=[text], **facts)
            for number, text in enumerate(texts)
        ]
    write_records(path, lines)
    assert "right by mless 50.0%" in regrade(path)
    assert "Verdicts: correct 1, unfinished 1." in regrade(path)


@with_cases
def test_a_table_may_be_named_like_a_log(name, text, tmp_path, regrade):
    (tmp_path / name).write_text(text)
    assert regrade(tmp_path / name).startswith("1 samples: right by mless 100.0%.")


def test_a_majoritys_answer_is_not_an_answer_of_the_first_sample(tmp_path, regrade):
    resps = [["The answer is 7.", "The answer is 9.", "The answer is 9."]]
    path = write_line(tmp_path, target="9", resps=resps, filtered_resps=["9"], exact_match=1.0)
    output = regrade(path)
    summary = "3 samples of 1 problem: right by mless 66.7%. Verdicts: correct 2, incorrect 1."
    assert output.startswith(summary)


@with_cases
def test_a_log_without_gold_answers_is_refused(target, tmp_path, regrade):
    path = write_line(tmp_path, 3, target=target)
    regrade(path, message=f"gold answers are missing: {path}, problem 3: '")


def test_a_log_of_a_task_that_scores_continuations_holds_no_completion(tmp_path, regrade):
    arguments = {"gen_args_0": {"arg_0": "Q", "arg_1": " yes"}}
    path = write_line(tmp_path, arguments=arguments, resps=[[["-1.5", "False"]]])
    regrade(path, message="samples_task.jsonl holds no completion")
