import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from attention_probe.measure.measure_activations import (
    ACTIVATION_BINS,
    ACTIVATION_UNITS,
    CLASSES,
    Reference,
    classify,
    gini,
    measure_activations,
)
from harness.errors import ModelError
from tests.make import TOY_MODEL, TOY_PROBLEMS


def letters(text):
    """The class of every character, as its initial; `.` for other."""
    return "".join("doc."[c] for c in classify(list(text)))


def numbers_of(*arguments):
    return measure_activations(*arguments)[0]


@pytest.fixture(scope="module")
def problem():
    return next(
        p.problem for p in TOY_PROBLEMS if "\\frac" in p.problem and " and " not in p.problem
    )


@pytest.fixture(scope="module")
def real(problem):
    """The bundled model's own first-MLP activations of a problem, without and with 20 slashes before it."""
    tokenizer = AutoTokenizer.from_pretrained(TOY_MODEL)
    model = AutoModelForCausalLM.from_pretrained(TOY_MODEL, dtype=torch.float32).eval()
    kept = []
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda *call: kept.append(call[-1][0]))
    ids = tokenizer(problem, add_special_tokens=False).input_ids
    slash = tokenizer(" /", add_special_tokens=False).input_ids
    with torch.inference_mode():
        model(torch.tensor([ids]))
        model(torch.tensor([slash * 20 + ids]))
    return kept[0], kept[1][-len(ids) :], [tokenizer.decode([i]) for i in ids]


def test_measures_of_real_activations_are_those_of_the_definitions(real):
    without, with_filler, tokens = real
    reference = Reference.of(without)
    found = numbers_of(with_filler, reference, tokens)
    base, a = (np.abs(t.numpy().astype(np.float64)) for t in (without, with_filler))
    mad = np.median(np.abs(base - np.median(base)))
    assert reference.mad == pytest.approx(mad, rel=1e-5)
    classes = classify(tokens)
    for c in (0.1, 0.13, 0.32):
        near = a < np.float32(1.4826 * reference.mad * c)
        assert found[f"threshold_c{c}"] == pytest.approx(1.4826 * mad * c, rel=1e-5)
        assert found[f"near_zero_c{c}"] == pytest.approx(near.mean())
        for index, name in enumerate(CLASSES):
            if (classes == index).any():
                assert found[f"near_zero_{name}_c{c}"] == pytest.approx(
                    near[classes == index].mean()
                )
    assert found["l1"] == pytest.approx(np.linalg.norm(a, 1, axis=1).mean(), rel=1e-6)
    assert found["l2"] == pytest.approx(np.linalg.norm(a, axis=1).mean(), rel=1e-6)
    assert found["histogram_top"] == pytest.approx(np.quantile(base, 0.99))
    edges = [*np.linspace(0, np.quantile(base, 0.99), 101), np.inf]
    counts = np.histogram(a, bins=edges)[0]
    pairs = np.abs(counts[:, None] - counts[None]).mean() / (2 * counts.mean())
    assert found["gini"] == pytest.approx(
        pairs, abs=1e-3
    )  # an edge in float64 may move single values


def test_spreading_outward_lowers_the_near_zero_share_and_the_gini_coefficient(real):
    without, _, tokens = real
    reference = Reference.of(without)
    before, after = (
        numbers_of(without, reference, tokens),
        numbers_of(without * 1.5, reference, tokens),
    )
    for name in ("near_zero_c0.1", "near_zero_c0.13", "near_zero_c0.32", "gini"):
        assert after[name] < before[name]
    assert after["l1"] == pytest.approx(1.5 * before["l1"])
    assert after["l2"] == pytest.approx(1.5 * before["l2"])


def test_every_number_has_a_unit(real):
    without, _, tokens = real
    assert set(numbers_of(without, Reference.of(without), tokens)) == set(ACTIVATION_UNITS)
    assert all(ACTIVATION_UNITS.values())


def test_where_most_activations_are_zero_there_is_no_threshold():
    a = torch.nn.functional.relu(
        torch.randn(3, 500, generator=torch.Generator().manual_seed(1)) - 1
    )
    found = numbers_of(a, Reference.of(a), ["2", "+", "x"])
    assert math.isnan(found["near_zero_c0.1"])
    assert math.isnan(found["near_zero_digits_c0.1"])
    assert found["l1"] == pytest.approx(float(a.sum() / 3))
    nothing = numbers_of(a * 0, Reference.of(a * 0), ["2", "+", "x"])
    assert math.isnan(nothing["gini"])


def test_the_gini_coefficient_is_that_of_the_histogram_beside_it(real):
    without, with_filler, tokens = real
    reference = Reference.of(without)
    base = np.abs(without.numpy())
    for a in (without, with_filler):
        found, counts = measure_activations(a, reference, tokens)
        assert (
            counts.sum() == a.numel()
            and len(counts) == ACTIVATION_BINS + 1
            and counts.dtype == np.int32
        )
        assert counts[-1] == (np.abs(a.numpy()) > np.float32(found["histogram_top"])).sum()
        assert found["gini"] == gini(counts)
    _, counts = measure_activations(without, reference, tokens)
    assert counts[-1] == pytest.approx(0.01 * base.size, abs=1)
    _, empty = measure_activations(without * 0, Reference.of(without * 0), tokens)
    assert not empty.any() and len(empty) == ACTIVATION_BINS + 1 and math.isnan(gini(empty))


def test_what_is_not_finite_is_refused():
    for broken in (torch.nan, torch.inf):
        with pytest.raises(ModelError, match="infinite or NaN"):
            Reference.of(torch.full((3, 8), broken))


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("$x+12$", "..odd."),
        ("$n! = \\frac{1}{2}$", "..o.o..oooo.d..d.."),
        ("$a \\cdot b \\le c$", "....oooo....oo..."),
        ("$\\left(\\pi\\right)$", "." * 18),
        ("if x and y, then z", "cc...ccc....cccc.."),
        ("\\text{ or }", ".......cc.."),
        ("$p \\implies q$", "....ccccccc..."),
        ("operands iffy", "............."),
        ("a two-digit number", "." * 18),
        ("and/or", "ccc.cc"),
        ("Great! $3!$", "........do."),
        ("the $x$-axis and $-ab$", "." * 13 + "ccc..o..."),
        ("$30^\\circ$", ".dd......."),
        ("25\\% of 8", "dd......d"),
        ("$\\begin{matrix} 1 & 2 \\\\ 3 & 4$", "................d...d....d...d."),
        ("7 [asy] draw(a--b, 3); [/asy] -1", "d" + "." * 18 + "d" + "." * 10 + "od"),
        ("٣ ÷ 4", "d.o.d"),
        ("", ""),
    ],
)
def test_characters_are_classed_in_their_text(text, classes):
    assert letters(text) == classes


def test_a_token_of_several_kinds_counts_as_the_first():
    found = [CLASSES[c] for c in classify(["^2", " $-", "$\\", "frac", "}{", "", " and", " x"])]
    assert found == [
        "digits",
        "operators",
        "other",
        "operators",
        "other",
        "other",
        "conjunctions",
        "other",
    ]


def test_a_real_tokenizer_gives_the_classes_of_its_text(problem):
    tokenizer = AutoTokenizer.from_pretrained(TOY_MODEL)
    tokens = [tokenizer.decode([i]) for i in tokenizer(problem, add_special_tokens=False).input_ids]
    assert "".join(tokens) == problem
    found = dict(zip(tokens, classify(tokens), strict=True))
    assert CLASSES[found["frac"]] == "operators"
    assert CLASSES[found[" \\" if " \\" in found else " $\\"]] == "other"
    assert sum(c == 0 for c in classify(tokens)) == sum(
        character.isdecimal() for character in problem
    )


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=10))
def test_any_text_in_any_pieces_is_classed(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    tokens = [text[start:end] for start, end in itertools.pairwise(edges)]
    whole = classify(list(text))
    for token, start, kind in zip(tokens, edges, classify(tokens), strict=False):
        assert kind == min(whole[start : start + len(token)], default=CLASSES.index("other"))
