"""Problems that are made: the same from the same seed, right answers, clusters, difficulty."""

import pytest

from harness.experiment.made_problems import MadeConfig
from harness.experiment.problems import open_dataset

VALUES = {
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "times": lambda a, b: a * b,
    "divided by": lambda a, b: a / b,
}


def made(**keys):
    return open_dataset(MadeConfig.model_validate(keys))


def test_the_same_seed_makes_the_same_problems():
    assert made(make="products").sha256 == "3bd6f59ddf38f2f8fe55aca68b05e83ecb8cefb83f8af2f8897adc93e220a5b8"
    assert (
        made(make="chain", depth=2, count=50, seed=7).sha256
        == "ae9bb65b79ae5e8a121e7be90e92aeacf5f0aeef38667ea236db0fa7c6b5236a"
    )
    assert made(make="products", seed=2).problems != made(make="products").problems
    assert made(make="sums", count=30).problems == made(make="sums").problems[:30]


@pytest.mark.parametrize("kind", ["products", "sums", "differences", "quotients"])
def test_answers_are_right_and_the_other_order_is_in_the_same_cluster(kind):
    problems = made(make=kind).problems
    clusters = {}
    for one in problems:
        first, *words, second = one.problem.removeprefix("What is ").removesuffix("?").split()
        assert VALUES[" ".join(words)](int(first), int(second)) == int(one.answer) > 0
        clusters.setdefault(one.cluster, []).append(one.id)
    assert len({one.id for one in problems}) == len({one.problem for one in problems}) == 121
    assert sorted(map(len, clusters.values())) == [1] * 11 + [2] * 55
    assert all(name in members for name, members in clusters.items())


def test_products_have_readable_ids_and_their_digits_as_level():
    by_id = {one.id: one for one in made(make="products").problems}
    assert (by_id["8x7"].problem, by_id["8x7"].answer, by_id["8x7"].cluster) == ("What is 8 times 7?", "56", "7x8")
    assert [by_id[name].level for name in ("7x8", "12x7", "12x12")] == [2, 3, 4]


def test_a_chain_multiplies_before_it_adds():
    problems = made(make="chain", depth=4, operands=[1, 99]).problems
    assert len(problems) == 200 and {one.level for one in problems} == {4}
    assert all(eval(one.problem[len("What is ") : -1]) == int(one.answer) for one in problems)
