from random import Random

import pytest

from harness import Run, RunConfig
from harness.constants import SEPARATOR
from harness.display.dry_run import describe_plan
from harness.display.figures.sweep_figure import find_sweeps
from harness.display.report.report_samples import read_samples
from harness.errors import PromptMismatchError
from harness.execution.run_execution import execute
from harness.experiment.condition_entries import read_conditions
from harness.experiment.conditions import (
    CLASS_BY_KEY,
    NAMED_CONDITIONS,
    SENTENCES,
    Condition,
    as_condition,
)
from harness.experiment.plan import make_plan
from harness.experiment.prompts.fillers import draw_words
from harness.experiment.prompts.prompt import Layout
from harness.experiment.prompts.tokenizer import fit_filler
from harness.runs.records import stored_prompts
from tests.conftest import build_tokenizer, load_vocabulary
from tests.experiment.test_checked_prompts import MLESS, PROBLEMS, WO, build
from tests.make import (
    DUMMY,
    TOY_MODEL,
    list_requests,
    one_line,
    read_source,
    table_page,
    with_cases,
)

PREFIX = "The final answer is $\\boxed{"
IN_ANSWER = {"unit": "/", "count": 30, "placement": "answer"}
ONLY_PREFIX = {"answer_prefix": PREFIX}


def make_condition(values):
    return as_condition({"name": "x", **values})


def make_config(**changes):
    return RunConfig.model_validate(DUMMY | changes)


def names_of(conditions):
    return [condition.name for condition in conditions]


def test_named_conditions_are_those_of_the_study():
    assert list(NAMED_CONDITIONS) == "wo mless mful random".split()
    assert fit_filler(MLESS, None) == " ".join("/" * 55)
    assert fit_filler(as_condition("mful"), None).split() == ["he"] * 55


def test_sentences_have_no_mathematics_and_about_the_length_of_the_filler():
    assert len(set(SENTENCES)) == len(SENTENCES) >= 60
    for number, sentence in enumerate(SENTENCES, start=1):
        words = sentence.split()
        assert not any(character.isdigit() for character in sentence)
        assert len(set(words)) > 0.6 * len(words)
        text = fit_filler(make_condition({"sentence": number}), None)
        assert text.endswith(".")
        # the study's sentence is among the first eight; rarer words are more tokens
        most_tokens = 60 if number <= 8 else 70
        tokens = load_vocabulary("tekken").encode(text, add_special_tokens=False)
        assert 50 <= len(tokens) <= most_tokens


@with_cases
def test_every_kind_of_condition_keeps_the_problem_in_every_tokenizer(
    any_tokenizer, values, filler_tokens, copies, ending
):
    """`filler_tokens` is the exact number, or true where it is only reported."""
    problems, condition = PROBLEMS[:6], make_condition(values)
    assert as_condition(condition.as_entry()) == condition
    (task,) = build(any_tokenizer, condition, problems=problems)
    for problem, prompt in zip(problems, task.prompts, strict=True):
        assert prompt.text.count(problem.problem) == copies
        assert prompt.text.endswith(ending)
        if filler_tokens is True:
            assert prompt.filler_tokens + prompt.straddling_tokens > 0
        else:
            assert (prompt.filler_tokens, prompt.straddling_tokens) == (filler_tokens, 0)
        assert ("Filler:" + SEPARATOR in prompt.text) == ("Filler:" in values.get("template", ""))


def test_blanks_that_a_tokenizer_merges_are_reported_and_refused_where_they_vanish():
    line_breaks, blanks = (make_condition({"unit": unit, "count": 20}) for unit in "\n ")
    (task,) = build(build_tokenizer("qwen2", bos=False), line_breaks)
    assert task.notes
    llama3 = build_tokenizer("llama3", bos=True)
    with pytest.raises(PromptMismatchError, match="the filler is not in the prompt"):
        build(llama3, blanks, layout=Layout.CHAT)


@with_cases
def test_a_filler_in_the_answer_is_where_the_model_continues(toy_tokenizer, layout, separator):
    conditions = map(make_condition, (IN_ANSWER | ONLY_PREFIX, IN_ANSWER, ONLY_PREFIX))
    built = build(toy_tokenizer, WO, *conditions, layout=Layout(layout))
    plain, *prompts = (task.prompts[0] for task in built)
    filler = " ".join(["/"] * 30)
    answers = [separator + text for text in (filler + SEPARATOR + PREFIX, filler, PREFIX)]
    assert [prompt.answer_prefix for prompt in prompts] == answers
    assert [prompt.text for prompt in prompts] == [plain.text + answer for answer in answers]
    low, high = prompts[0].filler_span
    assert high - low == 30
    assert low >= len(plain.token_ids)


def test_a_run_stores_every_prompt_that_was_sent(tmp_path):
    """Chats with one question differ by the beginning of the answer."""
    plan = make_plan(
        make_config(
            conditions=[
                "wo",
                {"name": "a", **IN_ANSWER, **ONLY_PREFIX},
                {"name": "b", **IN_ANSWER},
            ],
            layouts=["raw", "chat"],
            repeats=3,
            gen_kwargs={"temperature": 1.0},
        ),
        limit=2,
    )
    run = Run.load(execute(plan, output=tmp_path / "run", quiet=True))
    frame = run.samples
    assert len(frame) == plan.completion_count == 2 * 2 * 3 * 3
    keys = ["layout", "condition", "problem_id"]
    assert (frame.groupby(keys, observed=True)["prompt_sha256"].nunique() == 1).all()
    stored = {tuple(getattr(prompt, key) for key in keys) for prompt in run.prompts}
    assert len(stored) == len(run.prompts) == 12
    assert {len(prompt.completions) for prompt in run.prompts} == {3}


def test_a_sweep_may_stand_for_the_conditions():
    values = {"model": {"model_args": {"pretrained": TOY_MODEL}}, "name": "t"}
    sweep = {"unit": "he", "count": [10, 25], "placement": "random"}
    config = RunConfig.model_validate(values | {"sweep": sweep})
    last = as_condition({**sweep, "name": "he-25-random", "count": 25})
    assert config.conditions[0] == WO and config.conditions[2] == last
    assert len(config.tested) == 2


@with_cases
def test_a_sweep_is_a_condition_for_each_combination(sweep, names):
    """A count of 0 leaves out only the filler: without it the words around it have an effect."""
    config = make_config(sweep=sweep, conditions=["mless"])
    assert names_of(config.conditions) == names.split()
    assert RunConfig.model_validate(config.values_with_defaults()) == config


@with_cases
def test_conditions_that_differ_only_in_length_are_one_line(sweep, lines):
    conditions = make_config(sweep={**sweep, "count": [0, 5, 9]}).conditions
    groups = find_sweeps({condition.name: condition for condition in conditions})
    assert [filler for filler, *_ in groups] == lines
    assert [sorted(by_length) for by_length in groups.values()] == [[0, 5, 9]] * 2
    grouped = [name for by_length in groups.values() for name in by_length.values()]
    assert {*grouped} | {"wo"} == {*names_of(conditions)}


def test_random_tokens_are_drawn_to_their_count():
    text = draw_words(["a", "b"], 7, lambda text: len(text.split()) + 1, Random(2))
    assert len(text.split()) == 6  # the first word is two tokens, because it follows no blank


@with_cases
def test_fresh_fillers_depend_on_seed_problem_and_sample_alone(conditions, counts):
    settings = {"conditions": conditions, "repeats": 2, "gen_kwargs": {"temperature": 1}}
    texts = {}
    for _, task, _, prompt in make_plan(make_config(**settings), limit=4).rows:
        fillers = {
            segment.text for segment in prompt.requested_prompt.segments if segment.role == "filler"
        }
        texts.setdefault(task.condition.name, []).extend(fillers)
    assert {name: len({*drawn}) for name, drawn in texts.items()} == counts
    plain = texts["plain"]
    assert plain == texts["placed"] == texts["twice"] == texts["masked"]
    assert not {*plain} & {*texts["seeded"]}


@with_cases
def test_each_sample_with_a_fresh_filler_has_its_own_prompt(tmp_path, settings):
    for looks, repeats in ((1, 2), (2, 3)):
        plan = make_plan(make_config(repeats=repeats, **settings), limit=2)
        requests = list_requests(plan)
        assert len(requests) == plan.completion_count == 2 * 2 * 2 * repeats
        tokens = sum(len(request.prompt_token_ids) for request in requests)
        assert f"tokens {tokens:,} in prompts" in one_line(describe_plan(plan))
        folder = execute(plan, output=tmp_path / "run", quiet=True)
        run = Run.load(folder)
        assert run.about["looks"] == looks
        rows = read_samples([run])
        assert all(row["prompt"].prompt_sha256 == row["prompt_sha256"] for row in rows)
        assert all(row["problem_id"].endswith(f"#{row['sample_index'] + 1}") for row in rows)
        prompts = run.samples.groupby(["condition", "problem_id"], observed=True)["prompt_sha256"]
        assert prompts.nunique().tolist() == [1, 1, repeats, repeats]
        assert {len(problem.prompts) for problem in read_source(folder).problems} == {2}
    remark = "New fillers for each problem or sample: x. Intervals and p are for new problems"
    assert remark in one_line(table_page(folder))


def test_a_condition_with_an_empty_instruction_has_its_own_prompts(toy_tokenizer):
    empty = WO.model_copy(update={"instruction": ""})
    plain, changed = (task.prompts[0] for task in build(toy_tokenizer, WO, empty))
    assert plain.text.endswith(changed.text) and plain.text != changed.text


def test_no_kind_of_condition_has_more_than_13_keys():
    for kind in (Condition, *CLASS_BY_KEY.values()):
        assert sum(not field.exclude for field in kind.model_fields.values()) <= 13


def test_a_plan_has_reference_conditions_whose_prompts_record_the_answers_beginning():
    conditions = ["wo", "mless"]
    settings = {"positive_control": True}
    plan = make_plan(make_config(conditions=conditions, replicates=2, **settings), limit=2)
    prompts = stored_prompts(plan)
    conditions.append("answer-at-once")
    assert list(dict.fromkeys(prompt.condition for prompt in prompts)) == conditions
    assert set(plan.line_by_task.values()) == {"demo_wo", "demo_mless", "positive control"}
    assert plan.completion_count == 2 * 5  # both sides are run again
    counts = "requests 10: mless 2 times, wo 2 times, positive control"
    assert counts in one_line(describe_plan(plan))
    for prompt in prompts:
        assert bool(prompt.answer_prefix) == prompt.condition.startswith("answer-at-once")
        assert prompt.prompt.endswith(prompt.answer_prefix)
    assert not settings.keys() & make_config().identity().keys()


NAMES = (
    "my-w01 mless-w01 wo-w02 mless-w01-w01 control answer-at-once no-examples edit-01 filler-01 "
    "x-gap mless-gap r-003 mless_draw-1 demo_wo baseline w01"
).split()
"""Names that look like those that a run gives to its own conditions, tasks and position gaps."""


def test_the_kind_of_a_condition_does_not_depend_on_its_name():
    conditions = ["wo", "mless", *({"name": name, "unit": ".", "count": 9} for name in NAMES)]
    config = make_config(conditions=conditions, positive_control=True)
    by_name = {condition.name: condition for condition in config.all_conditions}
    assert len(by_name) == len(config.all_conditions) == len(conditions) + 1
    names = ["wo", "mless", *NAMES]
    for name in names:
        condition = by_name[name]
        assert (condition.kind, condition.of, condition.number) == (None, None, 0)
    (control,) = [condition for condition in by_name.values() if condition.kind]
    assert control.kind == "positive control"
    assert read_conditions(config.values_with_defaults()) == by_name


@with_cases
def test_other_texts_match_the_tested_filler_and_grow(toy_tokenizer, settings):

    def draw(**families):
        config = make_config(**settings, other_texts=families, replicates=2)
        assert list(read_conditions(config.values_with_defaults()).values()) == [
            *config.all_conditions
        ]
        assert {*config.replicated_names} == {"tested", "wo"}
        assert config.identity()["other_texts"] == sorted(families)
        return [text for text in config.all_conditions if text.kind == "other text"]

    few, all_texts = draw(sentences=3), draw(sentences=len(SENTENCES) - 1, random_tokens=2)
    assert few == all_texts[:3]
    *sentences, first, second = all_texts
    assert {text.sentence for text in sentences} == {*range(1, len(SENTENCES) + 1)} - {5}
    for text in all_texts:
        facts = (text.filler_tokens, text.placement, text.instruction)
        assert facts == (7, "before_system", "Add.")
        assert (text.kind, text.of) == ("other text", "tested")
        assert text.reference_fields["family"] == text.family
    assert few[0].name == f"sentence-{few[0].sentence}" and few[0].number == few[0].sentence
    assert [first.name, second.name] == ["random-tokens-1", "random-tokens-3"]
    assert fit_filler(first, toy_tokenizer) != fit_filler(second, toy_tokenizer)
    other = make_config(**settings, other_texts=3, seed=5)
    assert [text.name for text in other.all_conditions[-3:]] != [text.name for text in few]
    assert other.tested == make_config(**settings).tested
