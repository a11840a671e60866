import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from attention_probe.measure.activations import (
    ACTIVATION_BINS,
    TOKEN_CLASSES,
    BaselineStatistics,
    activation_unit,
    classify,
    gini,
    measure_activations,
)
from harness.errors import ModelError
from tests.conftest import load_eager
from tests.make import TOY_MODEL, TOY_PROBLEMS, module_fixture, with_cases


def measure(*arguments):
    return measure_activations(*arguments)[0]


@module_fixture
def activations():
    """First-MLP activations of a problem, alone and behind 20 slashes, and the problem's tokens."""
    text = next(toy.problem for toy in TOY_PROBLEMS if "\\frac" in toy.problem)
    tokenizer = AutoTokenizer.from_pretrained(TOY_MODEL)
    model = load_eager(TOY_MODEL)
    outputs = []
    activation = model.model.layers[0].mlp.act_fn
    activation.register_forward_hook(lambda *call: outputs.append(call[-1][0]))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    slash = tokenizer(" /", add_special_tokens=False).input_ids
    with torch.inference_mode():
        model(torch.tensor([ids]))
        model(torch.tensor([slash * 20 + ids]))
    without, with_filler = outputs
    return without, with_filler[-len(ids) :], [tokenizer.decode([token_id]) for token_id in ids]


def test_measures_follow_their_definitions(activations):
    without, with_filler, tokens = activations
    reference = BaselineStatistics.of(without)
    numbers = measure(with_filler, reference, tokens)
    base, filled = (np.abs(tensor.numpy().astype(np.float64)) for tensor in activations[:2])
    mad = np.median(np.abs(base - np.median(base)))
    assert reference.mad == pytest.approx(mad, rel=1e-5)
    classes = classify(tokens)
    for c in (0.1, 0.13, 0.32):
        near_zero = filled < np.float32(1.4826 * reference.mad * c)
        assert numbers[f"threshold_c{c}"] == pytest.approx(1.4826 * mad * c, rel=1e-5)
        assert numbers[f"near_zero_c{c}"] == pytest.approx(near_zero.mean())
        for index, name in enumerate(TOKEN_CLASSES):
            shares = near_zero[classes == index]
            if shares.size:
                assert numbers[f"near_zero_{name}_c{c}"] == pytest.approx(shares.mean())
    for order in (1, 2):
        mean_norm = np.linalg.norm(filled, order, axis=1).mean()
        assert numbers[f"l{order}"] == pytest.approx(mean_norm, rel=1e-6)
    top = np.quantile(base, 0.99)
    assert numbers["histogram_top"] == pytest.approx(top)
    counts, _ = np.histogram(filled, bins=[*np.linspace(0, top, 101), np.inf])
    mean_difference = np.abs(counts[:, None] - counts).mean()
    expected = mean_difference / (2 * counts.mean())
    # an edge in float64 may move single values to another bin
    assert numbers["gini"] == pytest.approx(expected, abs=1e-3)


@with_cases
def test_every_number_has_a_unit(activations, name, unit):
    without, _, tokens = activations
    assert name in measure(without, BaselineStatistics.of(without), tokens)
    assert activation_unit(name) == unit


def test_if_most_activations_are_zero_there_is_no_threshold():
    random = torch.randn(3, 500, generator=torch.Generator().manual_seed(1))
    sparse = torch.nn.functional.relu(random - 1)
    numbers = measure(sparse, BaselineStatistics.of(sparse), ["2", "+", "x"])
    assert math.isnan(numbers["near_zero_c0.1"])
    assert math.isnan(numbers["near_zero_digits_c0.1"])
    assert numbers["l1"] == pytest.approx(float(sparse.sum() / 3))


def test_the_histogram_has_all_activations_and_a_last_bin_for_the_largest(activations):
    *tensors, tokens = activations
    without = tensors[0]
    reference = BaselineStatistics.of(without)
    for tensor in tensors:
        numbers, counts = measure_activations(tensor, reference, tokens)
        assert counts.sum() == tensor.numel()
        assert (len(counts), counts.dtype) == (ACTIVATION_BINS + 1, np.int32)
        assert counts[-1] == (tensor.abs() > np.float32(numbers["histogram_top"])).sum()
        assert numbers["gini"] == gini(counts)
    numbers, counts = measure_activations(without * 0, BaselineStatistics.of(without * 0), tokens)
    assert counts.tolist() == [0] * (ACTIVATION_BINS + 1)
    assert math.isnan(numbers["gini"])


def test_numbers_that_are_not_finite_are_refused():
    for broken in (torch.nan, torch.inf):
        with pytest.raises(ModelError, match="infinite or NaN"):
            BaselineStatistics.of(torch.full((3, 8), broken))


@with_cases
def test_a_token_has_the_first_class_of_its_characters_in_their_text(tokens, classes):
    """The class of a token is its initial; `.` for other."""
    assert "".join("doc."[index] for index in classify(tokens)) == classes
