"""The real engine on the bundled model: our run against the stock command, sample for sample.

One engine start in `make test`, more in `make test-long`.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pandas
import pytest

from harness import load_run, resources
from harness.experiment.conditions import as_condition
from harness.experiment.prompt import Layout, PromptSettings
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from harness.runs.run_files import read_identity, read_prompts, read_samples
from tests.conftest import BUDGET, LIMIT, PATIENCE
from tests.make import TOY_CONFIG, TOY_MODEL, TOY_PROBLEMS

pytestmark = pytest.mark.engine

ENGINE = (
    f"pretrained={TOY_MODEL},dtype=float32,max_model_len=4096,enforce_eager=True,kv_cache_memory_bytes=1073741824,"
    "enable_chunked_prefill=False,max_num_batched_tokens=8192"
)
CONDITIONS = ["wo", "mless", "mful", "random"]
COMPARED = 15
"""Problems of the run that other commands generate too."""


def stock(lm_eval, folder, *arguments):
    done = lm_eval(
        *(
            "run",
            *arguments,
            "--tasks",
            "math500_conditions",
            "--include_path",
            str(resources.folder("tasks")),
        ),
        *("--limit", str(COMPARED), "--gen_kwargs", f"max_gen_toks={BUDGET}", "--log_samples"),
        *("--output_path", str(folder)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return read_lm_eval_samples(folder)


def read_lm_eval_samples(folder):
    """Samples that lm-eval logged, with our verdicts, sorted by condition and problem."""
    rows = []
    for log in sorted(Path(folder).rglob("samples_*.jsonl")):
        condition = log.name.removeprefix("samples_math500_").partition("_2")[0]
        for sample in map(json.loads, log.read_text().rstrip("\n").split("\n")):
            verdict = json.loads(sample["filtered_resps"][0][0])["verdict"]
            rows.append(
                (
                    condition,
                    sample["doc"]["id"],
                    sample["prompt_hash"],
                    sample["resps"][0][0],
                    verdict,
                )
            )
    frame = pandas.DataFrame(
        rows, columns=["condition", "problem_id", "prompt_sha256", "completion", "verdict"]
    )
    return frame.sort_values(["condition", "problem_id"], ignore_index=True)


def generated(mless, folder, limit, *settings):
    """The folder of another run of the bundled problems, once it is finished."""
    flags = [part for one in settings for part in ("--set", one)]
    done = mless(
        "run", TOY_CONFIG, "--limit", str(limit), "--output", str(folder), "--quiet", *flags
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def ours(folder, layout):
    frame = load_run(folder)
    asked = [problem.id for problem in TOY_PROBLEMS[:COMPARED]]
    frame = frame[(frame["layout"] == layout) & frame["problem_id"].isin(asked)]
    return frame.astype({"condition": str}).sort_values(
        ["condition", "problem_id"], ignore_index=True
    )


def assert_equal(theirs, mine, *columns):
    for column in columns:
        assert list(theirs[column]) == list(mine[column])


def test_the_table_has_every_condition_and_layout(our_run, mless):
    folder, printed = our_run
    assert mless("table", str(folder)).stdout.strip() in printed
    rows = json.loads(mless("table", str(folder), "--format", "json").stdout)["rows"]
    assert [(r["layout"], r["condition"], r["problems"]) for r in rows] == [
        (layout, condition, LIMIT) for layout in ("raw", "chat") for condition in CONDITIONS
    ]


def test_the_run_folder_is_complete(our_run):
    folder, _ = our_run
    receipt = json.loads((folder / "run.json").read_text())
    assert (
        receipt["problems"] == LIMIT
        and receipt["arms"]["demo_wo"]["sampling"]["max_tokens"] == BUDGET
    )
    assert receipt["timing"]["tokens"] == load_run(folder)["completion_tokens"].sum()
    assert receipt["versions"]["vllm"] and receipt["model"]["sha256"]["model.safetensors"]
    assert all(
        (folder / task["samples"]).is_file() and (folder / task["results"]).is_file()
        for task in receipt["tasks"]
    )
    assert (folder / "accuracy.png").stat().st_size > 10_000


def test_the_engine_takes_requests_in_the_plans_order(our_run):
    """A request begins when one before it has ended, so none ends before its turn."""
    folder, _ = our_run
    (session,) = json.loads((folder / "run.json").read_text())["sessions"]
    at_once = session["engine"]["max_num_seqs"]
    turns = {(row.task, row.doc["id"]): turn for turn, row in enumerate(read_prompts(folder))}
    ended = [turns[sample.task, sample.problem_id] for sample in read_samples(folder)]
    assert at_once < len(ended)
    assert [(before, turn) for before, turn in enumerate(ended) if turn >= at_once + before] == []


def test_truncated_is_told_from_no_box(our_run):
    frame = load_run(our_run[0])
    assert (frame["verdict"] == "truncated").any()
    cut = frame[frame["verdict"] == "truncated"]
    assert (cut["finish_reason"] == "length").all() and (cut["completion_tokens"] == BUDGET).all()


def test_the_engine_ran_the_checked_token_ids(our_run, toy_tokenizer):
    model = ModelTokenizer(name="toy", tokenizer=toy_tokenizer)
    problems = [problem.id for problem in TOY_PROBLEMS[:LIMIT]]
    frame = load_run(our_run[0])
    for layout in (Layout.RAW, Layout.CHAT):
        for name in CONDITIONS:
            (built,) = build_checked_prompts(
                TOY_PROBLEMS[:LIMIT], [as_condition(name)], PromptSettings(layout=layout), model
            )
            rows = frame[(frame["layout"] == layout) & (frame["condition"] == name)].set_index(
                "problem_id"
            )
            expected = [(one.prompt_token_sha256, len(one.token_ids)) for one in built.prompts]
            columns = rows.loc[problems][["prompt_token_sha256", "prompt_tokens"]]
            assert list(columns.itertuples(index=False, name=None)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "flags"), [("raw", []), ("chat", ["--apply_chat_template"])])
def test_the_stock_command_gives_the_same_samples(our_run, lm_eval, tmp_path, layout, flags):
    theirs = stock(
        lm_eval, tmp_path, "--model", "vllm", "--model_args", ENGINE, "--batch_size", "auto", *flags
    )
    mine = ours(our_run[0], layout)
    mine["verdict"] = mine["verdict"].replace(
        "truncated", "no_box"
    )  # stock does not say why a completion ended
    assert_equal(theirs, mine, "problem_id", "prompt_sha256", "completion", "verdict")


@pytest.mark.slow
def test_500_seeded_sampled_prompts_in_one_pool(mless, tmp_path):
    """On a CPU a seeded request whose prompt is prefilled in chunks kills vLLM: the engine sees to it that none is."""
    flags = ["gen_kwargs={temperature: 1.2, top_p: 0.95}", "repeats=5", f"max_gen_toks={BUDGET}"]
    flags += ["conditions=[wo, mless, {name: twin, unit: /}, random]"]
    frame = load_run(generated(mless, tmp_path / "run", 25, *flags))
    assert len(frame) == 500 and frame["finish_reason"].isin(["stop", "length"]).all()
    seeds = frame.groupby(["problem_id", "sample_index"], observed=True)["seed"]
    assert (seeds.nunique() == 1).all(), "one seed for a problem's sample, whatever the condition"
    assert frame["seed"].nunique() == 125
    several = frame.groupby(["condition", "problem_id"], observed=True)["completion"].nunique()
    assert (several > 1).mean() > 0.1, (
        "samples of one problem differ, for a model that is so sure of itself"
    )
    places = frame.set_index(["condition", "problem_id", "sample_index"])["completion"].sort_index()
    assert places["twin"].equals(places["mless"]), "the same prompt under the same seed"
    sampling = read_identity(tmp_path / "run").arms["demo_wo"].sampling
    assert (sampling.source, sampling.temperature, sampling.top_p) == ("explicit", 1.2, 0.95)
    logged = next((tmp_path / "run").glob("samples_demo_wo_2*.jsonl")).read_text().splitlines()
    assert len(logged) == 25 and len(json.loads(logged[0])["resps"][0]) == 5
    table = json.loads(mless("table", str(tmp_path / "run"), "--format", "json").stdout)
    assert [(row["problems"], row["repeats"]) for row in table["rows"]] == [(25, 5)] * 4


@pytest.mark.slow
def test_a_completion_ends_with_its_first_line_by_every_backend(mless, tmp_path):
    asked = (
        "dataset={make: products, seed: 3}",
        "answer=line",
        "max_gen_toks=24",
        "conditions=[wo, mless]",
    )
    on_hf = f"model={{backend: hf, model_args: {{pretrained: {TOY_MODEL}, dtype: float32, device: cpu}}}}"
    ours = load_run(generated(mless, tmp_path / "vllm", 12, *asked))
    theirs = load_run(generated(mless, tmp_path / "hf", 12, *asked, on_hf))
    assert list(ours["completion"]) == list(theirs["completion"]) and len(ours) == 24
    assert (
        not ours["completion"].str.contains("\n").any() and (ours["finish_reason"] == "stop").any()
    )


@pytest.mark.slow
def test_the_hf_backend_runs_the_same_prompts(our_run, lm_eval, tmp_path):
    arguments = (
        "--model",
        "hf",
        "--model_args",
        f"pretrained={TOY_MODEL},dtype=float32",
        "--device",
        "cpu",
    )
    theirs = stock(lm_eval, tmp_path, *arguments, "--batch_size", "12")
    mine = ours(our_run[0], "raw")
    assert_equal(theirs, mine, "prompt_sha256")
    same = theirs["completion"].to_numpy() == mine["completion"].to_numpy()
    assert same.mean() > 0.9  # other kernels, the same arithmetic


@contextmanager
def serve(model, log):
    """The address of a server of vLLM's, which calls the model `demo`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [
        str(Path(sys.executable).with_name("vllm")),
        "serve",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    command += [
        "--dtype",
        "float32",
        "--max-model-len",
        "4096",
        "--enforce-eager",
        "--served-model-name",
        "demo",
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("w") as stream:
        server = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
        try:
            for _ in range(PATIENCE):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()[-3000:]
                    time.sleep(1)
            else:
                pytest.fail("vllm serve never became healthy: " + log.read_text()[-3000:])
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(30)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    with serve(TOY_MODEL, tmp_path_factory.mktemp("serve") / "log") as address:
        yield address


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "backend", "arguments"),
    [
        ("raw", "local-completions", "completions,tokenizer_backend=huggingface,max_length=4096"),
        ("chat", "local-chat-completions", "chat/completions"),
    ],
)
def test_a_server_asked_by_lm_eval_gives_the_same_samples(
    our_run, served, lm_eval, tmp_path, layout, backend, arguments
):
    given = f"model=demo,tokenizer={TOY_MODEL},num_concurrent=8,base_url={served}/{arguments}"
    template = ["--apply_chat_template"] if layout == "chat" else []
    theirs = stock(lm_eval, tmp_path, "--model", backend, "--model_args", given, *template)
    hashed = ["prompt_sha256"] if layout == "raw" else []  # of a chat lm-eval hashes the turns
    assert_equal(theirs, ours(our_run[0], layout), "completion", *hashed)


@pytest.mark.slow
def test_mless_run_gives_the_same_samples_through_a_completions_server(
    our_run, served, mless, tmp_path
):
    server = f"{{model: demo, base_url: {served}, tokenizer: {TOY_MODEL}, max_length: 4096}}"
    flags = [
        "model.backend=local-completions",
        f"model.model_args={server}",
        f"max_gen_toks={BUDGET}",
    ]
    run = generated(mless, tmp_path / "run", COMPARED, *flags)
    assert_equal(
        ours(run, "raw"), ours(our_run[0], "raw"), "problem_id", "prompt_sha256", "completion"
    )


@pytest.mark.slow
def test_mless_run_gives_a_chat_server_the_turns_and_every_sample_its_seed(
    our_run, served, mless, tmp_path
):
    server = f"{{model: demo, base_url: {served}/chat/completions, tokenizer: {TOY_MODEL}, num_concurrent: 8}}"
    flags = ["model.backend=local-chat-completions", f"model.model_args={server}", "layouts=[chat]"]
    flags += [f"max_gen_toks={BUDGET}"]
    sampled = ["gen_kwargs={temperature: 1.2}", "repeats=3", "conditions=[wo]"]
    greedy = generated(mless, tmp_path / "greedy", COMPARED, *flags)
    assert_equal(ours(greedy, "chat"), ours(our_run[0], "chat"), "problem_id", "completion")
    frame = load_run(generated(mless, tmp_path / "sampled", COMPARED, *flags, *sampled))
    assert frame["seed"].nunique() == 3 * COMPARED
    assert (frame.groupby("problem_id", observed=True)["completion"].nunique() > 1).any()
