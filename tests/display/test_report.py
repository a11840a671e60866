"""The report: its numbers, its data, its safety, and, in a real browser, its behaviour."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
import unicodedata
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pandas
import pytest

from attention_probe.analysis.averaging import aligned_curve
from attention_probe.figures.report_curves import read_attention
from attention_probe.traces import AttentionTraces
from harness.analysis import compare
from harness.analysis.leaderboard import make_leaderboard
from harness.display.comparison_tables import least_detectable, without_yardsticks
from harness.display.report import write_report
from harness.display.report.details import unpack
from harness.display.report.inline_svg import PALETTE, VARIABLES
from harness.display.words import count, signed
from harness.errors import ComparisonError, JournalError, RunError
from harness.experiment.prompt import hash_prompts, hash_text
from harness.grading.grade_completion import read_boxes
from harness.runs.read_run import read_run
from harness.runs.sample_frame import load_run
from tests.chromium import find_chromium, open_chromium
from tests.commands.test_cli import here, refused
from tests.example_runs import GREEDY_RUN, REGISTERED, ROOT
from tests.example_traces import make_trace, write_traces

CONDITIONS = ("wo", "mless", "mful", "random")
EXAMPLE = ROOT / "results" / "example"

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

    def handle_starttag(self, tag, attrs):  # noqa: D102
        self.elements.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs))
        if tag == "td":
            self.cells.append([dict(attrs), ""])

    def handle_endtag(self, tag):  # noqa: D102
        self._inside = None

    def handle_data(self, data):  # noqa: D102
        if self._inside and self._inside[0] == "script":
            self.scripts[self._inside[1].get("id", "")] = data
        else:
            self.texts.append(data)
            if self._inside and self._inside[0] in ("td", "strong"):
                self.cells[-1][1] += data


def details(page):
    """The index and, by problem, the unpacked details."""
    scripts = Reader(page).scripts
    index = unpack(scripts["index"])
    blocks = [
        unpack(scripts[f"block-{number}"]) for number in range(sum(name.startswith("block-") for name in scripts))
    ]
    found = {one["id"]: blocks[one["at"][0]][one["at"][1]] for one in index["problems"] if one["at"]}
    return index, found


def write_run(folder, *, problems=20, samples=1, replicates=1, label="tiny", edit=None, write=None):
    """A run folder made of the bundled one, with other completions and verdicts.

    Args:
        folder: Where to.
        problems: The first so many.
        samples: Of each problem.
        replicates: Of the baseline.
        label: The model's.
        edit: Changes a prompt's document.
        write: Problem number, condition, replicate and sample to completion and verdict.
    """
    folder.mkdir()
    header, *records = map(json.loads, (GREEDY_RUN / "journal.jsonl").read_text().splitlines())
    rows = [json.loads(line) for line in (GREEDY_RUN / "prompts.jsonl").read_text().splitlines()]
    rows = [row for condition in CONDITIONS for row in [r for r in rows if r["condition"] == condition][:problems]]
    for row in rows:
        if edit:
            edit(row["doc"])
        row["prompt"] = "".join(segment["text"] for segment in row["doc"]["segments"])
        row["prompt_sha256"] = hash_text(row["prompt"])
    journal, scores = [], []
    known = {(one["task"], one["problem_id"]): one for one in records if "task" in one}
    example = next(iter(known.values()))
    grade = json.loads((GREEDY_RUN / "scores.jsonl").read_text().splitlines()[1])
    for number, row in enumerate(rows):
        for replicate in range(replicates if row["condition"] == "wo" else 1):
            for sample in range(samples):
                told = (f"So it is $\\boxed{{{number}}}$.", "correct")
                completion, verdict = write(number % problems, row["condition"], replicate, sample) if write else told
                key = f"{number}-{replicate}-{sample}"
                place = {"task": row["task"], "problem_id": row["doc"]["id"], "sample_index": sample}
                journal.append(example | place | {"key": key, "replicate": replicate, "completion": completion})
                answer = next(reversed(read_boxes(completion)), None)
                scores.append(grade | {"key": key, "verdict": verdict, "answer": answer})
    session = next(one for one in records if one["key"].startswith("session"))
    session["config"]["model"]["label"] = label
    receipt = json.loads((GREEDY_RUN / "run.json").read_text())
    receipt["config"]["model"]["label"] = label
    dump = lambda lines: "".join(json.dumps(line) + "\n" for line in lines)  # noqa: E731
    (folder / "journal.jsonl").write_text(dump([header | {"prompts_sha256": hash_prompts(rows)}, session, *journal]))
    (folder / "scores.jsonl").write_text(dump([{"grader_version": receipt["grader_version"]}, *scores]))
    (folder / "prompts.jsonl").write_text(dump(rows))
    (folder / "run.json").write_text(json.dumps(receipt))
    return folder


def judged(number, condition, replicate, sample):
    """The filler `mless` mends nine of ten problems, `mful` changes two, `random` none; A/A differs in one."""
    right = {"wo": number % 10 == 0, "mless": True, "mful": number % 10 in (0, 1), "random": number % 10 == 0}[
        condition
    ]
    right ^= replicate == 1 and number == 3
    return (
        f"Since $x = {number}$ and so on, {condition} says $\\boxed{{{number * right}}}$",
        "correct" if right else "incorrect",
    )


@pytest.fixture(scope="module")
def demo_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "demo.html"
    write_report([GREEDY_RUN], path, attention=[read_attention(write_traced(path.with_name("some.traces")))])
    return path


@pytest.fixture(scope="module")
def demo_text(demo_page):
    return demo_page.read_text()


@pytest.fixture(scope="module")
def effect(tmp_path_factory):
    """A run in which one filler helps, and its page."""
    folder = tmp_path_factory.mktemp("effect")
    run = write_run(folder / "run", problems=40, samples=3, replicates=2, write=judged)
    write_report([run], folder / "page.html")
    return run, folder / "page.html"


def make_hostile(folder, label="</script><b onclick=alert(1)>m\u202e\u2028\x1b\x00"):
    """A run in which every text that a user or a model controls is hostile."""

    def edit(document):
        number = int(re.search(r"(\d+)\.json", document["id"])[1])
        payload = HOSTILE[number % len(HOSTILE)]
        document.update(id=f"{document['id']}{payload}", subject=f"subject {payload}", answer=payload)
        document["problem"] = document["segments"][-1]["text"] = f"{payload} {document['problem']}"
        document["user"] = "".join(segment["text"] for segment in document["segments"][2:])

    def write(number, condition, replicate, sample):
        payload = HOSTILE[number % len(HOSTILE)]
        return f"{condition} {payload} $x$ {payload} \\boxed{{{payload}}}", "incorrect" if number % 2 else "correct"

    return write_run(folder / f"<b>run&{len(label)}", problems=34, label=label, edit=edit, write=write)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    run, other = make_hostile(folder), make_hostile(folder, HOSTILE[0])  # two: figures then name the models
    write_report([run, other], folder / "page.html")
    return run, folder / "page.html"


def test_the_tables_hold_exactly_what_compare_says(effect):
    run, page = effect
    compared = compare(load_run(run, replicates=True), **REGISTERED)
    cells = Reader(page.read_text()).cells
    shown = ["accuracy", "difference", "p_adjusted", "verdict", "wrong_to_right"]
    folded = ["accuracy", "standard_error", "n", "k", "p", "tests", "aa_difference", "aa_discordance"]
    for names in (shown, folded):
        for _, wanted in compared.iterrows():
            row, cells = cells[: 1 + len(names)], cells[1 + len(names) :]
            condition, *keys = [attributes["data-key"] for attributes, _ in row]
            assert condition == wanted["condition"]
            for key, name in zip(keys, names, strict=True):
                want = wanted[name]
                assert key == str(want) if name == "verdict" else pandas.isna(want) or float(key) == want, name
                assert (key == "nan") == bool(pandas.isna(want)), name


def test_nothing_is_strong_but_verdicts_that_passed_their_test(demo_text, effect):
    assert "<strong" not in demo_text
    strong = re.findall(r"<strong[^>]*>([^<]*)</strong>", effect[1].read_text())
    assert strong and set(strong) == {"better"}


def card(page):
    """The words of the card at the top."""
    return " ".join(unescape(re.sub("<[^>]+>", " ", re.search(r"<header.*?</header>", page, re.DOTALL)[0])).split())


def test_the_card_answers_the_question(demo_text, effect):
    said = card(demo_text)
    question = 'Does "w/ Mless" change the accuracy of mless-demo on demo?'
    assert said.startswith(f"mless report: greedy_run {question} equivalent within 1 point w/ Mless: +0.2 points [")
    assert "+1.1], adjusted p 1.000 Any difference is smaller than the margin. 3 comparisons" in said
    assert "3 comparisons registered beforehand: 2 equivalent within 1 point, 1 inconclusive." in said
    assert "Dataset demo (500 problems, 1 sample each) Date 2026-11-22 Smallest detectable effect (80 % power) " in said
    assert "Positive control None: nothing shows" in said and "The baseline was run once, so nothing shows" in said
    assert "adjusted by Holm over the 3 tests registered beforehand" in demo_text
    assert '<span class="chip better">better</span> w/ Mless: +90.0 points [' in effect[1].read_text()


@pytest.fixture(scope="module")
def example_page(tmp_path_factory):
    """The committed example, which has rewordings, controls and a second run of the baseline."""
    path = tmp_path_factory.mktemp("example") / "page.html"
    write_report([EXAMPLE], path)
    return path


def test_the_card_and_the_forest_show_controls_and_noise(example_page):
    page = example_page.read_text()
    said = card(page)
    board = make_leaderboard([read_run(EXAMPLE)])
    rows = without_yardsticks(board, board.comparison)
    assert 'Does "w/ Mless" change the accuracy of mless-demo on demo? inconclusive w/ Mless: 0.0 points' in said
    assert "The data neither show an effect nor rule one out. 4 comparisons registered" in said
    assert f"(80 % power) {least_detectable(rows)} Positive control {signed(-72.4)} [" in said
    assert f"harm Noise (A/A) The baseline run again moves by {signed(-0.6)} points, flips 5.8 / 7.0" in said
    assert page.index("again (A/A)</text>") < page.index("10 rewordings</text>") < page.index("w/ Mless</text>")
    drawn = re.findall("<svg.*?</svg>", page)
    assert len(drawn) == 2 and not re.findall("#[0-9a-f]{6}|style=|xlink", "".join(drawn))
    texts = re.findall("<text[^>]*>([^<]*)</text>", "".join(drawn))
    assert {signed(0.4), "1.000", f"[{signed(-0.8)}, +1.0]"} <= set(texts), "as they are in the table"
    names = re.findall(' id="([^"]*)"', page)
    assert len(names) == len(set(names)) and set(re.findall(r'(?:url\(|href=")#([^)"]*)', page)) <= set(names)


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
        assert roles == ["instruction", *(["filler"] if row["condition"] != "wo" else []), "problem"]


def test_the_list_names_the_flips_of_the_table_by_their_definition(effect):
    run, page = effect
    index, _ = details(page.read_text())
    assert index["define_flips"] == "problems from wrong to right and from right to wrong, mean over pairs of samples"
    for _, row in compare(load_run(run, replicates=True), **REGISTERED).iloc[1:].iterrows():
        pairs = [(p["right"]["0 wo"], p["right"][f"0 {row['condition']}"]) for p in index["problems"]]
        shares = [(old / of, new / other) for (old, of), (new, other) in pairs]
        gained, lost = sum((1 - old) * new for old, new in shares), sum(old * (1 - new) for old, new in shares)
        assert (gained, lost) == pytest.approx((row["wrong_to_right"], row["right_to_wrong"]))
        assert index["flips"][f"0 {row['condition']}"] == f"{count(gained)} / {count(lost)}"


def test_hostile_text_stays_text(hostile):
    run, path = hostile
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    known = set(
        "html head meta title style body a header h1 h2 main section p div table caption thead tr th button tbody td "
        "details summary dl dt dd pre script form label select input noscript figure figcaption bdi strong span "
        "svg g defs clippath path rect use text tspan".split()
    )
    for tag, attributes in reader.elements:
        assert tag in known, tag
        assert not [
            name for name in attributes if name.startswith("on") or name in ("style", "src", "srcset", "action")
        ]
        assert attributes.get("href", "#").startswith("#")
    assert sum(tag == "script" for tag, _ in reader.elements) == len(reader.scripts)
    index, found = details(page)
    text = "".join(reader.texts)
    for payload in HOSTILE[:12]:
        assert any(payload in problem["id"] for problem in index["problems"])
        assert payload in text  # by subject: shown as it is
    assert "\u202e" not in page and "<U+202E>" in text and "\x00" not in page
    completions = [s["completion"] for one in found.values() for side in one["samples"].values() for s in side]
    assert sorted(completions) == sorted([*load_run(run)["completion"]] * 2)
    shown = {character for character in page if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert shown == {"\n"}, "neither text nor drawings hold a character that hides or turns others"
    assert page.count("m&lt;U+202E&gt;&lt;U+2028&gt;&lt;U+001B&gt;&lt;U+0000&gt;") > 6


def test_the_policy_lets_only_our_script_and_style_run(hostile):
    reader = Reader(hostile[1].read_text())
    (policy,) = [a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    script = base64.b64encode(hashlib.sha256(reader.scripts[""].encode()).digest()).decode()
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{script}'"
    assert "unsafe" not in policy and "://" not in policy
    assert "</" not in reader.scripts[""] and "innerHTML" not in reader.scripts[""]


def test_a_page_names_no_other_address(demo_text):
    addresses = set(re.findall(r"https?://[^\s\"'<]+", demo_text))
    assert addresses == set()


def test_two_models_in_one_page(tmp_path):
    other = write_run(tmp_path / "other", label="other", write=judged)
    write_report([GREEDY_RUN, other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    index, found = details(page)
    assert [one["model"] for one in index["settings"]] == ["mless-demo", "other"]
    assert "6 comparisons registered beforehand" in page
    assert re.search(r"mless-demo, raw: more than so few flips can make; other, raw: \d+\.\d points", card(page))
    both = [one for one in found.values() if len(one["samples"]) == 8]
    assert len(both) == 20 and set(both[0]["prompts"]) == {f"{s} {c}" for s in (0, 1) for c in CONDITIONS}


def test_registered_and_exploratory_comparisons_are_told_apart(tmp_path):
    run = write_run(tmp_path / "run", replicates=2, write=judged)
    lines = (run / "journal.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    header["contrasts"] = [["mless", "wo"], ["random", "wo"]]
    (run / "journal.jsonl").write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "2 comparisons registered beforehand: " in card(page)
    assert "1 comparison besides: 1 exploratory." in card(page)
    assert "w/ Mless *" in page and "; *: the primary contrast, tested first" in page
    assert "exploratory: not among them" in page and "under greedy decoding this measures only what" in page
    cells = [text for _, text in Reader(page).cells]
    assert cells[cells.index("w/ Mful") + 3 :][:2] == ["\N{EN DASH}", "exploratory"], "without a p"


def test_one_condition_alone_is_shown_without_comparison(tmp_path):
    run = write_run(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "prompts.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["condition"] == "wo"]
    (run / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    header, session, *samples = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    header["prompts_sha256"] = hash_prompts(rows)
    kept = [header, session, *(one for one in samples if one["task"] == "demo_wo")]
    (run / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    write_report([run], tmp_path / "page.html")
    assert "There is one condition only, so nothing is compared." in (tmp_path / "page.html").read_text()


def test_logs_of_the_stock_command_make_the_same_report(tmp_path, demo_text):
    for file in (*GREEDY_RUN.glob("samples_*.jsonl"), *GREEDY_RUN.glob("results_*.json")):
        shutil.copy(file, tmp_path)
    write_report([tmp_path], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    index, found = details(page)
    known, wanted = details(demo_text)
    assert [one["right"] for one in index["problems"]] == [one["right"] for one in known["problems"]]
    for problem_id, one in wanted.items():
        for place, side in one["samples"].items():
            (ours,), (theirs,) = side, found[problem_id]["samples"][place]
            assert all(ours[name] == theirs[name] for name in ("completion", "answer", "grades"))
            assert one["prompts"][place]["parts"] == found[problem_id]["prompts"][place]["parts"]


def test_logs_of_another_task_are_named_by_condition(tmp_path):
    logs = {}
    for condition in ("wo", "mless"):
        (log,) = GREEDY_RUN.glob(f"samples_demo_{condition}_*.jsonl")
        logs[condition] = tmp_path / f"samples_{condition}.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()[:9]]
        for number, line in enumerate(lines):
            line["doc"] = {"question": line["doc"]["problem"]}
            line |= {"filtered_resps": ["x"], "acc": float(number % 3 > 0 or condition == "mless"), "metrics": ["acc"]}
            line.pop("verdict", None), line.pop("exact_match", None), line.pop("math_verify", None)
        logs[condition].write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_report([logs], tmp_path / "page.html", metric="acc")
    index, found = details((tmp_path / "page.html").read_text())
    assert [one["right"]["0 wo"][0] for one in index["problems"]] == [0, 1, 1] * 3
    assert found["0"]["prompts"]["0 wo"]["parts"][0][0] == "prompt"
    assert index["problems"][0]["subject"] is None and index["problems"][0]["level"] is None


@pytest.mark.parametrize(
    ("folders", "error", "message"),
    [
        ([], RunError, "A report needs at least one run"),
        ([GREEDY_RUN, GREEDY_RUN], ComparisonError, "is given twice: expected every run once"),
        ([Path("nowhere")], RunError, "nowhere holds no finished run"),
    ],
)
def test_bad_input_is_refused(tmp_path, folders, error, message):
    with pytest.raises(error, match=message):
        write_report(folders, tmp_path / "page.html")


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    again = write_run(tmp_path / "again", label="mless-demo")
    with pytest.raises(ComparisonError, match="occurs more than once"):
        write_report([GREEDY_RUN, again], tmp_path / "page.html")
    with pytest.raises(ComparisonError, match="no baseline condition 'none'"):
        write_report([GREEDY_RUN], tmp_path / "page.html", baseline="none")
    (tmp_path / "file").write_text("")
    write_report([GREEDY_RUN], tmp_path / "new" / "folder" / "page.html")
    assert (tmp_path / "new" / "folder" / "page.html").is_file()
    with pytest.raises(JournalError, match="cannot be written"):
        write_report([GREEDY_RUN], tmp_path / "file" / "page.html")
    for folder in (Path(), Path("/"), tmp_path):  # before the work: the run is not even looked for
        with pytest.raises(
            JournalError, match=r"cannot be written: Is a directory\. Make it writable, or choose another --output\."
        ):
            write_report([Path("nowhere")], folder)
    assert not list(tmp_path.parent.glob("*.part"))


def test_curves_are_those_of_the_traces(tmp_path):
    path = write_traced(tmp_path / "some.traces")
    file = read_attention(path)
    assert list(file.heads) == ["Layer 1 Head 1", "Layer 1 Head 2", "Layer 1 Head 3"] and len(file.prompts) == 6
    with AttentionTraces.open(path) as traces:
        for head, figure in enumerate(file.heads.values()):
            lines = figure.axes[0].get_lines()
            for line, condition in zip(lines, traces.conditions, strict=True):
                curve = aligned_curve(traces, condition=condition, layer=0, head=head)
                kept = 2 * curve.count >= curve.prompts
                assert line.get_xydata().tolist() == list(map(list, zip(curve.x[kept], curve.mean[kept], strict=True)))
    write_report([GREEDY_RUN], tmp_path / "page.html", attention=[file])
    page = (tmp_path / "page.html").read_text()
    assert "Selected on outcome" not in page and page.count("<svg") == 2 + 3
    assert 'aria-label="Layer 1 Head 2: mean attention weight by token position' in page


def test_the_command_shows_the_layer_and_heads_that_are_asked_for(tmp_path, capsys, monkeypatch):
    path, page = write_traced(tmp_path / "some.traces"), tmp_path / "page.html"
    with AttentionTraces.open(path) as traces:
        layer = traces.header.layers[-1]
    asked = ["--traces", str(path), "--layer", str(layer), "--head", "2", "-o", str(page)]
    done = here(capsys, monkeypatch, "report", str(GREEDY_RUN), *asked)
    assert done.returncode == 0, done.stderr
    assert f"Layer {layer + 1} Head 3" in page.read_text() and "Head 1<" not in page.read_text()
    refused(
        here(capsys, monkeypatch, "report", str(GREEDY_RUN), *asked[:4], "--head", "9"),
        "head 9 (Head 10) does not exist",
    )


def test_curves_of_other_prompts_or_models_are_refused(tmp_path):
    other = read_attention(write_traced(tmp_path / "other.traces", model="other"))
    with pytest.raises(RunError, match="the traces are of the model other: expected that of a run"):
        write_report([GREEDY_RUN], tmp_path / "page.html", attention=[other])
    foreign = read_attention(write_traces(tmp_path / "foreign.traces", [make_trace()], model="model"))
    with pytest.raises(RunError, match=r"1 of 1 traced prompts .first: problem p0, wo. are in no run of this report"):
        write_report([GREEDY_RUN], tmp_path / "page.html", attention=[foreign])


def traced():
    """Problem ids, and the hashes of their prompts by condition."""
    hashes = {}
    for line in (GREEDY_RUN / "prompts.jsonl").read_text().splitlines():
        row = json.loads(line)
        hashes.setdefault(row["doc"]["id"], {})[row["condition"]] = row["prompt_sha256"]
    return list(hashes.items())


def write_traced(path, model="model"):
    """Made-up traces of two prompts of the bundled run."""
    traces = [
        make_trace(problem_id, condition, seed=number, prompt_sha256=hashes[condition])
        for number, (problem_id, hashes) in enumerate(traced()[:2])
        for condition in ("wo", "mless", "random")
    ]
    return write_traces(path, traces, model=model)


VOCABULARY = ["".join(random.Random(rank).choices("etaoinshrdlucmfw", k=2 + rank % 8)) for rank in range(3000)]


def lifelike(seed, words):
    """Text as hard to compress as a solution: words by their rank, with a number or a formula now and then."""
    drawn = random.Random(seed)
    text = [VOCABULARY[min(int(drawn.paretovariate(0.6)), 2999)] for _ in range(words)]
    text[::9] = [f"$x_{{{drawn.randint(0, 9)}}} = {drawn.randint(0, 999)}$" for _ in text[::9]]
    return " ".join(text)


def test_a_page_too_small_for_all_keeps_what_changed_and_says_so(tmp_path):
    def write(number, condition, replicate, sample):
        changes = number % 4 == 0 and condition == "mless"
        return lifelike(f"{number} {condition}", 300), "incorrect" if changes else "correct"

    run = write_run(tmp_path / "run", problems=200, write=write)
    size = write_report([run], tmp_path / "page.html", limit=500_000)
    page = (tmp_path / "page.html").read_text()
    index, found = details(page)
    assert size == len(page.encode()) <= 500_000
    left_out = 200 - len(found)
    assert f"prompts and completions of {left_out} of 200 problems" in page and 0 < left_out < 150
    changed = {one["id"] for one in index["problems"] if len({right for right, _ in one["right"].values()}) > 1}
    assert len(changed) == 50 and changed <= set(found)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """6,000 samples of three models, 2,000 characters each."""
    folder = tmp_path_factory.mktemp("large")

    def write(label):
        def sample(number, condition, replicate, index):
            text = lifelike(f"{label} {number} {condition}", 330)
            return text, "correct" if random.Random(text).random() < 0.7 else "incorrect"

        return write_run(folder / label, problems=500, label=label, write=sample)

    runs = [write(label) for label in ("one", "two", "three")]
    write_report(runs, folder / "page.html")
    return folder / "page.html"


@pytest.mark.slow
def test_six_thousand_samples_take_less_than_five_megabytes(large):
    page = large.read_text()
    _, found = details(page)
    completions = [s["completion"] for one in found.values() for side in one["samples"].values() for s in side]
    assert len(completions) == 6000 and sum(map(len, completions)) > 6000 * 1900
    assert len(page.encode()) < 5_000_000


def test_colours_can_be_read_in_light_and_dark():
    style = (ROOT / "harness" / "display" / "report" / "style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w]+): (#[0-9a-f]{6});", part)) for part in re.findall(r":root \{([^}]*)\}", style)
    )
    assert light.keys() == dark.keys() and len(light) > 19
    assert [light[f"s{slot}"] for slot in range(len(PALETTE))] == list(PALETTE), "as in every figure"
    for colours in (light, dark):
        grounds = ("paper", "shade", "instruction", "filler", "problem", "mark")
        pairs = [("ink", ground) for ground in grounds]
        pairs += [(name, ground) for name in ("soft", "link", "up", "down") for ground in ("paper", "shade")]
        assert [pair for pair in pairs if contrast(*(colours[name] for name in pair)) < 4.5] == []
        assert [slot for slot in range(len(PALETTE)) if contrast(colours[f"s{slot}"], colours["paper"]) < 3] == []
    assert set(re.findall(r"(?<!-)\bcolor: ([^;]+);", style)) <= {
        *(f"var(--{name})" for name in ("ink", "soft", "link", "up", "down", "paper")),
        "inherit",
    }, "no other text colour"
    assert set(VARIABLES.values()) <= set(light)


def contrast(one, other):
    """The ratio of two colours' luminances, as WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# ---- in a browser ----------------------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium: apt-get install chromium, or name one in CHROMIUM"
)
SELECTED = "document.querySelector('.list [aria-current] bdi').textContent"
ROWS = "document.querySelectorAll('.list tbody tr').length"
COUNT = "document.querySelector('.count').textContent"


def choose(browser, name, value):
    """Set a filter, as its menu would."""
    element = f"document.querySelector('[name={name}]')"
    browser.ask(f"{element}.value = {json.dumps(value)}")
    browser.ask(f"{element}.dispatchEvent(new Event('input', {{bubbles: true}}))")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with open_chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def browser(chromium):
    """The tab, whose complaints and requests must be none when the test ends."""
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.dialogs.clear()
    chromium.look(1400, 900)
    yield chromium
    assert chromium.complaints == [] and chromium.dialogs == []
    assert all(address.startswith("file:///") and address.endswith(".html") for address in chromium.requests)
    chromium.call("Page.navigate", url="about:blank")


@pytest.mark.slow
@needs_chromium
def test_it_opens_and_shows_the_first_flip(browser, demo_page):
    browser.open(demo_page)
    assert browser.ask("document.title") == "mless: greedy_run"
    assert browser.ask(SELECTED) == "demo/intermediate_algebra/292.json"
    browser.wait("document.querySelectorAll('.detail .chip').length === 2")
    chips = "[...document.querySelectorAll('.detail .chip')].map(chip => chip.textContent)"
    assert browser.ask(chips) == ["incorrect", "correct"]
    boxes = "[...document.querySelectorAll('.detail mark')].map(mark => mark.textContent)"
    assert browser.ask(boxes) == ["\\boxed{1}", "\\boxed{2}"]


@pytest.mark.slow
@needs_chromium
def test_the_box_of_a_repeated_prompt_is_not_the_answer(browser, tmp_path):
    again = ("\\boxed{}", "\\boxed{{}}", "\\boxed{ }")
    write = lambda number, *_: (f"So \\boxed{{{number}}}. Put it within {again[number]}.", "correct")  # noqa: E731
    write_report([write_run(tmp_path / "run", problems=len(again), write=write)], tmp_path / "page.html")
    browser.open(tmp_path / "page.html", fragment="#?outcome=all")
    for number in range(len(again)):
        browser.ask(f"document.querySelectorAll('.list tbody tr')[{number}].click()")
        browser.wait(f"document.querySelector('.detail mark')?.textContent === '\\\\boxed{{{number}}}'")


@pytest.mark.slow
@needs_chromium
def test_tables_are_sorted_by_the_numbers_behind_them(browser, demo_page):
    browser.open(demo_page)
    column = "[...document.querySelectorAll('main table')[0].tBodies[0].rows].map(row => row.cells[{}].textContent)"
    browser.click("main table th:nth-child(6) button")  # flips, by wrong to right, descending
    assert browser.ask(column.format(5)) == ["2 / 1", "2 / 2", "1 / 0", "\N{EN DASH}"]
    browser.click("main table th:nth-child(6) button")
    assert browser.ask(column.format(5)) == ["1 / 0", "2 / 1", "2 / 2", "\N{EN DASH}"]  # what is missing stays last
    sorts = "[...document.querySelectorAll('main table')[0].tHead.rows[0].cells].map(cell => cell.ariaSort)"
    assert browser.ask(sorts).count("ascending") == 1


@pytest.mark.slow
@needs_chromium
def test_filters_choose_and_the_address_keeps_the_choice(browser, demo_page):
    browser.open(demo_page, fragment="#?condition=random&outcome=down")
    assert browser.ask(ROWS) == 2
    assert browser.ask(COUNT).startswith("2 of 500 problems listed. Flips in the table above, problems from wrong to")
    choose(browser, "outcome", "all")
    assert browser.ask(ROWS) == 200
    browser.click(".further")
    assert browser.ask(ROWS) == 400
    choose(browser, "level", "5")
    assert browser.ask(ROWS) == 113
    fragment = browser.ask("location.hash")
    assert "level=5" in fragment and "condition=random" in fragment
    browser.open(demo_page, fragment="#")
    browser.call("Page.navigate", url="about:blank")
    browser.open(demo_page, fragment=fragment)
    assert browser.ask(ROWS) == 113


@pytest.mark.slow
@needs_chromium
def test_the_search_covers_completions_whatever_their_outcome(browser, effect):
    browser.open(effect[1], fragment="#?outcome=down&condition=mless")
    assert browser.ask(ROWS) == 0 and browser.ask(COUNT).startswith("No problem matches these filters.")
    browser.click("[name=query]")
    browser.type("$X = 7$ and so on, MLESS")  # only in completions
    browser.wait(f"{ROWS} === 1")
    assert browser.ask(COUNT).startswith("1 of 40 problems listed, whatever their outcome. Flips in the table above")
    assert browser.ask("document.querySelector('[name=outcome]').disabled") is True
    choose(browser, "query", "mful says")  # of a condition that is not shown
    browser.wait(f"{COUNT}.startsWith('Nothing matches: no problem, answer or completion')")
    assert browser.ask(ROWS) == 0 and browser.ask("document.querySelector('.detail').textContent") == ""
    choose(browser, "condition", "mful")
    browser.wait(f"{ROWS} === 40")


@pytest.mark.slow
@needs_chromium
def test_the_keyboard_is_enough(browser, demo_page):
    browser.open(demo_page, fragment="#?outcome=all&problem=demo/number_theory/0.json")
    focus = "document.activeElement.className || document.activeElement.name || document.activeElement.tagName"
    inside = "document.activeElement.closest('.list tbody') !== null"
    browser.press("Tab")
    assert browser.ask(focus) == "skip"
    for _ in range(60):
        browser.press("Tab")
        assert browser.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        if browser.ask(inside):
            break
    assert browser.ask(inside)
    first = browser.ask(SELECTED)
    browser.press("ArrowDown")
    assert browser.ask(SELECTED) != first
    browser.press("End")
    assert browser.ask(ROWS) == 500 and browser.ask("location.hash").count("problem=") == 1
    browser.press("Home")
    browser.press("ArrowUp")
    assert browser.ask(SELECTED) == first
    browser.press("Enter")
    assert browser.ask(focus) == "detail"
    browser.press("Tab")
    assert browser.ask("document.activeElement.className") in ("fold", "further")
    browser.press("Escape")
    assert browser.ask(inside) and browser.ask(SELECTED) == first


@pytest.mark.slow
@needs_chromium
def test_a_filler_unfolds(browser, demo_page):
    browser.open(demo_page)
    browser.wait("document.querySelector('.fold')")
    shown = "document.querySelector('.detail .filler:not([hidden])')?.textContent"
    assert browser.ask("document.querySelector('.detail span.filler[hidden]') !== null")
    browser.click(".fold")
    assert browser.ask("document.querySelector('.text span.filler').textContent") == " ".join("/" * 55)
    assert browser.ask("document.querySelector('.text span.filler').hidden") is False, shown


@pytest.mark.slow
@needs_chromium
def test_hostile_text_does_nothing_in_a_browser(browser, hostile):
    browser.open(hostile[1], fragment="#?outcome=all")
    before = browser.ask("document.querySelectorAll('script, style, base, meta, iframe, img, object').length")
    for number in range(browser.ask(ROWS)):
        browser.ask(f"document.querySelectorAll('.list tbody tr')[{number}].click()")
        wanted = browser.ask(f"document.querySelectorAll('.list tbody button')[{number}].textContent")
        browser.wait(f"document.querySelector('.detail h3')?.textContent === {json.dumps(wanted)}")
        assert browser.ask("document.querySelector('.detail').textContent.includes('\\\\boxed')")
    browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert browser.ask("document.querySelectorAll('script, style, base, meta, iframe, img, object').length") == before
    assert browser.ask("[typeof window.pwned, document.querySelectorAll('[onclick], [onerror]').length]") == [
        "undefined",
        0,
    ]
    assert browser.ask("document.querySelectorAll('.detail bdi')[0].textContent.length") > 0


@pytest.mark.slow
@needs_chromium
def test_nothing_is_cut_on_a_phone_or_a_screen(browser, demo_page, example_page):
    wider = """[...document.querySelectorAll('body *')].filter(one => {
        const box = one.getBoundingClientRect();
        const hides = getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth;
        const cut = hides || box.right > innerWidth || box.left < 0;
        return cut && one.checkVisibility() && !one.closest('.skip, svg *');
    }).map(one => one.outerHTML.slice(0, 100))"""
    for width, phone in ((390, True), (1280, False)):
        for page in (example_page, demo_page):
            browser.look(width, 844, phone=phone)
            browser.open(page, fragment="#?outcome=all")
            browser.wait("document.querySelector('.detail .chip')")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            browser.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            browser.ask("document.querySelectorAll('.fold').forEach(one => one.click())")
            assert browser.ask(wider) == []
            seen = "[...document.querySelectorAll('figure svg')].filter(one => one.checkVisibility()).length"
            assert browser.ask(seen) == 1
    assert browser.pdf().startswith(b"%PDF-")


@pytest.mark.slow
@needs_chromium
def test_a_large_page_opens_at_once_and_looks_up_details_in_a_moment(browser, large):
    browser.open(large)
    opened = "performance.getEntriesByType('navigation')[0].domComplete"
    assert browser.ask(opened) < 5000  # milliseconds, on a busy machine
    browser.ask("document.querySelectorAll('.list tbody tr')[150].click()")
    wanted = browser.ask(SELECTED)
    browser.wait(f"document.querySelector('.detail h3')?.textContent === {json.dumps(wanted)}", seconds=5)


@pytest.mark.slow
@needs_chromium
def test_endless_marks_do_not_hang_the_page(browser, tmp_path):
    marks = ("$", "\\(", "\\boxed{", "$$x", "$x$ ", "\x00a", "\u200b\x00")
    write = lambda number, *_: (marks[number] * 60_000, "no_box")  # noqa: E731
    write_report([write_run(tmp_path / "run", problems=len(marks), write=write)], tmp_path / "page.html")
    browser.open(tmp_path / "page.html", fragment="#?outcome=all")
    for number in range(len(marks)):
        browser.ask(f"document.querySelectorAll('.list tbody tr')[{number}].click()")
        wanted = browser.ask(SELECTED)
        browser.wait(f"document.querySelector('.detail h3')?.textContent === {json.dumps(wanted)}", seconds=10)
