import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from tests.conftest import PATIENCE
from tests.make import ROOT
from tools import reference_pages

SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", (ROOT / "docs/recipes.md").read_text(), re.MULTILINE))
QUICK = {"A served model", "My own plot"}
"""Recipes that start no engine and load no model."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(ROOT / "results/example", tmp_path / "results/example", ignore=shutil.ignore_patterns("*.traces"))
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=(pytest.mark.slow, pytest.mark.engine)) for name in SECTIONS],
)
def test_a_recipe_runs_as_it_stands(name, folder):
    ran = 0
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL):
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
    shown = text.partition("```\nSmolLM2-135M-Instruct, Q4_1, raw, 79 problems")[2].partition("```")[0].splitlines()[4:]
    picture = pandas.read_csv(ROOT / "docs/figures/products.csv")
    assert len(shown) == len(picture) == 7
    for line, row in zip(shown[1:], picture.iloc[1:].itertuples(), strict=True):
        assert f" {row.accuracy:.1f} " in line and f" {row.difference:+.1f} [" in line and f" {row.verdict} " in line


def test_links_between_pages_lead_somewhere():
    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    checked = 0
    for page in (ROOT / "README.md", ROOT / "tasks/math500/README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            name, _, anchor = target.partition("#")
            other = (page.parent / name) if name else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or other.suffix != ".md" or anchor in anchors(other), f"{page.name}: {target}"
            checked += 1
    assert checked > 60
    index = (ROOT / "docs/README.md").read_text()
    assert all(f"({path.name})" in index for path in (ROOT / "docs").glob("*.md") if path.name != "README.md")


def test_the_pages_of_keys_and_columns_are_those_of_the_code():
    for name, page in (("config", reference_pages.config_page()), ("columns", reference_pages.columns_page())):
        assert (ROOT / f"docs/{name}.md").read_text() == page, "python -m tools.reference_pages"
