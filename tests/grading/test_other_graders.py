import pytest

from harness.experiment.prompts.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
from harness.grading import GradeJob, GraderPool
from harness.grading.authors_rule import authors_answer, authors_rule, rewrite
from harness.grading.other_graders import COLUMNS_BY_STEP, GRADERS, select_audit_texts
from tests.conftest import run_python
from tests.grading.test_labelled_answers import DATASET
from tests.make import module_fixture, with_cases

DOUBLED = "Please reason step by step and put your final answer within \\boxed{{}}."
SINGLE = DOUBLED.replace("{{}}", "{}")


def test_the_published_instruction_is_the_one_with_doubled_braces():
    assert AS_PUBLISHED_INSTRUCTION == DOUBLED
    assert "\\boxed{}" in INSTRUCTION


PROMPTS = {"doubled": DOUBLED, "single": SINGLE, "none": ""}


@with_cases
def test_the_authors_rule(prompt, completion, gold, right, strict):
    text = PROMPTS[prompt] + completion
    if right is None:
        with pytest.raises(IndexError):
            authors_rule(text, gold)
    else:
        assert authors_rule(text, gold) == (right, strict)


@with_cases
def test_the_authors_answer_counts_all_braces(text, answer):
    assert authors_answer(text) == answer


@with_cases
def test_the_steps_of_the_rewriting_and_their_order(before, after):
    assert rewrite(before) == after


def test_the_authors_rule_accepts_answers_without_content():
    """Of MATH-500 (MATH500_PATH) it accepts an empty box 500 times and `1` 200 times."""
    targets = [problem.answer for problem in DATASET.problems]
    expected = sum("1" in gold for gold in targets) if DATASET.name == "demo" else 200

    def judge(text):
        return [authors_rule(text, gold)[0] for gold in targets]

    assert len(targets) == 500
    assert all(judge(DOUBLED + "\\boxed{}"))
    assert sum(judge(DOUBLED + "\\boxed{1}")) == expected
    assert not any(judge(DOUBLED + "I do not know."))
    assert all(judge(SINGLE + "I do not know."))
    assert all(authors_rule(DOUBLED + f"\\boxed{{{gold}}}", gold)[1] for gold in targets)


@module_fixture
def pool():
    with GraderPool(worker_count=1, with_audit=True) as pool:
        yield pool


def audited(pool, completion, prompt=DOUBLED, solution=""):
    job = GradeJob(prompt=prompt, completion=completion, target="3", solution=solution)
    pool.submit("only", job)
    ((_, audit),) = pool.drain()
    return audit


@with_cases
def test_each_grader_of_a_completion(pool, completion, prompt, solution, grades, reason):
    """Of the gold answer 3."""
    audit = audited(pool, completion, PROMPTS[prompt], solution)
    assert {name: getattr(audit, name) for name in grades} == grades
    assert reason in str(audit.audit_reason)


def test_every_step_fills_its_columns_and_all_are_filled():
    filled = sorted(column for columns in COLUMNS_BY_STEP.values() for column in columns)
    assert filled == sorted(GRADERS)


def test_importing_the_graders_imports_no_mathematics():
    heavy = "{'sympy', 'math_verify', 'lm_eval', 'torch', 'numpy'}"
    code = f"import sys, harness.grading; print({heavy} & set(sys.modules))"
    assert run_python(code).strip() == "set()"


@with_cases
def test_a_prompt_that_no_grader_reads_makes_no_difference(prompt, completion):
    job = GradeJob(prompt=prompt, completion=completion, target="5")
    essential = select_audit_texts(job)["prompt"]
    assert authors_rule(essential + completion, "5") == authors_rule(prompt + completion, "5")
    assert (essential == "") == (prompt == "" or "\\boxed" in completion)
