import json
import re
import shutil

import pytest
import scipy.stats
import yaml

from harness import resources
from harness.analysis import minimal_detectable_effect
from harness.analysis.power import least_prompts
from harness.display.dry_run import describe_plan, describe_power, describe_prompts, describe_time
from harness.experiment.config import load_config
from harness.experiment.plan import make_plan
from tests.make import CONFIG, GREEDY_RUN, TOY

SAMPLED = {"sampling": {"temperature": 0.5}, "samples_per_problem": 5}


def config(folder, **changes):
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "output": str(folder), **changes}))
    return load_config(path)


def points(n, k, tests):
    return f"{100 * minimal_detectable_effect(n=n, k=k, discordance=0.1, alpha=0.05 / tests):.1f} points if"


@pytest.mark.parametrize(
    ("changes", "names", "tests"),
    [
        ({}, "alpha 0.05; mless - wo, the primary contrast)", 1),
        ({"layouts": ["raw", "chat"]}, "alpha 0.05 / 2; mless - wo, the primary contrast)", 2),
        ({"layouts": ["raw", "chat"], "contrasts": ["mful - wo"]}, "alpha 0.05 / 2; mful - wo)", 2),
        ({"contrasts": ["mful - wo"]}, "alpha 0.05; mful - wo)", 1),
    ],
)
def test_the_least_gain_is_that_of_the_statistics_for_the_tests_that_share_alpha(tmp_path, changes, names, tests):
    conditions = {"conditions": ["wo", "mless", "mful"]}
    one = describe_power(config(tmp_path, **conditions, **changes), 500)
    assert one.startswith(points(500, 1, tests)) and one.endswith(names) and "both ways" not in one
    several = describe_power(config(tmp_path, **conditions, **changes, **SAMPLED), 500)
    assert several.startswith(points(500, 5, tests))
    assert f"{points(500, 1, tests)} it moves them both ways" in several, "whole problems that move count once"


def test_what_tests_nothing_or_too_little_says_so(tmp_path):
    assert describe_power(config(tmp_path, contrasts=[]), 500) == ""
    assert "detects" not in describe_plan(make_plan(config(tmp_path, contrasts=[]), limit=3))
    assert describe_power(config(tmp_path), 3).startswith("no gain up to 10 points if")


def test_the_time_is_that_of_a_finished_run_of_the_same_model(tmp_path):
    wanted = config(tmp_path, conditions=["wo", "mless", "mful"], **SAMPLED, model=_demo_model())
    unknown = f"unknown: no finished run of this model in {tmp_path}"
    forecast = describe_time(wanted, 7500)
    assert re.match(r"about \d+ min, may be wrong by 3 times \(2 million parameters on \d+ CPU cores\)", forecast)
    assert describe_time(wanted, 75) != forecast, "fewer tokens take less"
    assert describe_time(config(tmp_path, model=_demo_model(pretrained="/none")), 7500) == unknown
    shutil.copytree(GREEDY_RUN, tmp_path / "earlier")
    receipt = json.loads((tmp_path / "earlier" / "run.json").read_text())
    receipt["timing"] |= {"tokens_per_second": 1000.0, "tokens": 40_000, "samples": 1000, "load_seconds": 60.0}
    receipt["sessions"][-1]["engine"] = {"device_names": ["H200", "H200"]}
    for device, told in (("cuda", "about 12 GPU-minutes (as"), ("cpu", "about 12 minutes (as")):
        receipt["engine"]["device"] = device
        (tmp_path / "earlier" / "run.json").write_text(json.dumps(receipt))
        said = describe_time(wanted, 7500)
        assert said.startswith(told) and said.endswith("earlier: 1,000 tokens/s on H200)"), "2 x (60 s + 300 s)"
    assert describe_time(config(tmp_path, model=_demo_model(dtype="bfloat16")), 7500) == forecast
    (tmp_path / "earlier" / "run.json").write_text('{"torn')
    assert describe_time(wanted, 7500) == forecast


def test_a_run_with_several_instructions_or_texts_says_how_many_find_two_points(tmp_path):
    texts = ["wo", "mless", *({"name": f"t{n}", "sentence": n} for n in range(1, 9))]
    one = config(tmp_path, conditions=texts, across={"instructions": 5})
    few, many = (" ".join(" ".join(describe_prompts(one, n)).split()) for n in (500, 100_000))
    assert "2 points over new texts need at least 1,963 problems" in few and "over new instructions" in few
    assert "need 11 of them; here are 8" in many and "need 11 of them; here are 6" in many
    assert not [*describe_prompts(config(tmp_path), 500)]


def test_as_many_prompts_as_students_test_needs():
    for spread in (0.01, 0.02, 0.05):
        found, _ = least_prompts(0.02, n=10**9, k=1, discordance=0.1, spread=spread)
        power = {}
        for count in (found - 1, found + 1):
            critical = scipy.stats.t.ppf(0.975, count - 1)
            power[count] = scipy.stats.nct.sf(critical, count - 1, 0.02 / spread * count**0.5)
        assert power[found - 1] < 0.8 < power[found + 1], spread
    assert least_prompts(0.02, n=500, k=1, discordance=0.1, spread=0.02) == (None, 1963)


def _demo_model(**changes):
    shipped = yaml.safe_load((TOY / "demo.yaml").read_text())["model"]
    return {**shipped, "arguments": {**shipped["arguments"], **changes}}


def test_every_config_for_a_real_model_can_see_two_points_or_has_a_twin_that_can():
    files = sorted((resources.folder("configs") / "runs").glob("*-*-*.yaml"))
    configs = {file.stem: load_config(file) for file in files}
    assert len(configs) == 12
    for name, one in configs.items():
        assert (one.primary, one.replicates) == ("mless - wo", 2), name
        if one.samples_per_problem > 1:
            k, alpha = one.samples_per_problem, 0.05 / len(one.tested)
            gain = minimal_detectable_effect(n=500, k=k, discordance=0.1, alpha=alpha)
            assert gain < 0.02, "of the study's gains most are 2 points or more"
        else:
            twin = configs[f"{name}-sampled"]
            sampled = ("temperature 0.5, top_p 0.95, 8 samples a problem", one.layouts)
            assert (twin.sampling_words, twin.layouts) == sampled
            assert twin.model == one.model and twin.conditions == one.conditions
