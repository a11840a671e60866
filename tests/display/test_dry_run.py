import json
import shutil

import pytest
import yaml

from harness import resources
from harness.analysis import minimal_detectable_effect
from harness.display.dry_run import describe_plan, describe_power
from harness.display.forecast_time import describe_time
from harness.experiment.plan import make_plan
from harness.experiment.run_config import load_config
from tests.make import CONFIG, GREEDY_RUN, TOY

SAMPLED = {"gen_kwargs": {"temperature": 0.5}, "repeats": 5}


def config(folder, **changes):
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "output": str(folder), **changes}))
    return load_config(path)


def points(n, k, tests):
    effect = minimal_detectable_effect(n=n, k=k, discordance=0.1, alpha=0.05 / tests)
    return f"smallest difference: {100 * effect:.1f} points"


@pytest.mark.parametrize(
    ("changes", "contrasts", "alpha", "tests"),
    [
        ({}, "mless - wo", "alpha 0.05,", 1),
        ({"layouts": ["raw", "chat"]}, "mless - wo", "alpha 0.05 / 2,", 2),
        (
            {"layouts": ["raw", "chat"], "contrasts": ["mful - wo"]},
            "mful - wo",
            "alpha 0.05 / 2,",
            2,
        ),
        ({"contrasts": ["mful - wo"]}, "mful - wo", "alpha 0.05,", 1),
    ],
)
def test_the_smallest_difference_is_that_of_the_tests_that_share_alpha(
    tmp_path, changes, contrasts, alpha, tests
):
    conditions = {"conditions": ["wo", "mless", "mful"]}
    for k, sampled in ((1, {}), (5, SAMPLED)):
        (line,) = describe_power(config(tmp_path, **conditions, **changes, **sampled), 500)
        assert f"{points(500, k, tests)} ({contrasts}; 80 % power, {alpha}" in line


def test_from_four_draws_on_the_smallest_difference_is_that_for_new_draws(tmp_path):
    for draws, further in ((3, {}), (4, {"prompts": 4, "spread": 0.02})):
        changes = {"fewshot": {"draws": draws}, "repeats": draws, "layouts": ["raw"]}
        (line,) = describe_power(config(tmp_path, **changes), 500)
        effect = minimal_detectable_effect(n=500, k=draws, discordance=0.1, **further)
        assert f"smallest difference: {100 * effect:.1f} points (" in line
        assert ("a standard deviation between draws of 2 points" in line) == (draws == 4)


def test_what_tests_nothing_or_too_little_says_so(tmp_path):
    assert [*describe_power(config(tmp_path, contrasts=[]), 500)] == []
    assert "detects" not in describe_plan(make_plan(config(tmp_path, contrasts=[]), limit=3))
    (line,) = describe_power(config(tmp_path), 3)
    assert "smallest difference: more than 10 points (" in line


def test_the_time_is_that_of_a_finished_run_of_the_same_model(tmp_path):
    planned = config(tmp_path, conditions=["wo", "mless", "mful"], **SAMPLED, model=_demo_model())
    unknown = f"unknown: no finished run of this model in {tmp_path}"
    assert describe_time(planned, 7500) == unknown
    shutil.copytree(GREEDY_RUN, tmp_path / "earlier")
    receipt = json.loads((tmp_path / "earlier" / "run.json").read_text())
    receipt["timing"] |= {
        "tokens_per_second": 1000.0,
        "tokens": 40_000,
        "samples": 1000,
        "load_seconds": 60.0,
    }
    receipt["sessions"][-1]["engine"] = {"device_names": ["H200", "H200"]}
    for device, time in (("cuda", "about 12 GPU-minutes (as"), ("cpu", "about 12 minutes (as")):
        receipt["engine"]["device"] = device
        (tmp_path / "earlier" / "run.json").write_text(json.dumps(receipt))
        text = describe_time(planned, 7500)
        assert text.startswith(time) and text.endswith("earlier: 1,000 tokens/s on H200)"), (
            "2 x (60 s + 300 s)"
        )
    assert describe_time(config(tmp_path, model=_demo_model(dtype="bfloat16")), 7500) == unknown
    (tmp_path / "earlier" / "run.json").write_text('{"torn')
    assert describe_time(planned, 7500) == unknown


def test_a_run_with_several_instructions_or_texts_says_which_mean_effects_it_would_detect(tmp_path):
    texts = ["wo", "mless", *({"name": f"t{n}", "sentence": n} for n in range(1, 9))]
    across = {"instructions": [f"Do it in way {n}." for n in range(5)]}
    _, by_text, by_instruction = describe_power(
        config(tmp_path, conditions=texts, across=across), 500
    )
    for line, noun, count in ((by_text, "texts", 8), (by_instruction, "instructions", 6)):
        effect = minimal_detectable_effect(n=500, discordance=0.1, prompts=count, spread=0.02)
        assert (
            f"mean effect for new {noun}: {100 * effect:.1f} points ({count} {noun}; 80 % power"
            in line
        )


def _demo_model(**changes):
    shipped = yaml.safe_load((TOY / "demo.yaml").read_text())["model"]
    return {**shipped, "model_args": {**shipped["model_args"], **changes}}


def test_every_config_for_a_real_model_can_see_two_points_or_has_a_twin_that_can():
    files = sorted((resources.folder("configs") / "runs").glob("*-*-*.yaml"))
    configs = {file.stem: load_config(file) for file in files}
    assert len(configs) == 12
    for name, run_config in configs.items():
        assert (run_config.primary, run_config.replicates) == ("mless - wo", 2), name
        if run_config.repeats > 1:
            k, alpha = run_config.repeats, 0.05 / len(run_config.tested)
            gain = minimal_detectable_effect(n=500, k=k, discordance=0.1, alpha=alpha)
            assert gain < 0.02, "of the study's gains most are 2 points or more"
        else:
            twin = configs[f"{name}-sampled"]
            sampled = ("temperature 0.5, top_p 0.95, 8 samples a problem", run_config.layouts)
            assert (twin.sampling_words, twin.layouts) == sampled
            assert twin.model == run_config.model
            assert twin.conditions == run_config.conditions
