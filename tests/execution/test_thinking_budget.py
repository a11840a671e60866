"""The budget of reasoning from the config to the table. The real engine is in test_engine.py."""

from contextlib import contextmanager

from harness.analysis.mediators_and_audit import mediator_table
from harness.engines.completions import Completion
from harness.execution.execute_plan import execute
from harness.experiment.plan import make_plan
from harness.experiment.run_config import load_config
from harness.runs.read_runs import Run
from tests.make import TOY_CONFIG

SETTINGS = (
    'conditions=[{name: open, template: "{problem} \\n\\n<think>"}]',
    "thinking={start: <think>, end: </think>}",
    "thinking_budget=5",
    "audit=false",
)


class Backend:
    """Reasons in five tokens and more about every second problem, and in fewer about the others."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def facts(self):
        return {"device": "cpu"}

    def stream(self, requests):
        for number, request in enumerate(requests):
            texts = ("1 2" if number % 2 else "1 2 3 4", "</think>", r" so \boxed{1}")
            token_ids = [token for text in texts for token in self._tokenizer.encode(text)]
            assert request.sampling.vllm()["thinking_token_budget"] == 5
            completion = Completion(
                text="".join(texts), token_ids=token_ids, completion_tokens=len(token_ids)
            )
            yield [(request, completion)]


def test_the_engine_gets_the_markers_and_spent_budgets_are_counted(
    tmp_path, monkeypatch, toy_tokenizer
):
    received = {}

    @contextmanager
    def open_backend(backend, arguments, **options):
        received.update(arguments)
        yield Backend(toy_tokenizer)

    monkeypatch.setattr("harness.engines.backends.open_backend", open_backend)
    plan = make_plan(load_config(TOY_CONFIG, SETTINGS), limit=4)
    run = Run.load(execute(plan, output=tmp_path / "run", quiet=True))
    assert received["reasoning_config"] == {
        "reasoning_start_str": "<think>",
        "reasoning_end_str": "</think>",
    }
    (row,) = mediator_table(run.samples).to_dict("records")
    assert (row["spent_budget"], row["unfinished"]) == (50, 0)
