import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import unicodedata
import zlib
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pandas
import pytest

from attention_probe.figures.trace_figures import read_attention
from attention_probe.traces import AttentionTraces
from harness import load_run
from harness.analysis import compare
from harness.display.format_values import count, signed
from harness.display.report.report_page import write_report
from harness.errors import ComparisonError, ConfigError, JournalError, RunError
from harness.runs.read_runs import Run
from tests.commands.test_cli import here
from tests.make import (
    CONFIG,
    EXAMPLE,
    GREEDY_RUN,
    REGISTERED,
    TOY,
    aligned_curve,
    make_trace,
    write_run,
    write_traces,
)

SVG = "data:image/svg+xml;base64,"
CONDITIONS = ("wo", "mless", "mful", "random")

HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus=alert(1) '",
    "<svg/onload=alert(1)>",
    "<!--<script>",
    "-->",
    "]]>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "&lt;b&gt;&#60;b&#62;",
    "\u202egnp.exe\u202c",
    "\x00\x1b[31m",
    "<style>*{display:none}</style>",
    "<base href=https://example.org/><meta http-equiv=refresh content=0>",
    "$" * 40 + "\\(" * 40 + "\\boxed{" * 40,
)


class Reader(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text outside of scripts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.scripts, self.cells = [], [], {}, []
        self._inside = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs))
        if tag == "td":
            self.cells.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside and self._inside[0] == "script":
            self.scripts[self._inside[1].get("id", "")] = data
        else:
            self.texts.append(data)
            if self._inside and self._inside[0] in ("td", "strong"):
                self.cells[-1][1] += data


def images(page):
    return [
        base64.b64decode(one).decode() for one in re.findall(f'src="{re.escape(SVG)}([^"]+)"', page)
    ]


def unpack(word):
    return json.loads(zlib.decompress(base64.b64decode(word), -zlib.MAX_WBITS))


def details(page):
    """The index and, by problem, the unpacked details."""
    scripts = Reader(page).scripts
    index = unpack(scripts["index"])
    blocks = [
        unpack(scripts[f"block-{number}"])
        for number in range(sum(name.startswith("block-") for name in scripts))
    ]
    found = {
        one["id"]: blocks[one["at"][0]][one["at"][1]] for one in index["problems"] if one["at"]
    }
    return index, found


def labelled(label):
    """Settings of a run with all conditions, whose model has this label."""
    return {
        "model": {**CONFIG["model"], "label": label},
        "conditions": list(CONDITIONS),
        **REGISTERED,
        "audit": False,
    }


def judged(request, target):
    """The filler `mless` mends nine of ten problems, `mful` one, `random` none; the second baseline is all wrong."""
    number, condition = (
        int(re.search(r"(\d+)\.json", request.problem_id)[1]),
        request.task.removeprefix("demo_"),
    )
    right = condition == "mless" or number % 10 < (condition == "mful") + (request.replicate == 0)
    return (
        f"Since $x = {number}$ and so on, {condition} says $\\boxed{{{target if right else 'none'}}}$",
        "stop",
    )


def write_traced(path, model="model"):
    """Made-up traces of the first two prompts of each condition of the bundled run."""
    traces = [
        make_trace(
            prompt.problem_id,
            prompt.condition,
            seed=number // 3,
            prompt_sha256=prompt.prompt_sha256,
        )
        for number, prompt in enumerate(
            [one for one in Run.load(GREEDY_RUN).prompts if one.condition != "mful"][:6]
        )
    ]
    return write_traces(path, traces, model=model)


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "demo.html"
    write_report(
        [GREEDY_RUN], path, attention=[read_attention(write_traced(path.with_name("some.traces")))]
    )
    return path


@pytest.fixture(scope="module")
def demo_text(demo_page):
    return demo_page.read_text()


@pytest.fixture(scope="module")
def effect(tmp_path_factory):
    folder = tmp_path_factory.mktemp("effect")
    sampled = {"gen_kwargs": {"temperature": 0.5}, "repeats": 3, "replicates": 2}
    run = write_run(folder / "run", judged, limit=40, **labelled("tiny"), **sampled)
    write_report([run], folder / "page.html")
    return run, folder / "page.html"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two runs in which every text that a user or a model controls is hostile; figures name their models."""
    folder = tmp_path_factory.mktemp("<b>run&")
    problems = [json.loads(line) for line in (TOY / "demo.jsonl").read_text().splitlines()]
    for number, problem in enumerate(problems[:34]):
        payload = HOSTILE[number % len(HOSTILE)]
        problem |= {
            "unique_id": f"{number} {payload}",
            "subject": f"subject {payload}",
            "answer": payload,
        }
        problem["problem"] = f"{payload} {problem['problem']}"
    (folder / "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems[:34]))

    def answer(request, target):
        return f"{request.task} {target} $x$ {target} \\boxed{{{target}}}", "stop"

    labels = ("</script><b onclick=alert(1)>m\u202e\u2028\x1b\x00", HOSTILE[0])
    dataset = {"path": str(folder / "problems.jsonl")}
    runs = [
        write_run(folder / str(number), answer, limit=34, dataset=dataset, **labelled(label))
        for number, label in enumerate(labels)
    ]
    write_report(runs, folder / "page.html")
    return runs[0], folder / "page.html"


def test_the_tables_hold_exactly_what_compare_says(effect):
    run, page = effect
    compared = compare(load_run(run, replicates=True), **REGISTERED)
    cells = Reader(page.read_text()).cells
    shown = ["accuracy", "difference", "p_adjusted", "verdict", "wrong_to_right"]
    for _, wanted in compared.iterrows():
        row, cells = cells[: 1 + len(shown)], cells[1 + len(shown) :]
        condition, *keys = [attributes["data-key"] for attributes, _ in row]
        assert condition == wanted["condition"]
        for key, name in zip(keys, shown, strict=True):
            want = wanted[name]
            if name == "verdict":
                assert key == ("" if pandas.isna(want) else want)
            else:
                assert (key == "nan") == bool(pandas.isna(want)) and (
                    key == "nan" or float(key) == want
                ), name


def card(page):
    return " ".join(
        unescape(
            re.sub("<[^>]+>", " ", re.search(r"<header.*?</header>", page, re.DOTALL)[0])
        ).split()
    )


def test_the_card_answers_the_question(demo_text, effect):
    said = card(demo_text)
    question = 'Does "w/ Mless" change the accuracy of mless-demo on demo?'
    assert said.startswith(
        f"mless report: greedy_run {question} equivalent within 1 point w/ Mless: +0.2 points ["
    )
    assert (
        "3 comparisons registered beforehand: 2 equivalent within 1 point, 1 inconclusive." in said
    )
    assert "Dataset demo (500 problems, 1 sample each) Date 2026-11-27" in said
    assert "<strong" not in demo_text
    page = effect[1].read_text()
    assert '<span class="chip better">better</span> w/ Mless: +' in page
    assert set(re.findall(r"<strong[^>]*>([^<]*)</strong>", page)) == {"better"}, (
        "what passed its test, and no more"
    )


@pytest.mark.slow
def test_the_card_and_the_forest_show_controls_and_noise(tmp_path):
    """Of the committed example, which has a control and a second run of both sides."""
    write_report([EXAMPLE], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    said = card(page)
    assert f"Q4_1, raw (no-examples): {signed(-44.6)} [" in said
    noise = "w/ Mless and its baseline: 0 of 480 completions differ"
    assert f"A/A, SmolLM2-135M-Instruct, Q4_1, raw, {noise}" in said
    (drawn,) = images(page)
    texts = re.findall("<!-- (.*?) -->", drawn)
    assert texts.index("w/ Mless (A/A)") < texts.index("w/ Mless")
    assert {signed(6.7), "0.006", "[+2.4, +10.9]"} <= set(texts), "as they are in the table"


def test_every_sample_is_in_the_page_word_for_word(demo_text):
    index, found = details(demo_text)
    frame = load_run(GREEDY_RUN)
    assert len(found) == 500 and len(index["problems"]) == 500
    for row in frame.to_dict("records"):
        (sample,) = found[row["problem_id"]]["samples"][f"0 {row['condition']}"]
        assert (sample["completion"], sample["answer"]) == (row["completion"], row["answer"])
        graders = {name: row[name] for name in index["graders"]}
        assert dict(zip(index["graders"], sample["grades"], strict=True)) == graders


def test_prompts_are_whole_and_their_parts_have_roles(demo_text):
    _, found = details(demo_text)
    for line in (GREEDY_RUN / "prompts.jsonl").read_text().splitlines():
        row = json.loads(line)
        parts = found[row["doc"]["id"]]["prompts"][f"0 {row['condition']}"]["parts"]
        assert "".join(text for _, text in parts) == row["prompt"]
        roles = [role for role, _ in parts if role != "separator"]
        assert roles == [
            "instruction",
            *(["filler"] if row["condition"] != "wo" else []),
            "problem",
        ]


def test_the_list_names_the_flips_of_the_table_by_their_definition(effect):
    run, page = effect
    index, _ = details(page.read_text())
    assert (
        index["define_flips"]
        == "problems that change from wrong to right, and from right to wrong, mean over pairs of samples"
    )
    for _, row in compare(load_run(run, replicates=True), **REGISTERED).iloc[1:].iterrows():
        pairs = [
            (p["right"]["0 wo"], p["right"][f"0 {row['condition']}"]) for p in index["problems"]
        ]
        shares = [(old / of, new / other) for (old, of), (new, other) in pairs]
        gained, lost = (
            sum((1 - old) * new for old, new in shares),
            sum(old * (1 - new) for old, new in shares),
        )
        assert (gained, lost) == pytest.approx((row["wrong_to_right"], row["right_to_wrong"]))
        assert index["flips"][f"0 {row['condition']}"] == f"{count(gained)} / {count(lost)}"


def test_hostile_text_stays_text(hostile):
    run, path = hostile
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    known = set(
        "html head meta title style body a header h1 h2 main section p div table caption thead tr th button tbody td "
        "details summary dl dt dd pre script form label select input noscript figure figcaption bdi strong span "
        "img".split()
    )
    for tag, attributes in reader.elements:
        assert tag in known, tag
        assert not [
            name
            for name in attributes
            if name.startswith("on") or name in ("style", "srcset", "action")
        ]
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", SVG).startswith(SVG)
    assert sum(tag == "script" for tag, _ in reader.elements) == len(reader.scripts)
    index, found = details(page)
    text = "".join(reader.texts)
    for payload in HOSTILE[:12]:
        assert any(payload in problem["id"] for problem in index["problems"])
        assert payload in text  # by subject: shown as it is
    assert "\u202e" not in page and "<U+202E>" in text and "\x00" not in page
    completions = [
        s["completion"] for one in found.values() for side in one["samples"].values() for s in side
    ]
    assert sorted(completions) == sorted([*load_run(run)["completion"]] * 2)
    shown = {
        character
        for character in page
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }
    assert shown == {"\n"}, "neither text nor drawings hold a character that hides or turns others"
    assert page.count("m&lt;U+202E&gt;&lt;U+2028&gt;&lt;U+001B&gt;&lt;U+0000&gt;") > 6


def test_the_policy_lets_only_our_script_and_style_run(hostile):
    reader = Reader(hostile[1].read_text())
    (policy,) = [
        a["content"]
        for tag, a in reader.elements
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    script = base64.b64encode(hashlib.sha256(reader.scripts[""].encode()).digest()).decode()
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{script}'"
    assert "unsafe" not in policy and "://" not in policy
    assert "</" not in reader.scripts[""] and "innerHTML" not in reader.scripts[""]


def test_two_models_in_one_page(tmp_path):
    other = write_run(tmp_path / "other", judged, limit=20, **labelled("other"))
    write_report([GREEDY_RUN, other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search("https?://", page), "a page names no other address"
    index, found = details(page)
    assert [one["model"] for one in index["settings"]] == ["mless-demo", "other"]
    both = [one for one in found.values() if len(one["samples"]) == 8]
    assert len(both) == 20 and set(both[0]["prompts"]) == {
        f"{s} {c}" for s in (0, 1) for c in CONDITIONS
    }


@pytest.mark.parametrize("name", ["journal.jsonl", "journal.jsonl.xz", "run.json", "header.json"])
def test_a_file_of_a_run_or_of_traces_is_not_written_over(tmp_path, name):
    shutil.copy(GREEDY_RUN / "run.json", tmp_path / name)
    with pytest.raises(ConfigError, match="is no report: expected an "):
        write_report([GREEDY_RUN], tmp_path / name.removesuffix(".xz"))
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_one_condition_alone_is_shown_without_comparison(tmp_path):
    run = write_run(tmp_path / "run", judged, limit=2, conditions=["wo"])
    write_report([run], tmp_path / "page.html")
    assert (
        "There is only one condition, so nothing is compared."
        in (tmp_path / "page.html").read_text()
    )


@pytest.mark.parametrize(
    ("runs", "page", "error", "message"),
    [
        ([GREEDY_RUN, GREEDY_RUN], "page.html", ComparisonError, "is given twice"),
        ([GREEDY_RUN], "file/page.html", JournalError, "cannot be written"),
        ([GREEDY_RUN], ".", JournalError, "cannot be written: Is a directory"),
    ],
)
def test_what_makes_no_report_is_refused(tmp_path, runs, page, error, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=message):
        write_report(runs, tmp_path / page)
    assert not list(tmp_path.rglob("*.part"))


def test_curves_are_those_of_the_traces(tmp_path):
    path = write_traced(tmp_path / "some.traces")
    file = read_attention(path)
    heads = [axes.get_title() for axes in file.figure.axes]
    assert (
        heads == ["Layer 1 Head 1", "Layer 1 Head 2", "Layer 1 Head 3"] and len(file.prompts) == 6
    )
    with AttentionTraces.open(path) as traces:
        for head, axes in enumerate(file.figure.axes, start=1):
            lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
            for line, condition in zip(lines, traces.conditions, strict=True):
                curve = aligned_curve(traces, condition=condition, layer=1, head=head)
                kept = 2 * curve.count >= curve.prompts
                drawn = line.get_xydata()[np.isfinite(line.get_ydata())]
                assert drawn.tolist() == list(
                    map(list, zip(curve.x[kept], curve.mean[kept], strict=True))
                )
    write_report([GREEDY_RUN], tmp_path / "page.html", attention=[file])
    page = (tmp_path / "page.html").read_text()
    assert "Selected on outcome" not in page and page.count("<img") == 2
    assert 'alt="Mean attention weight by token position' in page


def test_the_command_shows_the_layer_and_heads_that_are_asked_for(tmp_path, capsys, monkeypatch):
    path, page = write_traced(tmp_path / "some.traces"), tmp_path / "page.html"
    with AttentionTraces.open(path) as traces:
        layer = traces.header.layers[-1] + 1
    asked = ["--traces", str(path), "--layer", str(layer), "--head", "3", "-o", str(page)]
    done = here(capsys, monkeypatch, "report", str(GREEDY_RUN), *asked)
    assert done.returncode == 0, done.stderr
    drawn = images(page.read_text())[-1]
    assert f"Layer {layer} Head 3" in drawn and "Head 1<" not in drawn


def test_curves_of_other_prompts_are_refused(tmp_path):
    foreign = read_attention(
        write_traces(tmp_path / "foreign.traces", [make_trace()], model="model")
    )
    with pytest.raises(
        RunError,
        match=r"1 of 1 traced prompts .first: problem p0, wo. are in no run of this report",
    ):
        write_report([GREEDY_RUN], tmp_path / "page.html", attention=[foreign])


# ---- in a browser ----------------------------------------------------------------------------------------------------

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
in_a_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium: apt-get install chromium, or name one in CHROMIUM"
    ),
]


def rendered(page, fragment="", profile=None):
    """The page's elements after its script ran, as a real browser without a window has them."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        "--dump-dom",
    ]
    options += [f"--user-data-dir={profile or page.parent / 'profile'}", f"file://{page}{fragment}"]
    return subprocess.run(
        [CHROMIUM, *options], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def listed(dom):
    """The ids in the list of problems, the chosen one, and the words beside it."""
    rows = re.search(r'<div class="list">.*?<tbody>(.*?)</tbody>', dom, re.DOTALL)[1]
    chosen = re.search(r"aria-current.*?<bdi>(.*?)</bdi>", rows, re.DOTALL)
    return re.findall(r"<button[^>]*><bdi>(.*?)</bdi>", rows), chosen and chosen[1]


@pytest.mark.parametrize(
    ("fragment", "count", "first"),
    [
        ("", None, "demo/intermediate_algebra/292.json"),
        ("#?condition=random&outcome=down", 2, None),
        ("#?outcome=all&level=5", 113, None),
    ],
)
@pytest.mark.parametrize("_", [pytest.param(0, marks=in_a_browser)])
def test_it_opens_with_the_first_flip_and_filters(demo_page, fragment, count, first, _):
    dom = rendered(demo_page, fragment)
    ids, chosen = listed(dom)
    assert count is None or len(ids) == count
    assert first is None or (ids[0], chosen) == (first, first)
    if first:
        detail = dom.partition('<div class="detail"')[2]
        assert re.findall(r'<span class="chip[^"]*">(\w+)</span>', detail) == [
            "incorrect",
            "correct",
        ]
        assert re.findall(r"<mark>(.*?)</mark>", detail) == ["\\boxed{1}", "\\boxed{2}"]


@pytest.mark.parametrize("_", [pytest.param(0, marks=in_a_browser)])
def test_hostile_text_does_nothing_in_a_browser(hostile, _):
    for number in range(0, 34, 5):
        dom = rendered(hostile[1], f"#?outcome=all&row={number}", hostile[0].parent / "profile")
        reader = Reader(dom)
        assert sum(
            tag in ("script", "base", "iframe", "object") for tag, _ in reader.elements
        ) == len(reader.scripts)
        assert not [
            name
            for _, attributes in reader.elements
            for name in attributes
            if name.startswith("on")
        ]
        assert all(
            attributes["src"].startswith(SVG) for tag, attributes in reader.elements if tag == "img"
        )


@pytest.mark.parametrize("_", [pytest.param(0, marks=in_a_browser)])
def test_many_problems_and_endless_marks_are_shown(tmp_path, _):
    write_report([GREEDY_RUN], tmp_path / "many.html")
    assert len(listed(rendered(tmp_path / "many.html", "#?outcome=all"))[0]) == 200
    marks = ("$", "\\(", "\\boxed{", "$$x", "$x$ ", "\x00a", "\u200b\x00")
    left = {}  # each problem has marks of its own

    def answer(request, target):
        return marks[left.setdefault(request.problem_id, len(left))] * 60_000, "stop"

    run = write_run(tmp_path / "run", answer, limit=len(marks), **labelled("endless"))
    write_report([run], tmp_path / "page.html")
    assert len(listed(rendered(tmp_path / "page.html", "#?outcome=all"))[0]) == len(marks)
