import pytest

from harness.analysis.intervention_effects import CAUSE_COLUMNS, causes_table
from harness.display.figures.interval_rows import draw_causes
from harness.experiment.expand_conditions import expand_causes
from tests.analysis.test_other_prompts import conditions_of, settings_of

FIRST_LAYER = expand_causes(["mless", {"causes": "mless", "layer": 1}])
LATER_LAYERS = expand_causes(["mless", {"causes": "mless", "layers": "4-10"}])


def table_of(entries, accuracy):
    """The table of conditions whose accuracy follows from the switches of their cells."""
    conditions = conditions_of(*entries)
    accuracies = {"wo": 0.5, "mless": accuracy(True, True, True)}
    for name, condition in conditions.items():
        if condition.cell:
            accuracies[name] = accuracy(*condition.cell["on"])
    return causes_table(settings_of(accuracies, n=400), conditions)


def test_each_cell_is_compared_with_the_position_gap():
    table = table_of(
        [*FIRST_LAYER, *LATER_LAYERS], lambda other_layers, scale, bias: 0.5 - 0.2 * scale
    )
    assert {*table.columns} == {*CAUSE_COLUMNS} and set(table["filler"]) == {"mless"}
    table = table.set_index("condition")
    first = ["masked", "no-scale", "no-bias", "layer-1", "scale", "bias"]
    cells = [*first, "4-10-masked", "4-10-no-scale", "4-10-no-bias"]
    assert table.index.tolist() == ["mless", *(f"mless-{cell}" for cell in cells)]
    scaled = ["mless", "mless-no-bias", "mless-layer-1", "mless-scale", "mless-4-10-no-bias"]
    assert table.loc[scaled, "difference"].tolist() == pytest.approx([-20] * 5, abs=4)
    assert (table.loc[scaled, "p_adjusted"] < 0.001).all() and (table.loc[scaled, "high"] < 0).all()
    unscaled = table.drop(scaled)
    assert (unscaled["difference"] == 0).all() and (unscaled["p_adjusted"] == 1).all()
    assert table["layers"].dropna().tolist() == ["1"] * 6 + ["4-10"] * 3


def test_cells_whose_weights_do_not_add_up_to_1_are_marked_in_the_figure():
    table = table_of(FIRST_LAYER, lambda *switches: 0.5)
    valid = table["condition"][table["valid_attention"]].tolist()
    assert valid == ["mless", "mless-masked", "mless-layer-1"], "scale and bias are equal"
    words = " ".join(text.get_text() for text in draw_causes(table).axes[0].texts)
    assert "mless-scale (!)" in words and "mless-layer-1 (!)" not in words


def test_without_a_position_gap_there_is_no_table():
    without_gap = [entry for entry in FIRST_LAYER if "mless-gap" not in str(entry)]
    assert len(without_gap) == len(FIRST_LAYER) - 1
    assert table_of(without_gap, lambda *switches: 0.5).empty
