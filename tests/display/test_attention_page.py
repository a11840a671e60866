"""The interactive page of attention: its data, and what it does in a browser."""

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest

from attention_probe.figures.trace_views import NO_ROWS_NOTE, read_view
from harness.display.figures.figure_style import STYLES
from harness.display.report.attention_view import (
    UNSEEN_LEVEL,
    WEIGHT_LEVELS,
    describe_prompt,
    make_page,
)
from harness.execution.prompt_attention import PromptAttention, _tokenize
from harness.experiment.prompts.built_prompts import (
    FILLER_INDEX,
    PROBLEM_INDEX,
    TOKEN_REGIONS,
    TOKEN_ROLES,
)
from harness.experiment.prompts.tokenizer import load_tokenizer
from tests.browser import in_a_browser, open_tab
from tests.make import ROOT, TOY_MODEL, make_trace, module_fixture, with_cases, write_traces

CONDITIONS = ("wo", "mless")
SIZE, START, FILLER_SIZE = 14, 3, 4
"""Tokens of a prompt without filler, and the place and size of the filler."""
TEXTS = ("Add", ".", "\n", "What", " is", " 2", " \u2264", "", "", "?", "\n\n", "A", ":", " \u202e")
MASSES = [f"mass_{region}" for region in TOKEN_REGIONS]


def make_rows(generator, layers, heads, rows, tokens):
    """Random weights of the last queries, which see no later key; many of them are small."""
    weights = generator.random((layers, heads, rows, tokens)) ** 4
    weights *= np.tri(tokens)[tokens - rows :]
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def make_traced(problem_id="p0", condition="wo", rows=5, **changes):
    """A trace with words as tokens, masses and rows."""
    facts = {"size": SIZE, "filler": FILLER_SIZE, "shape": (2, 3), **changes}
    trace = make_trace(problem_id, condition, start=START, **facts)
    size, shape = facts["size"], facts["shape"]
    words = [*(TEXTS * (1 + size // len(TEXTS)))[:size]]
    words[START:START] = [" /"] * (len(trace.tokens) - size)
    roles = np.where(trace.original_pos < 0, FILLER_INDEX, PROBLEM_INDEX).astype(np.int8)
    roles[-2:] = TOKEN_ROLES.index("format")
    generator = np.random.default_rng(sum(map(ord, problem_id + condition)))
    masses = generator.dirichlet(np.ones(len(MASSES)), shape).astype(np.float32)
    weights = make_rows(generator, *shape, rows, len(words))
    return replace(
        trace,
        tokens=tuple(words),
        roles=roles,
        mean_common=trace.mean_common / trace.mean_common.size,
        measures={name: masses[..., index].copy() for index, name in enumerate(MASSES)},
        rows=weights if rows else np.zeros((0, 0, 0, 0), np.float32),
    )


def write_pairs(path, problems=2, header=None, **changes):
    """Traces of problems under both conditions."""
    traces = [
        make_traced(f"p{number}", condition, **changes)
        for number in range(problems)
        for condition in CONDITIONS
    ]
    rows = changes.get("rows", 5)
    options = {"rows": f"last:{rows}" if rows else None}
    return write_traces(path, traces, options=options, **(header or {}))


def describe_trace(trace):
    """The prompt of a trace, as the page has it."""
    return describe_prompt(
        trace.tokens, trace.mean_common, trace.rows, trace.roles, trace.original_pos
    )


def unpack(text):
    return json.loads(zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS))


def read_scripts(page):
    """The packed facts, and the packed prompts of each problem."""
    pattern = r'<script type="application/octet-stream" id="attention-(\w+)">(.*?)</script>'
    scripts = {name: unpack(text) for name, text in re.findall(pattern, page)}
    return scripts.pop("facts"), [scripts[str(number)] for number in range(len(scripts))]


def decode(prompt, heads):
    """The bytes [layer, head, query, element] of a prompt."""
    layers = [np.frombuffer(base64.b64decode(text), np.uint8) for text in prompt["layers"]]
    return np.stack(layers).reshape(len(layers), heads, prompt["rows"] + 1, len(prompt["text"]))


# ---- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", CONDITIONS)
def test_weights_are_those_of_the_traces_within_the_shown_error(condition):
    trace = make_traced(condition=condition)
    prompt = describe_trace(trace)
    levels = decode(prompt, heads=3).astype(float)
    weights = (levels / WEIGHT_LEVELS) ** 2
    tokens = len(trace.tokens)
    for index, (position, size) in enumerate(zip(prompt["position"], prompt["size"], strict=True)):
        assert prompt["text"][index] == "".join(trace.tokens[position : position + size])
        keys = slice(position, position + size)
        means = trace.mean_common[..., keys].sum(-1)
        queries = np.arange(tokens - 5, tokens)
        expected = np.concatenate([means[:, :, None], trace.rows[..., keys].sum(-1)], axis=2)
        stored = levels[..., index]
        is_missing = stored == UNSEEN_LEVEL
        assert np.array_equal(is_missing[0, 0, 1:], queries < position)
        assert np.array_equal(is_missing[:, :, 0], np.isnan(means))
        error = np.abs(weights[..., index] - expected)[~is_missing]
        # the largest error of a weight, as the page shows it
        assert (error <= (stored[~is_missing] + 0.25) / WEIGHT_LEVELS**2 + 1e-9).all()
    regions = np.array(prompt["sums"])[:, :, 1:]
    filler = trace.rows[..., trace.roles == FILLER_INDEX].sum(-1)
    assert np.abs(regions[..., TOKEN_REGIONS.index("filler")] - filler).max() < 1e-5
    assert np.abs(regions.sum(-1) - 1).max() < 5e-5


def test_elements_join_the_tokens_of_a_character_and_the_filler_stands_before_its_tokens():
    trace = make_traced(condition="mless")
    prompt = describe_trace(trace)
    assert prompt["text"][3:9] == [" /" * 4, *[" /"] * 4, "What"]
    assert prompt["position"][3:9] == [3, 3, 4, 5, 6, 7] and prompt["size"][3:5] == [4, 1]
    split = prompt["text"].index(" \u2264")
    assert prompt["size"][split] == 3 and "" not in prompt["text"]
    assert "".join(prompt["text"][:3] + prompt["text"][4:]) == "".join(trace.tokens)


@with_cases
def test_a_page_of_the_study_is_small(tmp_path, options, header):
    """8 prompts of 300 tokens, 3 layers, 9 heads, 16 rows, two conditions: below 5 MB."""
    path = write_pairs(tmp_path / "study.traces", problems=8, header=header, **options)
    page = make_page([read_view(path)])
    assert len(page.encode()) < 5e6
    facts, problems = read_scripts(page)
    assert len(problems) == 8 and facts["views"][0]["layers"] == [1, 2, 3]


def test_colours_are_those_of_the_figures(tmp_path):
    facts = read_view(write_pairs(tmp_path / "some.traces")).facts
    style = (ROOT / "harness/display/report/style.css").read_text()
    for condition in facts["conditions"]:
        colour = re.search(rf"--s{condition['slot']}: (#\w+)", style)[1]
        assert colour == STYLES[condition["name"]].colour
    assert [condition["label"] for condition in facts["conditions"]] == ["w/o", "w/ Mless"]


def test_traces_of_two_models_and_traces_without_rows(tmp_path, command):
    first = write_pairs(tmp_path / "first.traces", problems=1)
    second = write_pairs(tmp_path / "second.traces", rows=0, header={"model": "other"})
    page = tmp_path / "page.html"
    result = command("heads", first, second, "-o", page)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout == f"page  {page} ({page.stat().st_size / 1e6:.1f} MB)\n"
    facts, problems = read_scripts(page.read_text())
    assert page.read_text().count("<summary>Receipt of ") == 2
    assert [view["model"] for view in facts["views"]] == ["tiny", "other"]
    assert [NO_ROWS_NOTE in view["notes"] for view in facts["views"]] == [False, True]
    assert [prompts["wo"]["rows"] for prompts in problems] == [5, 0, 0]
    masses = facts["views"][1]["problems"][1]["masses"]["mless"]
    expected = make_traced("p1", "mless").measures
    for index, region in enumerate(TOKEN_REGIONS):
        np.testing.assert_allclose(masses[index], expected[f"mass_{region}"], atol=1e-5)


def test_masses_over_no_query_have_no_numbers(tmp_path):
    trace = make_traced()
    trace.measures["mass_filler"][:] = np.nan
    path = write_traces(tmp_path / "x.traces", [trace])
    facts, _ = read_scripts(make_page([read_view(path)]))
    masses = facts["views"][0]["problems"][0]["masses"]["wo"]
    assert masses[TOKEN_REGIONS.index("filler")] == [[None] * 3] * 2


# ---- in Python -----------------------------------------------------------------------------------


def make_attention(count=3):
    """The attention of two prompts, as `mless.attention` returns it, and its weights."""
    generator = np.random.default_rng(0)
    means, rows = [], []
    for tokens in (6, 8):
        weights = make_rows(generator, 2, 3, tokens, tokens)
        later = np.tril(weights, -1).sum(-2) / np.maximum(np.arange(tokens)[::-1], 1)
        later[..., -1] = np.nan
        means.append(later)
        rows.append(weights[:, :, tokens - count :])
    tokens = [("<s>", *"abcde"), ("<s>", *"abcdefg")]
    attention = PromptAttention(means)
    attention.rows, attention.tokens = rows, tokens
    attention.model, attention.layers = "tiny", [1, 3]
    return attention


def test_attention_is_a_list_with_tokens_rows_and_a_page():
    attention = make_attention()
    assert isinstance(attention, list) and len(attention) == 2
    assert attention[0].shape == (2, 3, 6) and attention.rows[1].shape == (2, 3, 3, 8)
    page = attention.show()
    facts, problems = read_scripts(page)
    assert [problem["id"] for problem in facts["views"][0]["problems"]] == ["prompt 1", "prompt 2"]
    assert problems[1]["tiny"]["text"] == ["<s>", *"abcdefg"] and problems[1]["tiny"]["rows"] == 3
    frame = page._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;') and frame.count("<") == 2


def test_prompts_of_ids_have_the_texts_of_their_tokens():
    tokenizer = load_tokenizer(TOY_MODEL)
    text = "What is 2 \u2264 3?"
    token_ids, texts = _tokenize(text, tokenizer)
    assert "".join(texts) == text and "" in texts
    assert _tokenize(np.array(token_ids), tokenizer) == (token_ids, texts)
    letters = tokenizer.convert_tokens_to_ids([*"What"])
    assert _tokenize(letters, tokenizer) == (letters, ("W", "h", "a", "t"))


# ---- in a browser --------------------------------------------------------------------------------


@module_fixture
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    second = write_pairs(path.with_name("b.traces"), rows=0, header={"model": "other"})
    views = [read_view(write_pairs(path.with_name("a.traces"))), read_view(second)]
    path.write_text(make_page(views))
    return path


@module_fixture
def tab(page):
    with open_tab(page.with_name("profile")) as tab:
        yield tab


@pytest.fixture
def opened(tab, page):
    tab.open(page)
    return tab


@in_a_browser
def test_a_click_opens_a_head_with_its_strongest_tokens(opened):
    opened.point('[data-cell="1,2"]', click=True)
    assert opened.text(".head") == "2. Layer 3 Head 3"
    assert opened.run("document.querySelector('[aria-pressed=true]').dataset.cell") == "1,2"
    for number, condition in enumerate(CONDITIONS, start=1):
        trace = make_traced(condition=condition)
        elements = describe_trace(trace)
        row = trace.rows[1, 2, -1]
        sums = []
        for position, size in zip(elements["position"], elements["size"], strict=True):
            if size < FILLER_SIZE:  # a run of filler tokens is not a token
                sums.append((row[position : position + size].sum(), position))
        strongest = [position for _, position in sorted(sums, reverse=True)[:5]]
        items = opened.run(
            f"[...document.querySelectorAll('.pair > section:nth-child({number}) ol li')]"
            ".map((item) => item.innerText)"
        )
        assert len(items) == 5
        for item, position in zip(items, strongest, strict=True):
            # the number of a token is that of the left prompt, if the token is there
            original = elements["original"][elements["position"].index(position)]
            number = position if original < 0 else original
            assert f"token {number + 1}, " in item, items
    filler = trace.rows[1, 2, -1, trace.roles == FILLER_INDEX].sum()
    group = ".pair > section:nth-child(2) .group"
    shown = re.fullmatch(r"filler, 4 tokens: ([\d.]+) %", opened.text(group))
    assert float(shown[1]) == pytest.approx(100 * filler, abs=0.5)
    opened.select("query", "")
    assert opened.text(group) == "filler, 4 tokens"  # means of several queries have no sum


@in_a_browser
def test_hover_shows_both_weights_with_their_errors(opened):
    place = opened.run(
        "[...document.querySelectorAll('.pair > section:first-child .token')]"
        ".find((token) => token.innerText === '\u00b7\u2264').dataset.place"
    )
    opened.point(f'.pair > section:nth-child(2) [data-place="{place}"]')
    text = opened.text(".readout")
    number = r"([\d.]+) % \u00b1 ([\d.]+)"
    match = re.fullmatch(
        rf"\u00b7\u2264 token 7, problem: w/o {number}; w/ Mless {number}; change .* points",
        text,
    )
    for condition, start, share, error in zip(
        CONDITIONS, (6, 10), match.groups()[::2], match.groups()[1::2], strict=True
    ):
        expected = make_traced(condition=condition).rows[0, 0, -1, start : start + 3].sum()
        assert abs(float(share) - 100 * expected) <= float(error) + 0.051
    assert opened.run("document.querySelectorAll('.inspected').length") == 2
    opened.point('[data-cell="0,1"]')
    assert opened.text(".readout").startswith("Layer 1 Head 2, filler: w/o ")


@in_a_browser
def test_everything_is_reached_with_the_keyboard(opened):
    focused = "document.activeElement"
    for _ in range(30):
        opened.press("Tab")
        if opened.run(f"{focused}.dataset.cell") == "0,0":
            break
    style = f"getComputedStyle({focused}).outlineStyle"
    opened.press("ArrowDown")
    opened.press("ArrowRight")
    assert opened.text(".head") == "2. Layer 3 Head 2" and opened.run(style) == "solid"
    assert opened.run(f"{focused}.ariaLabel").startswith("Layer 3 Head 2: ")
    for _ in range(4):
        opened.press("Tab")
        if opened.run(f"{focused}.dataset.side") == "0":
            break
    assert opened.run(style) == "solid" and "Left and right arrow" in opened.run(
        f"{focused}.ariaLabel"
    )
    asked = "document.querySelector('.attention [name=query]').selectedOptions[0].textContent"
    assert opened.run(asked).endswith("token 14, template: the answer begins after it")
    opened.press("ArrowLeft")
    assert "token 13, " in opened.run(asked)
    trace = make_traced(condition="mless")
    filler = trace.rows[1, 1, -2, trace.roles == FILLER_INDEX].sum()
    masses = opened.text(".masses")
    shown = re.search(r"filler\s+none\s+([\d.]+) %\s+\+", masses)[1]
    assert float(shown) == pytest.approx(100 * filler, abs=0.051)
    opened.press("ArrowUp")
    assert "token 12, " in opened.text(".readout")
    opened.press("Escape")
    assert opened.run(asked) == "mean over all later tokens"
    mass = trace.measures["mass_filler"][1, 1]
    assert f"{100 * mass:.1f} %" in opened.text(".masses")
    opened.press("ArrowRight")
    assert "token 14, " in opened.run(asked)


@in_a_browser
def test_the_filler_is_unfolded_and_absent_tokens_keep_their_place(opened):
    folded = ".pair > section:nth-child(2) .filler:not(.group)"
    count = f"[...document.querySelectorAll('{folded}')].filter((token) => !token.hidden).length"
    assert opened.run(count) == 0
    opened.point(".pair > section:nth-child(2) .group", click=True)
    assert opened.run(count) == FILLER_SIZE
    boxes = (
        "[1, 2].map((side) => [...document.querySelectorAll("
        "`.pair > section:nth-child(${side}) .tokens .token`)].map((token) => "
        "{ const box = token.getBoundingClientRect(), text = token.parentElement"
        ".getBoundingClientRect(); return [box.x - text.x, box.y - text.y].map(Math.round); }))"
    )
    left, right = opened.run(boxes)
    assert left == right  # both sides are aligned token by token


@in_a_browser
@with_cases
def test_the_page_fits_the_window(opened, width):
    opened.resize(width)
    assert opened.run("document.documentElement.scrollWidth") <= width
    tops = opened.run(
        "[...document.querySelectorAll('.pair > section')].map((side) => side.offsetTop)"
    )
    assert (tops[0] == tops[1]) == (width > 768)


@in_a_browser
def test_measures_models_and_problems_are_chosen(opened):
    opened.select("shown", "difference")
    cell = "document.querySelector('[data-cell=\"1,0\"]')"
    masses = [make_traced(condition=name).measures["mass_filler"][1, 0] for name in CONDITIONS]
    change = 100 * (masses[1] - masses[0])
    label = opened.run(f"{cell}.ariaLabel").replace("\u2212", "-")
    assert float(re.search(r": ([+-]?[\d.]+)", label)[1]) == pytest.approx(change, abs=0.06)
    assert opened.run(f"{cell}.className") == ("less" if change < 0 else "more")
    opened.select("view", 1)
    opened.run("new Promise((resolve) => setTimeout(resolve, 300))")
    assert "These traces have no rows, so only means are shown." in opened.text(".notes")
    assert opened.text(".notes").startswith("other")
    assert opened.run("document.querySelectorAll('.asks').length") == 0
    query = opened.run("document.querySelector('.attention [name=query]').value")
    assert query == ""


@in_a_browser
@with_cases
def test_a_prompt_of_20000_tokens_opens(tab, tmp_path, options, header):
    path = write_pairs(tmp_path / "long.traces", problems=1, header=header, **options)
    page = tmp_path / "long.html"
    page.write_text(make_page([read_view(path)]))
    tab.open(page)
    tab.point('[data-cell="0,1"]', click=True)
    assert "token 19999, " in tab.text(".masses caption")


@in_a_browser
def test_the_page_of_python_has_the_means_of_its_grid(tab, tmp_path):
    attention = make_attention()
    page = tmp_path / "python.html"
    page.write_text(attention.show())
    tab.open(page)
    label = tab.run("document.querySelector('[data-cell=\"1,2\"]').ariaLabel")
    mean = 100 * attention[0][1, 2, 0]
    assert float(re.search(r"Layer 3 Head 3: ([\d.]+) %", label)[1]) == pytest.approx(mean, abs=0.5)
    assert tab.run("document.querySelectorAll('.pair > section').length") == 1


@in_a_browser
@pytest.mark.parametrize(("control", "note"), [(False, "selected on outcome"), (True, "control")])
def test_the_question_its_gold_answer_and_its_flip_stand_above_the_tokens(
    tab, tmp_path, control, note
):
    facts = {"gold_answer": "4", "outcome": "wrong_to_right", "control": control}
    path = write_pairs(tmp_path / "flipped.traces", problems=1, **facts)
    page = tmp_path / "page.html"
    page.write_text(make_page([read_view(path)]))
    tab.resize(1280)
    tab.open(page)
    about = f"Gold answer: 4. w/o to w/ Mless: wrong to right ({note})."
    assert re.fullmatch(rf"Add.*\n{re.escape(about)}", tab.text(".about"), re.DOTALL)
    top = "document.querySelector('.pair .tokens').getBoundingClientRect().top"
    assert tab.run(top) < 400


@in_a_browser
def test_blanks_line_breaks_and_hidden_characters_are_visible(opened):
    words = opened.run(
        "[...document.querySelectorAll('.pair > section:first-child .token:not(.absent)')]"
        ".map((token) => token.innerText)"
    )
    assert words[:5] == ["Add", ".", "\u21b5", "What", "\u00b7is"]
    assert "\u21b5\u21b5" in words and words[-1] == "\u00b7U+202E"
