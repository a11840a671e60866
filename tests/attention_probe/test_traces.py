import json
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from attention_probe.measure.field_definitions import ARRAYS, MEASURES
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError, JournalError, RunError
from tests.attention_probe.conftest import store
from tests.make import ROOT, make_header, make_trace, module_fixture, same, with_cases, write_traces


def pairs(count):
    return [
        make_trace(f"p{number}", condition, seed=number)
        for number in range(count)
        for condition in ("wo", "mless")
    ]


@module_fixture
def folder(tmp_path_factory):
    return write_traces(tmp_path_factory.mktemp("traces") / "x.traces", pairs(4))


@pytest.fixture
def copy(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy.traces"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.traces"


def contents(folder):
    """The bytes of all files by name, without the lock, which is empty."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def create(path, **changes):
    return AttentionTraces.create(path, make_header(**changes), receipt={})


SCRIPT = """
import os, resource, signal
from pathlib import Path
from attention_probe.traces import AttentionTraces
from harness.errors import JournalError
from tests.make import make_header, make_trace

def create(path):
    return AttentionTraces.create(path, make_header(), receipt={{}})

path = Path({path!r})
{body}
"""


def start(path, body):
    """Run Python code in another process."""
    code = SCRIPT.format(path=str(path), body=body)
    command = [sys.executable, "-c", code]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_traces_are_read_as_written_and_in_this_order(folder):
    with AttentionTraces(folder) as traces:
        stored = list(traces)
        assert len(traces.entries()) == len(stored) == 8
        assert all(map(same, stored, pairs(4)))
        assert traces.conditions == ("wo", "mless")
        assert traces.problem_ids == ("p0", "p1", "p2", "p3")
        assert traces.header == make_header()
        assert traces.receipt["seed"] == 1
        assert same(traces.get("p2", "mless"), make_trace("p2", "mless", seed=2))
        entry = traces.entries()[3]
        assert (entry.problem_id, entry.condition, entry.filler_span) == ("p1", "mless", (3, 7))


def test_any_text_and_number_is_read_as_written(path):
    facts = {
        "tokens": ("", "\0\n", "\ud800", "\u202e½", *'"<{,}'),
        "activations": {"": 1e300, "\ud800": -0.1},
        "measures": {"lambda": np.float32([[np.nan, np.inf, 1e-45], [3e38, -1, 0]])},
        "outcome": "wrong_to_right",
        "control": True,
        "intervention": [{}],
    }
    trace = make_trace("../½ \n", **facts)
    with store(path, [trace]) as traces:
        stored = traces.get(trace.problem_id, "wo")
        assert same(stored, trace)
        assert stored.intervention == [{}]  # `same` does not tell lists from tuples


def test_a_continued_folder_has_the_stored_traces_and_the_first_receipt(path):
    write_traces(path, pairs(2))
    header = make_header(conditions=("wo", "mful"))
    with AttentionTraces.create(path, header, receipt={"seed": 2}) as traces:
        assert traces.has("p1", "mless")
        assert not traces.has("p2", "wo")
        traces.append(make_trace("p2", "wo", seed=2))
    with AttentionTraces(path) as traces:
        assert len(traces.entries()) == 5
        assert traces.header.conditions == ("wo", "mless", "random", "mful")
        assert traces.receipt["seed"] == 1


@with_cases
def test_traces_with_other_settings_are_refused_with_the_differences(
    copy, folder, change, differences
):
    with pytest.raises(JournalError) as error:
        create(copy, **change)
    assert f"Changed: {differences}." in str(error.value)
    assert contents(copy) == contents(folder)


def test_a_killed_writer_loses_no_trace_that_was_reported_as_written(path):
    """The writer is killed at several moments and each time continued."""
    body = """
with create(path) as traces:
    for number in range(100000):
        if not traces.has(f"p{number}", "mless"):
            traces.append(make_trace(f"p{number}", "mless", seed=number, size=400))
            print(number, flush=True)
"""
    reported = []
    for count in (2, 40):
        with start(path, body) as process:
            reported += [int(process.stdout.readline()) for _ in range(count)]
            process.send_signal(signal.SIGKILL)
            reported += map(int, process.stdout.read().split("\n")[:-1])
    assert reported == sorted(set(reported))  # none is written twice
    with AttentionTraces(path) as traces:
        stored = list(traces)
    # each kill may have come between a trace and its report
    assert set(reported) <= set(range(len(stored)))
    assert len(stored) - len(reported) <= 3
    for number, trace in enumerate(stored):
        assert same(trace, make_trace(f"p{number}", "mless", seed=number, size=400))
    with create(path):
        pass
    assert len(contents(path)) == 1 + len(stored)  # partial files are removed


def test_a_second_writer_is_refused(path):
    with create(path), pytest.raises(JournalError, match="is in use by another mless process"):
        create(path)
    with create(path):
        pass


def test_a_full_disk_gives_one_message_and_keeps_what_was_written(path):
    body = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
traces = create(path)
try:
    for number in range(1000):
        traces.append(make_trace(f"p{number}", size=1000 * (number + 1)))
        print(number, flush=True)
except JournalError as error:
    print(error, flush=True)
    os._exit(2)
"""
    with start(path, body) as process:
        *reported, message = process.communicate()[0].strip().split("\n")
    assert process.returncode == 2
    assert "cannot grow: File too large" in message
    with AttentionTraces(path) as traces:
        assert len(list(traces)) == len(reported) > 0
    assert len(contents(path)) == 1 + len(reported)


def test_a_file_that_is_cut_anywhere_is_refused_in_one_line(copy):
    for name, content in contents(copy).items():
        for end in (0, 1, 7, 8, 9, 20, 100, 1000, len(content) // 2, -100, -1):
            (copy / name).write_bytes(content[:end])
            with pytest.raises(JournalError, match="is torn or damaged") as error:
                with AttentionTraces(copy) as traces:
                    list(traces)
            assert "\n" not in str(error.value)
            assert str(copy) in str(error.value)
            assert (copy / name).read_bytes() == content[:end]  # the file is not changed
        (copy / name).write_bytes(content)


def test_a_removed_trace_is_measured_again_and_comes_last(copy):
    sorted(copy.glob("*.safetensors"))[2].unlink()
    with create(copy) as traces:
        assert not traces.has("p1", "wo")
        assert len(traces.entries()) == 7
        traces.append(make_trace("p1", "wo", seed=1))
    with AttentionTraces(copy) as traces:
        assert traces.entries()[-1].problem_id == "p1"
        assert same(traces.get("p1", "wo"), pairs(4)[2])


@with_cases
def test_a_path_that_holds_no_traces_is_refused(
    path, folder, name, content, open_error, create_error
):
    if content is None:
        path.write_text("not a folder")
    else:
        path.mkdir()
        if "mless_traces" in content:
            content = json.loads((folder / "header.json").read_text()) | content
        (path / name).write_text(json.dumps(content))
    with pytest.raises(RunError, match=open_error):
        AttentionTraces(path)
    with pytest.raises(RunError, match=create_error) if create_error else nullcontext():
        create(path)


@with_cases
def test_absent_layers_and_heads_are_refused(folder, axis, index, message):
    with AttentionTraces(folder) as traces, pytest.raises(ConfigError, match=message):
        traces.header.axis_index(axis, index)


def test_the_header_gives_every_array_axes_a_unit_and_a_definition(folder):
    arrays = json.loads((folder / "header.json").read_text())["arrays"]
    assert arrays.keys() == ARRAYS.keys() | MEASURES.keys()
    trace = make_trace("p0", "mless")
    for name, quantity in arrays.items():
        if name in ARRAYS:
            assert len(quantity["axes"]) == getattr(trace, name).ndim, name
        assert quantity["unit"], name
        assert quantity["definition"].endswith("."), name
    assert arrays["mass_filler"]["axes"] == ["layer", "head"]


def test_reading_and_writing_hold_one_trace_in_memory(path):
    body = """
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

with create(path) as traces:
    for number in range(100):
        traces.append(make_trace(f"p{number}", size=20_000))
        if number == 10:
            before = peak()
with AttentionTraces(path) as traces:
    assert sum(1 for _ in traces) == 100
print(peak() - before, sum(file.stat().st_size for file in path.iterdir()) >> 20)
"""
    with start(path, body) as process:
        stdout, stderr = process.communicate()
    growth, size = map(int, stdout.split())
    assert size > 100, "MiB"
    assert growth < 30, (growth, stderr)
