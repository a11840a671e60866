"""Fillers, sentences and named conditions."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness.errors import ConfigError
from harness.experiment.conditions import SENTENCES, Condition, named_condition, named_conditions


def test_named_conditions_are_the_studys():
    named = named_conditions()
    assert list(named) == ["wo", "mless", "mful", "random"]
    assert named["wo"].filler is None
    assert named["mless"].filler_text() == " ".join("/" * 55)
    assert named["mful"].filler_text().split() == ["he"] * 55


def test_unknown_condition_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"Unknown condition 'mles': expected one of wo, mless, mful, random"):
        named_condition("mles")


@pytest.mark.parametrize("count", [0, -1, True, 2.0])
def test_counts_below_one_are_refused(count):
    with pytest.raises(ValidationError, match="count"):
        Condition(name="x", unit="/", count=count)


def test_token_ids_need_a_tokenizer():
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        Condition(name="x", token_ids=(5, 6)).filler_text()


def test_token_ids_are_repeated_to_the_count():
    assert Condition(name="x", token_ids=(5, 6), count=5).repeated_ids() == [5, 6, 5, 6, 5]


def test_sentences_are_unrelated_to_mathematics_and_differ():
    assert len(set(SENTENCES)) == len(SENTENCES) >= 5
    for sentence in SENTENCES:
        assert not any(character.isdigit() for character in sentence)
        assert len(set(sentence.split())) > 0.6 * len(sentence.split())


@pytest.mark.parametrize("number", range(1, len(SENTENCES) + 1))
def test_without_a_tokenizer_a_sentence_has_about_its_count_of_words_and_commas(number):
    text = Condition(name="x", sentence=number).filler_text()
    pieces = len(text.split()) + text.count(",") + 1
    assert 50 <= pieces <= 60
    assert text.endswith(".")


def test_without_a_tokenizer_a_sentence_is_within_10_percent_in_a_real_one():
    from tests.conftest import load_vocabulary

    tekken = load_vocabulary("tekken")
    lengths = {
        len(tekken.encode(Condition(name="x", sentence=number).filler_text(), add_special_tokens=False))
        for number in range(1, len(SENTENCES) + 1)
    }
    assert min(lengths) >= 50 and max(lengths) <= 60


def test_too_long_a_sentence_is_refused():
    with pytest.raises(ValidationError, match="at most"):
        Condition(name="x", sentence=1, count=500)


def test_conditions_are_frozen():
    with pytest.raises(ValidationError):
        Condition(name="x").name = "y"
