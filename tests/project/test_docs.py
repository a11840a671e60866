import doctest
import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pandas
import pytest
import yaml
from typer.main import get_command

from attention_probe.figures.figure_config import FigureConfig
from harness import RunConfig, grade, load_config, load_run
from harness.cli import app
from harness.engines.served_model import ServerArguments, check_served
from harness.grading import GRADERS, GradeJob, GraderPool
from harness.grading.answer_grading import compare_answers
from harness.runs.samples_frame import SAMPLE_COLUMNS
from harness.yaml_settings import Strict, parse_overrides, validate
from tests.conftest import PATIENCE, run_program, succeeded
from tests.make import ROOT, module_fixture, with_cases
from tools import reference_pages
from tools.size import GENERATED

DOCTESTS = ("statistics.md", "grading.md", "samples.md")


@pytest.mark.parametrize("page", DOCTESTS)
def test_the_python_of_a_page_prints_what_the_page_says(page):
    failed, attempted = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert attempted > 0 and failed == 0


GRADING = (ROOT / "docs/grading.md").read_text()
EXAMPLES = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+) \|$", GRADING, re.MULTILINE)


@pytest.mark.parametrize(("text", "gold", "verdicts"), EXAMPLES, ids=map(" | ".join, EXAMPLES))
def test_every_example_of_the_page_on_grading_is_graded_as_it_says(text, gold, verdicts, graders):
    first, *further = verdicts.split(" | ")
    if first in ("right", "wrong"):
        graders.submit("", GradeJob(prompt="Please answer.", completion=text, target=gold))
        ((_, grades),) = graders.drain()
        are_right = [grades.correct, *(getattr(grades, name) for name in GRADERS)]
        assert [("wrong", "right")[is_right] for is_right in are_right] == [first, *further]
    elif first in ("stop", "length"):
        assert grade(text, gold, finish_reason=first).verdict == further[0]
    else:
        assert compare_answers(text, gold).verdict == first


def test_the_page_on_grading_has_examples_of_every_kind():
    assert len(EXAMPLES) > 45
    assert f"| completion | gold | by_mless | {' | '.join(GRADERS)} |" in GRADING


@module_fixture
def graders():
    with GraderPool(worker_count=1, with_audit=True) as pool:
        yield pool


def test_the_page_on_the_study_has_a_table_of_every_run_and_its_published_numbers():
    page = (ROOT / "docs/reproduce.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    commands = "".join(blocks).replace("\\\n", " ")
    variable = re.search(r'^run="(.*)"$', commands, re.MULTILINE)[1]
    configs = {}
    for command in re.findall(r"^(?:\$run|mless run)(?:'[^']*'|[^'\n])*", commands, re.MULTILINE):
        _, _, path, *options = shlex.split(command.replace("$run", variable), comments=True)
        if "--dry-run" not in options:
            config = load_config(
                ROOT / path, parse_overrides(word for word in options if word != "--set")
            )
            configs[str(config.folder)] = config
    assert len(configs) == 5
    tables = re.findall(r"^mless table (results/\S+)", commands, re.MULTILINE)
    assert set(tables) == configs.keys()  # every run's table is shown
    published = re.search(r"^\| model \| (wo \| backslash .*) \|$", page, re.MULTILINE)[1]
    for folder in ("results/types", "results/positions"):
        names = {condition.name for condition in configs[folder].conditions}
        assert names <= set(published.split(" | "))


def test_the_page_of_columns_has_all_of_them_with_their_types():
    rows = re.findall(
        r"^- `(\w+)` \((\w+)\): .", (ROOT / "docs/samples.md").read_text(), re.MULTILINE
    )
    assert [name for name, _ in rows] == SAMPLE_COLUMNS
    filled = load_run(ROOT / "results/example").dropna(axis="columns")
    assert len(filled.columns) > 20
    for name, kind in rows:
        if name in filled:
            assert str(filled[name].dtype).lower().startswith(kind[:3]), name


@pytest.mark.parametrize("path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")))
def test_the_cells_of_a_notebook_print_what_it_shows(path):
    spec = importlib.util.spec_from_file_location("execute", ROOT / "docs/notebooks/execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notebook = json.loads(path.read_text())
    cells = module.code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    figures = 0
    for cell, outputs in zip(cells, module.execute(notebook, path.parent), strict=True):
        stored, printed = (
            [output.get("text") or output.get("data", {}).keys() for output in cell_outputs]
            for cell_outputs in (cell["outputs"], outputs)
        )
        assert stored == printed, f"python docs/notebooks/execute.py docs/notebooks/{path.name}"
        figures += str(stored).count("image/png")
    assert figures and path.stat().st_size < 300 * 1024


def find_blocks(text):
    """The language and the content of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


COMMANDS = {
    "README.md": "Qwen logs .eval",  # a hub, or logs that it does not show
    "columns.md": "",
    "conditions.md": "",
    "config.md": "",
    "models.md": "",
    "probe.md": "--engine causes",  # 35 minutes
    "report.md": "",
    "runs.md": "FILE",
    "tables.md": "RUN FILE .eval old/",
    "troubleshooting.md": "MODEL",
}
"""Pages whose commands and Python run here, and words of commands that do not: their inputs are
not on the page. Their options are checked."""
ELSEWHERE = {
    "api.md": "test_public_names.py",
    "install.md": "installs packages",
    "lm_eval_tasks.md": "test_wrap.py, test_regrade_logs.py",
    "recipes.md": "below",
    "reproduce.md": "needs a GPU and a hub; its configs are read above",
    "seeds.md": "needs MATH-500",
    "sink.md": "41 minutes",
}


def test_every_block_of_a_page_runs_or_has_a_reason():
    pages = {
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if {"bash", "python"} & dict(find_blocks(page.read_text())).keys()
    }
    pages.discard("README.md")  # `mless --help`
    listed = [DOCTESTS, COMMANDS.keys() - {"README.md"}, ELSEWHERE.keys()]
    assert set.union(*map(set, listed)) == pages and sum(map(len, listed)) == len(pages)


@pytest.fixture
def run_blocks(tmp_path):
    """Run the blocks of a text in a folder with the example and the configs; what they print."""
    for folder in ("configs", "tests"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    ignored = shutil.ignore_patterns("*.traces")
    shutil.copytree(ROOT / "results/example", tmp_path / "results/example", ignore=ignored)
    interpreters = {"bash": ["bash", "-euc"], "python": [sys.executable, "-c"]}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # `make test-long` installs inspect_ai beside the other packages
    packages = os.pathsep.join([*sys.path, f"{sys.prefix}/inspect"])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": packages, "MPLBACKEND": "agg"}
    options = {"cwd": tmp_path, "env": environment, "timeout": PATIENCE}

    def run(blocks):
        printed = ""
        for language, text in blocks:
            if language == "yaml":
                first, config = text.split("\n", 1)
                (tmp_path / first.removeprefix("# ")).write_text(config)
            elif language in interpreters:
                process = run_program(*interpreters[language], text, **options)
                printed += succeeded(process).stdout
        return printed

    return run


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_and_the_python_of_a_page_run(name, run_blocks):
    folder = ROOT if name == "README.md" else ROOT / "docs"
    not_run = COMMANDS[name].split()
    blocks = []
    for language, text in find_blocks((folder / name).read_text()):
        if language == "bash":
            lines = re.findall(
                r"^mless (?:'[^']*'|[^'\n])*", text.replace("\\\n", " "), re.MULTILINE
            )
            lines = [line for line in lines if not any(word in line for word in not_run)]
            blocks.append((language, "\n".join(lines)))
        elif language == "python":
            blocks.append((language, text))
    assert any(text for _, text in blocks)
    run_blocks(blocks)


CONFIG_KINDS = {"Run configs": RunConfig, "Figure configs": FigureConfig}
BASES = {
    RunConfig: """
name: example
model: {model_args: {pretrained: smollm2, dtype: float32}}
conditions: [wo, mless]
""",
    FigureConfig: """
name: example
model: smollm2
prompts: {dataset: math500}
heads: [{layer: 1, head: 1}]
rows: [{view: full, series: {mless: {}}}]
""",
}
"""What the examples of sections are added to."""


FRAGMENTS = [
    text
    for page in ("conditions.md", "grading.md", "statistics.md")
    for language, text in find_blocks((ROOT / "docs" / page).read_text())
    if language == "yaml"
]


@pytest.mark.parametrize("text", FRAGMENTS, ids=lambda text: text.partition(":")[0])
def test_a_fragment_of_a_page_is_part_of_a_run_config(text):
    validate(RunConfig, yaml.safe_load(BASES[RunConfig]) | yaml.safe_load(text), "the page")


SECTIONS = dict(
    re.findall(
        r"^## (.+)\n((?:(?!^## ).*\n?)*)", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE
    )
)
QUICK = {"A served model", "Problems with choices", "Results of any harness"}
"""Recipes that start no engine and load no model."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=(pytest.mark.slow, pytest.mark.engine))
        for name in SECTIONS
    ],
)
def test_the_commands_of_a_recipe_run(name, run_blocks):
    blocks = find_blocks(SECTIONS[name])
    assert {"bash", "python"} & dict(blocks).keys()
    printed = run_blocks(blocks)
    assert all(text in printed for language, text in blocks if not language)


STUB = """#!/usr/bin/env bash
(printf "%q " "$@" && echo) >> calls
! echo "$@" | grep -qE "^run .*/missing |^probe .*/quiet "
"""
"""A `mless` that records its calls. One model cannot be run, and of another no problem flips."""


def test_the_script_of_the_study_takes_each_step_and_leaves_out_what_fails(tmp_path):
    (tmp_path / "mless").write_text(STUB)
    (tmp_path / "mless").chmod(0o755)
    (tmp_path / "new/quiet").mkdir(parents=True)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RUN_OPTIONS": "--limit=4 --set=layouts=[raw]"}
    script = ["bash", ROOT / "scripts/study.sh", "new", "org/missing", "org/quiet"]
    process = run_program(*script, cwd=tmp_path, env=environment)
    calls = [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]
    names = ["run", "run", "probe", "report", *["figure"] * 5, "table"]
    assert [name for name, *_ in calls] == names
    assert process.stderr.count("not completed: mless ") == 2
    assert all((ROOT / arguments[0]).is_file() for name, *arguments in calls if name == "figure")
    commands = get_command(app).commands
    for name, *arguments in calls:
        commands[name].make_context(name, arguments)  # refuses an option that does not exist


def test_the_readme_is_short_and_its_table_has_the_numbers_of_the_demo():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 850 and len(text.splitlines()) <= 122
    table = text.partition("```\nSmolLM2-135M-Instruct, Q4_1, raw, 80 problems")[2]
    lines = table.partition("```")[0].splitlines()[4:]
    demo = pandas.read_csv(ROOT / "docs/figures/products.csv")
    assert len(lines) == len(demo) == 8
    for line, row in zip(lines[1:], demo.iloc[1:].itertuples(), strict=True):
        for cell in (f"{row.accuracy:.1f} ", f"{row.difference:+.1f} [", f"{row.verdict} "):
            assert f" {cell}" in line


def test_the_readmes_first_table_has_the_numbers_of_the_example():
    text = (ROOT / "README.md").read_text()
    data = json.loads((ROOT / "results/example/table.json").read_text())
    by_condition = {row["condition"]: row for row in data["rows"]}
    lines = re.findall(r"^\| .+ \| [\d.]+ \|.*$", text, re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[2:5]] for line in lines]
    assert len(rows) == 4
    for (accuracy, difference, verdict), name in zip(
        rows, ("wo", "mless", "random", "mless-first"), strict=True
    ):
        row = by_condition[name]
        assert accuracy == f"{row['accuracy']:.1f}"
        if name != "wo":
            assert difference.startswith(f"{row['difference']:+.1f} [")
            assert verdict.partition(";")[0] == row["verdict"]
    texts = pandas.read_csv(ROOT / "docs/figures/other-texts-by-task.csv").iloc[[0, 2]]
    ranks = re.findall(r"; (\w+) \(rank (\d+) of 21\) \|", text)
    assert ranks == [(row.place, str(row.rank)) for row in texts.itertuples()]


def test_every_command_of_a_page_has_its_options():
    commands, checked = get_command(app).commands, 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
        text = "\n".join(blocks).replace("\\\n", " ")
        for line in re.findall(r"^mless (?:'[^']*'|[^'\n])*", text, re.MULTILINE):
            _, name, *arguments = shlex.split(line, comments=True)
            if name in commands:
                commands[name].make_context(name, arguments)
                checked += 1
    assert checked > 50


def test_written_pages_have_at_most_15000_words():
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    assert sum(len(page.read_text().split()) for page in pages) <= 15_000


def find_anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def test_links_between_pages_have_a_target():
    pages = sorted((ROOT / "docs").glob("*.md"))
    checked = 0
    for page in (ROOT / "README.md", ROOT / "tasks/math500/README.md", *pages):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in find_anchors(target), f"{page.name}: {link}"
            checked += 1
    assert checked > 60
    index = (ROOT / "docs/README.md").read_text()
    assert all(f"({page.name})" in index for page in pages if page.name != "README.md")


def find_models(value):
    """The schemas of a config and of everything in it."""
    if isinstance(value, Strict):
        yield type(value)
        value = dict(value)
    if isinstance(value, dict):
        value = list(value.values())
    for entry in value if isinstance(value, list | tuple) else ():
        yield from find_models(entry)


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (CONFIG_KINDS[title], model)
        for title, models in reference_pages.SECTIONS.items()
        for model in models.values()
    ],
    ids=lambda model: model.__name__,
)
def test_the_example_of_a_section_is_a_config_that_has_it(kind, model):
    example = yaml.safe_load(reference_pages.EXAMPLES[model.__name__])
    base = yaml.safe_load(BASES[kind])
    if "models" in example:  # activations have no heads
        del base["heads"], base["rows"]
    config = validate(kind, {**base, **example}, model.__name__)
    if model is ServerArguments:
        check_served(config)
    else:
        assert any(issubclass(found, model) for found in find_models(config))


def test_every_schema_of_configs_has_a_section():
    schemas, pending = set(), [Strict]
    while pending:
        schema = pending.pop()
        pending += schema.__subclasses__()
        # a base's keys are those of its subclasses
        if not schema.__subclasses__():
            schemas.add(schema.__name__)
    sections = {
        model.__name__ for models in reference_pages.SECTIONS.values() for model in models.values()
    }
    assert len(schemas) > 20 and schemas <= sections == reference_pages.EXAMPLES.keys()


@with_cases
def test_types_and_defaults_are_written_as_they_are_typed(items):
    page = reference_pages.config_page()
    assert not [item for item in items if f"\n{item} " not in page]


def test_the_generated_pages_and_schemas_are_those_of_the_code():
    for path, text in reference_pages.generated_files().items():
        assert path.read_text() == text, "python -m tools.reference_pages"
