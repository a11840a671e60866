import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from attention_probe.commands.probe import describe_checks
from attention_probe.measure.measure_prompts import RecordOptions
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import ROLES
from attention_probe.run_probe import run_probe
from attention_probe.traces import AttentionTraces
from harness.analysis.problem_selection import Criterion, select
from harness.engines.attention_sums import single_queries
from harness.engines.completions import Completion
from harness.engines.interventions.open_layers import opened_layers
from harness.errors import ConfigError, HarnessError, PromptMismatchError
from harness.experiment.conditions import as_condition
from harness.experiment.problems import DatasetConfig, open_dataset
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS
from harness.runs.prompt_sources import build_source
from tests.attention_probe.conftest import run_command, save_model, traces_under
from tests.conftest import load_eager
from tests.make import GREEDY_RUN, TOY, TOY_MODEL, find_log, read_source, with_cases

LAYERS = (0, 2)
CRITERION = Criterion(n=5, seed=3)
SETTINGS = ProbeSettings(layers=LAYERS, record=RecordOptions(activations=True))
COMPLETION = ProbeSettings(conditions=("mless",), record=RecordOptions(completion=True))
PROBE_DATASET = ("probe", "--dataset", TOY / "demo.jsonl")


@pytest.fixture(scope="module")
def source():
    return read_source(GREEDY_RUN, layout="raw")


@pytest.fixture(scope="module")
def traces(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "example.traces"
    run_probe(source, CRITERION, SETTINGS, path)
    with AttentionTraces(path) as traces:
        yield traces


@pytest.fixture(scope="module")
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
    return np.flatnonzero((filled.original_pos >= 0) | (filled.roles == ROLES.index("completion")))


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def assert_same_traces(path, expected_path, problems):
    """The folders differ by rounding alone."""
    with AttentionTraces(path) as traces, AttentionTraces(expected_path) as expected:
        assert traces.header == expected.header
        assert len(traces) == len(expected) == problems * len(traces.header.conditions)
        for theirs in expected:
            ours = traces.get(theirs.problem_id, theirs.condition)
            for name in ("token_ids", "roles", "original_pos"):
                assert (getattr(ours, name) == getattr(theirs, name)).all()
            assert (ours.tokens, ours.outcome) == (theirs.tokens, theirs.outcome)
            assert ours.intervention == theirs.intervention
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
        weights = eager(full_model, trace.token_ids, positions)[list(LAYERS)]
        assert_close(trace.mean_all, column_means(weights, np.arange(len(trace.tokens))))
        is_original = trace.original_pos >= 0
        assert_close(trace.mean_common, column_means(weights, np.flatnonzero(is_original)))
        queries = positions_of(trace, "problem")
        filler = mean_mass(weights, queries, positions_of(trace, "filler"))
        assert_close(trace.measures["mass_filler"], filler)
        assert_close(trace.measures["lambda"], mean_mass(weights, queries, is_original))
        masses = [trace.measures[f"mass_{region}"] for region in TOKEN_REGIONS]
        assert_close(sum(masses), 1)


def test_activation_thresholds_are_those_of_the_baseline(traces):
    for trace in traces_under(traces, "wo"):
        baseline, filled = trace.activations, traces.get(trace.problem_id, "mless").activations
        assert baseline.keys() == filled.keys()
        assert baseline != filled
        fixed = [name for name in baseline if name.startswith(("threshold_", "histogram_"))]
        assert len(fixed) == 4
        assert all(baseline[name] == filled[name] > 0 for name in fixed)


def test_an_interrupted_probe_continues_and_gives_the_same_traces(source, traces, path):
    def interrupt(finished, total):
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(source, CRITERION, SETTINGS, path, advance=interrupt)
    with AttentionTraces(path) as interrupted:
        assert len(interrupted.problem_ids) == 2
    progress = []
    run_probe(source, CRITERION, SETTINGS, path, advance=lambda *counts: progress.append(counts))
    assert (progress[0], progress[-1]) == ((2, 5), (5, 5))
    with AttentionTraces(path) as continued:
        for trace in traces:
            again = continued.get(trace.problem_id, trace.condition)
            np.testing.assert_allclose(again.mean_common, trace.mean_common, atol=1e-6)
            for name, values in trace.measures.items():
                np.testing.assert_allclose(again.measures[name], values, rtol=1e-3, atol=1e-4)


def test_completion_queries_are_those_of_the_recorded_completion(source, full_model, path):
    run_probe(source, CRITERION, COMPLETION, path)
    with AttentionTraces(path) as traces:
        assert traces.header.queries == "completion"
        for trace in traces_under(traces, "mless"):
            queries = positions_of(trace, "completion")
            assert len(queries)
            weights = eager(full_model, trace.token_ids)[:1]
            assert_close(trace.mean_all, column_means(weights, queries))
            filler = mean_mass(weights, queries, positions_of(trace, "filler"))
            assert_close(trace.measures["mass_filler"], filler)


@pytest.mark.parametrize("rows", ["last:5", "answer", "all"])
def test_rows_are_those_of_eager_attention(source, tmp_path, path, rows, capsys):
    random_model = str(save_model(tmp_path / "random", "qwen2"))
    model = load_eager(random_model)
    settings = ProbeSettings(
        model=random_model,
        layers=LAYERS,
        conditions=("mless", "mless+gap"),
        record=RecordOptions(completion=rows == "answer", rows=rows),
    )
    capsys.readouterr()
    receipt = run_probe(source, Criterion(n=2, seed=3), settings, path)
    stored_bytes = 0
    with AttentionTraces(path) as traces:
        assert traces.header.options["rows"] == receipt["settings"]["record"]["rows"] == rows
        for trace in traces:
            weights = eager(model, trace.token_ids, positions_under(traces, trace))[list(LAYERS)]
            count = {
                "last:5": 5,
                "answer": len(positions_of(trace, "completion")) + 1,
                "all": len(trace.tokens),
            }[rows]
            assert trace.rows.shape[2] == count
            np.testing.assert_allclose(trace.rows, weights[:, :, -count:], atol=1e-6)
            stored_bytes += trace.rows.nbytes
    assert f"mless: rows of {stored_bytes / 1e6:.1f} MB\n" in capsys.readouterr().err


class EagerEngine:
    """Sums as the engine records them, of attention matrices of Hugging Face."""

    def __init__(self, model):
        self.model = model

    def stream(self, requests):
        for request in requests:
            weights = self.weigh(request)
            size = weights.shape[-1]
            sets = np.array(request.record, np.float32)
            # from the third set on, a query's attention to its own token counts
            later = weights * (1 - np.eye(size))
            sums = [np.einsum("sq,lhqk->lshk", sets[:2], later)]
            sums.append(np.einsum("sq,lhqk->lshk", sets[2:], weights))
            attention = np.concatenate(sums, axis=1).astype(np.float32)
            yield [(request, Completion(text="", attention=attention))]

    def weigh(self, request):
        return eager(self.model, np.array(request.prompt_token_ids))[list(LAYERS)]

    def close(self):
        self.model = None


@pytest.mark.parametrize("rows", [None, "last:5", "answer", "all"])
def test_an_engine_measures_what_the_probe_does(source, full_model, tmp_path, monkeypatch, rows):
    opened = []

    def open_recorder(arguments, layers, set_count):
        opened.append((arguments, layers, set_count))
        return EagerEngine(full_model)

    monkeypatch.setattr("attention_probe.open_model.open_recorder", open_recorder)
    record = RecordOptions(completion=rows == "answer", rows=rows)
    settings = ProbeSettings(layers=LAYERS, conditions=("mless", "random"), record=record)
    criterion = Criterion(n=2, seed=3)
    run_probe(source, criterion, settings, tmp_path / "probe")
    receipt = run_probe(source, criterion, replace(settings, engine={}), tmp_path / "engine")
    assert describe_checks(receipt["self_check"]).endswith("none in an engine")
    assert_same_traces(tmp_path / "engine", tmp_path / "probe", problems=2)
    with AttentionTraces(tmp_path / "engine") as traces:
        longest = max(len(trace.tokens) for trace in traces)
        most_rows = max(trace.rows.shape[2] for trace in traces)
    ((arguments, layers, set_count),) = opened
    assert arguments == source.model_arguments | {"dtype": "float32", "max_model_len": longest + 1}
    assert (layers, set_count) == ({**opened_layers({}), "recorded": [0, 2]}, 3 + most_rows)


def test_an_engine_continues_the_traces_of_the_probe(source, full_model, path, monkeypatch):
    monkeypatch.setattr(
        "attention_probe.open_model.open_recorder", lambda *_: EagerEngine(full_model)
    )
    settings = ProbeSettings(layers=LAYERS, conditions=("mless",))
    run_probe(source, Criterion(ids=select_ids(source, 1)), settings, path)
    run_probe(source, Criterion(ids=select_ids(source, 2)), replace(settings, engine={}), path)
    with AttentionTraces(path) as traces:
        assert len(traces) == 4 and traces.receipt["settings"]["engine"] is None


def select_ids(source, count):
    return tuple(problem.id for problem in source.problems[:count])


def test_a_prompt_over_the_context_is_refused_before_the_engine_starts(source, path):
    completed = with_completion(source, "one two " * 3000)
    settings = replace(COMPLETION, engine={})
    with pytest.raises(PromptMismatchError, match=r"tokens; .* has a context of 4096"):
        run_probe(completed, Criterion(n=1), settings, path)
    assert not path.exists()


def test_rows_of_a_prompt_of_20000_tokens_need_little_memory():
    sets = single_queries(16, 20_000, 18)
    assert [row.index(1) for row in sets[:16]] == [*range(19_984, 20_000)]
    assert not any(map(any, sets[16:]))


def test_more_rows_than_fit_are_refused_with_the_largest_number(source, path, monkeypatch, capsys):
    def probe_rows(rows):
        settings = ProbeSettings(
            layers=LAYERS, conditions=("mless",), record=RecordOptions(rows=rows)
        )
        run_probe(source, Criterion(n=2, seed=3), settings, path)

    monkeypatch.setattr("attention_probe.open_model.ROW_BYTES", 100_000)
    message = (
        r"--rows all takes 0.\d GB for 4 prompts, and 0.0 GB are the most: expected at most last"
    )
    with pytest.raises(ConfigError, match=message) as error:
        probe_rows("all")
    most = int(re.search(r"last:(\d+)", str(error.value))[1])
    assert not path.exists()
    with pytest.raises(ConfigError, match=f"expected at most last:{most}, or fewer"):
        probe_rows(f"last:{most + 1}")
    probe_rows(f"last:{most}")
    with pytest.raises(ConfigError, match="rows 'first:3': expected `last:16`, `answer` or `all`"):
        probe_rows("first:3")


def test_another_dtype_reports_its_difference_from_float32(source, path):
    settings = ProbeSettings(dtype="bfloat16", conditions=("mless",))
    checks = run_probe(source, CRITERION, settings, path)["self_check"]
    assert 1e-5 < checks["dtype_error"] < 0.1
    assert "dtype" in describe_checks(checks)


def test_traces_of_other_prompts_or_another_selection_are_not_continued(source, path):
    settings = ProbeSettings(model=TOY_MODEL, conditions=("mless",))
    conditions = [as_condition(name) for name in ("wo", "mless")]
    dataset, tokenizer = (
        open_dataset(DatasetConfig(path=TOY / "demo.jsonl")),
        settings.load_tokenizer(),
    )
    problems = (replace(problem, problem=f"{problem.problem} Now.") for problem in dataset.problems)
    default, changed = (
        build_source(prompted, conditions, tokenizer, "raw")
        for prompted in (dataset, replace(dataset, problems=tuple(problems)))
    )
    run_probe(default, Criterion(n=2), settings, path)
    message = r"holds problem demo/\S+ under wo with another prompt, or from another selection"
    selected = tuple(problem.id for problem in select(default, Criterion(n=2)))
    for prompts, criterion in ((changed, Criterion(n=4)), (source, Criterion(ids=selected))):
        with pytest.raises(PromptMismatchError, match=message):
            run_probe(prompts, criterion, settings, path)
    with AttentionTraces(path) as traces:
        assert len(traces) == 4


EAGER = r"self-check \(largest error\): eager (0\.0e\+00|\d\.\de-0[6-9])\n"


@with_cases
def test_an_architecture_is_probed_and_checked(tmp_path, path, model_type, options, printed):
    model = save_model(tmp_path / model_type, model_type)
    flags = ("--n", 1, "--conditions", "mless", *options, "-o", path)
    text = run_command(*PROBE_DATASET, "--model", model, *flags)
    assert re.search(EAGER + printed, text, re.DOTALL), text
    with AttentionTraces(path) as traces:
        for trace, region in itertools.product(traces, TOKEN_REGIONS):
            assert region == "completion" or np.isfinite(trace.measures[f"mass_{region}"]).all()


def with_completion(source, completion):
    """The source's first problem, answered by a completion under every condition."""
    first, prompts = source.problems[0], {}
    for name, prompt in first.prompts.items():
        ((sample, score),) = prompt.graded_samples
        answered = ((structs.replace(sample, completion=completion), score),)
        prompts[name] = structs.replace(prompt, graded_samples=answered)
    return replace(source, problems=(replace(first, prompts=prompts),))


def test_completions_may_be_empty_and_may_not_be_over_the_context(source, path):
    message = rf"Problem {source.problems[0].id}, condition 'wo': \d+ tokens;"
    with pytest.raises(PromptMismatchError, match=message):
        run_probe(with_completion(source, "one two " * 3000), Criterion(n=1), COMPLETION, path)
    assert not path.exists(), "nothing is measured"
    run_probe(with_completion(source, ""), Criterion(n=1), COMPLETION, path)
    with AttentionTraces(path) as traces:
        (trace, *_) = traces_under(traces, "mless")
        assert np.isnan(trace.measures["mass_filler"]).all()


def test_the_probe_from_the_command_line(path, monkeypatch):
    command = ("probe", GREEDY_RUN, "--flip", "both_right", "--n", 3, "-o", path)
    printed = run_command(*command)
    assert "selected on outcome" in printed
    assert "3 problems under wo, " in printed
    with monkeypatch.context() as patch:  # all traces exist
        patch.setattr("attention_probe.probe_settings.load_model", pytest.fail)
        assert run_command(*command) == printed


def test_sample_logs_of_any_task_are_named_by_condition(path):
    flags = ["--model", TOY_MODEL, "--n", 2, "--flip", "both_right"]
    for name in ("wo", "mless"):
        flags.append(f"{name}={find_log(name)}")
    printed = run_command("probe", *flags, "-o", path)
    assert "selected on outcome" in printed
    assert "mless" in printed
    assert "random" not in printed


@with_cases
def test_settings_that_cannot_be_measured_are_refused_before_a_file_is_created(
    tmp_path, path, model_type, options, message
):
    model = save_model(tmp_path / model_type, model_type) if model_type else TOY_MODEL
    with pytest.raises(HarnessError, match=message):
        run_command(*PROBE_DATASET, "--model", model, "--n", 1, *options, "-o", path)
    assert not path.exists()
