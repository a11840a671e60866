import doctest
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from harness.analysis.published_numbers import read_reference
from harness.experiment.run_config import load_config
from harness.grading import GRADERS, AuditJob, GradeJob, GraderPool, grade
from harness.grading.same_answer import compare
from harness.runs.records import SAMPLE_COLUMNS
from tests.conftest import PATIENCE
from tests.make import ROOT
from tools import reference_pages


@pytest.mark.parametrize("page", ["statistics.md", "grading.md", "finding.md", "../README.md"])
def test_the_python_of_a_page_prints_what_the_page_says(page):
    failed, tried = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert tried > 0 and failed == 0


GRADED = re.findall(
    r"^\| `(.+?)` \| `(.+?)` \| (.+) \|$", (ROOT / "docs/grading.md").read_text(), re.MULTILINE
)


@pytest.mark.parametrize(
    ("text", "gold", "rest"), GRADED, ids=[f"{text} | {gold}" for text, gold, _ in GRADED]
)
def test_every_example_of_the_page_on_grading_is_graded_so(text, gold, rest, graders):
    said = rest.split(" | ")
    if said[0] in ("right", "wrong"):
        graders.submit("ours", GradeJob(completion=text, target=gold))
        graders.submit(
            "theirs", AuditJob(prompt="Please answer.", completion=text, target=gold, solution="")
        )
        results = dict(graders.drain())
        found = [results["ours"].correct, *(getattr(results["theirs"], name) for name in GRADERS)]
        assert ["right" if right else "wrong" for right in found] == said
    elif said[0] in ("stop", "length"):
        assert grade(text, gold, finish_reason=said[0]).verdict == said[1]
    else:
        assert compare(text, gold).verdict == said[0]


def test_the_page_on_grading_has_examples_of_every_kind():
    assert len(GRADED) > 45
    columns = f"| completion | gold | ours | {' | '.join(GRADERS)} |"
    assert columns in (ROOT / "docs/grading.md").read_text()


@pytest.fixture(scope="module")
def graders():
    with GraderPool(workers=1, audits=True) as pool:
        yield pool


def test_what_the_page_on_the_study_tells_to_run_can_be_run():
    text = (ROOT / "docs/reproduce.md").read_text()
    paths = set(re.findall(r"configs/\w+/[\w.-]+\.yaml", text))
    assert len(paths) == 7 and all((ROOT / path).is_file() for path in paths)
    for name in set(re.findall(r"--reference ([\w-]+)", text)):
        assert read_reference(name).accuracies
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    commands = re.findall(r"^(?:\$run|mless run)(?:'[^']*'|[^'\n])*", blocks, re.MULTILINE)
    assert len(commands) == 5
    start = re.search(r'^run="(.*)"$', blocks, re.MULTILINE)[1]
    runs = {}
    for command in commands:
        _, _, config, *rest = shlex.split(command.replace("$run", start))
        run = load_config(ROOT / config, [word for word in rest if word != "--set"])
        assert len(run.conditions) >= 2
        runs[str(run.folder)] = run
    tables = re.findall(r"^mless table (results/\S+)(?: --reference (\S+))?", blocks, re.MULTILINE)
    assert {run for run, _ in tables} == runs.keys(), "every run's table is shown"
    compared = {run: read_reference(reference) for run, reference in tables if reference}
    assert len(compared) == 3
    for run, reference in compared.items():
        names = {condition.name for condition in runs[run].conditions}
        theirs = {entry.model: entry.conditions.keys() for entry in reference.accuracies}
        assert theirs[runs[run].model.display_name] == names, (
            "a number finds ours by its condition's name"
        )


def test_the_table_of_columns_is_that_of_the_file():
    rows = re.findall(
        r"^- `(\w+)` \((\w+)\): (.+)$", (ROOT / "docs/samples.md").read_text(), re.MULTILINE
    )
    assert {name: (kind, meaning) for name, kind, meaning in rows} == SAMPLE_COLUMNS


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_the_cells_of_a_notebook_run_and_print_what_it_shows(path):
    spec = importlib.util.spec_from_file_location("execute", ROOT / "docs/notebooks/execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = module.code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    figures = 0
    for cell, found in zip(cells, module.execute(notebook, path.parent), strict=True):
        kept = cell["outputs"]
        again = (
            "it shows other numbers: python docs/notebooks/execute.py docs/notebooks/" + path.name
        )
        texts = [[one["text"] for one in outputs if "text" in one] for outputs in (kept, found)]
        assert texts[0] == texts[1], again
        pictures = [
            [one for one in outputs if "image/png" in one.get("data", {})]
            for outputs in (kept, found)
        ]
        assert len(pictures[0]) == len(pictures[1]), again
        figures += len(pictures[0])
    assert figures >= 2 and path.stat().st_size < 300 * 1024


SECTIONS = dict(
    re.findall(
        r"^## (.+)\n((?:(?!^## ).*\n?)*)", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE
    )
)
QUICK = {"A served model"}
"""Recipes that start no engine and load no model."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(
        ROOT / "results/example",
        tmp_path / "results/example",
        ignore=shutil.ignore_patterns("*.traces"),
    )
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=(pytest.mark.slow, pytest.mark.engine))
        for name in SECTIONS
    ],
)
def test_a_recipe_runs_as_it_stands(name, folder):
    ran = 0
    for language, text in re.findall(
        r"^```(\w+)\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL
    ):
        if language == "yaml":
            first, rest = text.split("\n", 1)
            (folder / first.removeprefix("# ")).write_text(rest)
        elif language in ("bash", "python"):
            command = ["bash", "-euc", text] if language == "bash" else [sys.executable, "-c", text]
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PATH": path, "MPLBACKEND": "agg"},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            ran += 1
    assert ran > 0


def test_the_readme_is_short_and_its_table_has_the_numbers_of_its_picture():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900 and len(text.splitlines()) <= 130
    shown = (
        text.partition("```\nSmolLM2-135M-Instruct, Q4_1, raw, 80 problems")[2]
        .partition("```")[0]
        .splitlines()[4:]
    )
    picture = pandas.read_csv(ROOT / "docs/figures/products.csv")
    assert len(shown) == len(picture) == 7
    for line, row in zip(shown[1:], picture.iloc[1:].itertuples(), strict=True):
        assert (
            f" {row.accuracy:.1f} " in line
            and f" {row.difference:+.1f} [" in line
            and f" {row.verdict} " in line
        )


def test_the_readmes_first_table_has_published_and_measured_numbers():
    text = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"^\| (\S+) \| (.+) \| [^|]+, \W*(published|measured)[^|]* \|$", text, re.MULTILINE
    )
    printed, bars = read_reference("study-table-1"), read_reference("seed-bar-chart")
    example = json.loads((ROOT / "results/example/table.json").read_text())["rows"]
    measured = {row["condition"]: row["accuracy"] for row in example}
    assert [source for _, _, source in rows] == ["published"] * 3 + ["measured"]
    for model, numbers, source in rows:
        cells = [cell.strip(" *") for cell in numbers.split("|")]
        if source == "measured":
            conditions = ("wo", "mless", "mful", "random")
            assert cells == [f"{measured[condition]:.1f}" for condition in conditions]
            continue
        in_table = next(row.conditions for row in printed.accuracies if row.model == model)
        index = [row.model for row in printed.accuracies if row.model in text].index(model)
        in_chart = bars.accuracies[index].conditions
        expected = [f"{in_table[name]} ({in_chart[name]:.0f})" for name in ("wo", "mless")]
        assert cells == [*expected, f"({in_chart['mful']:.0f})", ""]


def test_links_between_pages_lead_somewhere():
    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    checked = 0
    for page in (
        ROOT / "README.md",
        ROOT / "tasks/math500/README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ):
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            other = (page.parent / name) if name else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or other.suffix != ".md" or anchor in anchors(other), (
                f"{page.name}: {target}"
            )
            checked += 1
    assert checked > 60
    index = (ROOT / "docs/README.md").read_text()
    assert all(
        f"({path.name})" in index
        for path in (ROOT / "docs").glob("*.md")
        if path.name != "README.md"
    )


def test_the_pages_of_keys_and_columns_are_those_of_the_code():
    for name, page in (
        ("config", reference_pages.config_page()),
        ("columns", reference_pages.columns_page()),
    ):
        assert (ROOT / f"docs/{name}.md").read_text() == page, "python -m tools.reference_pages"
