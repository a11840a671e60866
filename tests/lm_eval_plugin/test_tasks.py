import json
import logging

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from harness import resources
from harness.constants import SEPARATOR
from harness.errors import ConfigError, PromptMismatchError
from harness.experiment.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
from harness.grading import GRADERS, Audit, Grade, as_text
from tests.lm_eval_plugin.wrapped_tasks import Silent
from tests.make import TOY_MODEL

NAMES = ["wo", "mless", "mful", "random", "wo_as_published", "mless_as_published", "filler"]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def load(name, **metadata):
    manager = TaskManager(include_path=str(resources.folder("tasks")), include_defaults=False, metadata=metadata)
    return manager.load([name])["tasks"]


def prompts(task, limit=3, chat_template=None):
    task.build_all_requests(limit=limit, apply_chat_template=chat_template is not None, chat_template=chat_template)
    return [instance.args[0] for instance in task.instances]


@pytest.mark.parametrize("name", NAMES)
def test_every_task_loads_builds_and_renders(name):
    (task,) = load(f"math500_{name}").values()
    assert len(task.eval_docs) == 500
    first = task.eval_docs[0]
    text = prompts(task)[0]
    assert text == "".join(segment["text"] for segment in first["segments"])
    assert text.startswith(AS_PUBLISHED_INSTRUCTION if "published" in name else INSTRUCTION)
    assert text.endswith(first["problem"])
    gaps = 0 if "published" in name else 1 if name == "wo" else 2
    assert text.count(SEPARATOR) == gaps
    arguments = task.instances[0].args[1]
    assert arguments == {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 2048}
    assert task.config.num_fewshot == 0 and task.instances[0].request_type == "generate_until"


def test_lm_eval_passes_over_a_number_of_examples_for_our_own_tasks():
    manager = TaskManager(include_path=str(resources.folder("tasks")), include_defaults=False)
    found = simple_evaluate(Silent(), tasks=["math500_mless"], task_manager=manager, num_fewshot=2, limit=1)
    (sample,) = found["samples"]["math500_mless"]
    assert sample["arguments"][0][0] == sample["doc"]["system"] + sample["doc"]["user"]


def test_with_a_chat_template_the_filler_opens_the_user_turn(toy_tokenizer):
    (task,) = load("math500_mless", pretrained=TOY_MODEL).values()

    def template(messages, add_generation_prompt=True):
        return toy_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)

    text = prompts(task, 1, template)[0]
    assert f"<|im_start|>user\n{' '.join('/' * 55)}{SEPARATOR}{task.eval_docs[0]['problem']}<|im_end|>" in text
    assert text.startswith(f"<|im_start|>system\n{INSTRUCTION}")


def test_filler_takes_its_condition_from_metadata():
    (task,) = load("math500_filler", unit="he", count=9, placement="end", pretrained=TOY_MODEL).values()
    assert prompts(task, 1)[0].endswith(SEPARATOR + " ".join(["he"] * 9))
    (task,) = load("math500_filler", count_to=4, label="Filler:", placement="end", cue="Answer:").values()
    assert prompts(task, 1)[0].endswith(SEPARATOR.join(["", "Filler:", "1 2 3 4", "Answer:"]))


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"count": 0}, ConfigError, "count: .* got 0"),
        ({"unit": "qxzvkj", "pretrained": TOY_MODEL}, PromptMismatchError, "splits the unit 'qxzvkj'"),
        ({"placement": "middle"}, ConfigError, "placement"),
        ({"pretrained": TOY_MODEL, "max_model_len": 1024}, PromptMismatchError, "over the context of 1024"),
    ],
)
def test_bad_metadata_ends_in_one_clear_line(metadata, error, message):
    with pytest.raises(error, match=message):
        load("math500_filler", **metadata)


def test_grading_through_the_filter_and_process_results():
    (task,) = load("math500_wo").values()
    prompts(task, 2)
    target = task.eval_docs[0]["answer"]
    task.instances[0].resps = [f"\\boxed{{{target}}}"]
    task.instances[1].resps = ["no box"]
    task.apply_filters()
    graded = [instance.filtered_resps["graded"] for instance in task.instances]
    assert json.loads(graded[0][0])["verdict"] == "correct"
    first = task.process_results(task.eval_docs[0], [graded[0]])
    second = task.process_results(task.eval_docs[1], [graded[1]])
    right = ("correct", "math_verify", "exact_match_boxed", "authors_rule", "authors_rule_strict", "first_box")
    wrong = ("no_box", "truncated", "ungraded")
    assert first == {**dict.fromkeys(right, 1.0), **dict.fromkeys(wrong, 0.0)}
    # the prompt's own empty box is what the authors' rule calls right
    assert {name for name, value in second.items() if value} == {"no_box", "authors_rule"}
    assert set(first) == {metric["metric"] for metric in task.config.metric_list}


class Replayed(str):
    """A completion out of a journal: graded before."""

    graded = json.dumps(
        {"verdict": "timeout", "answer": "3", "reason": "over 3 s", "math_verify": None, "first_box": True}
    )
    finish_reason = "stop"


def test_completions_that_are_graded_start_no_grader(monkeypatch):
    from harness.lm_eval_plugin import hooks

    monkeypatch.setattr(hooks, "GraderPool", None)
    graded = hooks.grade_responses([[Replayed("a"), Replayed("b")], []], [{}, {}])
    assert graded == [[Replayed.graded] * 2, []]
    counted = hooks.metrics({}, graded)
    assert counted["ungraded"] == 1.0 and counted["first_box"] == 1.0
    assert "math_verify" not in counted  # unknown is not wrong


def as_json(verdict, **columns):
    answer = None if verdict == "no_box" else "3"
    return as_text(Grade(verdict=verdict, answer=answer), Audit(**{**dict.fromkeys(GRADERS, True), **columns}))


def test_a_column_counts_only_where_every_repeat_has_it():
    from harness.lm_eval_plugin.hooks import metrics

    repeats = [as_json("correct", math_verify=None, first_box=False), as_json("incorrect", exact_match_boxed=None)]
    counted = metrics({}, [repeats])
    assert set(GRADERS) - set(counted) == {"math_verify", "exact_match_boxed"}
    assert counted["correct"] == 0.5 and counted["first_box"] == 0.5 and counted["authors_rule"] == 1.0
    not_asked = as_text(Grade(verdict="correct", answer="3"), Audit(reason="not asked for"))
    assert set(metrics({}, [[not_asked]])) == {"correct", "no_box", "truncated", "ungraded"}


class Recorded(LM):
    def __init__(self, texts):
        super().__init__()
        self.texts = texts

    def generate_until(self, requests, disable_tqdm=False):
        done = []
        for request in requests:
            completion = Replayed("a")
            completion.graded = self.texts[request.doc_id]
            done.append(completion)
        return done

    loglikelihood = loglikelihood_rolling = None


def test_lm_evals_mean_is_over_the_documents_that_were_measured():
    """A column without some documents, one without all, one with a single document."""
    lost = {"math_verify": None, "first_box": None, "exact_match_boxed": None}
    texts = [
        as_json("correct", **{**lost, "math_verify": True, "exact_match_boxed": False}),
        as_json("incorrect", **{**lost, "math_verify": False}),
        as_json("correct", **lost),
        as_json("correct", **{**lost, "math_verify": True}),
    ]
    manager = TaskManager(include_path=str(resources.folder("tasks")), include_defaults=False)
    found = simple_evaluate(Recorded(texts), tasks=["math500_mless"], task_manager=manager, limit=len(texts))
    result = found["results"]["math500_mless"]
    assert result["math_verify,graded"] == pytest.approx(2 / 3) and result["math_verify_stderr,graded"] > 0
    assert (result["exact_match_boxed,graded"], result["exact_match_boxed_stderr,graded"]) == (0.0, "N/A")
    assert "first_box,graded" not in result
    assert result["correct,graded"] == 0.75 and result["sample_len"] == 4
    table = make_table(found)
    assert "math_verify" in table and "0.6667" in table and "first_box" not in table
    logged = found["samples"]["math500_mless"]
    assert [line.get("math_verify") for line in logged] == [1.0, 0.0, None, 1.0]


def test_only_what_is_not_graded_is_graded():
    from harness.lm_eval_plugin.hooks import grade_responses

    doc = {"system": "", "user": "", "answer": "3", "solution": ""}
    ((first, second),) = grade_responses([[Replayed("a"), "thinking"]], [doc])
    assert first == Replayed.graded
    assert json.loads(second)["verdict"] == "no_box"
