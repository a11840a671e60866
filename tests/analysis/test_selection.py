import json
import shutil
from dataclasses import replace

import pytest

from harness import load_run
from harness.analysis.choose_problems import FLIPS, Criterion, count_outcomes, select
from harness.errors import ConfigError, PromptMismatchError, RunError
from harness.experiment.conditions import named_conditions
from harness.experiment.problems import Dataset
from harness.runs.answered_prompts import Problem, build_source
from harness.runs.read_runs import Run, read_source
from harness.runs.run_folder import read_prompts
from harness.runs.versions_and_hashes import receipt_line
from tests.make import (
    GREEDY_RUN,
    TOY_PROBLEMS,
    answered_prompt,
    log_line,
    source_of,
    write_log,
    write_run,
)

CONDITIONS = ("wo", "mless", "mful", "random")


def logs(folder, pattern="samples_demo_{}_*.jsonl", names=CONDITIONS):
    return {name: next(folder.glob(pattern.format(name))) for name in names}


@pytest.fixture(scope="module")
def demo():
    return read_source(GREEDY_RUN)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """A run of six problems, three samples each: the first is wrong of every second problem, a right, a wrong."""
    seen = []

    def answer(request, target):
        seen.extend({request.problem_id} - {*seen})
        right = (seen.index(request.problem_id) % 2 == 1, True, False)[request.sample_index]
        return f"\\boxed{{{target if right else -1234}}}", "stop"

    several = {
        "repeats": 3,
        "gen_kwargs": {"temperature": 0.5},
        "layouts": ["raw", "chat"],
        "audit": False,
    }
    return write_run(
        tmp_path_factory.mktemp("repeated") / "run", answer, conditions=[*CONDITIONS], **several
    )


def rewrite(path, change, line=0):
    lines = path.read_text().splitlines()
    record = json.loads(lines[line])
    change(record)
    lines[line] = json.dumps(record, ensure_ascii=False)
    path.write_text("\n".join(lines) + "\n")


# Sources.


def test_a_run_gives_the_prompts_that_were_run(demo):
    assert (demo.kind, demo.model, demo.layout, demo.conditions) == (
        "run",
        "tests/data/toy/model",
        "raw",
        CONDITIONS,
    )
    rows = {(row.condition, row.doc["id"]): row for row in read_prompts(GREEDY_RUN)}
    frame = load_run(GREEDY_RUN).set_index(["condition", "problem_id"])
    assert len(demo.problems) == 500
    for problem in demo.problems:
        assert tuple(problem.prompts) == CONDITIONS
        for condition, prompt in problem.prompts.items():
            row, sample = rows[condition, problem.id], frame.loc[(condition, problem.id)]
            assert (prompt.prompt, prompt.prompt_sha256) == (row.prompt, row.prompt_sha256)
            assert prompt.prompt_token_sha256 == row.prompt_token_sha256
            assert prompt.requested.text == prompt.prompt
            assert (*prompt.verdicts, *prompt.completions) == (
                sample["verdict"],
                sample["completion"],
            )
            assert (problem.subject, problem.level) == (sample["subject"], sample["level"])


def facts(*problems):
    """What was asked and answered, wherever it was recorded."""
    shared = (
        "condition",
        "layout",
        "prompt",
        "prompt_sha256",
        "prompt_token_sha256",
        "doc",
        "answers",
        "verdicts",
    )
    return [
        (
            replace(problem, prompts={}),
            [
                ([getattr(prompt, name) for name in shared], prompt.completions)
                for prompt in problem.prompts.values()
            ],
        )
        for problem in problems
    ]


def test_lm_evals_logs_of_the_run_give_the_same(demo, tmp_path):
    mapped = read_source(logs(GREEDY_RUN))
    assert facts(*mapped.problems) == facts(*demo.problems) and mapped.conditions == demo.conditions
    assert (mapped.kind, mapped.model, mapped.metric) == (
        "log",
        "tests/data/toy/model",
        "verdict,graded",
    )
    (tmp_path / "mless-demo").mkdir()
    for path in logs(GREEDY_RUN).values():
        shutil.copy(path, tmp_path / "mless-demo")
    assert read_source(tmp_path).prompts_sha256 == demo.prompts_sha256
    assert read_source(tmp_path).conditions == CONDITIONS
    alone = read_source(logs(GREEDY_RUN)["mless"])
    assert alone.conditions == ("mless",) and [*alone.problems[3].prompts] == ["mless"]


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_repeats_and_layouts_of_a_run_and_of_its_logs(repeated, layout):
    source = read_source(repeated, layout=layout)
    pattern = "samples_demo_{}_2*.jsonl" if layout == "raw" else "samples_demo_{}_chat_2*.jsonl"
    logged = read_source(logs(repeated, pattern))
    assert logged.layout == layout and facts(*logged.problems) == facts(*source.problems)
    for problem in source.problems:
        for prompt in problem.prompts.values():
            assert len(prompt.verdicts) == 3 and prompt.verdicts[1:] == ["correct", "incorrect"]
            assert ("<|im_start|>" in prompt.prompt) == (layout == "chat")


def test_the_layout_is_chosen_where_there_are_several(repeated):
    with pytest.raises(ConfigError, match=r"run: expected one of the layouts raw, chat, got None"):
        read_source(repeated)
    with pytest.raises(ConfigError, match=r"expected one of the layouts raw, got chat"):
        read_source(GREEDY_RUN, layout="chat")


def test_of_another_tasks_logs_the_metric_and_its_filter_are_chosen(tmp_path):
    """Under the first filter every second answer is right, under the other none."""
    lines = [
        log_line(
            n, filter=name, filtered_resps=[name], exact_match=float(name == "boxed" and n % 2)
        )
        for n in range(20)
        for name in ("boxed", "whole")
    ]
    files = {
        name: write_log(tmp_path, lines, number=n)
        for n, name in enumerate(("mless", "wo"), start=1)
    }
    source = read_source(files)
    assert (source.conditions, source.metric) == (("wo", "mless"), "exact_match,boxed")
    prompt = source.problems[3].prompts["mless"]
    assert (prompt.requested.segments, prompt.doc["answer"], *prompt.verdicts, *prompt.answers) == (
        (),
        "3",
        "correct",
        "boxed",
    )
    whole = Run.load(files, metric="exact_match,whole")
    assert not whole.samples["correct"].any() and len(whole.samples) == 40
    assert ", grader exact_match,whole, other filters boxed, " in receipt_line(
        {"name": "logs", **whole.about}
    )
    for path, metric, message in (
        (files, "acc", r"line 1: the metric 'acc' is None.*The log has exact_match"),
        (
            files,
            "exact_match,strict",
            r"got 0 under the filter 'strict'; the log has boxed, whole\.",
        ),
        (tmp_path, None, "names no condition: name that of each log"),
    ):
        with pytest.raises(RunError, match=message):
            read_source(path, metric=metric)


def test_logs_whose_prompts_are_not_told_are_named(tmp_path):
    path = shutil.copy(logs(GREEDY_RUN)["wo"], tmp_path / "samples_demo_wo.jsonl")
    shutil.copy(path, tmp_path / "samples_again.jsonl")
    with pytest.raises(RunError, match=r"two logs of condition 'wo'"):
        read_source(tmp_path)
    for change, message in (
        (
            lambda line: line["arguments"]["gen_args_0"].update(arg_0=['[{"role": "user"}]']),
            "server applied its chat template",
        ),
        (lambda line: line["arguments"].clear(), "no prompt text"),
    ):
        rewrite(path, change, line=4)
        with pytest.raises(RunError, match=f"line 5: .*{message}"):
            read_source(path)


def test_a_prompt_that_is_not_the_hashed_one_is_refused(tmp_path):
    path = shutil.copy(logs(GREEDY_RUN)["mless"], tmp_path / "samples.jsonl")
    rewrite(path, lambda line: line["arguments"]["gen_args_0"].update(arg_0="another"))
    with pytest.raises(
        PromptMismatchError, match=r"samples.jsonl, line 1: the prompt differs from that of the run"
    ):
        read_source(path)


def test_built_prompts_are_those_of_a_run(demo, toy_tokenizer):
    few = Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:20])
    built = build_source(few, list(named_conditions().values()), toy_tokenizer, "raw")
    assert (built.kind, built.metric, built.conditions) == ("dataset", None, CONDITIONS)
    for problem, run in zip(built.problems, demo.problems, strict=False):
        for condition in CONDITIONS:
            ours, theirs = problem.prompts[condition], run.prompts[condition]
            assert (ours.prompt, ours.prompt_sha256) == (theirs.prompt, theirs.prompt_sha256)
            assert ours.prompt_token_sha256 == theirs.prompt_token_sha256
            assert ours.requested == theirs.requested and ours.graded_samples == ()


# Selections.


@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("condition", ["mless", "random"])
def test_a_flip_is_what_the_frame_says(demo, flip, condition):
    right = load_run(GREEDY_RUN).pivot(index="problem_id", columns="condition", values="correct")
    before, after = {
        "wrong_to_right": (False, True),
        "right_to_wrong": (True, False),
        "both_right": (True, True),
        "both_wrong": (False, False),
    }[flip]
    expected = set(right.index[(right["wo"] == before) & (right[condition] == after)])
    if not expected:
        with pytest.raises(
            ConfigError, match=f"run: no problem {flip.replace('_', ' ')}: .*(right|wrong)"
        ):
            select(demo, Criterion(flip=flip, condition=condition))
        return
    criterion = Criterion(flip=flip, condition=condition)
    chosen, outcomes = select(demo, criterion), count_outcomes(demo, criterion)
    assert {problem.id for problem in chosen} == expected
    assert (
        criterion.on_outcome and outcomes[flip] == len(expected) and sum(outcomes.values()) == 500
    )
    assert {problem.outcome for problem in chosen} == {flip}


def test_too_few_matches_name_the_count_of_each_outcome(demo):
    with pytest.raises(
        ConfigError, match=r"expected 9 problems wrong to right, got 1: .*both right \d+.*\."
    ):
        select(demo, Criterion(flip="wrong_to_right", n=9))
    with pytest.raises(ConfigError, match=r"expected 200 problems in the selection, got 25: "):
        select(demo, Criterion(subject="Algebra", level=5, n=200))


def test_subject_level_ids_and_a_seeded_draw(demo):
    narrowed = select(demo, Criterion(subject="Algebra", level=5))
    assert {(p.subject, p.level) for p in narrowed} == {("Algebra", 5)} and len(narrowed) == 25
    assert not Criterion().on_outcome and {p.outcome for p in narrowed} <= set(FLIPS)
    ids = tuple(problem.id for problem in demo.problems[7:3:-1])
    assert [p.id for p in select(demo, Criterion(ids=ids))] == sorted(
        ids, key=list(reversed(ids)).index
    )
    draws = [select(demo, Criterion(n=10, seed=seed)) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] and draws[0] != draws[2] and len(draws[2]) == 10
    order = {problem.id: place for place, problem in enumerate(demo.problems)}
    places = [order[p.id] for p in draws[0]]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("before", "after", "outcome"), [(1, 2, "wrong_to_right"), (3, 2, "right_to_wrong")]
)
def test_a_problem_has_changed_if_more_or_fewer_of_its_samples_are_right(before, after, outcome):
    def samples(right):
        return ("correct",) * right + ("incorrect",) * (3 - right)

    assert Criterion().classify(made("p", samples(before), samples(after))) == outcome
    unchanged = ["both_right" if right > 1 else "both_wrong" for right in range(4)]
    assert [Criterion().classify(made("p", samples(n), samples(n))) for n in range(4)] == unchanged


def made(problem_id, wo, mless, *, subject="Algebra", level=1):
    prompts = {
        name: answered_prompt(name, given, problem_id=problem_id)
        for name, given in (("wo", wo), ("mless", mless))
    }
    return Problem(id=problem_id, subject=subject, level=level, prompts=prompts)


RIGHT, WRONG = ("correct",), ("incorrect",)


def test_what_the_grader_could_not_settle_is_not_right_as_in_the_tables():
    for verdict in ("timeout", "crashed", "refused", "truncated", "no_box"):
        assert Criterion().classify(made("p", (verdict,), RIGHT)) == "wrong_to_right"
        assert Criterion().classify(made("p", RIGHT, (verdict,))) == "right_to_wrong"


def test_a_problem_that_was_not_asked_in_both_conditions_is_undecided():
    assert Criterion().classify(made("p", (), RIGHT)) == "undecided"
    lonely = Problem(
        id="p", subject="", level=0, prompts={"wo": made("p", RIGHT, RIGHT).prompts["wo"]}
    )
    source = source_of(lonely, made("q", WRONG, RIGHT), made("r", RIGHT, ()))
    assert count_outcomes(source, Criterion(flip="wrong_to_right")) == {
        "wrong_to_right": 1,
        "right_to_wrong": 0,
        "both_right": 0,
        "both_wrong": 0,
        "undecided": 2,
    }


def test_controls_have_the_subject_began_alike_where_they_can_and_stand_once():
    flipped = [made(name, WRONG, RIGHT, level=3) for name in ("f1", "f2", "f3")]
    rest = [
        made("near", RIGHT, RIGHT, level=4),
        made("far", WRONG, WRONG, level=1),
        made("exact", WRONG, WRONG, level=3),
        made("other", RIGHT, RIGHT, level=3, subject="Geometry"),
        made("lost", RIGHT, WRONG, level=3),
    ]
    chosen = select(source_of(*flipped, *rest), Criterion(flip="wrong_to_right", controls=True))
    assert [(p.id, p.matched_to) for p in chosen] == [
        ("f1", None),
        ("f2", None),
        ("f3", None),
        ("exact", "f1"),
        ("far", "f2"),
        ("near", "f3"),
    ]
    assert [p.is_control for p in chosen] == [False] * 3 + [True] * 3
    assert [p.outcome for p in chosen[3:]] == ["both_wrong", "both_wrong", "both_right"]


def test_equally_near_controls_are_drawn_by_the_seed():
    source = source_of(made("f", WRONG, RIGHT), *[made(f"c{i}", RIGHT, RIGHT) for i in range(20)])
    criteria = [Criterion(flip="wrong_to_right", controls=True, seed=seed) for seed in range(8)]
    found = [select(source, criterion)[1].id for criterion in criteria]
    assert found == [select(source, criterion)[1].id for criterion in criteria]
    assert len(set(found)) > 3


def test_controls_are_never_silently_fewer():
    source = source_of(made("f", WRONG, RIGHT), made("g", WRONG, RIGHT), made("c", RIGHT, RIGHT))
    with pytest.raises(ConfigError, match="Subject 'Algebra' has too few"):
        select(source, Criterion(flip="wrong_to_right", controls=True))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flip": "both_right", "controls": True}, "got the flip both_right"),
        ({"controls": True}, "got the flip None"),
        ({"flip": "both_right", "condition": "wo"}, "got 'wo' twice"),
        ({"subject": "Alchemy"}, "subject 'Alchemy': expected one of "),
        ({"level": 9}, "level 9: expected one of 1, 2, 3, 4, 5"),
        ({"ids": ("demo/9",)}, "id 'demo/9': expected one of demo/"),
        (
            {"flip": "both_right", "condition": "dots"},
            "no condition 'dots': expected one of wo, mless",
        ),
        ({"baseline": "dots"}, "no condition 'dots': expected one of wo, mless"),
    ],
)
def test_criteria_that_cannot_be_met_say_what_there_is(demo, values, message):
    with pytest.raises(ConfigError, match=message):
        select(demo, Criterion(**values))


def test_without_verdicts_no_flip_is_told(toy_tokenizer):
    few = Dataset(name="few", source="here", problems=TOY_PROBLEMS[:2])
    built = build_source(few, list(named_conditions().values())[:2], toy_tokenizer, "raw")
    with pytest.raises(
        ConfigError, match=r"few \(here\) holds no verdicts, so both_right is unknown"
    ):
        select(built, Criterion(flip="both_right"))
    assert [p.outcome for p in select(built, Criterion())] == [None, None]
