"""SmolLM2 from `mless run` to the last command, compared with plain Hugging Face.

One short run is made in `make test`; the rest is `make test-long`.
"""

import json
import subprocess

import numpy as np
import pandas
import pytest

import harness
from attention_probe.measure.head_decomposition import REGIONS
from attention_probe.traces import AttentionTraces
from harness.experiment.tokenizer import hash_token_ids
from harness.runs.run_files import RECORDED, read_prompts
from tests.attention_probe.test_probe import column_means, eager
from tests.commands.test_cli import here, refused
from tests.conftest import PATIENCE
from tests.engines.test_faults import MLESS, samples, wait_for
from tests.make import EXAMPLE, ROOT, table_page

pytestmark = pytest.mark.engine

ASKED = ["wo", "mless", "mless-first"]
COMMAND = (
    "run",
    str(ROOT / "configs/runs/products.yaml"),
    "--conditions",
    ",".join(ASKED),
    "--quiet",
    "--limit",
)
FIRST = {"name": "mless-first", "unit": "/", "placement": "before_system"}
REDISTRIBUTED = {"name": "arm", "intervention": {"kind": "redistribute", "layer": 1, "share": 0.1}}
ARMS = ["wo", "mless", FIRST, {"causes": "mless-first", "layer": 1}, REDISTRIBUTED]


@pytest.fixture(scope="session")
def run(mless, smollm2, tmp_path_factory):
    """A product with three draws of examples under three conditions and eight with an intervention: 33 samples."""
    folder = tmp_path_factory.mktemp("smollm2") / "run"
    arms = (
        "--set",
        f"conditions={json.dumps(ARMS)}",
        "--set",
        "model.model_args.kv_cache_memory_bytes=1073741824",
    )
    done = mless(
        *COMMAND[:2],
        *arms,
        "--record-attention",
        "1-2",
        "--quiet",
        "--limit",
        "1",
        "-o",
        str(folder),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "11 arms answer as in Hugging Face, 1 prompt each" in done.stderr
    return folder


@pytest.fixture(scope="module")
def whole_model(smollm2):
    import torch
    from transformers import AutoModelForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # beside other tests two threads wait for each other most of the time
    yield AutoModelForCausalLM.from_pretrained(
        smollm2, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    torch.set_num_threads(threads)


def completions(folder):
    frame = harness.load_run(folder).sort_values(["condition", "problem_id", "sample_index"])
    frame = frame[frame["condition"].isin(ASKED)]
    return (
        frame[["condition", "problem_id", "sample_index", "verdict", "completion"]]
        .to_numpy()
        .tolist()
    )


def test_a_short_run_has_the_answers_of_the_committed_example(run):
    frame = harness.load_run(run)
    ours = frame[frame["condition"].isin(ASKED)].set_index("prompt_token_sha256")["completion"]
    known = harness.load_run(EXAMPLE).set_index("prompt_token_sha256")["completion"]
    assert len(ours) == 9 and (ours == known[ours.index]).sum() >= 8, (
        "the same prompts, the same greedy answers"
    )


@pytest.mark.slow
@pytest.mark.parametrize("counted", ["run", "the committed example"])
def test_right_answers_are_those_of_plain_hugging_face(counted, request, smollm2, whole_model):
    """Greedy decoding of one prompt at a time, on the run's own token ids: of 100 at most 2 may differ."""
    import torch
    from transformers import AutoTokenizer

    folder = request.getfixturevalue("run") if counted == "run" else EXAMPLE
    tokenizer, frame = AutoTokenizer.from_pretrained(smollm2), harness.load_run(folder)
    greedy = {
        "max_new_tokens": 8,
        "do_sample": False,
        "stop_strings": ["\n"],
        "tokenizer": tokenizer,
    }
    for name, rows in frame[frame["condition"].isin(ASKED)].groupby("condition", observed=True):
        ours = rows.set_index("prompt_token_sha256")["correct"][:100]
        theirs = {}
        for row in read_prompts(folder):
            if row.condition == name and row.prompt_token_sha256 in ours.index.difference(theirs):
                ids = tokenizer(row.prompt)["input_ids"]
                assert hash_token_ids(ids) == row.prompt_token_sha256
                written = whole_model.generate(torch.tensor([ids]), **greedy)[0, len(ids) :]
                line, _, _ = tokenizer.decode(written).partition("\n")
                theirs[row.prompt_token_sha256] = line.strip() == row.doc["answer"]
        off = [key for key, right in theirs.items() if right != ours[key]]
        assert len(theirs) == len(ours) and len(off) <= 0.02 * len(ours), (name, off)


@pytest.mark.slow
def test_killed_it_goes_on_and_every_command_reads_it(run, mless, tmp_path):
    folder = tmp_path / "run"
    command = (*COMMAND, "12", "--record-attention", "1", "-o", str(folder))
    began = subprocess.Popen([MLESS, *command], stderr=subprocess.PIPE, text=True)
    wait_for(began, folder, 5)
    began.kill()
    began.communicate(timeout=PATIENCE)
    assert 0 < samples(folder) < 108
    assert mless(*command).returncode == 0
    with AttentionTraces.open(folder / RECORDED) as recorded:
        assert len(recorded) == len([*(folder / RECORDED).glob("*.safetensors")]) == 108, (
            "each once"
        )
    finished = completions(folder)
    assert len(finished) == 108 and all(one in finished for one in completions(run))
    traces = str(tmp_path / "drawn.traces")
    for command in (
        ("table", str(folder), "--explain"),
        ("show", str(folder)),
        (
            "probe",
            str(folder),
            "--n",
            "4",
            "--layers",
            "1-2",
            "--conditions",
            ",".join(ASKED),
            "-o",
            traces,
        ),
        ("figure", traces, "-o", str(tmp_path / "heads.png")),
        ("report", str(folder), "--traces", traces, "-o", str(tmp_path / "report.html")),
    ):
        done = mless(*command)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "SmolLM2-135M-Instruct" in (tmp_path / "report.html").read_text()


def test_its_arms_answer_as_hugging_face_does_and_are_taken_apart(
    run, capsys, monkeypatch, tmp_path
):
    facts = json.loads((run / "run.json").read_text())["sessions"][0]["engine"]["interventions"]
    assert set(facts["agreements"].values()) == {1} and facts["largest"] < 1e-3
    assert "Parts of a filler" in table_page(run)
    conditions = ("--conditions", "mless-first,mless-first-gap")
    done = here(
        capsys, monkeypatch, "probe", str(run), *conditions, "-o", str(tmp_path / "x.traces")
    )
    refused(done, "changes the model under mless-first-gap, which the probe does not")


def test_the_attention_it_recorded_is_eager_attention_and_under_an_arm_what_the_arm_says(
    run, whole_model
):
    with AttentionTraces.open(run / RECORDED) as traces:
        assert (
            traces.header.layers == (0, 1)
            and len(traces) == 33
            and traces.header.conditions[:2] == ("wo", "mless")
        )
        for trace in traces:
            if trace.condition in (*ASKED, "arm"):  # which changes what is above its attention
                layers = slice(1 if trace.condition == "arm" else 2)
                expected = column_means(
                    eager(whole_model, trace.token_ids)[0][layers], np.arange(len(trace.tokens))
                )
                np.testing.assert_allclose(trace.mean_all[layers], expected, atol=1e-5)
        for problem in traces.problem_ids:
            of = {name: traces.get(problem, name) for name in traces.conditions}
            filler = {name: one.measures["mass_filler"].mean(1) for name, one in of.items()}
            assert (filler["mless-first-no-scale"] > 0.01).all()
            assert (filler["mless-first-masked"] > 0.01).tolist() == [False, True], (
                "hidden in Layer 1 alone"
            )
            assert filler["mless-first-no-bias"][0] == 0 == filler["mless-first-gap"][1]
            total = {
                name: sum(one.measures[f"mass_{region}"] for region in REGIONS[:-1])[0]
                for name, one in of.items()
            }
            np.testing.assert_allclose(
                total["mless-first-scale"], of["mless-first"].measures["lambda"][0], atol=1e-5
            )
            np.testing.assert_allclose(total["mless-first-bias"], 1, atol=1e-5)


@pytest.mark.slow
def test_a_figure_of_the_study_is_the_same_from_the_run_and_from_the_probe(run, mless, tmp_path):
    config = str(ROOT / "configs/figures/qwen-heads-12-13-14-smollm2.yaml")
    for name, given in (("run", f"traces={run / RECORDED}"), ("probe", f"prompts={{run: {run}}}")):
        done = mless("figure", config, "--set", given, "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr[-3000:]
    ours, theirs = (
        pandas.read_csv(tmp_path / name / "qwen-heads-12-13-14-smollm2.csv")
        for name in ("run", "probe")
    )
    pandas.testing.assert_frame_equal(ours, theirs, check_exact=False, atol=1e-5)
    (measured,) = (tmp_path / "probe" / "traces").iterdir()
    with AttentionTraces.open(run / RECORDED) as recorded, AttentionTraces.open(measured) as probed:
        for one in probed:
            other = recorded.get(one.problem_id, one.condition)
            assert (other.token_ids == one.token_ids).all() and (
                other.original_pos == one.original_pos
            ).all()
            for name in ("mean_all", "mean_common"):
                np.testing.assert_allclose(getattr(other, name)[:1], getattr(one, name), atol=1e-5)
            for name, values in one.measures.items():
                np.testing.assert_allclose(
                    other.measures[name][:1], values, atol=1e-5, err_msg=name
                )
    assert mless("report", str(run), "-o", str(tmp_path / "report.html")).returncode == 0
    assert "run/attention" in (tmp_path / "report.html").read_text(), "shown unasked"
    done = mless(
        "figure",
        config.replace("-smollm2", ""),
        "--set",
        f"traces={run / RECORDED}",
        "-o",
        str(tmp_path),
    )
    assert (
        done.returncode == 2
        and "traces of smollm2, and the figure is of Qwen/Qwen2.5-Math-7B" in done.stderr
    )
