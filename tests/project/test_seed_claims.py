import re
from pathlib import Path

from benchmarks.seed_claims import load, page

PAGE = Path(__file__).resolve().parents[2] / "docs/seeds.md"


def test_the_first_table_of_the_page_is_what_is_printed_for_the_bundled_model(tmp_path):
    table = re.search(r"^\| number .*?\n\n", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    printed = next(page(load(tmp_path)))
    assert table[0].strip() == printed and printed.count("\n") == 6
