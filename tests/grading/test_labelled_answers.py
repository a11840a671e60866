import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import grade
from harness.experiment.problems import open_dataset
from harness.grading.answer_grading import compare_answers, describe_gold
from tests.conftest import run_python
from tests.make import read_data, with_cases

RULES = read_data("labelled_answers")
EXPECTED = {"same": ("correct",), "different": ("incorrect",), "not_yet": ("incorrect", "refused")}
"""The allowed verdicts of the pairs under each key.

Pairs of `not_yet` are the same, and the grader does not read them yet.
"""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["trap"])
def test_labelled_pairs(rule):
    failures = []
    for key, verdicts in EXPECTED.items():
        for answer, target in rule.get(key, ()):
            verdict = compare_answers(answer, target).verdict
            if verdict not in verdicts:
                failures.append((key, answer, target, verdict))
    assert not failures, rule["reason"]


def test_every_rule_has_a_reason_and_both_kinds_of_pair():
    assert sum(len(rule.get(key, ())) for rule in RULES for key in EXPECTED) >= 2300
    assert all(rule["reason"] and rule["same"] and rule["different"] for rule in RULES)
    assert len({rule["trap"] for rule in RULES}) == len(RULES)


DATASET = open_dataset("math500")
"""The toy's problems, or those of the file that MATH500_PATH names."""
GOLDS = sorted({problem.answer for problem in DATASET.problems})
ODD_GOLDS = [
    r"x\in(1,2)\cup\{3\}",
    r"\frac12\begin{pmatrix}1\\2\end{pmatrix}",
    r"\sin x+\frac1x=|y|",
    r"\mathbb{R}\setminus\{1,\pi\}",
    "52_8",
]


REWRITES = read_data("rewrites")


def rewrites(gold):
    """The gold answer as other authors might write it."""
    for pattern, replacement in REWRITES["same"]:
        yield re.sub(pattern, replacement, gold)
    if match := re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold):
        yield f"{match[1]}\\frac{{{3 * int(match[2])}}}{{{3 * int(match[3])}}}"
    if re.fullmatch(r"-?\d*\.\d+", gold):
        yield f"\\frac{{{Fraction(gold).numerator}}}{{{Fraction(gold).denominator}}}"


def near_misses(gold):
    """Wrong answers that differ from the gold answer in one detail."""
    for match in re.finditer(r"\d+", gold):
        number = match.group()
        neighbours = (str(int(number) + 1), str(int(number) - 1))
        for wrong in (*neighbours, number[:-1], number + number[-1]):
            if wrong and wrong != "-1":
                yield gold[: match.start()] + wrong + gold[match.end() :]
    for pattern, replacement in REWRITES["wrong"]:
        yield re.sub(pattern, replacement, gold)


def _value(gold):
    """The value of a bare number, to leave out right answers such as `05` for `5`, `-0` for `0`."""
    match = re.fullmatch(r"(-?)(?:(\d*\.?\d+)|\\d?frac ?\{?(\d+?)\}? ?\{?(\d+)\}?)", gold)
    if match is None:
        return None
    if match[2]:
        return Fraction(match[1] + match[2])
    return Fraction(int(match[1] + match[3]), int(match[4])) if int(match[4]) else None


def _is_miss(answer, gold):
    values = _value(answer), _value(gold)
    if None not in values:
        return values[0] != values[1]
    if answer in (r"\sqrt{1}", r"\sqrt{0}", "-0"):
        return False
    return _without_zeros(answer) != _without_zeros(gold)


def _without_zeros(text):
    """Remove what has no value: leading and last zeros, a letter after 0, size commands."""
    text = re.sub(r"\\left|\\right|\s|(?<![\d.])0(?=0)|(?<=0)x", "", text)
    return re.sub(r"(\.\d*?)0+(?!\d)", r"\1", text)


def test_every_gold_verifies_against_itself_and_its_solution():
    for problem in DATASET.problems:
        assert describe_gold(problem.answer) is None
        assert grade(f"\\boxed{{{problem.answer}}}", problem.answer).correct, problem.answer
        assert grade(problem.solution, problem.answer).correct, problem.answer


def assert_verdict(pairs, verdict):
    assert len(pairs) > 5 * len(GOLDS)
    assert [pair for pair in sorted(pairs) if compare_answers(*pair).verdict != verdict] == []


def test_every_gold_verifies_against_its_rewrites():
    assert_verdict({(answer, gold) for gold in GOLDS for answer in rewrites(gold)}, "correct")


def test_no_gold_verifies_against_its_near_misses():
    pairs = {(answer, gold) for gold in GOLDS for answer in near_misses(gold)}
    assert_verdict({pair for pair in pairs if _is_miss(*pair)}, "incorrect")


FRACTIONS = st.fractions(max_denominator=10_000)


@given(FRACTIONS, FRACTIONS)
def test_fractions_are_equal_as_numbers(value, target):
    answer, gold = (
        f"\\frac{{{number.numerator}}}{{{number.denominator}}}" for number in (value, target)
    )
    slashed = f"{value.numerator}/{value.denominator}"
    assert compare_answers(answer, gold).correct == (value == target)
    assert compare_answers(slashed, answer).correct
    assert compare_answers(f"2\\cdot{answer}-{slashed}", answer).correct


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=5), st.randoms())
def test_lists_may_be_reordered_and_tuples_may_not(numbers, random):
    shuffled = random.sample(numbers, len(numbers))
    gold, answer = (",".join(map(str, values)) for values in (numbers, shuffled))
    assert compare_answers(answer, gold).correct
    assert compare_answers(f"({answer})", f"({gold})").correct == (numbers == shuffled)
    assert not compare_answers(f"{answer},{numbers[0]}", gold).correct


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=4))
def test_expanded_products_are_their_factors(roots):
    factored = "".join(f"(x-{root})" if root >= 0 else f"(x+{-root})" for root in roots)
    coefficients = np.poly(np.array(roots, dtype=object))
    degrees = range(len(roots), -1, -1)
    terms = zip(coefficients, degrees, strict=True)
    expanded = "+".join(f"({coefficient})x^{{{degree}}}" for coefficient, degree in terms)
    assert compare_answers(factored, expanded).correct
    assert not compare_answers(factored, expanded + "+1").correct


PIECES = [
    *"\\{}()[]^_!|.,:;=<>+-*/%$&~' 019xXif\n\u00b5abc²¼√π≤",
    *r"\frac \sqrt \sin \sin_ \log_ \exp n! \text{ \pm \cup \in \infty".split(),
]
PIECES += r"\begin{pmatrix} \end{pmatrix} \\ \mathbb{R} \setminus\{ \approx \ne \le".split()
PIECES += "and or e5 base percent cm".split()


@given(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.sampled_from([*GOLDS, *ODD_GOLDS]),
)
def test_comparing_never_fails(text, gold):
    assert compare_answers(text, gold).verdict in {"correct", "incorrect", "refused"}


ATTACK_PARTS = read_data("attacks")
ATTACKS = [text * count for text, count in ATTACK_PARTS["repeated"]]
ATTACKS += [start + text * count + end for start, text, count, end in ATTACK_PARTS["framed"]]
for opening, closing in ATTACK_PARTS["nested"]:
    ATTACKS += [opening * depth + "1" + closing * depth for depth in (5, 15, 23, 200)]
    ATTACKS.append(opening * 300)
ATTACKS += [
    "1" * 390 + "." + "1" * 390,
    ",".join(map(str, range(400))),
    "+".join(f"x_{n}" for n in range(200)),
    "*".join(f"(x_{n}+1)" for n in range(60)),
]
CHILD = """
import json, sys, time
from harness.grading.answer_grading import compare_answers
TARGETS = ("3", r"\\cot x", "(1,2)", r"x<1", r"\\begin{pmatrix}1\\\\2\\end{pmatrix}")
for line in sys.stdin:
    answer = json.loads(line)
    for target in TARGETS:
        started = time.process_time()
        verdict = compare_answers(answer, target).verdict
        seconds = time.process_time() - started
        print(json.dumps([answer[:60], target, verdict, seconds]), flush=True)
"""


def test_attacks_end_within_a_second_and_are_never_correct():
    lines = "\n".join(map(json.dumps, ["3", *ATTACKS]))
    output = run_python(CHILD, input=lines, timeout=600)
    outcomes = [json.loads(line) for line in output.splitlines()][5:]
    assert len(outcomes) == 5 * len(ATTACKS)
    wrong = [
        outcome
        for outcome in outcomes
        if outcome[2] not in ("incorrect", "refused") or outcome[3] > 1
    ]
    assert wrong == []


@with_cases
def test_only_answers_that_take_too_much_work_are_refused(start, repeated, count, end, reason):
    graded = compare_answers(start + repeated * count + end, "3")
    assert (graded.verdict, graded.reason) == ("refused" if reason else "incorrect", reason)


def test_long_sums_are_compared_unless_their_factorials_take_too_much_work():
    denominators = [10**300 + 2 * number + 1 for number in range(6)]
    fractions = "+".join(rf"\frac{{1}}{{{denominator}}}" for denominator in denominators)
    assert compare_answers(fractions, "3").verdict == "incorrect"
    factorials = "+".join(f"(x+{number})!" for number in range(190))
    assert compare_answers(factorials, "3").reason == "too much work"


@with_cases
def test_digits_of_all_scripts_are_read_or_not_but_never_crash(digit):
    for form in ("D", "x^D", "\\frac D2", "1D", "\\sqrt D", "D!"):
        answer = form.replace(" ", "").replace("D", digit)
        assert compare_answers(answer, "17").verdict == "incorrect"
        assert compare_answers("17", answer).verdict == "incorrect"


GOLD_DESCRIPTIONS = {
    "(" * 50: "gold answer: nested deeper than 40",
    r"1, \sum_{k=1}^n a_k": "not read as mathematics",
    "2024^{40460}": "not read as mathematics",
    "x" * 2001: "gold answer: longer than 2000 characters",
}


def test_a_gold_answer_that_the_grader_cannot_compare_is_described():
    assert {gold: describe_gold(gold) for gold in GOLD_DESCRIPTIONS} == GOLD_DESCRIPTIONS
    for gold in ("(" * 50, "2024^{40460}", "x" * 2001):
        assert compare_answers(gold, gold).correct
        refused = compare_answers("3", gold)
        assert refused.verdict == "refused" and refused.reason.startswith("gold answer: ")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_answers():
    """The caches are full after 4,096 answers."""
    code = """
import resource
from harness.grading.answer_grading import compare_answers
for n in range(20_000):
    answers = (f"\\\\sin x+{n}", f"x^2+{n}x", f"({n}, {n + 1})", f"{n}\\\\text{{ cm}}")
    compare_answers(answers[n % 4], "(x+1)^2")
    if n in (8_000, 19_999):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    early, late = map(int, run_python(code).split())
    assert late - early < 768, "KiB"
