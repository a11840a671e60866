"""Folders of traces: what is added stays whatever happens, and what is torn or another's is one clear line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attention_probe.measure.definitions import ARRAYS, MEASURES
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError, JournalError
from tests.make import make_header, make_trace, same, write_traces

ROOT = Path(__file__).resolve().parents[2]


def pairs(count, **changes):
    return [make_trace(f"p{n}", condition, seed=n, **changes) for n in range(count) for condition in ("wo", "mless")]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_traces(tmp_path_factory.mktemp("traces") / "x.traces", pairs(4))


def contents(folder):
    """Every file's bytes by its name, but for the lock's, which is empty."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def copied(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "copy.traces", dirs_exist_ok=True))


def begin(path):
    return AttentionTraces.create(path, make_header(), receipt={})


def script(tmp_path, body):
    """Run Python beside the tests, with the example traces at hand."""
    path = tmp_path / "script.py"
    path.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom attention_probe.traces import AttentionTraces\n"
        f"from tests.make import make_header, make_trace\npath = Path({str(tmp_path / 'x.traces')!r})\n{body}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_everything_comes_back_in_the_order_of_adding(written):
    with AttentionTraces.open(written) as traces:
        found = list(traces)
        assert len(traces) == len(found) == 8 and all(map(same, found, pairs(4)))
        assert traces.conditions == ("wo", "mless") and traces.problem_ids == ("p0", "p1", "p2", "p3")
        assert traces.header == make_header() and traces.receipt == {"seed": 1}
        assert same(traces.get("p2", "mless"), make_trace("p2", "mless", seed=2))
        assert [t.problem_id for t in traces.select("mless", ["p3", "p1"])] == ["p1", "p3"]
        entry = traces.entries()[3]
        assert (entry.problem_id, entry.condition, entry.filler_span) == ("p1", "mless", (3, 7))


@given(
    texts=st.tuples(*[st.text(st.characters(codec=None), max_size=8)] * 9),
    problem_id=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    values=st.lists(st.floats(width=32), min_size=6, max_size=6),
    level=st.none() | st.integers(0, 9),
    activations=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_and_number_comes_back(tmp_path, texts, problem_id, values, level, activations):
    measure = np.array(values, dtype=np.float32).reshape(2, 3)
    facts = {"tokens": texts, "level": level, "activations": activations, "measures": {"lambda": measure}}
    trace = make_trace(condition="wo", **facts, outcome="wrong_to_right", control=True)
    trace = replace(trace, problem_id=problem_id)
    path = tmp_path / "x.traces"
    shutil.rmtree(path, ignore_errors=True)
    write_traces(path, [trace])
    with AttentionTraces.open(path) as traces:
        assert same(traces.get(problem_id, "wo"), trace)


def test_a_record_is_one_safetensors_file_that_others_can_read(written):
    from safetensors.numpy import load_file

    records = sorted(written.glob("*.safetensors"))
    assert contents(written).keys() == {"header.json", *(path.name for path in records)} and len(records) == 8
    arrays, trace = load_file(records[5]), pairs(4)[5]
    assert arrays.keys() == ARRAYS.keys() | {"mass_filler"}
    np.testing.assert_array_equal(arrays["mean_all"], trace.mean_all)
    np.testing.assert_array_equal(arrays["mass_filler"], trace.measures["mass_filler"])


def test_continuing_knows_what_is_there_and_keeps_the_first_receipt(tmp_path):
    path = write_traces(tmp_path / "x.traces", pairs(2))
    with AttentionTraces.create(path, make_header(conditions=("wo", "mful")), receipt={"seed": 2}) as traces:
        assert traces.has("p1", "mless") and not traces.has("p2", "wo")
        traces.append(make_trace("p2", "wo", seed=2))
    with AttentionTraces.open(path) as traces:
        assert len(traces) == 5 and traces.header.conditions == ("wo", "mless", "random", "mful")
        assert traces.receipt == {"seed": 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "other"}, 'model: "tiny" -> "other"'),
        ({"layers": (0, 1)}, "layers: [0, 2] -> [0, 1]"),
        ({"head_count": 4}, "head_count: 3 -> 4"),
        ({"queries": "completion"}, 'queries: "prompt" -> "completion"'),
        ({"fingerprint": {"revision": "b"}}, 'fingerprint.revision: null -> "b"'),
        ({"options": {"c": 0.1}}, "options.c: null -> 0.1"),
        ({"on_outcome": True}, "on_outcome: false -> true"),
    ],
)
def test_a_trace_of_another_kind_is_refused_naming_what_differs(tmp_path, written, change, told):
    path = copied(written, tmp_path)
    with pytest.raises(JournalError) as error:
        AttentionTraces.create(path, make_header(**change), receipt={})
    assert f"holds traces of another kind, nothing was added. Changed: {told}." in str(error.value)
    assert contents(path) == contents(written)


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
    assert all(same(trace, make_trace(f"p{n}", "mless", seed=n, size=400)) for n, trace in enumerate(found))
    begin(tmp_path / "x.traces").close()
    left = contents(tmp_path / "x.traces")
    assert len(left) == 1 + len(found) and not [name for name in left if name.endswith(".part")]


def test_a_second_writer_is_told_to_wait(tmp_path):
    path = tmp_path / "x.traces"
    with script(
        tmp_path,
        "traces = AttentionTraces.create(path, make_header(), receipt={})\nprint(1, flush=True)\ntime.sleep(600)",
    ) as other:
        assert other.stdout.readline() == "1\n"
        with pytest.raises(JournalError, match="is in use by another mless process"):
            begin(path)
        other.kill()
    write_traces(path, pairs(1))
    with begin(path) as traces:
        assert len(traces) == 2


def test_a_reader_sees_what_was_written_before_it_began(tmp_path):
    path = tmp_path / "x.traces"
    with AttentionTraces.create(path, make_header(), receipt={}) as writer:
        writer.append(make_trace())
        with AttentionTraces.open(path) as reader:
            writer.append(make_trace("p1"))
            assert len(reader) == 1 and same(reader.get("p0", "wo"), make_trace())
        with AttentionTraces.open(path) as reader:
            assert len(reader) == 2 and same(reader.get("p1", "wo"), make_trace("p1"))


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
    assert process.returncode == 2 and "cannot be read or written: File too large" in message
    with AttentionTraces.open(tmp_path / "x.traces") as traces:
        assert len(list(traces)) == len(reported) > 0
    assert len(contents(tmp_path / "x.traces")) == 1 + len(reported)


def test_cut_anywhere_it_is_one_clear_line(tmp_path, written):
    path = copied(written, tmp_path)
    for name, whole in contents(written).items():
        for cut in (0, 1, 7, 8, 9, 20, 100, 1000, len(whole) // 2, len(whole) - 100, len(whole) - 1):
            (path / name).write_bytes(whole[:cut])
            with pytest.raises(JournalError, match=r"is torn or damaged|is no folder of traces") as error:
                with AttentionTraces.open(path) as traces:
                    list(traces)
            assert "\n" not in str(error.value) and str(path) in str(error.value)
            assert (path / name).read_bytes() == whole[:cut]  # and untouched
        (path / name).write_bytes(whole)


def test_a_torn_record_is_named_and_probed_again_once_it_is_deleted(tmp_path, written):
    path = copied(written, tmp_path)
    torn = sorted(path.glob("*.safetensors"))[2]
    torn.write_bytes(torn.read_bytes()[:50])
    with pytest.raises(JournalError, match=rf"{torn.name} is torn or damaged .* Delete it and run the same"):
        begin(path)
    torn.unlink()
    with begin(path) as traces:
        assert not traces.has("p1", "wo") and len(traces) == 7
        traces.append(make_trace("p1", "wo", seed=1))
    with AttentionTraces.open(path) as traces:
        assert [entry.problem_id for entry in traces.entries()][-1] == "p1"
        assert same(traces.get("p1", "wo"), pairs(4)[2])


def test_what_is_something_else_is_named_and_not_touched(tmp_path):
    text, folder = tmp_path / "notes.txt", tmp_path / "other"
    text.write_text("not a trace")
    folder.mkdir()
    (folder / "header.json").write_text('{"a": 1}')
    for path in (text, folder, tmp_path):
        for attempt in (AttentionTraces.open, begin):
            with pytest.raises(JournalError, match=r"no folder of traces: header\.json is missing or damaged\."):
                attempt(path)
    with pytest.raises(JournalError, match="does not exist"):
        AttentionTraces.open(tmp_path / "missing")
    with pytest.raises(JournalError, match="cannot be read or written: Not a directory"):
        begin(text / "x")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["header.json", "notes.txt", "other"]
    assert text.read_text() == "not a trace" and (folder / "header.json").read_text() == '{"a": 1}'


@pytest.mark.parametrize("other", [3, 99])
def test_a_folder_of_another_format_is_refused(tmp_path, written, other):
    path = copied(written, tmp_path)
    about = json.loads((path / "header.json").read_text())
    (path / "header.json").write_text(json.dumps(about | {"mless_traces": other}))
    for attempt in (AttentionTraces.open, begin):
        with pytest.raises(JournalError, match=f"is of trace format {other}, this mless reads format 6"):
            attempt(path)


def test_a_kill_before_the_header_leaves_a_folder_that_can_be_begun(tmp_path):
    path = tmp_path / "x.traces"
    path.mkdir()
    (path / "header.json.part").touch()
    with pytest.raises(JournalError, match="holds no trace yet"):
        AttentionTraces.open(path)
    write_traces(path, pairs(1))
    with AttentionTraces.open(path) as traces:
        assert len(traces) == 2


def test_what_is_not_there_is_named_with_what_is(written):
    with AttentionTraces.open(written) as traces:
        with pytest.raises(
            ConfigError, match=r"holds no trace of problem p9 under wo. It has 4 problems under wo, mless"
        ):
            traces.get("p9", "wo")
        with pytest.raises(
            ConfigError, match=r"layer 1 \(Layer 2\) is not in these traces; they hold 0 \(Layer 1\), 2"
        ):
            traces.header.layer_index(1)
        with pytest.raises(ConfigError, match=r"head 3 \(Head 4\) is none of the model's heads, 0 to 2"):
            traces.header.check_head(3)
        with pytest.raises(ConfigError, match=r"has no bias of 4 of 4 problems under mless .*--decompose"):
            traces.measure("bias", "mless")


def test_a_measure_comes_as_problem_layer_head(written):
    with AttentionTraces.open(written) as traces:
        problems, values = traces.measure("mass_filler", "mless", ["p3", "p0"])
        assert problems == ["p3", "p0"] and values.shape == (2, 2, 3)
        np.testing.assert_array_equal(values[1], make_trace("p0", "mless", seed=0).measures["mass_filler"])


def test_the_header_gives_every_array_axes_a_unit_and_a_definition(written):
    told = json.loads((written / "header.json").read_text())["arrays"]
    assert told.keys() == ARRAYS.keys() | MEASURES.keys()
    trace = make_trace("p0", "mless")
    for name, one in told.items():
        if name in ARRAYS:
            assert len(one["axes"]) == getattr(trace, name).ndim, name
        assert one["unit"] and one["definition"].endswith("."), name
    assert told["mass_filler"]["axes"] == ["layer", "head"]


def test_wrong_shapes_and_undocumented_measures_are_refused():
    with pytest.raises(ValueError, match=r"roles has the shape \(3,\), expected \('position',\) = \(9,\)"):
        make_trace(roles=np.zeros(3, dtype=np.int8))
    with pytest.raises(ValueError, match="bais is not in MEASURES"):
        make_trace(measures={"bais": np.zeros((2, 3), dtype=np.float32)})
    with pytest.raises(ValueError, match="mass_filler has the shape"):
        make_trace(measures={"mass_filler": np.zeros(3, dtype=np.float32)})


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


def test_reading_needs_no_torch(written):
    code = (
        "import sys; from pathlib import Path; from attention_probe.traces import AttentionTraces\n"
        "from attention_probe.analysis.curves import average_curves\n"
        f"t = AttentionTraces.open(Path({str(written)!r}))\n"
        "average_curves(t, conditions=['mless'], layer=0, heads=[0]); t.close()\n"
        "import attention_probe.analysis.head_ranking\n"
        "print(*sorted(set(sys.modules) & {'torch', 'transformers', 'vllm', 'lm_eval', 'sklearn'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []
