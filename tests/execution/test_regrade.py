import json

from tests.analysis.test_pair import log
from tests.make import find_log, log_line, with_cases, write_records


def write_line(folder, **changes):
    """Write a log of one line."""
    path = folder / "samples_task.jsonl"
    path.write_text(json.dumps(log_line(7, **changes)))
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


@with_cases
def test_a_table_of_completions_is_graded(name, text, tmp_path, regrade):
    path = tmp_path / name
    path.write_text(text)
    output = regrade(path, "--columns", "completion=text,gold=answer")
    assert output.startswith("3 samples: right by mless 66.7%. Verdicts: correct 2, incorrect 1.")
    assert "b 14 13 incorrect" in output
    regrade(path, message="Type --columns completion=COLUMN,gold=COLUMN.")


@with_cases
def test_a_file_without_completions_is_refused(name, text, message, tmp_path, regrade):
    (tmp_path / name).write_text(text)
    regrade(tmp_path / name, message=message)


@with_cases
def test_the_verdicts_of_a_log_of_one_line(changes, summary, tmp_path, regrade):
    assert summary in regrade(write_line(tmp_path, **changes))


@with_cases
def test_a_log_that_cannot_be_graded_is_refused(changes, message, tmp_path, regrade):
    path = write_line(tmp_path, **changes)
    regrade(path, message=message.format(path=path))


@with_cases
def test_the_verdicts_of_a_file(name, text, summary, tmp_path, regrade):
    (tmp_path / name).write_text(text)
    assert summary in regrade(tmp_path / name)


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


@with_cases
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
