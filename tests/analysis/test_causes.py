import numpy as np
import pytest

from harness.analysis.causes import COLUMNS, SWITCHES, factorial_table
from harness.display.figures.dots import draw_causes
from harness.experiment.conditions import named_conditions
from harness.experiment.interventions import CELLS, expand_causes
from tests.analysis.test_other_prompts import factors_of, settings_of

NAMED = {"mless": named_conditions()["mless"].model_dump(exclude_none=True, exclude={"separator", "placement"})}
FIRST = [*expand_causes(["mless", {"causes": "mless", "layer": 1}], NAMED)]
LATER = [*expand_causes(["mless", {"causes": "mless", "layers": "4-10"}], NAMED)]


def table_of(conditions, accuracy, *, n=400):
    """The factorial where a cell's accuracy follows from its switches."""
    factors = factors_of(*conditions)
    cells = {name: of["cell"]["on"] for name, of in factors.items() if of["cell"]} | {"mless": [True] * 3}
    return factorial_table(
        settings_of({"wo": 0.5, **{name: accuracy(*on) for name, on in cells.items()}}, n=n), factors
    )


def test_a_planted_effect_is_found_under_its_name_and_no_other():
    table = table_of(FIRST, lambda elsewhere, scale, bias: 0.5 - 0.2 * scale).set_index("effect")
    assert {*table.reset_index().columns} == {*COLUMNS} and len(table) == 7
    assert table.loc["scale", "difference"] == pytest.approx(-20, abs=4) and table.loc["scale", "p_adjusted"] < 0.001
    assert table.loc["scale", "low"] < -20 < table.loc["scale", "high"]
    rest = table.drop("scale")
    assert (rest["difference"] == 0).all() and (rest["p_adjusted"] == 1).all()


def test_an_effect_that_needs_two_switches_is_an_interaction_of_half_its_size():
    table = table_of(FIRST, lambda elsewhere, scale, bias: 0.5 - 0.2 * (elsewhere and bias)).set_index("effect")
    found = table["difference"]
    both = found[f"{SWITCHES[0]} x {SWITCHES[2]}"]
    assert both == pytest.approx(found[SWITCHES[0]]) == pytest.approx(found[SWITCHES[2]]) == pytest.approx(-10, abs=2)
    assert found["scale"] == 0


def test_later_layers_have_scale_and_bias_alone_and_missing_cells_no_table():
    table = table_of(LATER, lambda elsewhere, scale, bias: 0.5 + 0.1 * bias)
    assert list(table["effect"]) == ["scale", "bias", "scale x bias"] and set(table["layers"]) == {"4-10"}
    assert not len(table_of(LATER[:-2], lambda *on: 0.5))
    figure = draw_causes(table)
    assert "Layers 4-10" in " ".join(text.get_text() for text in figure.axes[0].texts)


@pytest.mark.slow
def test_effects_on_chance_alone_are_found_as_often_as_said():
    """Of cells that differ by nothing but noise, adjusted p is below 0.05 in at most 5 of 100 factorials."""
    rng, found = np.random.default_rng(0), 0
    factors = factors_of(*FIRST)
    names = [name for name, of in factors.items() if of["cell"]] + ["mless"]
    for _ in range(200):
        verdicts = {
            name: [["correct" if right else "incorrect"] for right in rng.random(60) < 0.5] for name in ("wo", *names)
        }
        table = factorial_table(settings_of({}, verdicts=verdicts), factors)
        found += bool((table["p_adjusted"] < 0.05).any())
    assert len(names) == len(CELLS) + 1 and found <= 17, "200 draws of 5 percent, and their own noise"
