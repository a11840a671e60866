"""The endpoint `answer_logprob`: its tokens, its samples, and its tables in nats."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy import stats

import harness
from attention_probe.figures.figure_config import BarsConfig
from attention_probe.figures.figure_numbers import read_bars
from harness.analysis import compare
from harness.analysis.compare_two_conditions import Side, check_not_worse, compare_pair
from harness.analysis.result_tables import as_csv, as_json, make_leaderboard
from harness.constants import Kind
from harness.display.comparison_tables import show_comparison, show_leaderboard
from harness.display.dry_run import describe_plan, describe_power
from harness.display.figures.figure_kinds import draw_figures
from harness.display.format_table import render
from harness.display.report.report_page import make_card
from harness.errors import ComparisonError, ConfigError, EngineError, PromptMismatchError
from harness.execution.grade_again import regrade
from harness.experiment.conditions import as_condition
from harness.experiment.plan import make_plan, make_requests
from harness.experiment.prompt import PromptSettings
from harness.experiment.run_config import load_config
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.read_runs import Run
from harness.runs.records import AnswerScore, Sample
from tests.conftest import build_tokenizer
from tests.make import CONFIG, TOY_PROBLEMS, right, run_plan, with_cases, write_run

EFFECT = -0.5
"""Nats by which the filler makes each gold answer less likely, on average."""


def load(folder, **changes):
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump({**CONFIG, "endpoint": "answer_logprob", **changes}))
    return load_config(path)


def write_scored_run(folder, *, limit=40, effect=EFFECT, **changes):
    """A finished run whose gold answers have two tokens, the first of which is always likeliest."""
    plan = make_plan(load(folder, **changes), limit=limit)

    def make_sample(request, key):
        rng = np.random.default_rng(int(key[:8], 16))
        shift = effect if "mless" in request.task else 0.0
        sample = Sample.of(request, key, "", tokens=1, reason="length")
        tokens = [(-1.0, 1), (shift - 2 + float(rng.normal(0, 0.2)), int(rng.integers(1, 3)))]
        sample.answer_score = AnswerScore(tokens)
        return sample

    return run_plan(plan, folder, make_sample)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_scored_run(tmp_path_factory.mktemp("scored") / "run", replicates=2)


@pytest.fixture(scope="module")
def board(run):
    return make_leaderboard([Run.load(run)])


@with_cases
def test_what_would_not_give_log_probabilities_is_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "run", **changes)


def test_the_samples_have_columns_and_a_verdict_without_a_grader(run):
    frame = harness.load_run(run)
    scored = frame[["answer_tokens", "completion", "answer_rank"]].drop_duplicates()
    assert scored.to_numpy().tolist() == [[2, "", 1]]
    assert 0 < frame["correct"].mean() < 1 and frame["answer"].isna().all()
    assert set(frame["verdict"]) == {"correct", "incorrect"}
    assert "0 verdicts changed" in regrade(run)
    assert harness.load_run(run).equals(frame)
    assert not list(run.glob("samples_*")), "lm-eval's logs would be of completions"


def test_the_difference_is_that_of_the_means_with_test_interval_and_verdict(run, board):
    frame = harness.load_run(run)
    means = frame.pivot(index="problem_id", columns="condition", values="answer_logprob")
    row = board.comparison.set_index("condition").loc["mless"]
    change = means["mless"] - means["wo"]
    assert row["difference"] == pytest.approx(change.mean(), abs=1e-4)
    assert row["low"] < change.mean() < row["high"] < 0 and row["p"] < 0.001
    reach = stats.t.ppf(0.975, len(change) - 1) * change.sem()
    assert row["high"] - row["low"] == pytest.approx(2 * reach, rel=0.15)
    assert (row["verdict"], row["margin"], row["tests"], row["primary"]) == ("worse", 0.1, 1, True)
    assert row[["by_format", "within_margin"]].tolist() == [False, False]
    expected = stats.t.interval(0.95, 39, means["mless"].mean(), means["mless"].sem())
    assert row[["accuracy_low", "accuracy_high"]].tolist() == pytest.approx(expected, abs=1e-3)
    # of a frame alone the table is the same
    assert compare(frame).set_index("condition").loc["mless", "low"] == row["low"]
    mirrored = compare(frame, baseline="mless").set_index("condition").loc["wo"]
    columns = ["difference", "low", "high", "wrong_to_right", "right_to_wrong"]
    signs = np.array([-1, -1, -1, 1, 1])
    order = ["difference", "high", "low", "right_to_wrong", "wrong_to_right"]
    assert mirrored[columns].tolist() == pytest.approx((signs * row[order]).tolist())


def test_a_small_difference_of_40_problems_is_equivalent(tmp_path):
    frame = harness.load_run(write_scored_run(tmp_path / "run", effect=0.0))
    noise = frame.groupby("condition", observed=True)["answer_logprob"].transform("mean")
    row = compare(frame.assign(answer_logprob=frame["answer_logprob"] - noise)).iloc[1]
    assert row["verdict"] == "equivalent" and row["unmeasured"] is None


def test_tables_figure_report_and_receipt_name_the_endpoint_and_nats(run, board):
    text = render([show_comparison(board)])
    assert "answer_logprob instead of accuracy: log-probability of the gold answer, in" in text
    assert "lies between -0.1 and +0.1 nats; inconclusive" in text and "points" not in text
    assert "completions differ" not in text
    assert re.search(r"A/A.*the difference changes by [+-]?0\.\d\d nats", text, re.DOTALL)
    assert "w/o nats" in render([show_leaderboard(board)])
    data = json.loads(as_json(board))
    assert (data["score"], data["receipt"][0]["endpoint"]) == ("answer_logprob",) * 2
    assert '{"score": "answer_logprob"}' in as_csv(board)
    for kind, (figure, _) in draw_figures(board, [Run.load(run)], [Kind.FOREST, Kind.ACCURACY]):
        label = figure.axes[0].get_xlabel()
        expected = {"forest": "Difference in answer_logprob from w/o (nats)"}
        assert label == expected.get(kind, "answer_logprob (nats)")
    for name in ("mediators", "audit"):
        assert board.side_tables[name].empty, "there are no completions"
    card = make_card(board)
    assert "change the answer_logprob of" in card["question"]
    assert " nats [" in card["answers"][0]["text"]


def test_other_endpoints_scores_and_exports_are_refused(run, board, command, tmp_path):
    other = write_run(tmp_path / "other", right, limit=40)
    reason = "another endpoint: accuracy -> answer_logprob"
    with pytest.raises(ComparisonError, match=reason):
        make_leaderboard([Run.load(other), Run.load(run)])
    with pytest.raises(ComparisonError, match=reason):
        compare_pair(Side.read(str(other)), Side.read(f"{run}:mless"))
    with pytest.raises(ConfigError, match="the endpoint answer_logprob has no other, got 'avg@1'"):
        make_leaderboard([Run.load(run)], score="avg@1")
    with pytest.raises(ConfigError, match=r"expected avg@K, .* got 'answer_logprob'"):
        make_leaderboard([Run.load(other)], score="answer_logprob")
    with pytest.raises(ConfigError, match=r"bars: .* has the endpoint answer_logprob"):
        read_bars(BarsConfig(title="Bars", runs=(run,)))
    for arguments, message in (
        (("export", run), "has no completions: its endpoint is answer_logprob"),
        (("table", run, "--audit"), "count single right samples, which answer_logprob does not"),
    ):
        process = command(*arguments)
        assert process.returncode == 2 and message in process.stderr


def test_two_conditions_are_compared_in_nats(run):
    pair = compare_pair(Side.read(f"{run}:wo"), Side.read(f"{run}:mless"))
    code, message = check_not_worse(pair, 0.2)
    assert code == 1 and " nats, p " in message
    assert check_not_worse(pair, 1)[1].startswith("run:mless loses less than 1 nat: ")


def test_the_dry_run_has_power_in_nats_and_counts_every_prompt_token(tmp_path):
    (line,) = describe_power(load(tmp_path / "run"), 785)
    assert "smallest difference: 0.1 nats (mless - wo; 80 % power, alpha 0.05, at a stan" in line
    plan = make_plan(load(tmp_path / "run"), limit=2)
    count = 0
    for request in make_requests(plan, plan.config.resolve_sampling(None)):
        count += len(request.prompt_token_ids)
    assert f"tokens    {count:,} in prompts, at most 4 generated" in describe_plan(plan)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_log_probability_that_is_no_number_is_refused(value):
    with pytest.raises(EngineError, match=f"is {value}, expected a finite number"):
        AnswerScore([(-1.0, 1), (value, 1)])


def test_the_context_must_hold_the_label_and_the_longest_answer(toy_tokenizer):
    model = ModelTokenizer(name="x", tokenizer=toy_tokenizer)
    problem = replace(TOY_PROBLEMS[0], answer="4", alternatives=("2 + 2",))

    def check(length, read=None):
        limited = replace(model, context_length=length)
        conditions, settings = [as_condition("wo")], PromptSettings(scored=read)
        return build_checked_prompts([problem], conditions, settings, limited, max_gen_toks=1)

    (arm,) = check(10_000, read="box")
    length = len(arm.prompts[0].token_ids) + 1
    assert check(length)
    answer = len(toy_tokenizer.encode("\\boxed{" + "2 + 2", add_special_tokens=False))
    assert check(length + answer, read="box")
    with pytest.raises(PromptMismatchError, match=f"context length of {length + answer - 1} by 1"):
        check(length + answer - 1, read="box")


def score_prompts(tokenizer, *, answer="42", alternatives=(), read="box", condition="wo"):
    """The texts of labels and gold answers after the prompt of a problem, and the notes."""
    problem = replace(TOY_PROBLEMS[0], answer=answer, alternatives=alternatives)
    settings = PromptSettings(scored=read)
    model = ModelTokenizer(name="x", tokenizer=tokenizer)
    conditions = [as_condition(condition)]
    (arm,) = build_checked_prompts([problem], conditions, settings, model)
    decoded = [[*map(tokenizer.decode, tokens)] for tokens in arm.prompts[0].answers]
    return decoded, arm.notes


def test_label_and_answer_are_apart_and_a_merge_is_noted(toy_tokenizer):
    assert score_prompts(toy_tokenizer, alternatives=("6 \\cdot 7",)) == (
        [["\\boxed{", "42"], ["\\boxed{", "6 \\cdot 7"]],
        (),
    )
    begun = {"name": "x", "answer_prefix": "The final answer is $\\boxed{"}
    assert score_prompts(toy_tokenizer, condition=begun)[0] == [["", "42"]]
    closed = {"name": "x", "answer_prefix": "Not \\boxed{1}, but"}
    assert score_prompts(toy_tokenizer, condition=closed)[0] == [["\\boxed{", "42"]]
    assert score_prompts(toy_tokenizer, read="line")[0] == [["", "42"]]
    merging = build_tokenizer("qwen2", bos=False)
    (answer,), (note,) = score_prompts(merging, answer="\\frac{1}{2}")
    assert answer == ["\\boxed{", "\\frac{1}{2}"]
    assert note == "1 of 1 gold answers merge with their label: another spelling is scored."
