import re

from attention_probe.figures.config import PromptsConfig
from benchmarks.seed_claims import load, page
from tests.make import ROOT, TOY_MODEL


def test_the_first_table_of_the_page_has_the_rows_that_are_printed(tmp_path):
    prompts = PromptsConfig.model_validate({"dataset": "math500", "layout": "as_published", "n": 4})
    printed, *_ = page(load(tmp_path, TOY_MODEL, prompts))
    page_text = (ROOT / "docs/seeds.md").read_text()
    table = re.search(r"^\| Mless against .*?\n\n", page_text, re.MULTILINE | re.DOTALL)[0].strip()
    first, second = ([line.split(" | ")[:2] for line in text.splitlines()] for text in (printed, table))
    assert first == second and len(first) == 11
