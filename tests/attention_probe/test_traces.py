import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from attention_probe.measure.measure_definitions import ARRAYS, MEASURES
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError, JournalError, RunError
from tests.make import ROOT, make_header, make_trace, same, write_traces


def pairs(count, **changes):
    return [
        make_trace(f"p{n}", condition, seed=n, **changes)
        for n in range(count)
        for condition in ("wo", "mless")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_traces(tmp_path_factory.mktemp("traces") / "x.traces", pairs(4))


def contents(folder):
    """Every file's bytes by its name, but for the lock's, which is empty."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def copied(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "copy.traces", dirs_exist_ok=True))


def begin(path):
    return AttentionTraces.create(path, make_header(), receipt={})


def script(tmp_path, body):
    """Run Python beside the tests, with the example traces at hand."""
    path = tmp_path / "script.py"
    path.write_text(
        "import os\nfrom pathlib import Path\nfrom attention_probe.traces import AttentionTraces\n"
        f"from tests.make import make_header, make_trace\npath = Path({str(tmp_path / 'x.traces')!r})\n{body}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_everything_comes_back_in_the_order_of_adding(folder):
    with AttentionTraces.open(folder) as traces:
        found = list(traces)
        assert len(traces) == len(found) == 8 and all(map(same, found, pairs(4)))
        assert traces.conditions == ("wo", "mless") and traces.problem_ids == (
            "p0",
            "p1",
            "p2",
            "p3",
        )
        assert traces.header == make_header() and traces.receipt == {"seed": 1}
        assert same(traces.get("p2", "mless"), make_trace("p2", "mless", seed=2))
        entry = traces.entries()[3]
        assert (entry.problem_id, entry.condition, entry.filler_span) == ("p1", "mless", (3, 7))


def test_any_text_and_number_comes_back(tmp_path):
    facts = {
        "tokens": ("", "\0\n", "\ud800", "\u202e½", *'"<{,}'),
        "activations": {"": 1e300, "\ud800": -0.1},
    }
    measure = np.array([[np.nan, np.inf, 1e-45], [3e38, -1, 0]], np.float32)
    facts |= {"measures": {"lambda": measure}, "outcome": "wrong_to_right", "control": True}
    trace = make_trace("../½ \n", **facts)
    with AttentionTraces.open(write_traces(tmp_path / "x.traces", [trace])) as traces:
        assert same(traces.get(trace.problem_id, "wo"), trace)


def test_continuing_knows_what_is_there_and_keeps_the_first_receipt(tmp_path):
    path = write_traces(tmp_path / "x.traces", pairs(2))
    with AttentionTraces.create(
        path, make_header(conditions=("wo", "mful")), receipt={"seed": 2}
    ) as traces:
        assert traces.has("p1", "mless") and not traces.has("p2", "wo")
        traces.append(make_trace("p2", "wo", seed=2))
    with AttentionTraces.open(path) as traces:
        assert len(traces) == 5 and traces.header.conditions == ("wo", "mless", "random", "mful")
        assert traces.receipt == {"seed": 1}


def test_a_trace_of_another_kind_is_refused_naming_what_differs(tmp_path, folder):
    path = copied(folder, tmp_path)
    change = {"layers": (0, 1), "fingerprint": {"name": "tiny", "revision": "b"}, "flip": "changed"}
    message = 'Changed: fingerprint.revision: null -> "b"; flip: null -> "changed"; layers: [0, 2] -> [0, 1].'
    with pytest.raises(JournalError) as error:
        AttentionTraces.create(path, make_header(**change), receipt={})
    assert message in str(error.value) and contents(path) == contents(folder)


def test_a_killed_writer_loses_nothing_it_was_told_is_written(tmp_path):
    """Killed at several moments, each time continued: the folder holds every record that was reported, each whole."""
    body = (
        "with AttentionTraces.create(path, make_header(), receipt={}) as traces:\n"
        "    for n in range(100000):\n"
        "        if not traces.has(f'p{n}', 'mless'):\n"
        "            traces.append(make_trace(f'p{n}', 'mless', seed=n, size=400))\n"
        "            print(n, flush=True)\n"
    )
    reported = []
    for lines in (1, 7, 40):
        with script(tmp_path, body) as process:
            reported += [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            reported += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    assert reported == sorted(set(reported))  # continued where it stopped: nothing twice
    with AttentionTraces.open(tmp_path / "x.traces") as traces:
        found = list(traces)
    # each kill may have come between a record and its report; nothing else is left out
    assert set(reported) <= set(range(len(found))) and 0 <= len(found) - len(reported) <= 3
    assert all(
        same(trace, make_trace(f"p{n}", "mless", seed=n, size=400)) for n, trace in enumerate(found)
    )
    begin(tmp_path / "x.traces").close()
    left = contents(tmp_path / "x.traces")
    assert len(left) == 1 + len(found) and not [name for name in left if name.endswith(".part")]


def test_a_second_writer_is_told_to_wait(tmp_path):
    path = tmp_path / "x.traces"
    with begin(path), pytest.raises(JournalError, match="is in use by another mless process"):
        begin(path)
    begin(path).close()


def test_a_full_disk_is_one_clear_line_and_what_was_written_stays(tmp_path):
    body = (
        "import resource, signal\n"
        "from harness.errors import JournalError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n"
        "traces = AttentionTraces.create(path, make_header(), receipt={})\n"
        "try:\n"
        "    for n in range(1000):\n"
        "        traces.append(make_trace(f'p{n}', size=1000 * (n + 1)))\n"
        "        print(n, flush=True)\n"
        "except JournalError as error:\n"
        "    print(error, flush=True)\n"
        "    os._exit(2)\n"
    )
    with script(tmp_path, body) as process:
        *reported, message = process.communicate()[0].strip().split("\n")
    assert process.returncode == 2 and "cannot grow: File too large" in message
    with AttentionTraces.open(tmp_path / "x.traces") as traces:
        assert len(list(traces)) == len(reported) > 0
    assert len(contents(tmp_path / "x.traces")) == 1 + len(reported)


def test_cut_anywhere_it_is_one_clear_line(tmp_path, folder):
    path = copied(folder, tmp_path)
    for name, whole in contents(folder).items():
        for cut in (
            0,
            1,
            7,
            8,
            9,
            20,
            100,
            1000,
            len(whole) // 2,
            len(whole) - 100,
            len(whole) - 1,
        ):
            (path / name).write_bytes(whole[:cut])
            with pytest.raises(JournalError, match="is torn or damaged") as error:
                with AttentionTraces.open(path) as traces:
                    list(traces)
            assert "\n" not in str(error.value) and str(path) in str(error.value)
            assert (path / name).read_bytes() == whole[:cut]  # and untouched
        (path / name).write_bytes(whole)
    torn = sorted(path.glob("*.safetensors"))[2]
    torn.unlink()  # as the refusal advises: it is measured again, and stands last
    with begin(path) as traces:
        assert not traces.has("p1", "wo") and len(traces) == 7
        traces.append(make_trace("p1", "wo", seed=1))
    with AttentionTraces.open(path) as traces:
        assert [entry.problem_id for entry in traces.entries()][-1] == "p1"
        assert same(traces.get("p1", "wo"), pairs(4)[2])


@pytest.mark.parametrize(
    ("name", "content", "reading", "beginning"),
    [
        (".", None, "cannot be read", "cannot be written"),
        ("header.json", {"a": 1}, "header.json: Object missing", "header.json: Object missing"),
        ("notes.txt", {}, "header.json cannot be read", "already holds files"),
        ("header.json", {"mless_traces": 99}, "Invalid enum value 99", "Invalid enum value 99"),
        (
            "header.json.part",
            {},
            "header.json cannot be read",
            None,
        ),  # a kill before the header: it can be begun
    ],
)
def test_what_is_something_else_is_named_and_not_touched(
    tmp_path, folder, name, content, reading, beginning
):
    path = tmp_path / "x"
    if content is None:
        path.write_text("not a folder")
    else:
        path.mkdir()
        known = (
            json.loads((folder / "header.json").read_text()) if "mless_traces" in content else {}
        )
        (path / name).write_text(json.dumps(known | content))
    for attempt, message in ((AttentionTraces.open, reading), (begin, beginning)):
        with pytest.raises(RunError, match=message) if message else nullcontext():
            attempt(path)


def test_what_is_there_is_given_and_what_is_not_is_named(folder):
    with AttentionTraces.open(folder) as traces:
        (values,) = traces.measures(["mass_filler"], "mless", ["p3", "p0"])
        np.testing.assert_array_equal(
            values[1], make_trace("p0", "mless", seed=0).measures["mass_filler"]
        )
        for attempt, message in [
            (
                lambda: traces.header.axis_index("layer", 2),
                "Layer 2 is not in these traces: counted from 1, they hold 1, 3",
            ),
            (
                lambda: traces.header.axis_index("head", 0),
                "Head 0 is not in these traces: counted from 1, they hold 1, 2, 3",
            ),
            (
                lambda: traces.measures(["bias"], "mless", ["p0"]),
                "has no bias under mless.*--decompose",
            ),
        ]:
            with pytest.raises(ConfigError, match=message):
                attempt()


def test_the_header_gives_every_array_axes_a_unit_and_a_definition(folder):
    arrays = json.loads((folder / "header.json").read_text())["arrays"]
    assert arrays.keys() == ARRAYS.keys() | MEASURES.keys()
    trace = make_trace("p0", "mless")
    for name, quantity in arrays.items():
        if name in ARRAYS:
            assert len(quantity["axes"]) == getattr(trace, name).ndim, name
        assert quantity["unit"] and quantity["definition"].endswith("."), name
    assert arrays["mass_filler"]["axes"] == ["layer", "head"]


def test_reading_and_adding_hold_one_record_in_memory(tmp_path):
    body = (
        "import resource\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "trace = lambda n: make_trace(f'p{n}', size=20_000)\n"
        "with AttentionTraces.create(path, make_header(), receipt={}) as traces:\n"
        "    for n in range(100):\n"
        "        traces.append(trace(n))\n"
        "        if n == 10: start = peak()\n"
        "with AttentionTraces.open(path) as traces: assert sum(1 for _ in traces) == 100\n"
        "print(peak() - start, sum(file.stat().st_size for file in path.iterdir()) >> 20)\n"
    )
    with script(tmp_path, body) as process:
        out, error = process.communicate()
    grown, size = map(int, out.split())
    assert size > 100 and grown < 30, (grown, size, error)  # MiB
