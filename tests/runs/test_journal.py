import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import JournalError
from harness.runs.journal import Journal
from tests.conftest import run_python
from tests.make import with_cases

HEADER = {"run": "x", "config": {"limit": None, "samples": 1}}


def make_record(number):
    return {"key": f"k{number}", "completion": "so \\boxed{3}\n"}


@pytest.fixture
def path(tmp_path):
    """A journal of three records."""
    with Journal(tmp_path / "j", HEADER) as journal:
        for number in range(3):
            journal.append(make_record(number))
    return tmp_path / "j"


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=50), max_size=5))
def test_any_text_comes_back(tmp_path, texts):
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    records = [{"key": str(number), "completion": text} for number, text in enumerate(texts)]
    with Journal(path, HEADER) as journal:
        for record in records:
            journal.append(record)
    assert [*map(json.loads, path.read_bytes().splitlines())][1:] == records


def test_a_journal_that_ends_at_any_byte_of_its_last_record_is_continued(path, capsys):
    content = path.read_bytes()
    start = content.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start, len(content)):
        path.write_bytes(content[:end])
        with Journal(path, HEADER) as journal:
            assert journal.keys == {"k0", "k1"}
            assert ("j: an incomplete last" in capsys.readouterr().err) == (end > start)
            journal.append(make_record(2))
        assert path.read_bytes() == content


def test_a_journal_that_ends_at_any_byte_of_its_header_begins_again(path):
    header = path.read_bytes().splitlines(keepends=True)[0]
    for end in range(len(header)):
        path.write_bytes(header[:end])
        with Journal(path, HEADER):
            pass
        assert path.read_bytes() == header


@with_cases
def test_a_damaged_line_in_the_middle_is_named(path, damage):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], damage.encode("latin-1"), *lines[2:]]))
    with pytest.raises(JournalError, match="j, line 3: damaged"):
        Journal(path, HEADER)


def test_a_repeated_record_is_refused(path):
    with path.open("a") as journal:
        journal.write(json.dumps(make_record(1)) + "\n")
    with pytest.raises(JournalError, match="j, line 5: the key k1 occurs twice"):
        Journal(path, HEADER)


LIMITED = """
import json, resource, sys
from pathlib import Path
from harness.errors import JournalError
from harness.runs.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
journal = Journal(Path(sys.argv[1]), {"run": "x"})
written = 0
try:
    while True:
        journal.append({"key": str(written), "completion": "x" * 700})
        written += 1
except JournalError as error:
    print(json.dumps({"written": written, "error": str(error)}))
"""


def test_a_full_disk_stops_cleanly_and_the_journal_can_be_continued_later(tmp_path, capsys):
    path = tmp_path / "j"
    reply = json.loads(run_python(LIMITED, path, 100_000))
    assert "cannot grow: File too large" in reply["error"]
    assert 100 < reply["written"] < 143
    with Journal(path, {"run": "x"}) as journal:
        assert not capsys.readouterr().err  # the incomplete line was removed when it did not fit
        assert len(journal.keys) == reply["written"]
        journal.append(make_record(9999))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(JournalError, match="nowhere/j cannot be written: No such file"):
        Journal(tmp_path / "nowhere" / "j", HEADER)
