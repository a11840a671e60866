import pytest

from benchmarks.controls import CONTROLS, find, plant

FAST = ("no box",)


@pytest.mark.parametrize(
    "control",
    [pytest.param(one, id=one.name, marks=() if one.name in FAST else pytest.mark.slow) for one in CONTROLS],
)
def test_what_was_changed_is_called_by_its_name(control, tmp_path):
    assert plant(control, tmp_path / "run") >= 20
    assert find(tmp_path / "run") == (control.verdict, control.parts, control.states, control.graders)
