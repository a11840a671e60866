"""The endpoint `answer_logprob`: its answers and their tokens, its samples and its tables."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import pytest
from scipy import stats

import harness
from attention_probe.figures.figure_config import BarsConfig
from attention_probe.figures.figure_numbers import read_bars
from harness import Run, compare
from harness.analysis.pair_comparison import Side, check_not_worse, compare_pair
from harness.analysis.result_tables import make_leaderboard
from harness.constants import FigureKind
from harness.display.comparison_tables import make_comparison_table
from harness.display.dry_run import describe_plan
from harness.display.figures.figure_kinds import draw_figures
from harness.display.printed_tables import render
from harness.display.report.report_page import make_card
from harness.display.side_tables import make_shown_side_tables
from harness.display.table_page import table_csv, table_json
from harness.errors import (
    ComparisonError,
    ConfigError,
    DataError,
    EngineError,
    PromptMismatchError,
)
from harness.execution.regrading import regrade
from harness.experiment.conditions import as_condition
from harness.experiment.other_answers import draw_other_answers, find_form
from harness.experiment.plan import make_plan, sample_key
from harness.runs.records import AnswerScore, Sample
from harness.runs.run_files import RunFiles
from tests.commands.test_cli import refused
from tests.conftest import build_tokenizer
from tests.experiment.test_checked_prompts import WO, build
from tests.make import (
    TOY_PROBLEMS,
    list_requests,
    load_made,
    module_fixture,
    one_line,
    right,
    run_plan,
    with_cases,
    write_run,
)

load = partial(load_made, endpoint="answer_logprob")


def write_scored_run(folder, *, limit=60, effect=-1.0, **changes):
    """A finished run whose gold answers have two tokens and are mostly the likeliest.

    The filler makes them less likely than the other answers, by `effect` nats.
    """
    plan = make_plan(load(folder, **changes), limit=limit)

    def make_sample(request, key):
        rng = np.random.default_rng(int(key[:8], 16))
        shift = effect if "mless" in request.task else 0.0
        sample = Sample.of(request, key, "", completion_tokens=1, finish_reason="length")
        tokens = [(-1.0, 1), (shift - 2 + float(rng.normal(0, 0.5)), 2)]
        sample.answer_score = AnswerScore(
            tokens, others=[-3.3, -4.0, -5.0, -6.0][: request.other_answer_count]
        )
        return sample

    return run_plan(plan, folder, make_sample)


@module_fixture
def run(tmp_path_factory):
    return write_scored_run(tmp_path_factory.mktemp("scored") / "run", replicates=2)


def load_board(*runs, **options):
    return make_leaderboard([Run.load(run) for run in runs], **options)


@module_fixture
def board(run):
    return load_board(run)


@with_cases
def test_what_would_not_give_log_probabilities_is_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "run", **changes)


def test_the_samples_have_columns_and_a_verdict_without_a_grader(run):
    frame = harness.load_run(run)
    scored = frame[["answer_tokens", "completion"]].drop_duplicates()
    assert scored.to_numpy().tolist() == [[2, ""]]
    logprobs = frame["answer_logprob"]
    assert ((logprobs > -3.3) == frame["correct"]).all() and frame["answer"].isna().all()
    total = np.exp(logprobs) + np.exp([-3.3, -4.0, -5.0, -6.0]).sum()
    assert np.allclose(frame["answer_share"], logprobs - np.log(total))
    assert set(frame["verdict"]) == {"correct", "incorrect"}
    assert "0 verdicts changed" in regrade(RunFiles(run))
    assert harness.load_run(run).equals(frame)


def test_the_main_value_is_the_percentage_of_golds_that_come_first(run, board):
    frame = harness.load_run(run)
    first = frame.pivot(index="problem_id", columns="condition", values="correct").astype(int)
    row = board.comparison.set_index("condition").loc["mless"]
    assert row["accuracy"] == pytest.approx(100 * first["mless"].mean())
    assert row["difference"] == pytest.approx(100 * (first["mless"] - first["wo"]).mean())
    assert (row["verdict"], row["margin"], row["tests"]) == ("worse", 1.0, 1)
    # of a frame alone the table is the same
    assert compare(frame).set_index("condition").loc["mless", "low"] == row["low"]


def test_the_shares_have_an_interval_and_the_plain_values_no_test(run, board):
    frame = harness.load_run(run)
    table = board.side_tables["answers"].set_index("condition")
    row = table.loc["mless"]
    columns = {"answer_logprob": "logprob_difference", "answer_share": "difference"}
    for name, column in columns.items():
        values = frame.pivot(index="problem_id", columns="condition", values=name)
        change = values["mless"] - values["wo"]
        expected = [values["mless"].mean(), change.mean()]
        assert row[[name, column]].tolist() == pytest.approx(expected, abs=1e-4)
    split = load_board(run, by=["subject"]).side_tables["answers"]
    assert split["subject"].nunique() > 1
    other = write_run(run.parent / "accuracies", right, limit=2)
    assert load_board(other).side_tables["answers"].empty


@with_cases
def test_shares_of_few_problems_have_a_t_interval_and_no_test(count, tolerance, verdict, run):
    """Log-probabilities may be skewed, and sign flips need symmetry."""
    frame = Run.load(run).samples
    frame = frame[frame["problem_id"].isin(frame["problem_id"].unique()[:count])]
    board = make_leaderboard([replace(Run.load(run), read=lambda: frame)])
    row = board.side_tables["answers"].iloc[1]
    first_runs = frame[frame["replicate"] == 0]
    means = first_runs.pivot(index="problem_id", columns="condition", values="answer_share")
    change = means["mless"] - means["wo"]
    expected = stats.t.interval(0.95, count - 1, change.mean(), change.sem())
    assert row[["low", "high"]].tolist() == pytest.approx(expected, abs=tolerance, nan_ok=True)
    assert row["verdict"] == verdict and pandas.isna(row["p_adjusted"]) == (count < 50)


@with_cases
def test_a_model_at_chance_is_unmeasured_whatever_the_test_says(run, level, verdict):
    """One gold of five comes first without the filler, or nearly all; with it none."""
    frame = Run.load(run).samples
    is_first = (frame["condition"] == "wo") & (
        (frame["problem_id"].factorize()[0] % 6 == 0) | (level > -3)
    )
    changed = replace(Run.load(run), read=lambda: frame.assign(correct=is_first))
    board = make_leaderboard([changed])
    row = board.comparison.iloc[1]
    assert row["p"] < 0.05 and row["verdict"] == verdict
    assert board.side_tables["answers"].iloc[1]["verdict"] == verdict
    text = one_line(render([make_comparison_table(board)]))
    reason = "no condition's interval of gold answers that come first lies above 20 %"
    assert (reason in text) == (verdict == "unmeasured")


def test_tables_figure_report_and_receipt_name_the_score(run, board):
    text = render([make_comparison_table(board)])
    assert "gold_first instead of accuracy: percentage of problems whose gold answer is" in text
    assert "by chance 20, with choices" in text and "gold_first %" in text
    assert "completions differ" not in text
    assert re.search(r"A/A.*the\s+difference\s+changes by [+-]?\d", text, re.DOTALL)
    assert "log share" in render([*make_shown_side_tables(board).values()])
    data = json.loads(table_json(board))
    assert (data["score"], data["receipt"][0]["endpoint"]) == ("gold_first", "answer_logprob")
    assert len(data["answers"]) == len(data["rows"])
    assert '{"score": "gold_first"}' in table_csv(board)
    for kind, (figure, _) in draw_figures(board, [Run.load(run)], [FigureKind.FOREST]):
        assert "gold_first" in figure.axes[0].get_xlabel(), kind
    for name in ("mediators", "audit"):
        assert board.side_tables[name].empty  # there are no completions
    assert "change the gold_first of" in make_card(board)["question"]


def test_other_endpoints_scores_and_exports_are_refused(run, board, command, tmp_path):
    other = write_run(tmp_path / "other", right, limit=40)
    reason = "another endpoint: accuracy -> answer_logprob"
    with pytest.raises(ComparisonError, match=reason):
        load_board(other, run)
    with pytest.raises(ComparisonError, match=reason):
        compare_pair(Side.read(str(other)), Side.read(f"{run}:mless"))
    for score in ("avg@1", "pass@2", "answer_share", "answer_logprob"):
        with pytest.raises(ConfigError, match=f"answer_logprob has only gold_first, got '{score}'"):
            load_board(run, score=score)
    with pytest.raises(ConfigError, match=r"expected avg@K, .* got 'gold_first'"):
        load_board(other, score="gold_first")
    with pytest.raises(ConfigError, match=r"bars: .* has the endpoint answer_logprob"):
        read_bars(BarsConfig(title="Bars", runs=(run,)))
    for arguments, message in (
        (("export", run), "has no completions: its endpoint is answer_logprob"),
        (("table", run, "--audit"), "counts single right samples, which gold_first does not"),
    ):
        refused(command(*arguments), message)


def test_two_conditions_are_compared_by_the_same_score(run):
    pair = compare_pair(Side.read(f"{run}:wo"), Side.read(f"{run}:mless"))
    result, message = check_not_worse(pair, 0.2)
    assert result == "worse" and " points, p " in message and pair.score == "gold_first"


def test_the_dry_run_has_power_and_chance_and_counts_every_prompt_token(tmp_path):
    plan = make_plan(load(tmp_path / "run"), limit=2)
    count = 0
    for request in list_requests(plan):
        count += 5 * len(request.prompt_token_ids)
    text = one_line(describe_plan(plan))
    assert f"tokens {count:,} in prompts, at most 4 generated" in text
    assert "others that are scored; by chance 20 %" in text and " points (mless - wo" in text


@with_cases
def test_a_log_probability_that_is_not_a_number_is_refused(tokens, others, value):
    with pytest.raises(EngineError, match=f"is {value}, expected a finite number"):
        AnswerScore(tokens, others)


@with_cases
def test_the_likeliest_accepted_answer_counts_and_a_tie_is_not_first(
    accepted, rest, total, others, is_first
):
    score = AnswerScore.of([[*map(tuple, tokens)] for tokens in (*accepted, *rest)], 4)
    assert (score.logprob, score.others, score.gold_is_likeliest) == (total, others, is_first)
    assert score.log_share == pytest.approx(total - np.logaddexp.reduce([total, *others]))


@with_cases
def test_answers_have_a_form(form, answers):
    assert {find_form(answer) for answer in answers} == {form}


def as_problems(golds):
    """A problem for each gold answer, or list of accepted answers. Ids are numbers from 0."""
    problems = []
    for number, gold in enumerate(golds):
        first, *more = gold if isinstance(gold, list) else [gold]
        fields = {"id": str(number), "answer": first, "alternatives": tuple(more)}
        problems.append(replace(TOY_PROBLEMS[0], **fields))
    return problems


@with_cases
def test_no_other_answer_equals_an_accepted_one_in_any_spelling(golds, different):
    """`different` are the only answers that the first gold may be compared with."""
    for seed in range(5):
        drawn = draw_other_answers(as_problems(golds), ["0"], len, seed)["0"]
        assert {*drawn} <= {*different} and len({*drawn}) == 4


@with_cases
def test_too_few_other_answers_are_refused_with_their_number(golds, number, form, decimal):
    message = rf"problem 0 .* only {number} gold answers .* form \({form}\) .*; 4 are needed"
    problems = [replace(problem, decimal=decimal) for problem in as_problems(golds)]
    with pytest.raises(DataError, match=message):
        draw_other_answers(problems, ["0"], len, 1)


def test_other_answers_have_the_same_length_where_there_are_enough():
    golds = [*map(str, range(100)), "1000", "2000"]
    problems = as_problems(f" {gold} " for gold in golds)
    ids = [problem.id for problem in problems]
    drawn = draw_other_answers(problems, ids, len, 1)
    for gold in golds[:100]:
        assert {*map(len, drawn[gold])} == {len(gold)}, gold
    # the only other of four digits, then the nearest
    assert sorted(map(len, drawn["100"])) == [2, 2, 2, 4] and "2000" in drawn["100"]
    assert drawn != draw_other_answers(problems, ids, len, 2)
    assert drawn["50"] == draw_other_answers(problems, ["50"], len, 1)["50"]


def test_of_a_model_that_ignores_the_questions_a_fifth_of_the_golds_come_first():
    """Frequent answers are likely, as in the data, where half of all numbers have one digit."""
    golds = [problem.answer for problem in TOY_PROBLEMS]
    likelihoods = {gold: (golds.count(gold), gold) for gold in golds}
    drawn = draw_other_answers(TOY_PROBLEMS, [problem.id for problem in TOY_PROBLEMS], len, 1)
    count = 0
    for problem in TOY_PROBLEMS:
        others = max(likelihoods[answer] for answer in drawn[problem.id])
        count += likelihoods[problem.answer] > others
    assert count / len(golds) == pytest.approx(0.2, abs=0.03)


@with_cases
def test_other_answers_are_the_same_under_all_conditions_draws_and_limits(tmp_path, changes):
    plans = [make_plan(load(tmp_path / "run", **changes), limit=limit) for limit in (5, 9)]
    texts = {}
    for plan in plans:
        for _, _, problem, prompt in plan.rows:
            assert texts.setdefault(problem.id, prompt.other_answers) == prompt.other_answers
            ends = [tuple(tokens.answer_ids[-1:]) for tokens in prompt.answer_tokens]
            assert len({*ends}) == 1 and len(ends) == 5
    assert len(texts) == 9
    request = list_requests(plans[0])[0]
    others = replace(request, answers=(*request.answers[:-1], request.answers[0]))
    assert sample_key(request, "") != sample_key(others, "")


def test_the_context_must_hold_the_label_and_the_longest_answer(toy_tokenizer):
    def check(length, form="box"):
        options = {"problems": as_problems([["4", "2 + 2"]]), "scored_form": form}
        (task,) = build(toy_tokenizer, WO, context_length=length, **options)
        return len(task.prompts[0].token_ids) + 1

    length = check(10_000)
    assert check(length, form=None)
    length += len(toy_tokenizer.encode("\\boxed{2 + 2}", add_special_tokens=False))
    assert check(length)
    with pytest.raises(PromptMismatchError, match=f"context length of {length - 1} by 1"):
        check(length - 1)


def score_prompts(tokenizer, *, answer="42", condition="wo", others=(), **settings):
    """The texts of labels and answers after the prompt of a problem, and the notes."""
    settings = {"scored_form": "box", "other_answers": {"0": others}, **settings}
    problems = as_problems([answer])
    (task,) = build(tokenizer, as_condition(condition), problems=problems, **settings)
    decoded = [[*map(tokenizer.decode, tokens)] for tokens in task.prompts[0].answer_tokens]
    return decoded, task.notes


@with_cases
def test_label_answer_and_end_are_scored_without_blanks_around_the_answer(
    toy_tokenizer, changes, expected
):
    if examples := changes.pop("examples", None):
        changes |= {"examples": TOY_PROBLEMS[1 : 1 + examples], "asks_in_text": True}
    assert score_prompts(toy_tokenizer, **changes)[0] == expected


@with_cases
def test_a_merge_and_other_lengths_are_noted(toy_tokenizer, merges, answer, others, note):
    tokenizer = build_tokenizer("qwen2", bos=False) if merges else toy_tokenizer
    decoded, notes = score_prompts(tokenizer, answer=answer, others=others)
    assert (["\\boxed{", f"{answer}}}"] in decoded) and len(notes) == bool(note)
    assert note in "".join(notes)
