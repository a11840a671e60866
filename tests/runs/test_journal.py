import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import JournalError
from harness.runs.journal import Journal, clear_messages, differences

HEADER = {"run": "x", "config": {"limit": None, "samples": 1}}


def record(number, completion="so \\boxed{3}\n"):
    return {"key": f"k{number}", "completion": completion}


def read_journal(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def filled(path, count=3):
    with Journal(path, HEADER) as journal:
        for number in range(count):
            journal.append(record(number))
    return path


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=50), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back(tmp_path, texts):
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    with Journal(path, HEADER) as journal:
        for number, text in enumerate(texts):
            journal.append(record(number, text))
    assert [r["completion"] for r in list(read_journal(path))[1:]] == texts


def test_cut_at_every_byte_of_the_last_record_it_continues(tmp_path):
    content = filled(tmp_path / "whole").read_bytes()
    start = content.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(start, len(content)):
        path = tmp_path / "cut"
        path.write_bytes(content[:cut])
        with Journal(path, HEADER) as journal:
            assert journal.keys == {"k0", "k1"}
            assert (journal.repair is None) == (cut == start)
            journal.append(record(2))
        assert path.read_bytes() == content


def test_cut_at_every_byte_of_the_header_it_begins_again(tmp_path):
    content = filled(tmp_path / "whole", 0).read_bytes()
    for cut in range(len(content)):
        path = tmp_path / "cut"
        path.write_bytes(content[:cut])
        Journal(path, HEADER).close()
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    "damage", [b"{]\n", b"\xff\xfe\n", b"[1]\n", b"\n", b'{"key": 1}\n', b'{"no": "key"}\n']
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path, damage):
    path = filled(tmp_path / "j")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], damage, *lines[2:]]))
    with pytest.raises(JournalError, match="j, line 3: damaged"):
        Journal(path, HEADER)


def test_a_record_twice_is_refused(tmp_path):
    path = filled(tmp_path / "j")
    with path.open("a") as journal:
        journal.write(json.dumps(record(1)) + "\n")
    with pytest.raises(JournalError, match="j, line 5: the key k1 occurs twice"):
        Journal(path, HEADER)


def test_another_header_is_refused_naming_what_changed(tmp_path):
    path = filled(tmp_path / "j")
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"Changed: config.samples: 1 -> 5. .*--output"):
        Journal(path, {**HEADER, "config": {"limit": None, "samples": 5}})
    assert path.read_bytes() == before


def test_differences_name_every_leaf():
    old = {"a": {"b": 1, "c": [1]}, "d": None}
    new = {"a": {"b": 2, "c": [1]}, "d": None, "e": "x" * 99}
    assert differences(old, new) == ["a.b: 1 -> 2", f'e: null -> "{"x" * 56}...']


def test_every_record_is_on_disk_before_the_next(tmp_path):
    """What was appended is read by another reader at once: it is no longer in this process's memory."""
    with Journal(tmp_path / "j", HEADER) as journal:
        for number in range(3):
            journal.append(record(number))
            assert len(read_journal(tmp_path / "j")) == number + 2


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


def test_a_full_disk_stops_cleanly_and_continues_when_there_is_room(tmp_path):
    path = tmp_path / "j"
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, path, "100000"], capture_output=True, text=True, check=True
    )
    reply = json.loads(process.stdout)
    assert "cannot grow: File too large" in reply["error"]
    assert 100 < reply["written"] < 143
    with Journal(path, {"run": "x"}) as journal:
        assert journal.repair is None, "the half line was taken back when it did not fit"
        assert len(journal.keys) == reply["written"]
        journal.append(record(9999))


def test_a_full_file_system_is_told_the_same_way(tmp_path):
    message = "x cannot grow: No space left on device. Everything before is stored"
    with pytest.raises(JournalError, match=message), clear_messages(tmp_path / "x"):
        Path("/dev/full").write_bytes(b"x")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(JournalError, match="nowhere/j cannot be written: No such file"):
        Journal(tmp_path / "nowhere" / "j", HEADER)


@pytest.mark.slow
def test_memory_stays_flat_while_it_grows(tmp_path):
    """Ten times the records, of 20 kB each, cost only ten times the keys."""
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom harness.runs.journal import Journal\n"
        "with Journal(Path(sys.argv[1]), {}) as j:\n"
        "    for i in range(int(sys.argv[2])): j.append({'key': f'{i:064}', 'completion': 'x' * 20000})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for count in (300, 3000):
        command = [sys.executable, "-c", code, str(tmp_path / str(count)), str(count)]
        peaks.append(
            int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        )
    assert os.path.getsize(tmp_path / "3000") > 60e6
    assert peaks[1] - peaks[0] < 5_000, "kB"
