import pytest

from harness.analysis.intervention_effects import CAUSE_COLUMNS, causes_table
from harness.display.figures.interval_rows import draw_causes
from harness.experiment.expand_conditions import expand_causes
from tests.analysis.test_other_prompts import conditions_of, settings_of

FIRST = expand_causes(["mless", {"causes": "mless", "layer": 1}])
LATER = expand_causes(["mless", {"causes": "mless", "layers": "4-10"}])


def table_of(conditions, accuracy, *, n=400):
    """The table where a cell's accuracy follows from its switches."""
    named = conditions_of(*conditions)
    cells = {name: one.cell["on"] for name, one in named.items() if one.cell} | {
        "mless": [True] * 3
    }
    return causes_table(
        settings_of({"wo": 0.5, **{name: accuracy(*on) for name, on in cells.items()}}, n=n), named
    )


def test_each_cell_is_compared_with_the_position_gap():
    table = table_of(
        [*FIRST, *LATER], lambda other_layers, scale, bias: 0.5 - 0.2 * scale
    ).set_index("condition")
    assert {*table.reset_index().columns} == {*CAUSE_COLUMNS} and set(table["filler"]) == {"mless"}
    assert table.index.tolist() == [
        "mless",
        *(
            f"mless-{cell}"
            for cell in ("masked", "no-scale", "no-bias", "layer-1", "scale", "bias")
        ),
        *(f"mless-4-10-{cell}" for cell in ("masked", "no-scale", "no-bias")),
    ]
    scaled = ["mless", "mless-no-bias", "mless-layer-1", "mless-scale", "mless-4-10-no-bias"]
    assert table.loc[scaled, "difference"].tolist() == pytest.approx([-20] * 5, abs=4)
    assert (table.loc[scaled, "p_adjusted"] < 0.001).all() and (table.loc[scaled, "high"] < 0).all()
    rest = table.drop(scaled)
    assert (rest["difference"] == 0).all() and (rest["p_adjusted"] == 1).all()
    assert table["layers"].dropna().tolist() == [*["1"] * 6, *["4-10"] * 3]


def test_cells_whose_weights_do_not_add_up_to_1_are_named_and_without_a_gap_there_is_no_table():
    table = table_of(FIRST, lambda *on: 0.5).set_index("condition")
    valid = table.index[table["valid_attention"]].tolist()
    assert valid == ["mless", "mless-masked", "mless-layer-1"], (
        "scale and bias are both on, or both off"
    )
    words = " ".join(text.get_text() for text in draw_causes(table.reset_index()).axes[0].texts)
    assert "mless-scale (!)" in words and "mless-layer-1 (!)" not in words
    assert table_of(
        [one for one in FIRST if one == "mless" or one["name"] != "mless-gap"], lambda *on: 0.5
    ).empty
