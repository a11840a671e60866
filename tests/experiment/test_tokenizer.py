"""Fillers, templates and token ids over real tokenizer kinds."""

from __future__ import annotations

import copy
import json
from datetime import date

import pytest

from harness.constants import PINNED_DATE, SEPARATOR
from harness.errors import ConfigError, ModelError, PromptMismatchError
from harness.experiment.chat_template import (
    apply_chat_template,
    find_segments,
    has_system_turn,
    refuse_unread,
    render,
    template_switches,
)
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.documents import ModelTokenizer, build_checked_prompts
from harness.experiment.problems import Dataset, Problem
from harness.experiment.prompt import Layout, build_prompt
from harness.experiment.token_checks import measure
from harness.experiment.tokenizer import encode, explain_hub_error, fit_filler, load_tokenizer
from tests.conftest import CHATML, DROPS_SYSTEM, VOCABULARIES, load_vocabulary, vocabulary_file

USER = [{"role": "user", "content": "  Find $x$.\n"}]


def with_template(tokenizer, template):
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


def layouts(tokenizer):
    return [Layout.RAW, Layout.CHAT] if tokenizer.chat_template else [Layout.RAW]


def test_token_ids_stand_for_themselves(demo_tokenizer):
    ids = tuple(demo_tokenizer.encode("/ he", add_special_tokens=False))
    condition = Condition(name="ids", token_ids=ids, count=2)
    assert fit_filler(condition, demo_tokenizer) == "/ he"


def test_token_ids_that_read_back_as_others_are_refused(demo_tokenizer):
    # half of a word's tokens, repeated: their text is tokenized otherwise
    piece = demo_tokenizer.encode("th", add_special_tokens=False)[0]
    condition = Condition(name="ids", token_ids=(piece, demo_tokenizer.encode("e")[0]), count=9)
    with pytest.raises(PromptMismatchError, match=r"reads back as \d+ other ids"):
        fit_filler(condition, demo_tokenizer)
    with pytest.raises(ConfigError, match=r"token id 999999 of \d+ in the tokenizer"):
        fit_filler(Condition(name="ids", token_ids=(999999,)), demo_tokenizer)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_real_vocabulary_gives_the_ids_of_its_own_library(kind):
    tokenizer = load_vocabulary(kind)
    from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    file = vocabulary_file(kind)
    own = Tekkenizer.from_file(file) if file.suffix == ".json" else SentencePieceTokenizer(file)
    for condition in named_conditions().values():
        text = build_prompt("Find $x$.", condition, filler_text=fit_filler(condition, tokenizer)).text
        assert list(encode(text, tokenizer)[0]) == own.encode(text, bos=True, eos=False)


THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


def test_a_templates_switch_is_part_of_the_prompt(demo_tokenizer, tmp_path):
    tokenizer = with_template(demo_tokenizer, THINKING)
    prompt = build_prompt("Find $x$.", named_conditions()["mless"], filler_text="/ /", layout=Layout.CHAT)
    off = template_switches({"chat_template_args": {"enable_thinking": False}})
    assert off == template_switches({"enable_thinking": False}) == {"enable_thinking": False}
    built = measure(prompt, Layout.CHAT, tokenizer, switches=off)
    plain = measure(prompt, Layout.CHAT, tokenizer)
    assert built.text == plain.text + "<think>\n\n</think>\n\n" and built.filler_span == plain.filler_span
    assert built.token_sha256 != plain.token_sha256
    assert measure(prompt, Layout.CHAT, tokenizer, switches={"enable_thinking": True}).text == plain.text
    refuse_unread(tokenizer, off)
    with pytest.raises(ConfigError, match=r"reads no switch 'enable_thinkng'"):
        refuse_unread(tokenizer, {"enable_thinkng": False})
    for wrong, got in (("no", "got 'no'"), ({"tokenize": True}, "got the name tokenize, which is set for every pro")):
        with pytest.raises(ConfigError, match=rf"chat_template_args: expected a mapping of .*{got}"):
            template_switches({"chat_template_args": wrong})
    tokenizer.save_pretrained(tmp_path)
    model = ModelTokenizer.from_arguments({"tokenizer": str(tmp_path), "enable_thinking": False})
    problem = Problem(id="p", problem="Find $x$.", answer="1", solution="", subject="", level=1)
    dataset = Dataset(name="d", source="", problems=(problem,))
    (checked,) = build_checked_prompts(dataset, [named_conditions()["mless"]], Layout.CHAT, model)
    assert checked.prompts[0].text.endswith("<think>\n\n</think>\n\n") and not checked.violations


def test_no_double_bos(any_tokenizer):
    bos = any_tokenizer.bos_token_id
    for layout in layouts(any_tokenizer):
        prompt = build_prompt(
            "Find $x$.",
            named_conditions()["wo"],
            filler_text="",
            layout=layout,
            system_turn=has_system_turn(any_tokenizer),
        )
        ids, _ = encode(render(prompt, layout, any_tokenizer), any_tokenizer)
        assert ids.count(bos) == (1 if bos is not None else 0)


def test_templates_without_a_system_turn_keep_the_instruction(any_tokenizer):
    if not any_tokenizer.chat_template:
        pytest.skip("this tokenizer kind has no chat template")
    system_turn = has_system_turn(any_tokenizer)
    prompt = build_prompt(
        "Find $x$.", named_conditions()["wo"], filler_text="", layout=Layout.CHAT, system_turn=system_turn
    )
    text = render(prompt, Layout.CHAT, any_tokenizer)
    assert text.count("\\boxed{}") == 1
    found = [(role, text[low:high]) for role, (low, high) in find_segments(prompt, text) if role != "separator"]
    assert found == [(s.role, s.text) for s in prompt.segments if s.role != "separator"]


@pytest.mark.parametrize("problem", ["a", "2", "r", "?", "26", "he"])
def test_a_short_problem_is_not_mistaken_for_a_piece_of_the_template(any_tokenizer, problem):
    for layout in layouts(any_tokenizer):
        turn = has_system_turn(any_tokenizer)
        for name in ("wo", "mless"):
            filler = fit_filler(named_conditions()[name], any_tokenizer)
            prompt = build_prompt(
                problem, named_conditions()[name], filler_text=filler, layout=layout, system_turn=turn
            )
            text = render(prompt, layout, any_tokenizer)
            role, (low, high) = find_segments(prompt, text)[-1]
            assert (role, text[low:high]) == ("problem", problem)
            tail = text[high:]
            other = build_prompt(
                "Find the value of $x$ now.",
                named_conditions()[name],
                filler_text=filler,
                layout=layout,
                system_turn=turn,
            )
            assert render(other, layout, any_tokenizer).endswith("Find the value of $x$ now." + tail)


def test_an_empty_instruction_leaves_its_separator(demo_tokenizer):
    wo = named_conditions()["wo"]
    prompt = build_prompt("Find $x$.", wo, filler_text="", instruction="")
    spans = find_segments(prompt, render(prompt, Layout.RAW, demo_tokenizer))
    assert [(role, prompt.text[low:high]) for role, (low, high) in spans] == [
        ("separator", SEPARATOR),
        ("problem", "Find $x$."),
    ]


@pytest.mark.parametrize(
    "format",
    ["%d %b %Y", "%A, %-d %B %y", "%Y-%m-%d %H:%M:%S", "%%d is %d, %%%m", "no code", "%_d %^a %j %p %Z|%q", "%"],
)
def test_every_format_of_the_date_is_pinned(demo_tokenizer, format):
    tokenizer = with_template(demo_tokenizer, f"{{{{ strftime_now({format!r}) }}}}|{{{{ date_string }}}}")
    assert apply_chat_template(tokenizer, USER) == f"{date(*PINNED_DATE).strftime(format)}|26 Jul 2024"


def test_a_template_may_ask_whether_there_is_a_clock_and_use_it_in_its_macros(demo_tokenizer):
    template = (
        "{% macro day() %}{{ strftime_now('%d') }}{% endmacro %}"
        "{% if strftime_now is defined %}{% set year = strftime_now(format='%Y') | int %}"
        "{{ day() }} {{ year + 1 }}{% endif %}"
    )
    assert apply_chat_template(with_template(demo_tokenizer, template), USER) == "26 2025"


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        DROPS_SYSTEM,
        "{{ messages[0].content }}",
        "\n{{ messages[0].content }}",
        "\n\n  {% for m in messages %}\n    {{ m.content }}\n  {% endfor %}",
        "   {% for m in messages %}{{ m.content }}{% endfor %}\n",
        "{%- for m in messages -%}  {{ m.content }}{% endfor -%}  .",
        "{# a comment #}\n  text",
    ],
)
@pytest.mark.parametrize("opened", [True, False])
def test_a_template_renders_to_the_byte_as_it_does_by_itself(demo_tokenizer, template, opened):
    tokenizer = with_template(demo_tokenizer, template)
    alone = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=opened)
    assert apply_chat_template(tokenizer, USER, add_generation_prompt=opened) == alone


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('only one turn') }}", "TemplateError: only one turn"),
        ("{{ 1 + 'a' }}", "TypeError: unsupported operand"),
        ("{% if %}", "TemplateSyntaxError: "),
    ],
)
def test_a_template_that_fails_says_why(demo_tokenizer, template, cause):
    tokenizer = with_template(demo_tokenizer, template)
    with pytest.raises(ModelError, match=rf"chat template of .+ failed: {cause}"):
        apply_chat_template(tokenizer, USER)
    assert not has_system_turn(tokenizer)


def test_dates_in_templates_are_pinned():
    from tests.conftest import build_tokenizer

    for kind in ("llama3", "sentencepiece"):
        tokenizer = build_tokenizer(kind, bos=True)
        prompt = build_prompt(
            "?", named_conditions()["wo"], filler_text="", layout=Layout.CHAT, system_turn=has_system_turn(tokenizer)
        )
        assert date(*PINNED_DATE).strftime("%d %b %Y") in render(prompt, Layout.CHAT, tokenizer)


def test_chat_without_a_template_is_refused():
    from tests.conftest import build_tokenizer

    tokenizer = build_tokenizer("gpt2", bos=False)
    prompt = build_prompt("?", named_conditions()["wo"], filler_text="", layout=Layout.CHAT)
    with pytest.raises(ModelError, match="has no chat template, and the layout `chat` needs one"):
        measure(prompt, Layout.CHAT, tokenizer)


def test_missing_model_folders_and_hub_refusals_are_told_apart(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"Model folder .*\.py is a file"):
        load_tokenizer(__file__)
    assert "accept its licence" in explain_hub_error("a/b", OSError("401 Client Error: Gated repo"))
    assert "could not be reached" in explain_hub_error("a/b", ConnectionError("Max retries exceeded"))


@pytest.mark.parametrize("kind", ["qwen2", "gemma3_text", "llama"])
def test_a_model_folder_without_a_tokenizer_is_refused_as_such(kind, tmp_path):
    """Two of them load all the same in transformers: one reads every text as nothing, one as unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match=rf"{tmp_path} holds no tokenizer. Expected tokenizer.json, or"):
        load_tokenizer(str(tmp_path))
