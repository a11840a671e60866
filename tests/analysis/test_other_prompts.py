import re
import shutil

import numpy as np
import pytest

from harness import load_run
from harness.analysis.count_correct import count_outcomes, group_by_setting
from harness.analysis.other_texts_and_instructions import (
    INSTRUCTION_COLUMNS,
    TEXT_COLUMNS,
    instructions_table,
    text_table,
)
from harness.analysis.pool_models import crossed_error, pool_changes
from harness.analysis.result_tables import as_json, make_leaderboard
from harness.display.comparison_tables import show_comparison
from harness.display.figures.interval_rows import draw_instructions
from harness.display.show_problems import describe_run
from harness.display.side_tables import show_side_tables
from harness.errors import ComparisonError, ConfigError
from harness.experiment.expand_conditions import read_conditions
from harness.experiment.run_config import RunConfig
from harness.runs.read_runs import Run
from tests.make import CONTROL, evaluation, right, write_run

MODEL = {"model_args": {"pretrained": "x"}}


def settings_of(accuracies, *, n=200, seed=1, verdicts=None):
    """Outcomes of greedy conditions; each problem has a difficulty that all share."""
    ability = np.random.default_rng(seed).random(n)
    found = {
        name: [["correct" if one < share else "incorrect"] for one in ability]
        for name, share in accuracies.items()
    }
    return group_by_setting(count_outcomes(evaluation(found | (verdicts or {})).samples))


def conditions_of(*entries):
    return read_conditions({"conditions": ["wo", *entries]})


SENTENCES = [{"name": f"text-{n}", "sentence": n} for n in (1, 2, 3, 5, 6, 7, 8)]
RANDOM = [{"name": f"ids-{n}", "random_ids": 55, "seed": n} for n in range(8)]


def test_a_condition_is_held_against_each_kind_of_text_of_its_length_and_place():
    elsewhere = {"name": "last", "unit": "/", "placement": "before_question"}
    short = {"name": "short", "unit": "/", "count": 20}
    conditions = conditions_of("mless", "random", *SENTENCES, *RANDOM, elsewhere, short)
    accuracies = {name: 0.5 for name in conditions} | {
        "mless": 0.6,
        "text-1": 0.58,
        "ids-3": 0.3,
        "wo": 0.55,
    }
    settings = settings_of(accuracies)
    table = text_table(settings, conditions)
    assert list(table.columns) == list(TEXT_COLUMNS)
    assert table[["condition", "kind", "texts"]].to_numpy().tolist() == [
        ["mless", "sentences", 8],
        ["mless", "random tokens", 8],
    ], "neither one of the texts, nor a filler of another length or place"
    ((_, arms),) = settings.items()
    right = {name: one.right for name, (one,) in arms.items()}
    texts = ["random", *(one["name"] for one in SENTENCES)]
    effects = np.array([right["mless"] - right[name] for name in texts])
    row, (error, _) = table.iloc[0], crossed_error(effects.astype(float))
    assert row["difference"] == pytest.approx(100 * effects.mean())
    assert row["new_high"] - row["new_low"] > 2 * 1.96 * 100 * error
    assert [row["least"], row["most"]] == pytest.approx(
        [100 * right[name].mean() for name in ("random", "text-1")]
    )


def test_too_few_texts_say_nothing():
    conditions = conditions_of("mless", *RANDOM[:-1])
    assert text_table(settings_of({name: 0.5 for name in conditions}), conditions).empty


def name_under(condition, number):
    """A name that says nothing of the condition to people."""
    return f"{'ab'[condition == 'mless']}-{number}" if number else condition


OTHERS = {
    name_under(condition, number): {"kind": "other instruction", "of": condition, "number": number}
    for condition in ("wo", "mless")
    for number in range(1, 5)
}


def worded(effects):
    """`wo` and `mless` under as many instructions as there are effects."""
    return {
        name_under(condition, number): 0.5 + effect * (condition == "mless")
        for number, effect in enumerate(effects)
        for condition in ("wo", "mless")
    }


def test_a_contrast_is_averaged_over_the_instructions_that_both_were_asked_under():
    effects = [0.1, 0.2, -0.05, 0.0, 0.12]
    settings = settings_of(worded(effects), n=300)
    table = instructions_table(settings, {"mless": ("mless", "wo")}, OTHERS)
    (row,) = table.to_dict("records")
    ((_, arms),) = settings.items()
    changes = [
        (arms[name_under("mless", number)][0].right - arms[name_under("wo", number)][0].right, 1)
        for number in range(5)
    ]
    pooled = pool_changes(changes)
    assert list(table.columns) == list(INSTRUCTION_COLUMNS) and row["instructions"] == 5
    assert [row[name] for name in ("difference", "new_low", "new_high")] == [
        pooled[name] for name in ("difference", "new_low", "new_high")
    ]
    assert [one[0] for one in row["effects"]] == pytest.approx(
        [100 * change.mean() for change, _ in changes]
    )
    assert (row["least"], row["most"]) == (min(row["effects"])[0], max(row["effects"])[0])
    assert (row["better"], row["worse"]) == (3, 1)
    figure = draw_instructions(table)
    words = {text.get_text() for text in figure.findobj() if hasattr(text, "get_text")}
    assert {"the config's", "w04", "mean"} <= words
    assert instructions_table(
        settings_of(worded(effects[:3])), {"mless": ("mless", "wo")}, OTHERS
    ).empty, "too few"


def test_accuracies_and_verdicts_are_of_all_instructions_together():
    """Better under two instructions and worse under two: what is judged is the mean."""
    shares = worded([0.3, 0.3, -0.2, -0.2])
    right = {name: [i < 300 * share for i in range(300)] for name, share in shares.items()}
    asked = {
        name: [["correct" if one else "incorrect"] for one in of] for name, of in right.items()
    }
    (wo, mless) = make_leaderboard(
        [evaluation(asked, reference_conditions=OTHERS)]
    ).comparison.to_dict("records")
    mean = {
        side: np.mean([right[name_under(side, n)] for n in range(4)]) for side in ("wo", "mless")
    }
    assert (wo["accuracy"], mless["accuracy"]) == pytest.approx(
        (100 * mean["wo"], 100 * mean["mless"])
    )
    two = {name: of for name, of in asked.items() if OTHERS.get(name, {}).get("number", 0) < 2}
    few = make_leaderboard([evaluation(two, reference_conditions=OTHERS)])
    assert (
        "for 2 instructions together" in " ".join(show_comparison(few).notes)
        and few.side_tables["instructions"].empty
    )
    assert mless["difference"] == pytest.approx(5) and mless["problems"] == 300
    flips = mless["wrong_to_right"], mless["right_to_wrong"]
    assert flips == pytest.approx((2 * 0.3 * 300 / 4, 2 * 0.2 * 300 / 4)), (
        "of pairs under one instruction"
    )


def test_the_board_shows_instructions_in_a_table_of_their_own():
    frame = evaluation(
        {
            name: [["correct"] if i < 300 * share else ["incorrect"] for i in range(300)]
            for name, share in worded([0.1] * 4).items()
        },
        reference_conditions=OTHERS,
    )
    board = make_leaderboard([frame])
    rows = board.comparison.set_index("condition")
    assert list(rows.index) == ["wo", "mless"] and rows["repeats"].tolist() == [4, 4]
    assert "for 4 instructions together" in " ".join(show_comparison(board).notes)
    assert [row[0].text for row in show_comparison(board).cells] == ["w/o", "w/ Mless"]
    (row,) = show_side_tables(board)["instructions"].cells
    assert [cell.text for cell in row][:4] == ["w/ Mless", "4", "[+10.0, +10.0]", "4, 0"]
    assert '"instructions": [' in as_json(board) and "texts" not in show_side_tables(board)


@pytest.mark.parametrize("given", [["One.", "Two."], "file"])
def test_instructions_are_texts_or_a_file(given, tmp_path):
    file = tmp_path / "instructions.txt"
    file.write_text("One.\n\nTwo.\n")
    across = {"instructions": str(file) if given == "file" else given}
    config = RunConfig(name="x", model=MODEL, conditions=["wo", "mless"], across=across)
    names = [one.name for one in config.all_conditions]
    assert names == ["wo", "mless", "wo-w01", "mless-w01", "wo-w02", "mless-w02"]
    assert [one.instruction for one in config.all_conditions[2:]] == [
        "One.",
        "One.",
        "Two.",
        "Two.",
    ]
    assert config.tested == (("mless", "wo"),), "they are no tests of their own"
    again = RunConfig.model_validate(config.as_written())
    assert again.all_conditions == config.all_conditions and again.identity() == config.identity()
    assert "across" not in RunConfig(name="x", model=MODEL, conditions=["wo"]).identity()


def test_a_table_goes_by_fields_whatever_the_names_are(tmp_path):
    """Of a run folder and of its logs: names that look like those of other instructions and of the control."""
    lengths = {"mless-w01": 9, "x-gap": 10, "answer-at-once": 11}
    shares = {0: 1, 55: 3, 9: 0, 10: 2, 11: 4}
    instructions = ["Solve it, one.", "Solve it, two.", "Solve it, three."]

    def answer(request, target):
        """Right under as many of the four instructions as its share says; never at once."""
        length = max(len(run.split()) for run in re.findall(r"(?:/ ){8,}/|$", request.prompt))
        number = next(
            (n for n, text in enumerate(instructions, 1) if request.prompt.startswith(text)), 0
        )
        is_control = request.prompt.endswith("boxed{")
        return right(request, target if number < shares[length] and not is_control else "wrong")

    entries = [{"name": name, "unit": "/", "count": length} for name, length in lengths.items()]
    settings = {
        "across": {"instructions": instructions},
        "positive_control": True,
        "audit": False,
        "limit": 2,
    }
    folder = write_run(tmp_path / "run", answer, conditions=["wo", "mless", *entries], **settings)
    logs = tmp_path / "logs"
    logs.mkdir()
    for file in (*folder.glob("samples_*"), *folder.glob("results_*")):
        shutil.copy(file, logs)
    boards = [make_leaderboard([Run.load(path)]) for path in (folder, logs)]
    for board in boards:
        accuracies = board.comparison.set_index("condition")["accuracy"].to_dict()
        expected = {
            name: 25.0 * shares[length]
            for name, length in {"wo": 0, "mless": 55, **lengths}.items()
        }
        assert accuracies == expected | {"answer-at-once_": 0.0}
        assert board.comparison.set_index("condition").loc["answer-at-once", "role"] != "reference"
        rows = board.side_tables["instructions"].set_index("condition")
        assert (rows["instructions"] == 4).all() and rows["difference"].to_dict() == {
            name: accuracy - 25 for name, accuracy in expected.items() if name != "wo"
        }
        assert "for 4 instructions together" in " ".join(show_comparison(board).notes)
        assert any("(answer-at-once_)" in note for note in show_comparison(board).notes)
    assert boards[0].reference_conditions == boards[1].reference_conditions
    assert len(boards[0].reference_conditions) == 3 * 6 + 1
    assert "18 other instructions" in describe_run(Run.load(folder))
    assert set(load_run(folder)["condition"]) == {"wo", "mless", *lengths}


def test_a_name_that_is_a_control_in_one_run_alone_is_refused():
    verdicts = {"wo": [["correct"]] * 9, "control": [["incorrect"]] * 9}
    runs = [evaluation(verdicts, reference_conditions=CONTROL), evaluation(verdicts, model="n")]
    with pytest.raises(
        ComparisonError, match="results/n: the condition 'control' is another one than in results/m"
    ):
        make_leaderboard(runs)


@pytest.mark.parametrize(
    ("across", "said"),
    [
        ({"instructions": "none.txt"}, "none.txt: .*No such file"),
        ({"instructions": []}, "at least 1"),
        ({"instructions": 2}, "across.instructions"),
    ],
)
def test_what_names_no_instructions_is_refused(across, said, tmp_path):
    from harness.experiment.run_config import load_config

    path = tmp_path / "run.yaml"
    path.write_text("name: x\nmodel: {model_args: {pretrained: x}}\nconditions: [wo, mless]\n")
    with pytest.raises(ConfigError, match=said):
        load_config(path, [f"across={across}"])
    with pytest.raises(ConfigError, match="across: needs conditions that set no instruction"):
        load_config(
            path,
            ["across={instructions: [Do it.]}", "conditions=[wo, {name: own, instruction: Do.}]"],
        )
