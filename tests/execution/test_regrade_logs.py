"""`mless regrade` of logs that lm-eval writes, beside its own metrics; our grader in its tasks."""

import json
import re
from pathlib import Path

import lm_eval

from tests.lm_eval_plugin.wrapped_tasks import (
    QUESTIONS,
    Answering,
    evaluate,
    local_data,
    write_both,
    write_logs,
)
from tests.make import ROOT, read_data, read_lines, with_cases

LOGS = read_data("regraded_logs")


def recorded(task):
    """A model with a completion for each question; of its repeats only the first is as written."""
    completions = {
        number: text.format(answer=answer)
        for number, (text, (_, answer)) in enumerate(
            zip(LOGS[task]["completions"], QUESTIONS, strict=True)
        )
    }
    return Answering(lambda request: completions.pop(request.doc_id, "#### 0"))


def write_log(task, folder, **options):
    """Evaluate a task of lm-eval with recorded completions; return its sample log."""
    write_both(task, folder)
    path = folder / f"{task}.yaml"
    path.write_text(path.read_text() + "".join(f"{key}: {options[key]}\n" for key in options))
    logs = write_logs([task], folder, recorded(task), num_fewshot=0, limit=5)
    return logs[task]


@with_cases
def test_a_log_is_regraded_beside_its_own_metric(task, tmp_path, regrade):
    output = regrade(write_log(task, tmp_path))
    assert all(sentence in output for sentence in LOGS[task]["sentences"]), output
    are_named = "Forms that were looked for: filter, box, <answer>, Final Answer, ####, Answer:, "
    assert (are_named in output) == ("none 1" in output)


def test_repeats_are_samples_and_the_metric_is_compared_where_it_judged(tmp_path, regrade):
    log = write_log("gsm8k", tmp_path, repeats=2)
    line = read_lines(log)[0]
    assert len(line["resps"][0]) == 2 and len(line["filtered_resps"]) == 1
    output = regrade(log)
    assert output.startswith(
        "10 samples of 5 problems: right by mless 40.0%; of 5 that the log judges 80.0%, "
        "by the log's metric exact_match,strict-match 40.0%; they differ on 2."
    )
    assert "Forms of the answers: #### 5, filter 3, answer is 1, Answer: 1." in output


def test_the_recipe_of_the_page_grades_a_task_of_lm_eval(tmp_path):
    page = (ROOT / "docs/lm_eval_tasks.md").read_text()
    code, task = (
        re.search(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
        for language in ("python", "yaml")
    )
    (tmp_path / "graded.py").write_text(code)
    task = task.replace("LM_EVAL", str(Path(lm_eval.__file__).parent))
    (tmp_path / "gsm8k_graded.yaml").write_text(task + local_data("gsm8k", tmp_path))
    results = evaluate(["gsm8k_graded"], tmp_path, recorded("gsm8k"), num_fewshot=0, limit=5)
    metrics = results["results"]["gsm8k_graded"]
    # lm-eval's own metric finds two of these answers
    assert (metrics["accuracy,mless"], metrics["graded,mless"]) == (0.8, 1)
    grades = [
        json.loads(line["filtered_resps"][0][0]) for line in results["samples"]["gsm8k_graded"]
    ]
    assert [grade["answer"] for grade in grades] == "42 60 1 21 210".split()


def test_completions_of_a_question_are_samples_of_one_problem_with_one_gold_answer(
    tmp_path, regrade
):
    path = tmp_path / "samples.csv"
    rows = ["question,completion,gold", "1+1?,The answer is 2,2", "1+1? ,3,2", "1+2?,3,3"]
    path.write_text("\n".join(rows))
    assert regrade(path).startswith("3 samples of 2 problems: right by mless 66.7%")
    path.write_text("\n".join([*rows, "1+1?,2,3"]))
    message = (
        f"line 5: the question is that of {path}, line 2, with another gold answer or cluster: 3"
    )
    regrade(path, message=message)
