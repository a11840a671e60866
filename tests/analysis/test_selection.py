import shutil
from dataclasses import replace

import pytest

from harness import Run, load_run
from harness.analysis.problem_selection import FLIP_OUTCOMES, Criterion, count_flips, select
from harness.errors import ConfigError, PromptMismatchError, RunError
from harness.experiment.conditions import NAMED_CONDITIONS
from harness.experiment.problems import Dataset
from harness.runs.prompt_sources import AnsweredProblem, build_source
from harness.runs.run_files import RunFiles
from harness.runs.versions_and_hashes import receipt_line
from tests.make import (
    CONDITIONS,
    EXAMPLE,
    GREEDY_RUN,
    TOY_PROBLEMS,
    answered_prompt,
    find_log,
    log_line,
    module_fixture,
    read_lines,
    read_source,
    source_of,
    with_cases,
    write_log,
    write_records,
    write_run,
)


@module_fixture
def demo():
    return read_source(GREEDY_RUN)


@module_fixture
def repeated(tmp_path_factory):
    """A run of six problems and three samples each.

    The first sample is right for every second problem, the second sample always, the third never.
    """
    numbers = {}

    def answer(request, target):
        number = numbers.setdefault(request.problem_id, len(numbers))
        is_right = (number % 2 == 1, True, False)[request.sample_index]
        return f"\\boxed{{{target if is_right else -1234}}}", "stop"

    return write_run(
        tmp_path_factory.mktemp("repeated") / "run",
        answer,
        conditions=[*CONDITIONS],
        repeats=3,
        gen_kwargs={"temperature": 0.5},
        layouts=["raw", "chat", "as_published"],
    )


# Sources.


def test_the_source_of_a_run_has_its_prompts_and_verdicts(demo):
    facts = (demo.kind, demo.model, demo.layout, demo.conditions, len(demo.problems))
    assert facts == ("run", "tests/data/toy/model", "raw", CONDITIONS, 500)
    rows = {(row.condition, row.doc["id"]): row for row in RunFiles(GREEDY_RUN).prompts}
    frame = load_run(GREEDY_RUN).set_index(["condition", "problem_id"])
    for problem in demo.problems:
        assert tuple(problem.prompts) == CONDITIONS
        for condition, prompt in problem.prompts.items():
            row, sample = rows[condition, problem.id], frame.loc[(condition, problem.id)]
            for name in ("prompt", "prompt_sha256", "prompt_token_sha256"):
                assert getattr(prompt, name) == getattr(row, name)
            assert prompt.requested_prompt.text == prompt.prompt
            assert [*prompt.verdicts, *prompt.completions] == [
                sample["verdict"],
                sample["completion"],
            ]
            assert (problem.subject, problem.level) == (sample["subject"], sample["level"])


SHARED = "condition layout prompt prompt_sha256 doc verdicts"


def describe(source):
    """What was asked and answered, wherever it was recorded."""
    for problem in source.problems:
        yield replace(problem, prompts={})
        for prompt in problem.prompts.values():
            answers = [score.answer for _, score in prompt.graded_samples]
            yield [getattr(prompt, name) for name in SHARED.split()], answers, prompt.completions


def test_the_logs_of_lm_eval_have_the_same_prompts_and_verdicts(demo, tmp_path):
    logs = {name: find_log(name) for name in CONDITIONS}
    source = read_source(logs)
    assert [*describe(source)] == [*describe(demo)] and source.conditions == CONDITIONS
    facts = (source.kind, source.model, source.metric)
    assert facts == ("log", "tests/data/toy/model", "verdict,graded")
    (tmp_path / "mless-demo").mkdir()
    for path in logs.values():
        shutil.copy(path, tmp_path / "mless-demo")
    source = read_source(tmp_path)
    assert (source.prompts_sha256, source.conditions) == (demo.prompts_sha256, CONDITIONS)
    source = read_source(logs["mless"])
    assert source.conditions == tuple(source.problems[3].prompts) == ("mless",)


@with_cases
def test_repeats_and_layouts_of_a_run(repeated, layout):
    source = read_source(repeated, layout=layout)
    for problem in source.problems:
        for prompt in problem.prompts.values():
            assert len(prompt.verdicts) == 3 and prompt.verdicts[1:] == ["correct", "incorrect"]
            assert ("<|im_start|>" in prompt.prompt) == (layout == "chat")


def test_one_of_several_layouts_has_to_be_named(repeated):
    with pytest.raises(ConfigError, match="one of raw, chat, as_published, got None"):
        read_source(repeated)


@pytest.fixture
def filtered_logs(tmp_path):
    """Logs with two filters: under `boxed` every second answer is right, under `last` none."""
    lines = [log_line(n, filter="boxed", filtered_resps=["boxed"]) for n in range(20)]
    lines += [log_line(n, filter="last", exact_match=0.0) for n in range(20)]
    names = enumerate(("mless", "wo"), start=1)
    return {name: write_log(tmp_path, lines, number=number) for number, name in names}


def test_the_metric_and_the_filter_of_logs_of_another_task_can_be_chosen(filtered_logs):
    source = read_source(filtered_logs)
    assert (source.conditions, source.metric) == (("wo", "mless"), "exact_match,boxed")
    prompt = source.problems[3].prompts["mless"]
    assert prompt.requested_prompt.segments == () and prompt.doc["answer"] == "3"
    ((_, score),) = prompt.graded_samples
    assert (score.verdict, score.answer) == ("correct", "boxed")
    run = Run.load(filtered_logs, metric="exact_match,last")
    assert run.samples["correct"].tolist() == [False] * 40
    line = receipt_line({"name": "logs", **run.about})
    assert ", grader exact_match,last, other filters boxed, " in line


def test_a_metric_that_logs_do_not_have_is_refused(filtered_logs, tmp_path):
    for path, metric, message in (
        (filtered_logs, "acc", r"line 1: the metric 'acc' is missing.*The log has exact_match"),
        (filtered_logs, "exact_match,x", r"0 under the filter 'x'; the log has boxed, last\."),
        (tmp_path, None, "names no condition: name that of each log"),
    ):
        with pytest.raises(RunError, match=message):
            read_source(path, metric=metric)


def test_two_logs_of_a_condition_are_refused(tmp_path):
    for name in ("demo_wo", "again"):
        shutil.copy(find_log("wo"), tmp_path / f"samples_{name}.jsonl")
    with pytest.raises(RunError, match=r"two logs of condition 'wo'"):
        read_source(tmp_path)


@with_cases
def test_a_log_without_the_text_of_a_prompt_is_refused(arguments, message, tmp_path):
    lines = read_lines(find_log("wo"))
    lines[0]["arguments"] = arguments
    write_records(tmp_path / "samples_demo_wo.jsonl", lines)
    with pytest.raises(RunError, match=f"line 1: .*{message}"):
        read_source(tmp_path)


def test_a_prompt_whose_hash_differs_is_refused(tmp_path):
    path, (first, *others) = tmp_path / "samples.jsonl", read_lines(find_log("mless"))
    first["arguments"]["gen_args_0"]["arg_0"] += " "
    write_records(path, [first, *others])
    message = r"samples.jsonl, line 1: the prompt differs from that of the run"
    with pytest.raises(PromptMismatchError, match=message):
        read_source(path)


def build_toy_source(count, tokenizer):
    dataset = Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:count])
    return build_source(dataset, list(NAMED_CONDITIONS.values()), tokenizer, "raw")


def test_built_prompts_are_those_of_a_run(demo, toy_tokenizer):
    source = build_toy_source(20, toy_tokenizer)
    assert (source.kind, source.metric, source.conditions) == ("dataset", None, CONDITIONS)
    for problem, recorded in zip(source.problems, demo.problems, strict=False):
        for condition in CONDITIONS:
            prompt, recorded_prompt = problem.prompts[condition], recorded.prompts[condition]
            for name in ("prompt", "prompt_sha256", "prompt_token_sha256", "requested_prompt"):
                assert getattr(prompt, name) == getattr(recorded_prompt, name)
            assert prompt.graded_samples == ()


# Selections.


@with_cases
def test_the_problems_of_a_flip_are_those_of_the_frame(demo, flip, before, after, condition):
    right = load_run(GREEDY_RUN).pivot(index="problem_id", columns="condition", values="correct")
    expected = set(right.index[(right["wo"] == before) & (right[condition] == after)])
    criterion = Criterion(flip=flip, condition=condition)
    if not expected:
        message = f"run: the selection has 0 problems, .*{flip.replace('_', ' ')} 0"
        with pytest.raises(ConfigError, match=message):
            select(demo, criterion)
        return
    selected, outcomes = select(demo, criterion), count_flips(demo, criterion)
    assert {problem.id for problem in selected} == expected
    assert {problem.outcome for problem in selected} == {flip}
    assert outcomes[flip] == len(expected)
    assert sum(outcomes.values()) == 500


def test_problems_are_selected_by_id(demo):
    ids = [problem.id for problem in demo.problems[4:8]]
    assert [p.id for p in select(demo, Criterion(ids=tuple(reversed(ids))))] == ids
    draws = select(read_source(EXAMPLE), Criterion(ids=("4x7",)))
    assert [p.id for p in draws] == ["4x7#9", "4x7#10", "4x7#11"]


def test_problems_are_drawn_by_the_seed_and_keep_their_order(demo):
    draw, same_seed, another_seed = (
        [problem.id for problem in select(demo, Criterion(n=10, seed=seed))] for seed in (1, 1, 2)
    )
    assert draw == same_seed != another_seed and len(another_seed) == 10
    assert draw == [problem.id for problem in demo.problems if problem.id in draw]


RIGHT, WRONG = ("correct",), ("incorrect",)


def make_problem(problem_id, wo, mless, *, subject="Algebra", level=1):
    prompts = {
        "wo": answered_prompt("wo", wo, problem_id=problem_id),
        "mless": answered_prompt("mless", mless, problem_id=problem_id),
    }
    return AnsweredProblem(id=problem_id, subject=subject, level=level, prompts=prompts)


def classify(wo, mless):
    return Criterion().classify(make_problem("p", wo, mless))


def test_a_flip_is_a_change_in_the_number_of_correct_samples():
    samples = [RIGHT * right + WRONG * (3 - right) for right in range(4)]
    assert classify(samples[1], samples[2]) == "wrong_to_right"
    assert classify(samples[3], samples[2]) == "right_to_wrong"
    unchanged = "both_wrong both_wrong both_right both_right".split()
    assert [classify(verdicts, verdicts) for verdicts in samples] == unchanged


@with_cases
def test_a_sample_without_a_grade_is_not_right_as_in_the_tables(verdict):
    assert classify((verdict,), RIGHT) == "wrong_to_right"
    assert classify(RIGHT, (verdict,)) == "right_to_wrong"


def test_a_problem_that_was_asked_under_only_one_of_the_conditions_is_undecided():
    problem = make_problem("p", RIGHT, RIGHT)
    del problem.prompts["mless"]
    source = source_of(problem, make_problem("q", WRONG, RIGHT), make_problem("r", RIGHT, ()))
    counts = count_flips(source, Criterion(flip="wrong_to_right"))
    assert counts == dict.fromkeys(FLIP_OUTCOMES, 0) | {"wrong_to_right": 1, "undecided": 2}
    assert classify((), RIGHT) == "undecided"


CONTROLLED = {"flip": "wrong_to_right", "controls": True}


@with_cases
def test_controls_have_the_subject_and_if_possible_the_level_and_occur_once(problems, controls):
    source = source_of(
        *(
            make_problem(name, (wo,), (mless,), subject=subject, level=level)
            for name, wo, mless, subject, level in problems
        )
    )
    selected = select(source, Criterion(**CONTROLLED))
    assert [problem.id for problem in selected[:3]] == ["f1", "f2", "f3"]
    assert [problem.is_control for problem in selected] == [False] * 3 + [True] * 3
    facts = [[problem.id, problem.outcome] for problem in selected[3:]]
    assert facts == controls


def test_equally_near_controls_are_drawn_by_the_seed():
    candidates = [make_problem(f"c{number}", RIGHT, RIGHT) for number in range(20)]
    source = source_of(make_problem("f", WRONG, RIGHT), *candidates)
    first, again = (
        [select(source, Criterion(**CONTROLLED, seed=seed))[1].id for seed in range(8)]
        for _ in range(2)
    )
    assert first == again and len(set(first)) > 3


def test_too_few_controls_are_refused():
    flipped = [make_problem(name, WRONG, RIGHT) for name in "fg"]
    source = source_of(*flipped, make_problem("c", RIGHT, RIGHT))
    with pytest.raises(ConfigError, match="Subject 'Algebra' has too few"):
        select(source, Criterion(**CONTROLLED))


def test_without_verdicts_a_flip_is_unknown(toy_tokenizer):
    source = build_toy_source(2, toy_tokenizer)
    message = r"demo \(here\) holds no verdicts, so both_right is unknown"
    with pytest.raises(ConfigError, match=message):
        select(source, Criterion(flip="both_right"))
    assert [problem.outcome for problem in select(source, Criterion())] == [None, None]
