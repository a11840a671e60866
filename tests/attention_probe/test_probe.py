import itertools
import json
import re
import shutil

import numpy as np
import pytest
import torch

from attention_probe.measure.prompt_fields import MeasurementOptions
from attention_probe.probe_run import run_probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import ROLES
from attention_probe.traces import AttentionTraces
from harness.analysis.problem_selection import Criterion
from harness.engines.completions import Completion
from harness.engines.interventions.open_layers import find_changed_layers
from harness.errors import ConfigError, HarnessError, PromptMismatchError
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS
from harness.runs.run_files import RECEIPT
from harness.runs.run_reader import Run
from tests.attention_probe.conftest import run_command, save_model, traces_under
from tests.conftest import load_eager
from tests.make import GREEDY_RUN, TOY, TOY_MODEL, find_log, module_fixture, read_source, with_cases

LAYERS = [0, 2]
PROBE_DATASET = ("probe", "--dataset", TOY / "demo.jsonl")


def probe(path, options="", *, run=GREEDY_RUN, **stream):
    """What `mless probe` prints."""
    return run_command("probe", run, "--layers", "1,3", *options.split(), "-o", path, **stream)


@module_fixture
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "example.traces"
    probe(path, "--n 5 --activations --norms")
    with AttentionTraces(path) as traces:
        yield traces


@module_fixture
def full_model():
    return load_eager(TOY_MODEL)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.traces"


def eager(model, token_ids, positions=None):
    """Attention matrices [layer, head, query, key].

    `positions` are those of the tokens, 0, 1, 2, ... without it.
    """
    if positions is None:
        positions = np.arange(len(token_ids))
    inputs = {
        "input_ids": torch.tensor(token_ids[None].astype(np.int64)),
        "position_ids": torch.tensor(positions[None]),
        "attention_mask": torch.ones(1, len(positions)),
    }
    inputs = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    with torch.inference_mode():
        attentions = model(**inputs, output_attentions=True).attentions
    return torch.cat(attentions).cpu().numpy()


def column_means(weights, queries):
    """The mean of each column of [..., query, key] below the diagonal over some queries."""
    size = weights.shape[-1]
    means = np.full((*weights.shape[:-2], size), np.nan)
    for key in range(size):
        later = [query for query in queries if query > key]
        if later:
            means[..., key] = weights[..., later, key].mean(-1)
    return means


def mean_mass(weights, queries, keys):
    """The share of attention that keys receive from each head, as a mean over queries."""
    return weights[:, :, queries][..., keys].sum(-1).mean(-1)


def positions_of(trace, role):
    return np.flatnonzero(trace.roles == ROLES.index(role))


def positions_under(traces, trace):
    """The positions of a prompt with a gap, else None: those of the same tokens with the filler."""
    if trace.condition != "mless+gap":
        return None
    filled = traces.get(trace.problem_id, "mless")
    return np.flatnonzero(filled.original_pos >= 0)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def assert_same_traces(path, expected_path, problems):
    """The folders differ by rounding alone."""
    with AttentionTraces(path) as traces, AttentionTraces(expected_path) as expected:
        assert traces.header == expected.header
        count = problems * len(traces.header.conditions)
        assert len(traces.entries()) == len(expected.entries()) == count
        for theirs in expected:
            ours = traces.get(theirs.problem_id, theirs.condition)
            for name in "token_ids roles original_pos tokens outcome intervention".split():
                np.testing.assert_equal(getattr(ours, name), getattr(theirs, name))
            for name in ("mean_all", "mean_common", "rows"):
                assert_close(getattr(ours, name), getattr(theirs, name))
            assert ours.measures.keys() == theirs.measures.keys()
            for name, values in theirs.measures.items():
                assert_close(ours.measures[name], values)


def test_curves_and_masses_are_those_of_eager_attention(traces, full_model):
    assert traces.receipt["self_check"]["eager_error"] < 1e-5
    assert {trace.condition for trace in traces} >= {"wo", "mless", "mless+gap"}
    for trace in traces:
        if trace.condition == "mless+gap":
            assert trace.token_ids.tolist() == traces.get(trace.problem_id, "wo").token_ids.tolist()
        positions = positions_under(traces, trace)
        weights = eager(full_model, trace.token_ids, positions)[LAYERS]
        assert_close(trace.mean_all, column_means(weights, np.arange(len(trace.tokens))))
        is_original = trace.original_pos >= 0
        assert_close(trace.mean_common, column_means(weights, np.flatnonzero(is_original)))
        queries = positions_of(trace, "problem")
        filler = mean_mass(weights, queries, positions_of(trace, "filler"))
        assert_close(trace.measures["mass_filler"], filler)
        assert_close(trace.measures["lambda"], mean_mass(weights, queries, is_original))
        masses = [trace.measures[f"mass_{region}"] for region in TOKEN_REGIONS]
        assert_close(sum(masses), 1)


def test_norms_are_relative_to_the_original_tokens(traces, full_model):
    for trace in traces_under(traces, "mless"):
        inputs = torch.tensor(trace.token_ids[None].astype(np.int64))
        with torch.inference_mode():
            states = full_model(inputs, output_hidden_states=True).hidden_states
        norms = torch.stack([states[layer + 1][0].norm(dim=-1) for layer in LAYERS]).numpy()
        norms /= np.median(norms[:, trace.original_pos >= 0], axis=1, keepdims=True)
        assert_close(trace.norms, norms)


def test_activation_thresholds_are_those_of_the_baseline(traces):
    for trace in traces_under(traces, "wo"):
        baseline, filled = trace.activations, traces.get(trace.problem_id, "mless").activations
        assert baseline.keys() == filled.keys()
        assert baseline != filled
        fixed = [name for name in baseline if name.startswith(("threshold_", "histogram_"))]
        assert len(fixed) == 4
        assert all(baseline[name] == filled[name] > 0 for name in fixed)


def test_an_interrupted_probe_continues_and_gives_the_same_traces(traces, path):
    source, criterion = read_source(GREEDY_RUN), Criterion(n=5)
    settings = ProbeSettings(
        layers=tuple(LAYERS), record=MeasurementOptions(activations=True, norms=True)
    )

    def interrupt(finished, total):
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(source, criterion, settings, path, advance=interrupt)
    with AttentionTraces(path) as interrupted:
        assert len(interrupted.problem_ids) == 2
    progress = []
    run_probe(source, criterion, settings, path, advance=lambda *counts: progress.append(counts))
    assert (progress[0], progress[-1]) == ((2, 5), (5, 5))
    with AttentionTraces(path) as continued:
        for trace in traces:
            again = continued.get(trace.problem_id, trace.condition)
            np.testing.assert_allclose(again.mean_common, trace.mean_common, atol=1e-6)
            for name, values in trace.measures.items():
                np.testing.assert_allclose(again.measures[name], values, rtol=1e-3, atol=1e-4)


@with_cases
def test_rows_are_those_of_eager_attention(tmp_path, path, rows):
    random_model = save_model(tmp_path / "random", "qwen2")
    model = load_eager(random_model)
    options = f"--conditions mless,mless+gap --rows {rows}"
    stderr = probe(path, f"--model {random_model} --n 2 {options}", stream="stderr")
    stored_bytes = 0
    with AttentionTraces(path) as traces:
        assert traces.header.options["rows"] == rows
        for trace in traces:
            weights = eager(model, trace.token_ids, positions_under(traces, trace))[LAYERS]
            count = {"last:5": 5, "all": len(trace.tokens)}[rows]
            assert trace.rows.shape[2] == count
            np.testing.assert_allclose(trace.rows, weights[:, :, -count:], atol=1e-6)
            stored_bytes += trace.rows.nbytes
    assert f"mless: rows of {stored_bytes / 1e6:.1f} MB\n" in stderr


class EagerEngine:
    """Sums as the engine records them, of attention matrices of Hugging Face."""

    def __init__(self, model):
        self.model = model

    def stream(self, requests):
        for request in requests:
            weights = self.weigh(request)
            size = weights.shape[-1]
            sets = np.array(request.query_sets, np.float32)
            # from the third set on, a query's attention to its own token counts
            later = weights * (1 - np.eye(size))
            sums = [np.einsum("sq,lhqk->lshk", sets[:2], later)]
            sums.append(np.einsum("sq,lhqk->lshk", sets[2:], weights))
            attention = np.concatenate(sums, axis=1).astype(np.float32)
            yield [(request, Completion(text="", attention=attention))]

    def weigh(self, request):
        return eager(self.model, np.array(request.prompt_token_ids))[LAYERS]

    def close(self):
        self.model = None


@pytest.fixture
def opened(full_model, monkeypatch):
    """The arguments of the engine, in whose place Hugging Face is asked."""
    calls = []

    def open_recorder(*arguments):
        calls.append(arguments)
        return EagerEngine(full_model)

    monkeypatch.setattr("attention_probe.probed_model.open_recorder", open_recorder)
    return calls


@with_cases
def test_an_engine_measures_what_the_probe_does(tmp_path, opened, rows):
    options = "--n 2 --conditions mless,random"
    if rows:
        options += f" --rows {rows}"
    probe(tmp_path / "probe", options)
    assert "none in an engine" in probe(tmp_path / "engine", f"{options} --engine")
    assert_same_traces(tmp_path / "engine", tmp_path / "probe", problems=2)
    with AttentionTraces(tmp_path / "engine") as traces:
        longest = max(len(trace.tokens) for trace in traces)
        most_rows = max(trace.rows.shape[2] for trace in traces)
    ((arguments, layers, set_count),) = opened
    expected = read_source(GREEDY_RUN).model_arguments
    assert arguments == expected | {"dtype": "float32", "max_model_len": longest + 1}
    assert (layers, set_count) == ({**find_changed_layers({}), "recorded": LAYERS}, 3 + most_rows)


def test_an_engine_continues_the_traces_of_the_probe(path, opened):
    names = [problem.id for problem in read_source(GREEDY_RUN).problems[:2]]
    probe(path, f"--conditions mless --ids {names[0]}")
    probe(path, f"--conditions mless --ids {','.join(names)} --engine")
    with AttentionTraces(path) as traces:
        assert len(traces.entries()) == 4 and traces.receipt["settings"]["engine"] is None
    assert opened


def test_more_rows_than_fit_are_refused(path, monkeypatch):
    monkeypatch.setattr("attention_probe.probe_settings.MOST_ROW_BYTES", 100_000)
    message = (
        r"--rows all takes 0.\d GB for 4 prompts, and 0.0 GB are the most: expected fewer rows"
    )
    with pytest.raises(ConfigError, match=message):
        probe(path, "--n 2 --conditions mless --rows all")
    assert not path.exists()


def test_another_dtype_reports_its_difference_from_float32(path):
    printed = probe(path, "--n 5 --conditions mless --dtype bfloat16")
    assert 1e-5 < float(re.search(r"\(largest error\): .*dtype (\S+)", printed)[1]) < 0.1


def test_traces_of_other_prompts_or_another_selection_are_not_continued(path, tmp_path):
    options = ("--model", TOY_MODEL, "--conditions", "mless", "-o", path)
    run_command(*PROBE_DATASET, *options, "--n", 2)
    with AttentionTraces(path) as traces:
        names = ",".join(traces.problem_ids)
    changed = tmp_path / "demo.jsonl"
    changed.write_text((TOY / "demo.jsonl").read_text().replace('"problem": "', '"problem": "So '))
    message = r"holds problem demo/\S+ under wo with another prompt or intervention, or from "
    for source in (("--dataset", changed, "--n", 4), (GREEDY_RUN, "--ids", names)):
        with pytest.raises(PromptMismatchError, match=message):
            run_command("probe", *source, *options)
    with AttentionTraces(path) as traces:
        assert len(traces.entries()) == 4


EAGER = r"self-check \(largest error\): eager (0\.0e\+00|\d\.\de-0[6-9])\n"


@with_cases
def test_an_architecture_is_probed_and_checked(tmp_path, path, model_type, options, printed):
    model = save_model(tmp_path / model_type, model_type)
    flags = ("--n", 1, "--conditions", "mless", *options, "-o", path)
    text = run_command(*PROBE_DATASET, "--model", model, *flags)
    assert re.search(EAGER + printed, text, re.DOTALL), text
    with AttentionTraces(path) as traces:
        for trace, region in itertools.product(traces, TOKEN_REGIONS):
            assert np.isfinite(trace.measures[f"mass_{region}"]).all()


@with_cases
def test_the_probe_from_the_command_line(path, monkeypatch, sources, has_random):
    """Of a run, and of sample logs of any task, which are named by condition."""
    names = {name: find_log(name) for name in ("wo", "mless")}
    names |= {"run": GREEDY_RUN, "model": TOY_MODEL}
    command = ["probe", *sources.format(**names).split(), "--flip=both_right", "--n=3", "-o", path]
    printed = run_command(*command)
    assert "selected on outcome" in printed and "3 problems under wo, " in printed
    assert "mless" in printed and ("random" in printed) == has_random
    golds = {prompt.problem_id: prompt.golds[0] for prompt in Run.load(GREEDY_RUN).prompts}
    with AttentionTraces(path) as traces:
        assert all(trace.gold_answer == golds[trace.problem_id] for trace in traces)
    with monkeypatch.context() as patch:  # all traces exist
        patch.setattr("attention_probe.probe_settings.load_model", pytest.fail)
        assert run_command(*command) == printed


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_that_changed_since_the_run_is_refused(tmp_path, path, name):
    run = shutil.copytree(GREEDY_RUN, tmp_path / "run")
    receipt = json.loads((run / RECEIPT).read_text())
    receipt["model"]["sha256"] |= {name: "of the run", "tokenizer_config.json": "of the run"}
    (run / RECEIPT).write_text(json.dumps(receipt))
    with pytest.raises(ConfigError, match=f"run: {name} of .* has other content than when it was"):
        probe(path, "--n 1", run=run)
    assert not path.exists()
    copy = shutil.copytree(TOY_MODEL, tmp_path / "copy")
    assert "1 problems under wo" in probe(path, f"--n 1 --model {copy}", run=run)


@with_cases
def test_settings_that_cannot_be_measured_are_refused_before_a_file_is_created(
    tmp_path, path, model_type, options, message
):
    model = save_model(tmp_path / model_type, model_type) if model_type else TOY_MODEL
    with pytest.raises(HarnessError, match=message):
        run_command(*PROBE_DATASET, "--model", model, "--n", 1, *options, "-o", path)
    assert not path.exists()
