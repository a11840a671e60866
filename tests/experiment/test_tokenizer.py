import copy
import json

import pytest

from harness.errors import ModelError, explain_hub_error
from harness.experiment.conditions import NAMED_CONDITIONS
from harness.experiment.problems import Problem
from harness.experiment.prompts.built_prompts import tokenize_prompt
from harness.experiment.prompts.chat_template import (
    PINNED_DATE,
    apply_chat_template,
    find_segments,
    has_system_turn,
)
from harness.experiment.prompts.prompt import Layout, PromptSettings, build_prompt
from harness.experiment.prompts.tokenizer import ModelTokenizer, encode, fit_filler, load_tokenizer
from tests.conftest import VOCABULARIES, load_vocabulary, vocabulary_file
from tests.experiment.test_checked_prompts import layouts
from tests.make import with_cases

USER = [{"role": "user", "content": "  Find $x$.\n"}]


def with_template(tokenizer, template):
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


def build(tokenizer, problem="Find $x$.", name="wo", layout=Layout.CHAT):
    """A prompt of one problem, and its text as the model receives it."""
    condition = NAMED_CONDITIONS[name]
    prompt = build_prompt(
        Problem(id="p", problem=problem, answer="1"),
        condition,
        filler_text=fit_filler(condition, tokenizer),
        settings=PromptSettings(layout=layout, has_system_turn=has_system_turn(tokenizer)),
    )
    model = ModelTokenizer(name="toy", tokenizer=tokenizer)
    return prompt, tokenize_prompt(prompt, PromptSettings(layout=layout), model).text


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_real_vocabulary_gives_the_ids_of_its_own_library(kind):
    tokenizer = load_vocabulary(kind)
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    original = MistralTokenizer.from_file(vocabulary_file(kind)).instruct_tokenizer.tokenizer
    for name in NAMED_CONDITIONS:
        _, text = build(tokenizer, name=name, layout=Layout.RAW)
        assert list(encode(text, tokenizer)[0]) == original.encode(text, bos=True, eos=False)


def test_every_template_gives_one_bos_and_one_instruction(any_tokenizer):
    bos = any_tokenizer.bos_token_id
    for layout in layouts(any_tokenizer):
        prompt, text = build(any_tokenizer, layout=layout)
        # with SmolLM2, BOS begins each turn of a chat instead
        if bos is None or any_tokenizer("a")["input_ids"][0] == bos:
            assert encode(text, any_tokenizer)[0].count(bos) == (bos is not None)
        assert text.count("\\boxed{}") == 1
        spans = find_segments(prompt, text)
        segments = [(role, text[low:high]) for role, (low, high) in spans if role != "separator"]
        expected = [(segment.role, segment.text) for segment in prompt.segments]
        assert segments == [pair for pair in expected if pair[0] != "separator"]


@with_cases
def test_a_short_problem_is_not_mistaken_for_a_part_of_the_template(any_tokenizer, problem):
    longer = "Find the value of $x$ now."
    for layout in layouts(any_tokenizer):
        for name in ("wo", "mless"):
            prompt, text = build(any_tokenizer, problem, name, layout)
            role, (low, high) = find_segments(prompt, text)[-1]
            assert (role, text[low:high]) == ("problem", problem)
            _, longer_text = build(any_tokenizer, longer, name, layout)
            assert longer_text.endswith(longer + text[high:])


@with_cases
def test_every_format_of_the_date_gives_the_pinned_date(toy_tokenizer, format):
    template = f"{{{{ strftime_now({format!r}) }}}}|{{{{ date_string }}}}"
    text = apply_chat_template(with_template(toy_tokenizer, template), USER)
    assert text == f"{PINNED_DATE.strftime(format)}|26 Jul 2024"


@with_cases
def test_a_template_renders_exactly_as_in_transformers(toy_tokenizer, template):
    tokenizer = with_template(toy_tokenizer, template)
    expected = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    assert apply_chat_template(tokenizer, USER) == expected


@with_cases
def test_a_template_that_fails_or_is_absent_is_refused_with_the_reason(
    toy_tokenizer, template, cause
):
    tokenizer = with_template(toy_tokenizer, template)
    with pytest.raises(ModelError, match=cause):
        apply_chat_template(tokenizer, USER)
    assert has_system_turn(tokenizer) == (template is None)


def test_a_model_with_a_licence_has_a_message_of_its_own():
    error = OSError("401 Client Error: Gated repo")
    assert "Accept its licence" in explain_hub_error("a/b", error)


@with_cases
def test_a_model_folder_without_a_tokenizer_is_refused(kind, tmp_path):
    """Transformers loads two of them: for one every text is empty, for the other unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    message = (
        "has no tokenizer: expected tokenizer.json or|"
        "cannot be loaded: .* instantiate the backend tokenizer"
    )
    with pytest.raises(ModelError, match=rf"{tmp_path} ({message})"):
        load_tokenizer(str(tmp_path))
