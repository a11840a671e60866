import math

import numpy as np
import torch

from attention_probe.measure.decomposition import decompose

HEADS, QUERIES, WIDTH = 3, 5, 4


def norm(vector):
    return math.sqrt(sum(float(x) ** 2 for x in vector))


def drawn(*shape):
    return torch.from_numpy(np.random.default_rng(len(shape)).normal(size=shape))


def test_parts_are_means_over_queries_of_shares_of_the_output_without_filler():
    random = np.random.default_rng(0)
    without, gap, bias = (torch.from_numpy(random.normal(size=(HEADS, QUERIES, WIDTH))) for _ in range(3))
    mass = torch.from_numpy(random.uniform(0.1, 0.9, size=(HEADS, QUERIES)))
    with_filler = (1 - mass[..., None]) * gap + bias
    parts, residual = decompose(without=without, gap=gap, with_filler=with_filler, bias=bias, mass=mass)
    assert residual.max() < 1e-12
    for head in range(HEADS):
        shares = {name: [] for name in parts}
        for query in range(QUERIES):
            o, g, b, m = (part[head, query].numpy() for part in (without, gap, bias, mass))
            shares["position_shift"].append(norm(g - o) / norm(o))
            shares["scale"].append(norm(m * g) / norm(o))
            shares["bias"].append(norm(b) / norm(o))
            shares["bias_relative_norm"].append(norm(b) / norm(g))
            shares["bias_cosine"].append(float(b @ g) / norm(b) / norm(g))
        for name, values in shares.items():
            np.testing.assert_allclose(parts[name][head], np.mean(values))
    _, broken = decompose(without=without, gap=gap, with_filler=with_filler + 1, bias=bias, mass=mass)
    assert broken.min() > 0.1


def test_queries_that_do_not_see_the_filler_have_no_cosine():
    gap, bias = drawn(2, 2, WIDTH)[:, None]
    mass = torch.tensor([[0.0, 0.4]], dtype=torch.float64)
    bias[:, 0] = 0
    parts, _ = decompose(without=gap, gap=gap, with_filler=gap, bias=bias, mass=mass)
    expected = torch.nn.functional.cosine_similarity(bias[0, 1], gap[0, 1], dim=0)
    np.testing.assert_allclose(parts["bias_cosine"][0], expected)
    np.testing.assert_allclose(parts["bias"][0], norm(bias[0, 1]) / norm(gap[0, 1]) / 2)
    mass[:] = 0
    assert decompose(without=gap, gap=gap, with_filler=gap, bias=bias * 0, mass=mass)[0]["bias_cosine"].isnan().all()


def test_a_short_bias_has_the_cosine_of_a_long_one():
    gap, bias = drawn(2, 1, 3, WIDTH).float()
    mass = torch.ones(1, 3)
    expected = torch.nn.functional.cosine_similarity(bias.double(), gap.double(), dim=-1).mean()
    for length in (1.0, 1e-12, 1e-25):
        parts, _ = decompose(without=gap, gap=gap, with_filler=gap, bias=bias * length, mass=mass)
        np.testing.assert_allclose(parts["bias_cosine"], [expected], rtol=1e-6)
