import subprocess
import sys

import pytest

from harness.experiment.prompt import AS_PUBLISHED_INSTRUCTION, INSTRUCTION
from harness.grading import Audit, AuditColumns, AuditJob, Grade, GraderPool, as_record
from harness.grading.authors_rule import authors_answer, authors_rule, rewrite
from harness.grading.other_graders import GRADERS, STEPS
from tests.grading.test_labelled_answers import DATASET
from tests.make import read_data

DOUBLED = "Please reason step by step and put your final answer within \\boxed{{}}."
SINGLE = DOUBLED.replace("{{}}", "{}")


def test_the_published_instruction_is_the_one_with_doubled_braces():
    assert AS_PUBLISHED_INSTRUCTION == DOUBLED
    assert "\\boxed{}" in INSTRUCTION


RULE = read_data("authors_rule")
PROMPTS = {"doubled": DOUBLED, "single": SINGLE, "none": ""}


@pytest.mark.parametrize(("prompt", "completion", "gold", "right", "strict"), RULE["judgements"])
def test_the_authors_rule(prompt, completion, gold, right, strict):
    text = PROMPTS[prompt] + completion
    if right is None:
        with pytest.raises(IndexError):
            authors_rule(text, gold)
    else:
        assert authors_rule(text, gold) == (right, strict)


@pytest.mark.parametrize(("text", "answer"), RULE["answers"])
def test_the_authors_answer_counts_all_braces(text, answer):
    assert authors_answer(text) == answer


@pytest.mark.parametrize(("before", "after"), [*RULE["steps"], *RULE["order"]])
def test_the_steps_of_the_rewriting_and_their_order(before, after):
    assert rewrite(before) == after


def test_what_the_rule_gives_away_on_whole_sets():
    """With MATH500_PATH set to MATH-500: an empty box 500 of 500, `1` 200; other problems have other counts."""
    targets = [problem.answer for problem in DATASET.problems]
    right = {
        box: sum(authors_rule(DOUBLED + f"\\boxed{{{box}}}", gold)[0] for gold in targets)
        for box in ("", "1")
    }
    assert right[""] == len(targets) == 500
    assert right["1"] == (sum("1" in gold for gold in targets) if DATASET.name == "demo" else 200)
    assert sum(authors_rule(DOUBLED + "I do not know.", gold)[0] for gold in targets) == 0
    assert all(authors_rule(SINGLE + "I do not know.", gold)[0] for gold in targets)
    assert all(authors_rule(DOUBLED + f"\\boxed{{{gold}}}", gold)[1] for gold in targets)


@pytest.fixture(scope="module")
def pool():
    with GraderPool(workers=1, audits=True, deadline_s=10.0) as pool:
        yield pool


def audited(pool, completion, target="3", prompt=DOUBLED, solution=""):
    pool.submit(
        "it", AuditJob(prompt=prompt, completion=completion, target=target, solution=solution)
    )
    ((_, audit),) = pool.drain()
    assert isinstance(audit, Audit)
    return audit


def test_a_boxed_answer_is_right_for_every_grader(pool):
    assert audited(pool, r"so \boxed{3}") == Audit(**dict.fromkeys(GRADERS, True))


def test_math_verify_reads_answers_without_a_box_and_the_solutions_gold(pool):
    assert audited(pool, "The answer is $3$.", solution=r"hence \boxed{3}").math_verify
    assert audited(pool, "The answer is $3$.").math_verify
    assert audited(pool, "The answer is $4$.", solution=r"hence \boxed{3}").math_verify is False


def test_a_model_that_runs_on_is_seen_by_its_further_boxes(pool):
    audit = audited(pool, r"\boxed{3} Next problem: \boxed{7}, and \boxed{8}")
    assert audit.boxes_after_first == 2 and audit.exact_match_boxed is False


@pytest.mark.parametrize("empty", [r"\boxed{}", r"\boxed{{}}", r"\boxed{ }"])
def test_a_repeated_prompt_hides_the_answer_from_the_authors_rule_alone(pool, empty):
    audit = audited(pool, f"So \\boxed{{3}}. Put your final answer within {empty}.")
    assert audit.exact_match_boxed and audit.boxes_after_first == 0
    assert not audit.authors_rule_strict
    alone = audited(pool, f"Put your final answer within {empty}.")
    assert alone.exact_match_boxed is False and alone.boxes_after_first == 0


def test_the_prompt_belongs_to_the_authors_rule_alone(pool):
    audit = audited(pool, "no box", prompt=SINGLE)
    assert audit.authors_rule and audit.authors_rule_strict is False
    assert not (audit.math_verify or audit.exact_match_boxed)


def test_their_index_error_is_wrong_and_said(pool):
    audit = audited(pool, r"\boxed{\frac}")
    assert audit.authors_rule is False and audit.authors_rule_strict is False
    assert "authors_rule: IndexError in the authors' code, judged wrong" in audit.reason


def test_what_is_too_long_for_lm_eval_is_unknown_and_not_wrong(pool):
    audit = audited(pool, r"\boxed{" + "3+" * 3000 + "3}")
    assert audit.exact_match_boxed is None and audit.authors_rule is False
    assert "exact_match_boxed: answer of 6001 characters, over 2000" in audit.reason


def test_every_step_fills_its_columns_and_all_are_filled():
    filled = sorted(column for columns, _ in STEPS.values() for column in columns)
    assert filled == sorted(AuditColumns.__struct_fields__) and set(GRADERS) < set(filled)


def test_lm_evals_functions_are_its_own_without_its_imports():
    code = (
        "import sys; from harness.grading.other_graders import AuditJob, run_step\n"
        "job = AuditJob(prompt='', completion='\\\\boxed{3}', target='3', solution='')\n"
        "print(run_step('exact_match_boxed', job)[0], {'torch', 'datasets', 'lm_eval'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'exact_match_boxed': True} set()"


def test_importing_the_graders_imports_no_mathematics():
    heavy = "{'sympy', 'math_verify', 'lm_eval', 'torch', 'numpy'}"
    code = f"import sys, harness.grading; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_record_keeps_the_reasons_of_grade_and_audit_apart():
    lost = Grade(verdict="timeout", answer="3", reason="over 3 s")
    record = as_record(
        lost, Audit(math_verify=None, authors_rule=False, reason="math_verify: over 3 s")
    )
    assert record["reason"] == "over 3 s" and record["audit_reason"] == "math_verify: over 3 s"
    assert record["math_verify"] is None and record["authors_rule"] is False


@pytest.mark.parametrize("prompt", ["", r"in \boxed{}", r"\boxed{{}}"])
@pytest.mark.parametrize("completion", [r"\boxed{5}", r"\fbox{5}", "5", r"\boxed{5"])
def test_a_prompt_that_no_grader_looks_at_makes_no_difference(prompt, completion):
    job = AuditJob(prompt=prompt, completion=completion, target="5", solution="")
    said = authors_rule(job.essential().prompt + completion, "5")
    assert said == authors_rule(prompt + completion, "5")
    assert (job.essential().prompt == "") == (prompt == "" or "\\boxed" in completion)
