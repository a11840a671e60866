"""Interventions: their arithmetic, what they do in Hugging Face, and that vLLM does the same."""

import json
import math
import os

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.engines.backends import check_backend
from harness.engines.engine_processes import INTERVENTIONS
from harness.engines.interventions import check_arms, vllm_worker
from harness.engines.interventions.arithmetic import (
    add_gap,
    attend,
    change_activations,
    draw,
    redistribute,
    tabulate_fillers,
)
from harness.engines.interventions.check_arms import (
    ask_reference,
    describe_agreement,
    distance,
    opened_layers,
    refuse_to_open,
)
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, EngineError
from harness.experiment.expand_conditions import CELLS
from harness.experiment.plan import make_plan, make_requests, sample_key
from harness.experiment.run_config import RunConfig
from tests.conftest import gpu_share, report
from tests.make import TOY_DATA, TOY_MODEL, read_data

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's, as vllm is imported

ON = {"kind": "filler", "layers": [0], "start": 3, "size": 5, "scale": True, "bias": True}
FACTOR = 0.3


def heads(tokens, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, tokens, 6, 8), (1, keys, 2, 8), (1, keys, 2, 8))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def plain(query, key, value):
    queries, keys, values = (states.transpose(1, 2) for states in (query, key, value))
    output = scaled_dot_product_attention(
        queries, keys, values, scale=FACTOR, is_causal=True, enable_gqa=True
    )
    return output.transpose(1, 2)


def fillers(*arms):
    return tabulate_fillers(arms, torch.device("cpu"))


def switched(query, key, value, at=None, **switches):
    at = torch.arange(query.shape[1])[None] if at is None else at
    return attend(query, key, value, FACTOR, at, fillers({**ON, **switches}))


def test_with_all_switches_on_it_is_plain_attention_for_a_prompt_and_for_one_token():
    query, key, value = heads(12, 12)
    torch.testing.assert_close(
        switched(query, key, value), plain(query, key, value), atol=1e-6, rtol=0
    )
    last = switched(query[:, -1:], key, value, torch.tensor([[11]]))
    torch.testing.assert_close(last, plain(query, key, value)[:, -1:], atol=1e-6, rtol=0)


def test_scale_and_bias_are_the_two_parts_of_attention_beside_a_filler():
    query, key, value = heads(12, 12)
    complete, original = (
        switched(query, key, value),
        switched(query, key, value, scale=False, bias=False),
    )
    scaled, added = (
        switched(query, key, value, bias=False),
        switched(query, key, value, scale=False),
    )
    torch.testing.assert_close(complete - scaled, added - original, atol=1e-6, rtol=0)
    without = [torch.cat([states[:, :3], states[:, 8:]], 1) for states in (query, key, value)]
    torch.testing.assert_close(original[:, 8:], plain(*without)[:, 3:], atol=1e-6, rtol=0)
    # queries before the filler's end are as they were
    torch.testing.assert_close(original[:, :8], complete[:, :8])
    ratio = (scaled / original)[:, 8:].flatten(3)
    # one number for each head and token
    torch.testing.assert_close(ratio.amin(-1), ratio.amax(-1), atol=1e-4, rtol=0)


def test_a_phantom_is_the_filler_for_all_later_tokens_in_one_batch_with_others():
    query, key, value = heads(12, 12)
    absent = [torch.cat([states[:, :3], states[:, 8:]], 1) for states in (query, key, value)]
    phantoms = [
        torch.cat([states, full[:, 3:8]], 1)
        for states, full in zip(absent[1:], (key, value), strict=True)
    ]
    arm = {**ON, "phantom": [7] * 5}
    output = attend(absent[0], *phantoms, FACTOR, torch.arange(7)[None], fillers(arm))
    torch.testing.assert_close(output[:, 3:], switched(query, key, value)[:, 8:], atol=1e-6, rtol=0)
    torch.testing.assert_close(output[:, :3], switched(query, key, value)[:, :3], atol=1e-6, rtol=0)
    padded = [torch.cat([states, torch.zeros(1, 5, *states.shape[2:])], 1) for states in absent[1:]]
    both = [
        torch.cat(pair) for pair in zip((absent[0], *phantoms), (absent[0], *padded), strict=True)
    ]
    pair = fillers(arm, {**ON, "start": 99, "phantom": []})
    mixed = attend(*both, FACTOR, torch.arange(7).repeat(2, 1), pair)
    torch.testing.assert_close(mixed[:1], output)
    torch.testing.assert_close(mixed[1:], plain(*absent), atol=1e-6, rtol=0)


def test_redistribution_moves_the_smallest_outward_and_its_shams_as_many_as_far():
    a, positions = torch.nn.functional.silu(torch.randn(5, 200)), torch.arange(40, 45)
    moved = redistribute(a, positions, 0.1, seed=0)
    changed = moved != a
    assert (changed.sum(-1) == 20).all() and moved[changed].abs().mean() > a[changed].abs().mean()
    assert (
        a.abs().masked_fill(~changed, 0).amax(-1) <= a.abs().masked_fill(changed, 9).amin(-1)
    ).all()
    assert ((moved * a)[changed] >= 0).all(), "the sign stays"
    for sham in ("inward", "random"):
        sham_moved = redistribute(a, positions, 0.1, sham=sham, seed=0)
        assert ((sham_moved != a).sum(-1) == 20).all()
        torch.testing.assert_close((sham_moved - a).norm(dim=-1), (moved - a).norm(dim=-1))
    assert (redistribute(a, positions, 0.1, sham="random", seed=1) != sham_moved).any()
    batches = torch.cat(
        [
            redistribute(a[:2], positions[:2], 0.1, seed=0),
            redistribute(a[2:], positions[2:], 0.1, seed=0),
        ]
    )
    assert (batches == moved).all(), "however the tokens are batched"
    numbers = draw(torch.arange(300), 300, 0)
    assert 0 <= numbers.min() and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.01
    assert (
        torch.corrcoef(torch.stack([numbers[:-1].flatten(), numbers[1:].flatten()]))[0, 1].abs()
        < 0.02
    )


def test_positions_behind_an_absent_filler_are_moved():
    assert add_gap(torch.arange(5), 3, 5).tolist() == [0, 1, 2, 8, 9]
    assert add_gap(torch.arange(5), torch.tensor([9, 0, 3, 3, 9]), 5).tolist() == [0, 6, 2, 8, 4]


def config(conditions, **more):
    arguments = {
        "pretrained": TOY_MODEL,
        "dtype": "float32",
        "max_model_len": 512,
        "enforce_eager": True,
    }
    model = {"model_args": {**arguments, **more.pop("arguments", {})}, **more.pop("model", {})}
    values = {"name": "arms", "dataset": TOY_DATA, "layouts": ["raw"], "max_gen_toks": 8}
    return RunConfig.model_validate({**values, **more, "model": model, "conditions": conditions})


ARM = {"name": "arm", "intervention": {"kind": "redistribute", "layer": 1, "share": 0.1}}


def test_causes_are_the_seven_cells_beside_the_filler_and_every_request_has_a_key_of_its_own():
    settings = config(["wo", "mless", {"causes": "mless", "layer": 1}, ARM])
    assert [condition.name for condition in settings.conditions] == [
        "wo",
        "mless",
        *(f"mless-{cell}" for cell in CELLS),
        "arm",
    ]
    plan = make_plan(settings, limit=2)
    requests = [*make_requests(plan, settings.resolve_sampling(None))]
    assert len({sample_key(request, "") for request in requests}) == len(requests) == 2 * 10
    assert {request.again for request in requests} == {0}, (
        "an arm does not depend on whether wo is asked"
    )
    by = {
        request.task.removeprefix("demo_"): request
        for request in requests
        if request.problem_id == requests[0].problem_id
    }
    assert (
        by["mless-gap"].prompt_token_ids
        == by["mless-scale"].prompt_token_ids
        == by["wo"].prompt_token_ids
    )
    assert by["mless-masked"].prompt_token_ids == by["mless"].prompt_token_ids
    gap, bias = by["mless-gap"].intervention, by["mless-bias"].intervention
    size = len(by["mless"].prompt_token_ids) - len(by["wo"].prompt_token_ids)
    assert (
        gap["size"] == bias["size"] == size == len(bias["phantom"])
        and gap["phantom"] == gap["layers"] == []
    )
    later = config(["wo", "mless", {"causes": "mless", "layers": "2-3"}])
    assert [condition.name for condition in later.conditions[2:]] == [
        "mless-2-3-masked",
        "mless-2-3-no-scale",
        "mless-2-3-no-bias",
        "mless-gap",
    ]
    assert RunConfig.model_validate(later.as_written()) == later


REFUSED = read_data("refused_configs")


@pytest.mark.parametrize("case", REFUSED["interventions"], ids=str)
def test_what_is_no_intervention_is_refused(case):
    with pytest.raises((ConfigError, ValueError), match=case["message"]):
        config(["wo", *case["conditions"]])


@pytest.mark.parametrize("case", REFUSED["engines"], ids=str)
def test_what_cannot_carry_an_intervention_is_refused_before_anything_is_loaded(case):
    changes = {"conditions": [ARM], **case["change"]}
    settings = config(["wo", *changes.pop("conditions")], **changes)
    with pytest.raises(ConfigError, match=case["message"]):
        check_backend(settings)


def test_a_layer_that_the_model_has_not_is_refused():
    layers = opened_layers(config(["wo"], record_attention=[1, 99]))
    assert layers == {"attention": [], "activations": [], "recorded": [0, 98]}
    with pytest.raises(ConfigError, match=r"Layer 99 is requested, but the model has \d+ layers"):
        refuse_to_open({"pretrained": TOY_MODEL}, layers)


def test_a_function_whose_file_is_missing_is_refused():
    missing = {"name": "x", "intervention": {"kind": "function", "layer": 1, "file": "nowhere.py"}}
    with pytest.raises(ConfigError, match=r"the function's file nowhere.py: No such file"):
        make_plan(config(["wo", missing]), limit=1)


def test_a_filler_that_is_not_one_run_of_tokens_is_refused():
    problems = {"name": "x", "unit": "/", "placement": "each"}
    prompt_options = {"fewshot": {"num_fewshot": 2}, "answer": "line"}
    with pytest.raises(
        Exception, match="expected a filler of consecutive tokens, and without them"
    ):
        make_plan(
            config(
                ["wo", problems, {"causes": "x", "layer": 1}],
                dataset={"make": "products"},
                **prompt_options,
            ),
            limit=2,
        )


def test_answers_agree_until_a_near_tie():
    ours = {"tokens": [1, 2, 3], "logprobs": [-0.1, -0.2, -0.3]}
    theirs = {**ours, "leads": [1, 1e-4, 1]}
    assert distance(ours, theirs, 1e-3) == 0
    assert distance(ours, {**theirs, "logprobs": [-0.1, -0.2, -0.35]}, 1e-3) == pytest.approx(0.05)
    assert (
        distance(ours, {**theirs, "tokens": [1, 4, 9], "logprobs": [-0.1, -0.2, -7]}, 1e-3) == 0
    ), "a near-tie"
    assert distance(ours, {**theirs, "tokens": [1, 2, 4]}, 1e-3) == math.inf
    reference = {
        "questions": {"dtype": "float32"},
        "answers": {"a": [theirs, theirs], "b": [theirs]},
    }
    deviating = {**ours, "tokens": [1, 2, 4]}
    agreement = check_arms.compare_with_reference({"a": [ours, deviating], "b": [ours]}, reference)
    assert (agreement["prompts"], agreement["agreements"]) == ({"a": 2, "b": 1}, {"a": 1, "b": 1})
    assert describe_agreement({**agreement, "largest": 2e-5}) == (
        "2 arms answer as in Hugging Face, 2 prompts each: log-probabilities differ by 2e-05 at most."
    )


def test_compiled_graphs_are_split_at_our_own_op_too_and_stored_under_another_hash(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    options = {"compilation_config": {"level": 3}}
    check_arms.open_layers(options, {"attention": [0], "activations": [2]})
    assert options["compilation_config"]["splitting_ops"][-1] == check_arms.OPERATION
    assert "vllm::unified_attention_with_output" in options["compilation_config"]["splitting_ops"]
    assert (
        options["compilation_config"]["cudagraph_mode"] == "FULL_AND_PIECEWISE"
        and options["compilation_config"]["level"] == 3
    )
    assert options["additional_config"] == {"mless": {"attention": [0], "activations": [2]}}
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_a_phantom_is_the_filler_that_no_other_layer_sees():
    from harness.engines.interventions.hugging_face_answers import Reference

    reference = Reference(TOY_MODEL, "float32", [0])
    settings = config(["wo", "mless", {"causes": "mless", "layer": 1}])
    requests = {
        request.task.removeprefix("demo_"): request
        for request in make_requests(make_plan(settings, limit=1), settings.resolve_sampling(None))
    }
    phantom, hidden = requests["mless-layer-1"], requests["mless-masked"]
    later_layers = [*range(1, reference.model.config.num_hidden_layers)]
    ours = reference.answer(phantom.prompt_token_ids, phantom.intervention)
    theirs = reference.answer(
        hidden.prompt_token_ids, {**hidden.intervention, "layers": later_layers}
    )
    assert ours["tokens"] == theirs["tokens"]
    assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4)


def test_a_function_of_the_users_own_changes_activations(tmp_path):
    file = tmp_path / "halve.py"
    file.write_text(
        "def change(activations, positions, factor):\n    return activations * factor\n"
    )
    arm = {"kind": "function", "file": str(file), "arguments": {"factor": 0.5}}
    assert change_activations(torch.ones(2, 3), torch.arange(2), arm).tolist() == [[0.5] * 3] * 2


FIRST = {"name": "first", "unit": "/", "placement": "before_system"}
ARMS = ["wo", FIRST, {"causes": "first", "layer": 1}, {"causes": "first", "layers": "4-10"}, ARM]
ARMS.append({"name": "inward", "intervention": {**ARM["intervention"], "sham": "inward"}})


def real():
    """SmolLM2 on products, under 14 conditions."""
    problems = {"dataset": {"make": "products"}, "answer": "line", "fewshot": {"num_fewshot": 2}}
    return config(
        ARMS, arguments={"pretrained": "smollm2", "kv_cache_memory_bytes": 2**30}, **problems
    )


@pytest.fixture(scope="module")
def engine_options(smollm2, tmp_path_factory):
    """The reference of eight prompts of each arm, and the engine arguments that name it."""
    settings = real()
    plan = make_plan(settings, limit=8)
    folder, requests = (
        tmp_path_factory.mktemp("arms"),
        [*make_requests(plan, settings.resolve_sampling(None))],
    )
    reference = ask_reference(plan, requests, folder)
    written_at = (folder / check_arms.REFERENCE).stat().st_mtime_ns
    assert ask_reference(plan, requests, folder) == reference
    assert (folder / check_arms.REFERENCE).stat().st_mtime_ns == written_at, "asked once"
    return settings.model_arguments() | {
        "interventions": {"layers": opened_layers(settings), "reference": reference}
    }


@pytest.mark.gpu
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"enforce_eager": False}, {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}],
    ids=["graphs", "chunks"],
)
def test_compiled_and_in_chunks_every_arm_is_hugging_faces(engine_options, more):
    engine = VLLMEngine({**gpu_share(), **engine_options, **more}, sampled=False)
    try:
        facts = engine.facts()
        agreement = facts["interventions"]
        report(f"{describe_agreement(agreement)} (CUDA graphs {facts['cudagraph_mode']})")
        assert set(agreement["agreements"].values()) == {8} and agreement["largest"] < 1e-3
    finally:
        engine.close()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of sockets of earlier engines, which are collected here
def test_without_a_salt_of_its_own_an_arm_gets_the_states_of_others(engine_options, monkeypatch):
    monkeypatch.setattr(check_arms, "hash_json", lambda arm: "one for all")
    with pytest.raises(EngineError, match="does not answer as Hugging Face under interventions"):
        VLLMEngine(engine_options, sampled=False)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of vLLM's worker, which is in this process
def test_a_hook_that_is_skipped_ends_the_run(engine_options, monkeypatch):
    monkeypatch.setenv(
        "VLLM_ENABLE_V1_MULTIPROCESSING", "0"
    )  # so that the worker's hook can be taken out here
    vllm_worker.install_at_load()
    monkeypatch.setenv(INTERVENTIONS, json.dumps(engine_options["interventions"]["layers"]))
    monkeypatch.setattr(vllm_worker.Arms, "change_rows", lambda *_: None)
    with pytest.raises(
        (EngineError, RuntimeError), match=r"interventions and recording reached \d+ of \d+ rows"
    ):
        VLLMEngine(engine_options, sampled=False)
