import numpy as np
import pytest

from harness.analysis.leaderboard import as_json, make_leaderboard
from harness.analysis.other_prompts import TEXTS, WORDINGS, text_table, wording_table
from harness.analysis.outcomes import by_setting, count_outcomes
from harness.analysis.pooled import estimate_new_models, pool_changes
from harness.display.comparison_tables import show_comparison, show_texts, show_wordings
from harness.display.figures.dots import draw_wordings
from harness.errors import ConfigError
from harness.experiment.config import RunConfig
from harness.runs.frame import read_factors
from tests.make import evaluation

MODEL = {"arguments": {"pretrained": "x"}}


def settings_of(accuracies, *, n=200, seed=1, verdicts=None):
    """Outcomes of greedy conditions; each problem has a difficulty that all share."""
    ability = np.random.default_rng(seed).random(n)
    found = {
        name: [["correct" if one < share else "incorrect"] for one in ability] for name, share in accuracies.items()
    }
    return by_setting(count_outcomes(evaluation(found | (verdicts or {})).samples))


def factors_of(*conditions):
    return read_factors({"conditions": ["wo", *conditions]})


SENTENCES = [{"name": f"text-{n}", "sentence": n} for n in (1, 2, 3, 5, 6, 7, 8)]
RANDOM = [{"name": f"ids-{n}", "random_ids": 55, "seed": n} for n in range(8)]


def test_a_condition_is_held_against_each_kind_of_text_of_its_length_and_place():
    elsewhere = {"name": "last", "unit": "/", "placement": "before_question"}
    short = {"name": "short", "unit": "/", "count": 20}
    factors = factors_of("mless", "random", *SENTENCES, *RANDOM, elsewhere, short)
    accuracies = {name: 0.5 for name in factors} | {"mless": 0.6, "text-1": 0.58, "ids-3": 0.3, "wo": 0.55}
    settings = settings_of(accuracies)
    table = text_table(settings, factors)
    assert list(table.columns) == list(TEXTS)
    assert table[["condition", "kind", "texts"]].to_numpy().tolist() == [
        ["mless", "sentences", 8],
        ["mless", "random tokens", 8],
    ], "neither one of the texts, nor a filler of another length or place"
    ((_, arms),) = settings.items()
    right = {name: one.right for name, (one,) in arms.items()}
    texts = ["random", *(one["name"] for one in SENTENCES)]
    effects = np.array([right["mless"] - right[name] for name in texts])
    row, found = table.iloc[0], estimate_new_models(effects.astype(float))
    assert row["difference"] == pytest.approx(100 * effects.mean())
    assert row["new_low"] <= 100 * found["new_low"] and row["new_high"] >= 100 * found["new_high"]
    assert [row["least"], row["most"]] == pytest.approx([100 * right[name].mean() for name in ("random", "text-1")])


def test_too_few_texts_say_nothing():
    factors = factors_of("mless", *RANDOM[:-1])
    assert text_table(settings_of({name: 0.5 for name in factors}), factors).empty


def worded(effects):
    """`wo` and `mless` under as many instructions as there are effects."""
    names = ["", *(f"-w{number:02}" for number in range(1, len(effects)))]
    pairs = zip(names, effects, strict=True)
    return {f"{name}{end}": 0.5 + effect * (name == "mless") for end, effect in pairs for name in ("wo", "mless")}


def test_a_contrast_is_averaged_over_the_instructions_that_both_were_asked_under():
    effects = [0.1, 0.2, -0.05, 0.0, 0.12]
    settings = settings_of(worded(effects), n=300)
    table = wording_table(settings, {"mless": ("mless", "wo")})
    (row,) = table.to_dict("records")
    ((_, arms),) = settings.items()
    changes = [
        (arms[f"mless{end}"][0].right - arms[f"wo{end}"][0].right, 1) for end in ("", *(f"-w0{n}" for n in range(1, 5)))
    ]
    pooled = pool_changes(changes)
    assert list(table.columns) == list(WORDINGS) and row["wordings"] == 5
    assert [row[name] for name in ("difference", "new_low", "new_high")] == [
        pooled[name] for name in ("difference", "new_low", "new_high")
    ]
    assert [one[0] for one in row["effects"]] == pytest.approx([100 * change.mean() for change, _ in changes])
    assert (row["least"], row["most"]) == (min(row["effects"])[0], max(row["effects"])[0])
    assert (row["better"], row["worse"]) == (3, 1)
    figure = draw_wordings(table)
    words = {text.get_text() for text in figure.findobj() if hasattr(text, "get_text")}
    assert {"the run's own", "w04", "mean"} <= words
    assert wording_table(settings_of(worded(effects[:3])), {"mless": ("mless", "wo")}).empty, "too few"


def test_accuracies_and_verdicts_are_of_all_instructions_together():
    """Better under two instructions and worse under two: what is judged is the mean."""
    shares = worded([0.3, 0.3, -0.2, -0.2])
    right = {name: [i < 300 * share for i in range(300)] for name, share in shares.items()}
    asked = {name: [["correct" if one else "incorrect"] for one in of] for name, of in right.items()}
    (wo, mless) = make_leaderboard([evaluation(asked)]).comparison.to_dict("records")
    mean = {side: np.mean([of for name, of in right.items() if name.startswith(side)]) for side in ("wo", "mless")}
    assert (wo["accuracy"], mless["accuracy"]) == pytest.approx((100 * mean["wo"], 100 * mean["mless"]))
    few = make_leaderboard(
        [evaluation({name: of for name, of in asked.items() if not name.endswith(("-w02", "-w03"))})]
    )
    assert "of 2 instructions together" in " ".join(show_comparison(few).notes) and few.wordings.empty
    assert mless["difference"] == pytest.approx(5) and mless["n"] == 300
    flips = mless["wrong_to_right"], mless["right_to_wrong"]
    assert flips == pytest.approx((2 * 0.3 * 300 / 4, 2 * 0.2 * 300 / 4)), "of pairs under one instruction"


def test_the_board_shows_instructions_in_a_table_of_their_own():
    frame = evaluation(
        {
            name: [["correct"] if i < 300 * share else ["incorrect"] for i in range(300)]
            for name, share in worded([0.1] * 4).items()
        }
    )
    board = make_leaderboard([frame])
    rows = board.comparison.set_index("condition")
    assert list(rows.index) == ["wo", "mless"] and rows["k"].tolist() == [4, 4]
    assert "of 4 instructions together" in " ".join(show_comparison(board).notes)
    assert [row[0].text for row in show_comparison(board).cells] == ["w/o", "w/ Mless"]
    (row,) = show_wordings(board).cells
    assert [cell.text for cell in row][:4] == ["w/ Mless", "4", "[+10.0, +10.0]", "4, 0"]
    assert '"wordings": [' in as_json(board) and show_texts(board) is None


@pytest.mark.parametrize("given", [["One.", "Two."], "file"])
def test_instructions_are_texts_or_a_file(given, tmp_path):
    file = tmp_path / "instructions.txt"
    file.write_text("One.\n\nTwo.\n")
    across = {"instructions": str(file) if given == "file" else given}
    config = RunConfig(name="x", model=MODEL, conditions=["wo", "mless"], across=across)
    names = [one.name for one in config.all_conditions]
    assert names == ["wo", "mless", "wo-w01", "mless-w01", "wo-w02", "mless-w02"]
    assert [one.instruction for one in config.yardsticks] == ["One.", "One.", "Two.", "Two."]
    assert config.tested == (("mless", "wo"),), "they are no tests of their own"
    again = RunConfig.model_validate(config.as_written())
    assert again.yardsticks == config.yardsticks and again.identity() == config.identity()
    assert "across" not in RunConfig(name="x", model=MODEL, conditions=["wo"]).identity()


@pytest.mark.parametrize(
    ("across", "said"),
    [
        ({"instructions": "none.txt"}, "none.txt: .*No such file"),
        ({"instructions": []}, "at least 1"),
        ({"instructions": 2}, "across.instructions"),
    ],
)
def test_what_names_no_instructions_is_refused(across, said, tmp_path):
    from harness.experiment.config import load_config

    path = tmp_path / "run.yaml"
    path.write_text("name: x\nmodel: {arguments: {pretrained: x}}\nconditions: [wo, mless]\n")
    with pytest.raises(ConfigError, match=said):
        load_config(path, [f"across={across}"])
    with pytest.raises(ConfigError, match="across: a condition has its own instruction"):
        load_config(path, ["across={instructions: [Do it.]}", "conditions=[wo, {name: own, instruction: Do.}]"])
