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
from harness.grading import Audit, Grade, as_text
from tests.lm_eval_plugin.wrapped_tasks import Silent
from tests.make import TOY_MODEL

NAMES = ["wo", "mless", "mful", "random", "wo_as_published", "mless_as_published", "filler"]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def load(name, **metadata):
    manager = TaskManager(
        include_path=str(resources.folder("tasks")), include_defaults=False, metadata=metadata
    )
    return manager.load([name])["tasks"]


def prompts(task, limit=3, chat_template=None):
    task.build_all_requests(
        limit=limit, apply_chat_template=chat_template is not None, chat_template=chat_template
    )
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
    results = simple_evaluate(
        Silent(), tasks=["math500_mless"], task_manager=manager, num_fewshot=2, limit=1
    )
    (sample,) = results["samples"]["math500_mless"]
    assert sample["arguments"][0][0] == sample["doc"]["system"] + sample["doc"]["user"]


def test_with_a_chat_template_the_filler_opens_the_user_turn(toy_tokenizer):
    (task,) = load("math500_mless", pretrained=TOY_MODEL).values()

    def template(messages, add_generation_prompt=True):
        return toy_tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    text = prompts(task, 1, template)[0]
    assert (
        f"<|im_start|>user\n{' '.join('/' * 55)}{SEPARATOR}{task.eval_docs[0]['problem']}<|im_end|>"
        in text
    )
    assert text.startswith(f"<|im_start|>system\n{INSTRUCTION}")


def test_filler_takes_its_condition_from_metadata():
    (task,) = load(
        "math500_filler", unit="he", count=9, placement="end", pretrained=TOY_MODEL
    ).values()
    assert prompts(task, 1)[0].endswith(SEPARATOR + " ".join(["he"] * 9))
    (task,) = load(
        "math500_filler", count_to=4, label="Filler:", placement="end", cue="Answer:"
    ).values()
    assert prompts(task, 1)[0].endswith(SEPARATOR.join(["", "Filler:", "1 2 3 4", "Answer:"]))


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"count": 0}, ConfigError, "count: .* got 0"),
        (
            {"unit": "qxzvkj", "pretrained": TOY_MODEL},
            PromptMismatchError,
            "splits the unit 'qxzvkj'",
        ),
        ({"placement": "middle"}, ConfigError, "placement"),
        (
            {"pretrained": TOY_MODEL, "max_model_len": 1024},
            PromptMismatchError,
            "exceed the context length of 1024",
        ),
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
    assert first == {"accuracy": 1.0, "graded": 1.0, "truncated": 0.0}
    assert second == {"accuracy": 0.0, "graded": 0.0, "truncated": 0.0}
    assert set(first) == {metric["metric"] for metric in task.config.metric_list}
    # the prompt's own empty box is what the authors' rule calls right
    assert (
        json.loads(graded[1][0])["authors_rule"]
        and not json.loads(graded[1][0])["authors_rule_strict"]
    )


class Replayed(str):
    """A completion out of a journal: graded before."""

    graded = json.dumps(
        {"verdict": "timeout", "answer": "3", "reason": "over 3 s", "math_verify": None}
    )
    finish_reason = "stop"


def test_completions_that_are_graded_start_no_grader(monkeypatch):
    from harness.lm_eval_plugin import hooks

    monkeypatch.setattr(hooks, "GraderPool", None)
    graded = hooks.grade_responses([[Replayed("a"), Replayed("b")], []], [{}, {}])
    assert graded == [[Replayed.graded] * 2, []]
    assert hooks.metrics({}, graded) == {"accuracy": 0.0, "graded": 0.0, "truncated": 0.0}


class Recorded(LM):
    def __init__(self, texts):
        super().__init__()
        self.texts = texts

    def generate_until(self, requests, disable_tqdm=False):
        completions = []
        for request in requests:
            completion = Replayed("a")
            completion.graded = self.texts[request.doc_id]
            completions.append(completion)
        return completions

    loglikelihood = loglikelihood_rolling = None


def test_lm_evals_table_has_three_metrics_and_its_logs_the_other_graders():
    verdicts = ("correct", "incorrect", "truncated", "correct")
    texts = [
        as_text(Grade(verdict=verdict, answer=None), Audit(math_verify=True))
        for verdict in verdicts
    ]
    manager = TaskManager(include_path=str(resources.folder("tasks")), include_defaults=False)
    results = simple_evaluate(
        Recorded(texts), tasks=["math500_mless"], task_manager=manager, limit=len(texts)
    )
    result = results["results"]["math500_mless"]
    means = {name: result[f"{name},graded"] for name in ("accuracy", "graded", "truncated")}
    assert (
        means == {"accuracy": 0.5, "graded": 0.75, "truncated": 0.25} and result["sample_len"] == 4
    )
    table = make_table(results)
    assert "accuracy" in table and "0.75" in table and "math_verify" not in table
    ((text,),) = results["samples"]["math500_mless"][0]["filtered_resps"]
    assert json.loads(text)["math_verify"]


def test_only_what_is_not_graded_is_graded():
    from harness.lm_eval_plugin.hooks import grade_responses

    doc = {"system": "", "user": "", "answer": "3", "solution": ""}
    ((first, second),) = grade_responses([[Replayed("a"), "thinking"]], [doc])
    assert first == Replayed.graded
    assert json.loads(second)["verdict"] == "no_box"
