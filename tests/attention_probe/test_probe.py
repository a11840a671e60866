import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from attention_probe.analysis.print_traces import MASSES, describe_checks, summary
from attention_probe.measure.head_decomposition import decompose
from attention_probe.measure.measure_prompts import Record
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import ROLES
from attention_probe.run_probe import run_probe
from attention_probe.traces import AttentionTraces
from harness import cli
from harness.analysis.choose_problems import Criterion, select
from harness.errors import ConfigError, HarnessError, PromptMismatchError
from harness.experiment.conditions import as_condition
from harness.experiment.problems import load_jsonl
from harness.runs.prompt_sources import build_source
from tests.capture_errors import build_whole
from tests.make import GREEDY_RUN, TOY, TOY_MODEL, make_trace, read_source, write_traces

LAYERS = (0, 2)
BUILT = ("probe", "--dataset", TOY / "demo.jsonl")


@pytest.fixture(scope="module")
def source():
    return read_source(GREEDY_RUN, layout="raw")


@pytest.fixture(scope="module")
def criterion():
    return Criterion(n=5, seed=3)


@pytest.fixture(scope="module")
def settings():
    return ProbeSettings(layers=LAYERS, record=Record(decompose=True, activations=True))


@pytest.fixture(scope="module")
def traced(source, criterion, settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("probe") / "example.traces"
    receipt = run_probe(source, criterion, settings, path)
    with AttentionTraces.open(path) as traces:
        yield traces, receipt


@pytest.fixture(scope="module")
def whole_model():
    model = AutoModelForCausalLM.from_pretrained(
        TOY_MODEL, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@pytest.fixture
def command():
    def call(*arguments):
        done = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
        if isinstance(done.exception, HarnessError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    return call


@pytest.fixture
def model_of(tmp_path):
    def build(model_type, **changes):
        bundled, folder = TOY / "model", tmp_path / model_type
        vocabulary = json.loads(Path(bundled, "config.json").read_text())["vocab_size"]
        build_whole(
            model_type,
            vocab_size=vocabulary,
            max_position_embeddings=1024,
            initializer_range=0.1,
            **changes,
        ).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(Path(bundled, file), folder)
        return folder

    return build


def eager(model, token_ids, positions=None):
    """Whole attention matrices [layer, head, query, key] and head outputs [layer, head, query, head_dim].

    With `positions` the tokens stand there, and not at 0, 1, 2, ...
    """
    places = np.arange(len(token_ids)) if positions is None else positions
    given = {
        "position_ids": torch.tensor(places[None]),
        "attention_mask": torch.ones(1, len(places)),
    }
    given["input_ids"] = torch.tensor(token_ids[None].astype(np.int64))
    given = {name: tensor.to(model.device) for name, tensor in given.items()}
    outputs = {}
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, given, number=number: outputs.__setitem__(number, given[0])
        )
        for number, layer in enumerate(model.model.layers)
    ]
    with torch.inference_mode():
        found = model(**given, output_attentions=True)
    for hook in hooks:
        hook.remove()
    heads = model.config.num_attention_heads
    mixed = [outputs[n][0].unflatten(-1, (heads, -1)).transpose(0, 1) for n in range(len(outputs))]
    return torch.stack([a[0] for a in found.attentions]).cpu().numpy(), torch.stack(
        mixed
    ).cpu().numpy()


def column_means(weights, queries):
    """[..., query, key] to the mean of each column strictly below the diagonal over some queries."""
    size = weights.shape[-1]
    means = np.full((*weights.shape[:-2], size), np.nan)
    for key in range(size):
        later = [query for query in queries if query > key]
        if later:
            means[..., key] = weights[..., later, key].mean(-1)
    return means


def test_curves_are_the_column_means_of_eager_attention_under_both_definitions(traced, whole_model):
    traces, _ = traced
    assert {trace.condition for trace in traces} >= {"wo", "mless", "mless+gap"}
    for trace in traces:
        positions = None
        if trace.condition == "mless+gap":
            positions = np.flatnonzero(traces.get(trace.problem_id, "mless").original_pos >= 0)
            assert trace.token_ids.tolist() == traces.get(trace.problem_id, "wo").token_ids.tolist()
        weights = eager(whole_model, trace.token_ids, positions)[0][list(LAYERS)]
        everyone, common = np.arange(len(trace.tokens)), np.flatnonzero(trace.original_pos >= 0)
        np.testing.assert_allclose(trace.mean_all, column_means(weights, everyone), atol=1e-5)
        np.testing.assert_allclose(trace.mean_common, column_means(weights, common), atol=1e-5)


def test_masses_are_those_of_the_problems_queries_and_add_up_to_one(traced, whole_model):
    traces, _ = traced
    for trace in traces:
        weights = eager(whole_model, trace.token_ids)[0][list(LAYERS)]
        queries = np.flatnonzero(trace.roles == ROLES.index("problem"))
        filler = trace.roles == ROLES.index("filler")
        expected = weights[:, :, queries][..., filler].sum(-1).mean(-1)
        np.testing.assert_allclose(trace.measures["mass_filler"], expected, atol=1e-5)
        inserted = weights[:, :, queries][..., trace.original_pos < 0].sum(-1).mean(-1)
        np.testing.assert_allclose(trace.measures["lambda"], 1 - inserted, atol=1e-5)
        np.testing.assert_allclose(sum(trace.measures[name] for name in MASSES), 1, atol=1e-5)


def test_the_change_of_a_heads_output_splits_exactly_in_the_first_layer(traced, whole_model):
    traces, receipt = traced
    assert receipt["self_check"]["eager_error"] < 1e-5
    for trace in (one for one in traces if one.condition == "mless"):
        assert trace.self_check["decomposition_residual"] < 1e-5
        without = traces.get(trace.problem_id, "wo")
        original, changed = (eager(whole_model, one.token_ids)[1] for one in (without, trace))
        problem = [np.flatnonzero(one.roles == ROLES.index("problem")) for one in (without, trace)]
        o_wo, o_with = original[:, :, problem[0]], changed[:, :, problem[1]]
        size = np.linalg.norm(o_with - o_wo, axis=-1) / np.linalg.norm(o_wo, axis=-1)
        parts = sum(trace.measures[name][0] for name in ("position_shift", "scale", "bias"))
        assert (size.mean(-1)[0] <= parts + 1e-5).all(), "a change is no larger than its parts"
        assert "bias" not in without.measures


def test_activation_thresholds_are_frozen_without_filler(traced):
    traces, _ = traced
    for trace in (one for one in traces if one.condition == "wo"):
        other = traces.get(trace.problem_id, "mless")
        assert trace.activations.keys() == other.activations.keys()
        assert trace.activations != other.activations
        frozen = [
            name for name in trace.activations if name.startswith(("threshold_", "histogram_"))
        ]
        assert len(frozen) == 4 and all(
            trace.activations[name] == other.activations[name] > 0 for name in frozen
        )


def test_an_interrupted_probe_goes_on_and_ends_the_same(
    source, criterion, settings, traced, tmp_path, monkeypatch
):
    monkeypatch.setattr("attention_probe.run_probe.GROUP_TOKENS", 1)
    path = tmp_path / "again.traces"

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(source, criterion, settings, path, advance=stop)
    with AttentionTraces.open(path) as part:
        assert len(part.problem_ids) == 2
    seen = []
    run_probe(
        source, criterion, settings, path, advance=lambda done, total: seen.append((done, total))
    )
    assert seen[0] == (2, 5) and seen[-1] == (5, 5)
    with AttentionTraces.open(path) as again:
        for trace in traced[0]:
            other = again.get(trace.problem_id, trace.condition)
            np.testing.assert_allclose(other.mean_common, trace.mean_common, atol=1e-6)
            for name, values in trace.measures.items():
                np.testing.assert_allclose(other.measures[name], values, rtol=1e-3, atol=1e-4)


def test_completion_queries_are_those_of_the_recorded_answer(
    source, criterion, whole_model, tmp_path
):
    record = Record(completion=True)
    run_probe(
        source,
        criterion,
        ProbeSettings(conditions=("mless",), record=record),
        tmp_path / "t.traces",
    )
    with AttentionTraces.open(tmp_path / "t.traces") as traces:
        assert traces.header.queries == "completion"
        for trace in (one for one in traces if one.condition == "mless"):
            queries = np.flatnonzero(trace.roles == ROLES.index("completion"))
            assert len(queries)
            weights = eager(whole_model, trace.token_ids)[0][:1]
            np.testing.assert_allclose(trace.mean_all, column_means(weights, queries), atol=1e-5)
            filler = trace.roles == ROLES.index("filler")
            expected = weights[:, :, queries][..., filler].sum(-1).mean(-1)
            np.testing.assert_allclose(trace.measures["mass_filler"], expected, atol=1e-5)
    with pytest.raises(ConfigError, match=r"--decompose compares the same queries"):
        ProbeSettings(record=Record(completion=True, decompose=True))


def test_another_dtype_reports_its_difference_from_float32(source, criterion, tmp_path):
    receipt = run_probe(
        source,
        criterion,
        ProbeSettings(dtype="bfloat16", conditions=("mless",)),
        tmp_path / "t.traces",
    )
    assert 1e-5 < receipt["self_check"]["dtype_error"] < 0.1
    assert "dtype" in describe_checks(receipt["self_check"])


def test_a_file_of_other_prompts_or_another_selection_is_not_continued(source, tmp_path):
    path, settings = tmp_path / "t.traces", ProbeSettings(model=TOY_MODEL, conditions=("mless",))
    conditions, tokenizer = (
        [as_condition(name) for name in ("wo", "mless")],
        settings.load_tokenizer(),
    )
    built = [
        build_source(
            load_jsonl(TOY / "demo.jsonl"), conditions, tokenizer, "raw", instruction=instruction
        )
        for instruction in (None, "Solve it.")
    ]
    run_probe(built[0], Criterion(n=2), settings, path)
    with pytest.raises(
        PromptMismatchError, match=r"holds problem demo/\S+ under wo with another prompt, or from"
    ):
        run_probe(built[1], Criterion(n=4), settings, path)
    judged = tuple(problem.id for problem in select(built[0], Criterion(n=2)))
    with pytest.raises(PromptMismatchError, match="or from another selection"):
        run_probe(source, Criterion(ids=judged), settings, path)
    with AttentionTraces.open(path) as traces:
        assert len(traces) == 4


def test_the_residual_is_the_first_layers_or_there_is_none(source, criterion, tmp_path):
    settings = ProbeSettings(layers=(1,), conditions=("mless",), record=Record(decompose=True))
    run_probe(source, criterion, settings, tmp_path / "t.traces")
    with AttentionTraces.open(tmp_path / "t.traces") as traces:
        for trace in (one for one in traces if one.condition == "mless"):
            assert "bias" in trace.measures and trace.self_check == {}


EAGER = r"self-check \(largest error\): eager (0\.0e\+00|\d\.\de-0[6-9])\n"


@pytest.mark.parametrize(
    ("model_type", "options", "printed"),
    [
        ("olmo2", (), EAGER),
        ("deepseek_v3", ("--decompose",), EAGER),
        ("qwen3_next", ("--layers", "4"), f"Layer 4 .*{EAGER}"),
        ("mistral", (), EAGER),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_architecture_is_probed_and_checked(
    command, model_of, tmp_path, model_type, options, printed
):
    flags = ("--n", 1, "--conditions", "mless", *options, "-o", tmp_path / "t.traces")
    text = command(*BUILT, "--model", model_of(model_type), *flags)
    assert re.search(printed, text, re.DOTALL), text
    assert "nan" not in text.lower()


def test_a_mean_over_heads_does_not_leave_one_out(tmp_path):
    masses = {name: np.full((2, 3), 0.2, dtype=np.float32) for name in MASSES}
    broken = {name: values.copy() for name, values in masses.items()}
    broken["mass_filler"][0, 1] = np.nan
    nothing = {
        name: np.full_like(values, np.nan) for name, values in masses.items()
    }  # as of an empty completion
    for name, other, shown in (("a", broken, "nan"), ("b", nothing, "0.2000")):
        traces = [
            make_trace("p0", "mless", measures=masses),
            make_trace("p1", "mless", measures=other),
        ]
        with AttentionTraces.open(write_traces(tmp_path / name, traces)) as opened:
            (row,) = (line for line in summary(opened).splitlines() if line.startswith("Layer 1"))
            assert row.split()[5] == shown
            assert max(map(len, summary(opened).splitlines())) <= 80


def with_completion(source, completion):
    """The source's first problem, answered by a completion under every condition."""
    first, prompts = source.problems[0], {}
    for name, prompt in first.prompts.items():
        ((sample, score),) = prompt.graded_samples
        answered = ((structs.replace(sample, completion=completion), score),)
        prompts[name] = structs.replace(prompt, graded_samples=answered)
    return replace(source, problems=(replace(first, prompts=prompts),))


def test_an_empty_completion_has_no_numbers_and_no_traceback(source, tmp_path):
    first = source.problems[0]
    emptied = with_completion(source, "")
    settings = ProbeSettings(conditions=("mless",), record=Record(completion=True))
    run_probe(emptied, Criterion(ids=(first.id,)), settings, tmp_path / "t.traces")
    with AttentionTraces.open(tmp_path / "t.traces") as traces:
        assert "nan" in summary(traces)


def test_probe_and_heads_from_the_command_line(command, tmp_path):
    traces = tmp_path / "t.traces"
    flags = ("--flip", "both_right", "--n", 3)
    printed = command("probe", GREEDY_RUN, *flags, "-o", traces)
    assert "selected on outcome" in printed and "Layer 1" in printed
    assert command("probe", GREEDY_RUN, *flags, "-o", traces) == printed
    assert "p_adjusted" in command("heads", traces)


def test_controls_are_averaged_with_nothing(command, tmp_path):
    flags = ("--flip", "wrong_to_right", "--controls")
    printed = " ".join(command("probe", GREEDY_RUN, *flags, "-o", tmp_path / "t.traces").split())
    assert ", 1 problems;" in printed and "1 controls were traced and are left out here" in printed


def test_sample_logs_of_any_task_are_named_by_condition(command, tmp_path):
    logs = {
        name: next(GREEDY_RUN.glob(f"samples_demo_{name}_2*.jsonl")) for name in ("wo", "mless")
    }
    flags = [part for name, log in logs.items() for part in ("--log", f"{name}={log}")]
    flags += ["--model", TOY_MODEL, "--n", 2, "--flip", "both_right"]
    printed = command("probe", *flags, "-o", tmp_path / "t.traces")
    assert "selected on outcome" in printed and "mless" in printed and "random" not in printed


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("gpt_oss", ("--activations",), "leave out --activations"),
        ("qwen3_next", ("--layers", "1"), "Layer 1; layers that have, counted from 1: 4"),
        (None, ("--layers", "5"), "has Layers 1 to 4, .* got 5"),
        (None, ("--conditions", "dots"), "'dots'"),
        (None, ("--device", "abacus"), "--device abacus"),
        (None, ("--layers", "1,3-2"), "--layers 1,3-2: .* got '3-2'"),
        (None, ("--layers", "0-2"), "--layers 0-2: .* counted from 1; got '0-2'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_file_is_begun(
    command, model_of, tmp_path, model_type, options, message
):
    model = model_of(model_type) if model_type else TOY_MODEL
    with pytest.raises(HarnessError, match=message):
        command(*BUILT, "--model", model, "--n", 1, *options, "-o", tmp_path / "t.traces")
    assert not (tmp_path / "t.traces").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "`run`, `logs` and `dataset`, got none"),
        ((GREEDY_RUN, *BUILT[1:]), "got run and dataset"),
        (("--log", "wo"), "--log 'wo'"),
        (BUILT[1:], "--model"),
        (("nowhere",), "nowhere"),
    ],
)
def test_without_one_source_of_prompts_there_is_no_probe(command, arguments, message):
    with pytest.raises(HarnessError, match=message):
        command("probe", *arguments)


def test_a_problem_over_the_context_is_named_before_anything_is_measured(source, tmp_path):
    first = source.problems[0]
    talkative = with_completion(source, "one two " * 3000)
    settings = ProbeSettings(conditions=("mless",), record=Record(completion=True))
    with pytest.raises(
        PromptMismatchError, match=rf"Problem {first.id}, condition 'wo': \d+ tokens;"
    ):
        run_probe(talkative, Criterion(ids=(first.id,)), settings, tmp_path / "t.traces")
    assert not (tmp_path / "t.traces").exists()


HEADS, QUERIES, WIDTH = 3, 5, 4


def norm(vector):
    return math.sqrt(sum(float(x) ** 2 for x in vector))


def random_tensor(*shape):
    return torch.from_numpy(np.random.default_rng(len(shape)).normal(size=shape))


def test_parts_are_means_over_queries_of_shares_of_the_output_without_filler():
    random = np.random.default_rng(0)
    without, gap, bias = (
        torch.from_numpy(random.normal(size=(HEADS, QUERIES, WIDTH))) for _ in range(3)
    )
    mass = torch.from_numpy(random.uniform(0.1, 0.9, size=(HEADS, QUERIES)))
    with_filler = (1 - mass[..., None]) * gap + bias
    parts, residual = decompose(
        without=without, gap=gap, with_filler=with_filler, bias=bias, mass=mass
    )
    assert residual.max() < 1e-12
    for head in range(HEADS):
        shares = {name: [] for name in parts}
        for query in range(QUERIES):
            o, g, b, m = (part[head, query].numpy() for part in (without, gap, bias, mass))
            shares["position_shift"].append(norm(g - o) / norm(o))
            shares["scale"].append(norm(m * g) / norm(o))
            shares["bias"].append(norm(b) / norm(o))
            shares["bias_relative_norm"].append(norm(b) / norm(g))
            shares["bias_cosine"].append(float(b @ g) / norm(b) / norm(g))
        for name, values in shares.items():
            np.testing.assert_allclose(parts[name][head], np.mean(values))
    _, broken = decompose(
        without=without, gap=gap, with_filler=with_filler + 1, bias=bias, mass=mass
    )
    assert broken.min() > 0.1


def test_queries_that_do_not_see_the_filler_have_no_cosine():
    gap, bias = random_tensor(2, 2, WIDTH)[:, None]
    mass = torch.tensor([[0.0, 0.4]], dtype=torch.float64)
    bias[:, 0] = 0
    parts, _ = decompose(without=gap, gap=gap, with_filler=gap, bias=bias, mass=mass)
    expected = torch.nn.functional.cosine_similarity(bias[0, 1], gap[0, 1], dim=0)
    np.testing.assert_allclose(parts["bias_cosine"][0], expected)
    np.testing.assert_allclose(parts["bias"][0], norm(bias[0, 1]) / norm(gap[0, 1]) / 2)
    mass[:] = 0
    assert (
        decompose(without=gap, gap=gap, with_filler=gap, bias=bias * 0, mass=mass)[0]["bias_cosine"]
        .isnan()
        .all()
    )


def test_a_short_bias_has_the_cosine_of_a_long_one():
    gap, bias = random_tensor(2, 1, 3, WIDTH).float()
    mass = torch.ones(1, 3)
    expected = torch.nn.functional.cosine_similarity(bias.double(), gap.double(), dim=-1).mean()
    for length in (1.0, 1e-12, 1e-25):
        parts, _ = decompose(without=gap, gap=gap, with_filler=gap, bias=bias * length, mass=mass)
        np.testing.assert_allclose(parts["bias_cosine"], [expected], rtol=1e-6)
