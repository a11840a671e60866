import json

import pytest
from lm_eval.utils import make_table

from harness import errors, resources
from harness.constants import SEPARATOR
from harness.experiment.prompts.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
from tests.lm_eval_plugin.wrapped_tasks import Answering, evaluate, open_manager
from tests.make import TOY_MODEL, with_cases, write_records


def load(name, **metadata):
    manager = open_manager(resources.folder("tasks"), **metadata)
    return manager.load([f"math500_{name}"])["tasks"][f"math500_{name}"]


def first_prompt(task, chat_template=None):
    """The prompt of a task's first document."""
    task.build_all_requests(
        limit=1, apply_chat_template=chat_template is not None, chat_template=chat_template
    )
    return task.instances[0].args[0]


@with_cases
def test_every_task_loads_and_builds_its_prompts(name, separators):
    task = load(name)
    assert len(task.eval_docs) == 500
    document = task.eval_docs[0]
    text = first_prompt(task)
    assert text == "".join(segment["text"] for segment in document["segments"])
    assert text.startswith(AS_PUBLISHED_INSTRUCTION if "published" in name else INSTRUCTION)
    assert text.endswith(document["problem"])
    assert text.count(SEPARATOR) == separators
    arguments = task.instances[0].args[1]
    assert arguments == {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 2048}
    assert task.config.num_fewshot == 0
    assert task.instances[0].request_type == "generate_until"


OUR_TASK = ["math500_mless"], resources.folder("tasks")


@with_cases
def test_all_accepted_answers_count_whatever_the_first_problem_has(tmp_path, monkeypatch, rows):
    path = tmp_path / "data.jsonl"
    write_records(path, rows)
    monkeypatch.setenv("MATH500_PATH", str(path))
    model = Answering(lambda request: r"\boxed{-2}")
    samples = evaluate(*OUR_TASK, model)["samples"]["math500_mless"]
    verdicts = [json.loads(sample["filtered_resps"][0][0])["verdict"] for sample in samples]
    assert verdicts == ["incorrect", "correct"]


def test_with_a_chat_template_the_filler_begins_the_user_turn():
    task = load("mless", pretrained=TOY_MODEL)
    text = first_prompt(task, Answering().apply_chat_template)
    filler = " ".join("/" * 55)
    user_turn = f"<|im_start|>user\n{filler}{SEPARATOR}{task.eval_docs[0]['problem']}<|im_end|>"
    assert user_turn in text
    assert text.startswith(f"<|im_start|>system\n{INSTRUCTION}")


@with_cases
def test_filler_takes_its_condition_from_metadata(metadata, ending):
    task = load("filler", **metadata)
    assert first_prompt(task).endswith(SEPARATOR.join(["", *ending]))


@with_cases
def test_bad_metadata_is_refused_in_one_clear_line(metadata, error, message):
    with pytest.raises(getattr(errors, error), match=message):
        load("filler", pretrained=TOY_MODEL, **metadata)


def test_lm_evals_table_has_three_metrics_and_its_logs_have_the_other_graders():
    def answer(request):
        texts = {0: rf"\boxed{{{request.doc['answer']}}}", 1: r"\boxed{no such answer}"}
        return texts.get(request.doc_id, "I do not know.")

    results = evaluate(*OUR_TASK, Answering(answer), num_fewshot=2, limit=4)
    result = results["results"]["math500_mless"]
    means = {name: result[f"{name},graded"] for name in ("accuracy", "graded", "truncated")}
    assert means == {"accuracy": 0.25, "graded": 0.5, "truncated": 0}
    assert result["sample_len"] == 4
    table = make_table(results)
    assert "accuracy" in table and "0.25" in table and "math_verify" not in table
    sample, *_ = results["samples"]["math500_mless"]
    # our tasks have no examples
    assert sample["arguments"][0][0] == sample["doc"]["system"] + sample["doc"]["user"]
    grades = json.loads(sample["filtered_resps"][0][0])
    assert grades["verdict"] == "correct" and grades["math_verify"]
