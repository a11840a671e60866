import base64
import hashlib
import re
import shutil
import unicodedata
from itertools import product

import pytest
from lxml.html import document_fromstring as parse
from pandas import isna

from harness import compare, errors, load_run
from harness.display.report.report_page import write_report
from harness.display.value_texts import format_count, format_signed_number
from tests.browser import in_a_browser, open_tab
from tests.display.test_attention_page import unpack
from tests.make import (
    CONDITIONS,
    CONFIG,
    EXAMPLE,
    GREEDY_RUN,
    REGISTERED,
    TOY,
    module_fixture,
    one_line,
    read_data,
    read_lines,
    with_cases,
    write_records,
    write_run,
)

SVG = "data:image/svg+xml;base64,"

HOSTILE = read_data("hostile_texts")


def read_scripts(page):
    """The scripts of a page by their ids; the script that runs has none."""
    return {script.get("id", ""): script.text for script in parse(page).iter("script")}


def assert_harmless(page):
    """Only our scripts run, and nothing is loaded from outside."""
    elements = [*parse(page).iter("*")]
    tags = [element.tag for element in elements]
    assert tags.count("script") == len(read_scripts(page))
    assert not {"base", "iframe", "object"}.intersection(tags)
    for element in elements:
        assert not [name for name in element.attrib if name.startswith("on")]
        assert element.get("src", SVG).startswith(SVG)


def read_images(page):
    sources = re.findall(f'src="{re.escape(SVG)}([^"]+)"', page)
    return [base64.b64decode(source).decode() for source in sources]


def read_details(page):
    """The index, and the unpacked details by problem."""
    scripts = read_scripts(page)
    index = unpack(scripts["index"])
    blocks = {name: unpack(text) for name, text in scripts.items() if name.startswith("block-")}
    details = {}
    for problem in index["problems"]:
        if problem["at"]:
            block, position = problem["at"]
            details[problem["id"]] = blocks[f"block-{block}"][position]
    return index, details


def with_label(label):
    """Settings of a run with all conditions, whose model has this label."""
    model = {**CONFIG["model"], "label": label}
    return {"model": model, "conditions": list(CONDITIONS), **REGISTERED}


def improve_with_mless(request, target):
    """Answers that `mless` mends in nine of ten problems, `mful` in one, and `random` in none.

    The answers of the repeat run of the baseline are all wrong.
    """
    number = int(re.search(r"(\d+)\.json", request.problem_id)[1])
    condition = request.task.removeprefix("demo_")
    right_tenths = (condition == "mful") + (request.replicate == 0)
    is_right = condition == "mless" or number % 10 < right_tenths
    answer = f"$\\boxed{{{target if is_right else 'none'}}}$"
    return f"Since $x = {number}$ and so on, {condition} says {answer}", "stop"


def write_page(folder, *runs, **options):
    """Write a report into a folder and return its path and its text."""
    path = folder / "page.html"
    write_report(runs, path, **options)
    return path, path.read_text()


@module_fixture
def demo_page(tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("report"), GREEDY_RUN)


@module_fixture
def effect(tmp_path_factory):
    """A run in which fillers have effects: its comparison, and its page."""
    folder = tmp_path_factory.mktemp("effect")
    sampling = {"gen_kwargs": {"temperature": 0.5}, "repeats": 3, "replicates": 2}
    run = write_run(folder / "run", improve_with_mless, limit=40, **with_label("tiny"), **sampling)
    comparison = compare(load_run(run, replicates=True), **REGISTERED)
    return comparison, write_page(folder, run)[1]


@module_fixture
def hostile(tmp_path_factory):
    """Two runs in which all texts of users and models are hostile; figures name their models."""
    folder = tmp_path_factory.mktemp("<b>run&")
    problems = read_lines(TOY / "demo.jsonl")[:34]
    for number, problem in enumerate(problems):
        payload = HOSTILE[number % len(HOSTILE)]
        problem |= {
            "unique_id": f"{number} {payload}",
            "subject": f"subject {payload}",
            "answer": payload,
            "problem": f"{payload} {problem['problem']}",
        }
    path = folder / "problems.jsonl"
    write_records(path, problems)

    def answer(request, target):
        return f"{request.task} {target} $x$ {target} \\boxed{{{target}}}", "stop"

    settings = {"limit": 34, "dataset": {"path": str(path)}}
    labels = ("</script><b onclick=alert(1)>m\u202e\u2028\x1b\x00", HOSTILE[0])
    runs = [
        write_run(folder / str(number), answer, **settings, **with_label(label))
        for number, label in enumerate(labels)
    ]
    return runs[0], *write_page(folder, *runs)


def test_the_table_has_the_values_of_the_comparison(effect):
    comparison, page = effect
    cells = parse(page).iter("td")
    for _, row in comparison.iterrows():
        assert next(cells).get("data-key") == row["condition"]
        for name in ("accuracy", "difference", "p_adjusted", "verdict", "wrong_to_right"):
            key = next(cells).get("data-key")
            if name == "verdict":
                assert key == ("" if isna(row[name]) else row[name])
            else:
                assert float(key) == pytest.approx(row[name], rel=0, abs=0, nan_ok=True), name


def read_card(page):
    return one_line(" ".join(parse(page).find(".//header").itertext()))


def test_the_card_answers_the_question(demo_page, effect):
    card = read_card(demo_page[1])
    question = 'Does "w/ Mless" change the accuracy of mless-demo on demo?'
    answer = "equivalent within 1 point w/ Mless minus w/o: +0.2 points ["
    assert card.startswith(f"mless report: greedy_run {question} {answer}")
    assert "Noise and control No repeat run and no positive control were made" in card
    assert "<strong" not in demo_page[1]
    page = effect[1]
    assert '<span class="chip better">better</span> w/ Mless minus w/o: +' in page
    # only significant differences are bold
    assert {element.text for element in parse(page).iter("strong")} == {"better"}


@pytest.mark.slow
def test_the_card_and_the_forest_show_controls_and_noise(tmp_path):
    """Of the committed example, which has a control and a repeat run of both sides."""
    _, page = write_page(tmp_path, EXAMPLE)
    card = read_card(page)
    assert f"Q4_1, raw (no-examples): {format_signed_number(-44.6)} [" in card
    noise = "w/ Mless and its baseline: 0 of 480 completions differ"
    assert f"A/A, SmolLM2-135M-Instruct, Q4_1, raw, {noise}" in card
    image, *_ = read_images(page)
    texts = re.findall("<!-- (.*?) -->", image)
    assert texts.index("w/ Mless (A/A)") < texts.index("w/ Mless")
    assert {format_signed_number(6.7), "better", "[+2.4, +10.9]"} <= set(texts)  # as in the table


def test_every_sample_and_prompt_is_in_the_page_word_for_word(demo_page):
    index, details = read_details(demo_page[1])
    assert len(details) == 500 and len(index["problems"]) == 500
    for row in load_run(GREEDY_RUN).to_dict("records"):
        (sample,) = details[row["problem_id"]]["samples"][f"0 {row['condition']}"]
        assert (sample["completion"], sample["answer"]) == (row["completion"], row["answer"])
        graders = ["verdict", *index["graders"]]
        assert [sample[name] for name in graders] == [row[name] for name in graders]
    for row in read_lines(GREEDY_RUN / "prompts.jsonl"):
        segments = details[row["doc"]["id"]]["prompts"][f"0 {row['condition']}"]["parts"]
        assert "".join(text for _, text in segments) == row["prompt"]
        roles = [role for role, _ in segments if role != "separator"]
        filler = [] if row["condition"] == "wo" else ["filler"]
        assert roles == ["instruction", *filler, "problem"]


def test_the_list_counts_the_flips_of_the_table_by_their_definition(effect):
    comparison, page = effect
    index, _ = read_details(page)
    definition = (
        "problems that change from wrong to right, and from right to wrong, mean over pairs of "
        "samples"
    )
    assert index["define_flips"] == definition
    for _, row in comparison.iloc[1:].iterrows():
        name = f"0 {row['condition']}"
        gained = lost = 0
        for problem in index["problems"]:
            (old, old_samples), (new, new_samples) = (
                problem["right"]["0 wo"],
                problem["right"][name],
            )
            old_share, new_share = old / old_samples, new / new_samples
            gained += (1 - old_share) * new_share
            lost += old_share * (1 - new_share)
        assert (gained, lost) == pytest.approx((row["wrong_to_right"], row["right_to_wrong"]))
        assert index["flips"][name] == f"{format_count(gained)}/{format_count(lost)}"


def test_hostile_text_stays_text(hostile):
    run, _, page = hostile
    assert_harmless(page)
    allowed_tags = (
        "html head meta title style body a header h1 h2 main section p div table caption thead tr "
        "th button tbody td details summary dl dt dd pre script form label select input noscript "
        "figure figcaption bdi strong span img"
    )
    elements = [*parse(page).iter("*")]
    assert {element.tag for element in elements} <= set(allowed_tags.split())
    for element in elements:
        assert not {"style", "srcset", "action"}.intersection(element.attrib)
        assert element.get("href", "#").startswith("#")
    index, details = read_details(page)
    text = "".join(parse(page).xpath("//text()[not(parent::script)]"))
    for payload in HOSTILE[:12]:
        assert any(payload in problem["id"] for problem in index["problems"])
    assert "<U+202E>" in text
    completions = []
    for problem in details.values():
        for samples in problem["samples"].values():
            completions += [sample["completion"] for sample in samples]
    assert sorted(completions) == sorted([*load_run(run)["completion"]] * 2)
    # neither text nor images have characters that hide or reorder others
    hiding = ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert {letter for letter in page if unicodedata.category(letter) in hiding} == {"\n"}
    assert page.count("m&lt;U+202E&gt;&lt;U+2028&gt;&lt;U+001B&gt;&lt;U+0000&gt;") > 6


def test_the_policy_lets_only_our_script_and_style_run(hostile):
    rule = '//meta[@http-equiv="Content-Security-Policy"]/@content'
    (policy,) = parse(hostile[2]).xpath(rule)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    script = read_scripts(hostile[2])[""]
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["default-src"] == "'none'" and rules["script-src"] == f"'sha256-{checksum}'"
    assert "unsafe" not in policy and "://" not in policy
    assert "</" not in script and "innerHTML" not in script


def test_two_models_in_one_page(tmp_path):
    second_run = write_run(
        tmp_path / "second", improve_with_mless, limit=20, **with_label("second")
    )
    _, page = write_page(tmp_path, GREEDY_RUN, second_run)
    assert not re.search("https?://", page)  # a page has no external address
    index, details = read_details(page)
    assert [setting["model"] for setting in index["settings"]] == ["mless-demo", "second"]
    shared = [problem for problem in details.values() if len(problem["samples"]) == 8]
    assert len(shared) == 20
    assert set(shared[0]["prompts"]) == {f"{i} {name}" for i, name in product("01", CONDITIONS)}


@with_cases
def test_a_file_of_a_run_or_of_traces_is_not_overwritten(tmp_path, name):
    shutil.copy(GREEDY_RUN / "run.json", tmp_path / name)
    with pytest.raises(errors.ConfigError, match="is not a report: expected an "):
        write_report([GREEDY_RUN], tmp_path / name.removesuffix(".xz"))
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_one_condition_alone_is_shown_without_comparison(tmp_path, make_run):
    run = make_run(improve_with_mless, limit=2, conditions=["wo"])
    _, page = write_page(tmp_path, run)
    assert "There is only one condition, so nothing is compared." in page


# ---- in a browser --------------------------------------------------------------------------------


def render(page, fragment=""):
    """The page's elements after its script ran in a real browser without a window."""
    with open_tab(page.parent / "profile") as tab:
        tab.open(f"{page}{fragment}", ready=".list tbody tr")
        return tab.run("document.documentElement.outerHTML")


def read_list(dom):
    """The ids in the list of problems, and the selected id."""
    rows = re.search(r'<div class="list">.*?<tbody>(.*?)</tbody>', dom, re.DOTALL)[1]
    selected = re.search(r"aria-current.*?<bdi>(.*?)</bdi>", rows, re.DOTALL)
    return re.findall(r"<button[^>]*><bdi>(.*?)</bdi>", rows), selected and selected[1]


@in_a_browser
def test_a_page_opens_with_the_first_flip(demo_page):
    dom = render(demo_page[0])
    ids, selected = read_list(dom)
    assert ids[0] == selected == "demo/intermediate_algebra/292.json"
    detail = dom.partition('<div class="detail"')[2]
    verdicts = re.findall(r'<span class="chip[^"]*">(\w+)</span>', detail)
    assert verdicts == ["incorrect", "correct"]
    assert re.findall(r"<mark>(.*?)</mark>", detail) == ["\\boxed{1}", "\\boxed{2}"]


@in_a_browser
def test_in_a_narrow_window_the_problems_are_near_and_figures_fill_the_width(tmp_path):
    path, _ = write_page(tmp_path, EXAMPLE)
    with open_tab(tmp_path / "profile") as tab:
        tab.open(path, 400, ready=".list [aria-current]")
        assert tab.run("document.querySelector('#samples').offsetTop") < 2400  # in wide fonts
        width = tab.run("document.documentElement.clientWidth")
        widths = "document.querySelector('figure img').offsetWidth, document.body.scrollWidth"
        assert tab.run(f"[{widths}]") == [width, width]


@in_a_browser
@with_cases
def test_the_list_is_filtered(demo_page, fragment, problems):
    assert len(read_list(render(demo_page[0], fragment))[0]) == problems


@in_a_browser
def test_hostile_text_does_nothing_in_a_browser(hostile):
    for number in range(0, 34, 5):
        assert_harmless(render(hostile[1], f"#?outcome=all&row={number}"))


@in_a_browser
def test_many_problems_and_long_repetitions_of_marks_are_shown(demo_page, tmp_path, make_run):
    assert len(read_list(render(demo_page[0], "#?outcome=all"))[0]) == 200
    marks = ("$", "\\(", "\\boxed{", "$$x", "$x$ ", "\x00a", "\u200b\x00")
    numbers = {}  # each problem has a mark of its own

    def answer(request, target):
        number = numbers.setdefault(request.problem_id, len(numbers))
        return marks[number] * 60_000, "stop"

    run = make_run(answer, limit=len(marks), **with_label("endless"))
    path, _ = write_page(tmp_path, run)
    assert len(read_list(render(path, "#?outcome=all"))[0]) == len(marks)
