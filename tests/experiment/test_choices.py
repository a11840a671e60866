"""Data with choices: what is read and shown, graded, scored and refused."""

import pytest

import harness
from harness import Run, compare
from harness.display.dry_run import describe_plan
from harness.errors import HarnessError
from harness.execution.regrading import regrade
from harness.experiment.plan import make_plan
from harness.experiment.problems import DatasetConfig, open_dataset
from harness.grading import answer_grading
from harness.grading.answer_extraction import GradeJob, list_accepted_texts
from harness.runs.run_files import RunFiles
from tests.analysis.test_answer_logprob import load, write_scored_run
from tests.experiment.test_prompt import plan_of
from tests.make import one_line, with_cases, write_records

ROWS = [
    {"problem": f"Which is {number}?", "options": ["0", *map(str, choices)], "answer": answer}
    for number, (choices, answer) in enumerate([([1, 2, 3], "B"), ([2, 3], "C"), ([3, 1], "A")] * 3)
]


@pytest.fixture
def dataset(tmp_path):
    write_records(tmp_path / "data.jsonl", ROWS)
    return {"path": str(tmp_path / "data.jsonl")}


@with_cases
def test_columns_and_answers_are_read(text, answers, choices, tmp_path):
    path = tmp_path / ("data.jsonl" if text[0] == "{" else "data.csv")
    path.write_text(text)
    problems = open_dataset(DatasetConfig(path=path)).problems
    assert [problem.answer for problem in problems] == answers
    assert [*problems[-1].choices] == choices
    assert problems[0].record().get("choices", ()) == problems[0].choices


@with_cases
def test_an_answer_names_a_choice(target, choices, correct, incorrect):
    for verdict, answers in {"correct": correct, "incorrect": incorrect}.items():
        for answer in answers:
            job = GradeJob(completion="", target=target, choices=choices)
            texts = list_accepted_texts(job, answer)
            assert answer_grading.compare_answers(answer, *texts).verdict == verdict, answer


@with_cases
def test_prompts_show_choices(overrides, text, dataset):
    plan, requests = plan_of(f"dataset={dataset}", *overrides)
    assert requests[0].prompt.endswith(text)
    right = "B is read as B. 1; 1: C is read as C. 3; 2: A is read as A. 0"
    assert (right in one_line(describe_plan(plan))) != ("fewshot" in str(overrides))


@with_cases
def test_a_template_without_choices_is_refused(overrides, dataset):
    message = r"template: the question needs \{choices\} if problems have choices, and only then"
    with pytest.raises(HarnessError, match=message):
        plan_of(*[override.replace("DATA", str(dataset)) for override in overrides], limit=1)


def test_a_run_is_graded_by_its_choices_and_graded_again(dataset, make_run):
    def answer(request, target):
        return f"\\boxed{{{'0' if 'mless' in request.task else f'({target}) It'}}}", "stop"

    run = make_run(answer, dataset=dataset, limit=9)
    right = harness.load_run(run).groupby("condition")["correct"].sum()
    assert right.to_dict() == {"wo": 9, "mless": 3}
    assert "0 verdicts changed" in regrade(RunFiles(run))
    assert {prompt.doc["choices"][0] for prompt in Run.load(run).prompts} == {"0"}


def test_all_other_letters_are_scored_and_chance_follows_from_their_number(dataset, tmp_path):
    plan = make_plan(load(tmp_path / "run", dataset=dataset))
    text = one_line(describe_plan(plan))
    assert "scored; by chance 30.6 % come first" in text
    for _, _, problem, prompt in plan.rows:
        assert {problem.answer, *prompt.other_answers} == {*"ABCD"[: len(problem.choices)]}
    run = write_scored_run(tmp_path / "run", dataset=dataset)
    assert harness.load_run(run)["chance"].mean() == pytest.approx(275 / 9)
    frame = harness.load_run(run).assign(correct=False)
    reasons = set(compare(frame)["unmeasured"].dropna())
    assert reasons == {"no condition's interval of gold answers that come first lies above 30.6 %"}
