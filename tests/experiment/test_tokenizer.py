import copy
import json

import pytest

from harness.errors import ConfigError, ModelError, PromptMismatchError, explain_hub_error
from harness.experiment.built_prompts import measure_prompt
from harness.experiment.chat_template import (
    PINNED_DATE,
    apply_chat_template,
    find_segments,
    has_system_turn,
    template_switches,
)
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.prompt import Layout, PromptSettings, build_prompt
from harness.experiment.tokenizer import ModelTokenizer, encode, fit_filler, load_tokenizer
from tests.conftest import CHATML, DROPS_SYSTEM, VOCABULARIES, load_vocabulary, vocabulary_file
from tests.experiment.test_token_checks import layouts

USER = [{"role": "user", "content": "  Find $x$.\n"}]


def with_template(tokenizer, template):
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


def asked(tokenizer, problem="Find $x$.", name="wo", layout=Layout.CHAT):
    """A prompt of one problem, and its text as the model gets it."""
    condition = named_conditions()[name]
    prompt = build_prompt(
        problem,
        condition,
        filler_text=fit_filler(condition, tokenizer),
        settings=PromptSettings(layout=layout, has_system_turn=has_system_turn(tokenizer)),
    )
    return prompt, measure_prompt(prompt, layout, tokenizer).text


def test_token_ids_stand_for_themselves_or_are_refused(toy_tokenizer):
    ids = tuple(toy_tokenizer.encode("/ he", add_special_tokens=False))
    assert fit_filler(Condition(name="ids", token_ids=ids, count=5), toy_tokenizer).split() == [
        "/",
        "he/",
        "he/",
    ]
    # half of a word's tokens, repeated: their text is tokenized otherwise
    piece = toy_tokenizer.encode("th", add_special_tokens=False)[0]
    condition = Condition(name="ids", token_ids=(piece, toy_tokenizer.encode("e")[0]), count=9)
    with pytest.raises(PromptMismatchError, match=r"encodes as \d+ other ids"):
        fit_filler(condition, toy_tokenizer)
    with pytest.raises(PromptMismatchError, match=r"decode to ''.* encodes as 0 other ids"):
        fit_filler(Condition(name="ids", token_ids=(999999,)), toy_tokenizer)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_real_vocabulary_gives_the_ids_of_its_own_library(kind):
    tokenizer = load_vocabulary(kind)
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    file = vocabulary_file(kind)
    own = Tekkenizer.from_file(file) if file.suffix == ".json" else SentencePieceTokenizer(file)
    for name in named_conditions():
        _, text = asked(tokenizer, name=name, layout=Layout.RAW)
        assert list(encode(text, tokenizer)[0]) == own.encode(text, bos=True, eos=False)


THINKING = (
    CHATML
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_a_templates_switch_is_part_of_the_prompt(toy_tokenizer, tmp_path):
    tokenizer = with_template(toy_tokenizer, THINKING)
    prompt, _ = asked(tokenizer, name="mless")
    off = template_switches({"chat_template_args": {"enable_thinking": False}})
    assert off == template_switches({"enable_thinking": False}) == {"enable_thinking": False}
    built = measure_prompt(prompt, Layout.CHAT, tokenizer, switches=off)
    plain = measure_prompt(prompt, Layout.CHAT, tokenizer)
    assert (
        built.text == plain.text + "<think>\n\n</think>\n\n"
        and built.filler_span == plain.filler_span
    )
    assert built.prompt_token_sha256 != plain.prompt_token_sha256
    assert (
        measure_prompt(prompt, Layout.CHAT, tokenizer, switches={"enable_thinking": True}).text
        == plain.text
    )
    tokenizer.save_pretrained(tmp_path)
    for wrong, got in (
        ({"enable_thinkng": False}, r"reads no switch 'enable_thinkng'"),
        ("no", r"got 'no'"),
    ):
        with pytest.raises(ConfigError, match=got):
            ModelTokenizer.from_arguments({"tokenizer": str(tmp_path), "chat_template_args": wrong})


def test_there_is_one_bos_and_one_instruction_whatever_the_template(any_tokenizer):
    bos = any_tokenizer.bos_token_id
    for layout in layouts(any_tokenizer):
        prompt, text = asked(any_tokenizer, layout=layout)
        if (
            bos is None or any_tokenizer("a")["input_ids"][0] == bos
        ):  # SmolLM2's begins each turn of a chat instead
            assert encode(text, any_tokenizer)[0].count(bos) == (1 if bos is not None else 0)
        assert text.count("\\boxed{}") == 1
        found = [
            (role, text[low:high])
            for role, (low, high) in find_segments(prompt, text)
            if role != "separator"
        ]
        assert found == [(s.role, s.text) for s in prompt.segments if s.role != "separator"]


@pytest.mark.parametrize("problem", ["a", "2", "r", "?", "26", "he"])
def test_a_short_problem_is_not_mistaken_for_a_piece_of_the_template(any_tokenizer, problem):
    for layout in layouts(any_tokenizer):
        for name in ("wo", "mless"):
            prompt, text = asked(any_tokenizer, problem, name, layout)
            role, (low, high) = find_segments(prompt, text)[-1]
            assert (role, text[low:high]) == ("problem", problem)
            other = "Find the value of $x$ now."
            assert asked(any_tokenizer, other, name, layout)[1].endswith(other + text[high:])


@pytest.mark.parametrize(
    "format",
    [
        "%d %b %Y",
        "%A, %-d %B %y",
        "%Y-%m-%d %H:%M:%S",
        "%%d is %d, %%%m",
        "no code",
        "%_d %^a %j %p %Z|%q",
        "%",
    ],
)
def test_every_format_of_the_date_is_pinned(toy_tokenizer, format):
    tokenizer = with_template(
        toy_tokenizer, f"{{{{ strftime_now({format!r}) }}}}|{{{{ date_string }}}}"
    )
    assert apply_chat_template(tokenizer, USER) == f"{PINNED_DATE.strftime(format)}|26 Jul 2024"


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        DROPS_SYSTEM,
        "\n{{ messages[0].content }}",
        "\n\n  {% for m in messages %}\n    {{ m.content }}\n  {% endfor %}",
        "{# a comment #}\n  text",
    ],
)
@pytest.mark.parametrize("opened", [True, False])
def test_a_template_renders_to_the_byte_as_it_does_by_itself(toy_tokenizer, template, opened):
    tokenizer = with_template(toy_tokenizer, template)
    alone = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=opened)
    assert apply_chat_template(tokenizer, USER, add_generation_prompt=opened) == alone


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('only one turn') }}", "TemplateError: only one turn"),
        ("{{ 1 + 'a' }}", "TypeError: unsupported operand"),
        ("{% if %}", "TemplateSyntaxError: "),
        (None, "has no chat template"),
    ],
)
def test_a_template_that_fails_or_is_not_there_says_why(toy_tokenizer, template, cause):
    tokenizer = with_template(toy_tokenizer, template)
    with pytest.raises(ModelError, match=cause):
        apply_chat_template(tokenizer, USER)
    assert has_system_turn(tokenizer) == (template is None)


def test_missing_model_folders_and_hub_refusals_are_told_apart(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"Model folder .*\.py is a file"):
        load_tokenizer(__file__)
    assert "Accept its licence" in explain_hub_error("a/b", OSError("401 Client Error: Gated repo"))
    assert "could not be reached" in explain_hub_error(
        "a/b", ConnectionError("Max retries exceeded")
    )


@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text", "llama"])
def test_a_model_folder_without_a_tokenizer_is_refused_as_such(kind, tmp_path):
    """Two of them load all the same in transformers: one reads every text as nothing, one as unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    told = "has no tokenizer: expected tokenizer.json or|cannot be loaded: .* instantiate the backend tokenizer"
    with pytest.raises(ModelError, match=rf"{tmp_path} ({told})"):
        load_tokenizer(str(tmp_path))
