import re

from harness import load_config, resources
from harness.analysis import minimal_detectable_effect
from harness.display.dry_run import describe_plan, describe_power, show_prompts
from harness.experiment.plan import make_plan
from harness.experiment.run_config import config_of_model
from tests.make import load_made, one_line, with_cases, write_records

SAMPLED = {"gen_kwargs": {"temperature": 0.5}, "repeats": 5}


def config(folder, **changes):
    return load_made(folder / "run", output=str(folder), **changes)


def smallest_difference(**settings):
    """The smallest difference that 500 problems detect."""
    effect = minimal_detectable_effect(problem_count=500, discordance=0.1, **settings)
    return f"{100 * effect:.1f} points"


@with_cases
def test_the_smallest_difference_is_that_of_the_tests_that_share_alpha(
    tmp_path, changes, contrasts, alpha, tests
):
    changes = {"conditions": ["wo", "mless", "mful"], **changes}
    for repeats, sampling in ((1, {}), (5, SAMPLED)):
        _, line = describe_power(config(tmp_path, **changes, **sampling), 500)
        difference = smallest_difference(repeats=repeats, alpha=0.05 / tests)
        assert f"smallest difference: {difference} ({contrasts}; 80 % power, {alpha}" in line


@with_cases
def test_from_four_draws_on_the_smallest_difference_is_that_for_new_draws(
    tmp_path, draws, settings
):
    changes = {"fewshot": {"draws": draws}, "repeats": draws}
    _, line = describe_power(config(tmp_path, **changes), 500)
    assert f"smallest difference: {smallest_difference(repeats=draws, **settings)} (" in line
    assert ("a standard deviation between draws of 2 points" in line) == (draws == 4)


def test_a_run_without_tests_has_no_smallest_difference_and_a_small_run_a_large_one(tmp_path):
    (line,) = describe_power(config(tmp_path, contrasts=[]), 500)
    assert line == "tests     none; all others are exploratory"
    assert "detects" not in describe_plan(make_plan(config(tmp_path, contrasts=[]), limit=3))
    for problems, difference in ((3, "more than 50 points"), (36, "25.2 points")):
        *_, line = describe_power(config(tmp_path), problems)
        assert f"smallest difference: {difference} (" in line


def test_the_numbers_of_examples_copies_and_clusters_are_printed(tmp_path):
    rows = [{"problem": f"{number % 9}+1?", "answer": number % 9 + 1} for number in range(12)]
    write_records(tmp_path / "sums.jsonl", rows)
    dataset = {"path": str(tmp_path / "sums.jsonl")}
    fewshot = {"num_fewshot": 2, "seed": 2}
    text = describe_plan(make_plan(config(tmp_path, dataset=dataset, fewshot=fewshot)))
    count = "sums, 10 of 12 problems, 3 of them copies of others, in 7 clusters, examples from 2"
    assert f"{count} others" in one_line(text)


@with_cases
def test_notes_on_the_end_of_prompts(tmp_path, changes, is_noted):
    text = describe_plan(make_plan(config(tmp_path, **changes), limit=6))
    assert ("note      a prompt ends with a line break" in text) == is_noted


@with_cases
def test_copies_in_other_signs_are_noted(tmp_path, questions, answers, copies):
    rows = [
        {"problem": question, "answer": answer}
        for question, answer in zip(questions, answers, strict=True)
    ]
    write_records(tmp_path / "sums.jsonl", rows)
    text = describe_plan(
        make_plan(config(tmp_path, dataset={"path": str(tmp_path / "sums.jsonl")}))
    )
    assert re.findall(r"note      (\d+) questions? may be a copy", text) == copies


def test_every_config_of_a_real_model_detects_two_points_or_has_a_sampled_twin_that_does():
    files = (resources.folder("configs") / "runs").glob("*-*-*.yaml")
    configs = {file.stem: load_config(file) for file in files}
    assert len(configs) == 12
    for name, run_config in configs.items():
        assert (run_config.primary, run_config.replicates) == ("mless - wo", 2), name
        if run_config.repeats > 1:
            repeats, alpha = run_config.repeats, 0.05 / len(run_config.tested)
            effect = minimal_detectable_effect(
                problem_count=500, repeats=repeats, discordance=0.1, alpha=alpha
            )
            assert effect < 0.02  # most effects of the study are 2 points or more
        else:
            twin = configs[f"{name}-sampled"]
            assert twin.sampling_description == "temperature 0.5, top_p 0.95, 8 samples a problem"
            for field in ("layouts", "model", "conditions"):
                assert getattr(twin, field) == getattr(run_config, field)


def test_the_dry_run_names_the_tests_of_a_run_without_a_config():
    settings = config_of_model("any/model", dataset="sums.jsonl")
    tests, _ = describe_power(settings, 500)
    assert tests == "tests     mless - wo, mless - random; all others are exploratory"


def test_a_prompt_is_shown_with_the_number_of_its_own_filler_tokens(tmp_path):
    rows = [{"problem": f"{number}?", "hint": "/ " * number + "/"} for number in (4, 2)]
    write_records(tmp_path / "sums.jsonl", [{**row, "answer": 1} for row in rows])
    dataset = {"path": str(tmp_path / "sums.jsonl")}
    conditions = ["wo", {"name": "hint", "text": "{row.hint}"}]
    plan = make_plan(config(tmp_path, dataset=dataset, conditions=conditions, layouts=["raw"]))
    assert show_prompts(plan).count(" tokens, 5 of them for the filler") == 1
    assert " 3-5 " in describe_plan(plan)
