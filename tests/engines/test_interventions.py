"""Interventions: their arithmetic, their effect in Hugging Face, and the same effect in vLLM."""

import os
import signal
import time
from contextlib import closing, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from harness import RunConfig
from harness.engines.backends import check_backend
from harness.engines.interventions import intervention_check
from harness.engines.interventions.arithmetic import (
    attend_with_changes,
    change_outputs,
    redistribute,
    tabulate_changes,
)
from harness.engines.interventions.hugging_face_reference import ReferenceModel
from harness.engines.interventions.intervention_check import (
    ask_reference,
    describe_agreement,
    logprob_distance,
)
from harness.engines.interventions.open_layers import (
    find_changed_layers,
    refuse_to_open,
)
from harness.engines.interventions.step_rows import Chunk, Group
from harness.engines.interventions.vllm_worker import WorkerInterventions
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, EngineError, ModelError
from harness.experiment.plan import make_plan, sample_key
from tests.conftest import gpu_share, ignore_warnings, report, slow_engine
from tests.make import TOY_DATA, TOY_MODEL, list_requests, module_fixture, read_data, with_cases
from tests.tiny_models import MODELS, build_language_model, save_language_model

# of torch, as vllm is imported
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


CONDITIONS = read_data("interventions")
ARM = CONDITIONS["arm"]
CELLS = CONDITIONS["cells"]
ON, PRODUCTS = CONDITIONS["on"], CONDITIONS["products"]
FACTOR = 0.3

assert_near = partial(torch.testing.assert_close, atol=1e-6, rtol=0)


@pytest.fixture
def states():
    """Queries, keys and values of twelve tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 12, heads, 8, generator=generator) for heads in (6, 2, 2)]


def attend_plainly(*states):
    query, key, value = (tensor.transpose(1, 2) for tensor in states)
    output = scaled_dot_product_attention(
        query, key, value, scale=FACTOR, is_causal=True, enable_gqa=True
    )
    return output.transpose(1, 2)


def attend(states, *interventions, first=0):
    """The attention of prompts, each under an intervention, from the first query on."""
    positions = torch.arange(first, first + states[0].shape[1]).repeat(len(interventions), 1)
    tabulated = tabulate_changes(interventions, states[0].device)
    return attend_with_changes(*states, FACTOR, positions, tabulated)


def attend_with(states, **switches):
    return attend(states, {**ON, **switches})


def attend_to(states, *weights):
    """Attention in which ranges of tokens have weights."""
    return attend(states, {"kind": "attention", "layers": [0], "weights": [*weights]})


def test_with_all_switches_on_it_is_plain_attention_for_a_prompt_and_for_one_token(states):
    expected = attend_plainly(*states)
    assert_near(attend_with(states), expected)
    query, key, value = states
    last = attend((query[:, -1:], key, value), ON, first=11)
    assert_near(last, expected[:, -1:])


def test_scale_and_bias_are_the_two_terms_that_a_filler_adds_to_attention(states):
    complete, original = attend_with(states), attend_to(states, [3, 8, 8, 0])
    scaled, biased = attend_with(states, bias=False), attend_with(states, scale=False)
    assert_near(complete - scaled, biased - original)
    # a filler changes no query before its end
    torch.testing.assert_close(original[:, :8], complete[:, :8])
    # it scales all units of a head and token by the same number
    ratio = (scaled / original)[:, 8:].flatten(3)
    assert_near(ratio.amin(-1), ratio.amax(-1), atol=1e-4)


def test_later_tokens_attend_to_a_phantom_as_to_the_filler_also_in_a_batch(states):
    # without the filler
    query, *absent = [torch.cat([tensor[:, :3], tensor[:, 8:]], 1) for tensor in states]
    phantoms = [torch.cat([a, b[:, 3:8]], 1) for a, b in zip(absent, states[1:], strict=True)]
    phantom = {**ON, "phantom": [7] * 5}
    output = attend((query, *phantoms), phantom)
    complete = attend_with(states)
    assert_near(output, torch.cat([complete[:, :3], complete[:, 8:]], 1))
    padded = [torch.cat([tensor, torch.zeros(1, 5, 2, 8)], 1) for tensor in absent]
    pairs = zip((query, *phantoms), (query, *padded), strict=True)
    none = {**ON, "start": 99, "phantom": []}
    mixed = attend([*map(torch.cat, pairs)], phantom, none)
    torch.testing.assert_close(mixed[:1], output)
    assert_near(mixed[1:], attend_plainly(query, *absent))


@with_cases
def test_a_token_with_a_weight_counts_as_if_so_many_copies_stood_there(states, weights, copies):
    query, key, value = states
    if not any(copies[3:8]):  # the hidden tokens have all attention
        query.abs_()
        key.abs_()[:, 3:8] *= 1000
    output = attend_to(states, *weights)
    positions = torch.arange(12).repeat_interleave(torch.tensor(copies))
    for index in range(8, 12):
        visible = positions[positions <= index]
        scores = torch.einsum(
            "hd,khd->hk", query[0, index], key[0, visible].repeat_interleave(3, 1)
        )
        shares = (scores * FACTOR).softmax(-1)
        expected = torch.einsum("hk,khd->hd", shares, value[0, visible].repeat_interleave(3, 1))
        assert_near(output[0, index], expected)
    assert_near(output[:, : weights[0][2]], attend_plainly(*states)[:, : weights[0][2]])


@with_cases
def test_sequences_with_different_numbers_of_ranges_are_changed_together(states, changes):
    together = [{"kind": "attention", "layers": [0], "weights": weights} for weights in changes]
    batch = [tensor.repeat(3, 1, 1, 1) for tensor in states]
    alone = [attend_to(states, *weights) for weights in changes]
    assert_near(attend(batch, *together), torch.cat(alone))


def test_redistribution_moves_small_activations_outward_and_shams_move_others_as_far():
    activations = torch.nn.functional.silu(torch.randn(5, 200))
    positions = torch.arange(40, 45)
    move = partial(redistribute, share=0.1, seed=0)
    moved = move(activations, positions)
    changed, sizes = moved != activations, activations.abs()
    assert (changed.sum(-1) == 20).all() and moved[changed].abs().mean() > sizes[changed].mean()
    largest_changed = sizes.masked_fill(~changed, 0).amax(-1)
    assert (largest_changed <= sizes.masked_fill(changed, 9).amin(-1)).all()
    assert ((moved * activations)[changed] >= 0).all()  # the sign stays
    distance_moved = (moved - activations).norm(dim=-1)
    for sham in ("inward", "random"):
        sham_moved = move(activations, positions, sham=sham)
        assert ((sham_moved != activations).sum(-1) == 20).all()
        torch.testing.assert_close((sham_moved - activations).norm(dim=-1), distance_moved)
        zeros = torch.zeros(1, 200)
        assert (move(zeros, positions[:1], sham=sham) == zeros).all()
    assert (move(activations, positions, sham="random", seed=1) != sham_moved).any()
    batches = [move(activations[rows], positions[rows]) for rows in (slice(2), slice(2, 5))]
    assert (torch.cat(batches) == moved).all()  # however the tokens are batched


def test_outputs_of_listed_tokens_are_those_of_the_source_or_a_sham_of_it():
    generator = torch.Generator().manual_seed(1)
    outputs, source = torch.randn(6, 300, generator=generator), torch.randn(300) * 9
    change, is_changed = {"seed": 0}, torch.tensor([0, 1, 0, 1, 0, 0]) == 1
    names = "first ordinary random permuted permuted_own removed".split()
    changed = {
        name: change_outputs(outputs, is_changed, {**change, "from": name}, source)
        for name in names
    }
    for name, rows in changed.items():
        assert (rows[[0, 2, 4, 5]] == outputs[[0, 2, 4, 5]]).all(), name
    changed = {name: rows[[1, 3]] for name, rows in changed.items()}
    own = outputs[[1, 3]]
    assert (changed["first"] == source).all() and (changed["ordinary"] == source).all()
    assert_near(changed["random"].norm(dim=-1), source.norm().repeat(2), atol=1e-3)
    assert abs(torch.cosine_similarity(changed["random"][0], source, dim=0)) < 0.2
    assert (changed["permuted"][0].sort().values == source.sort().values).all()
    assert (changed["permuted_own"].sort().values == own.sort().values).all()
    order = [source.tolist().index(value) for value in changed["permuted"][0].tolist()]
    assert order != sorted(order) and (changed["permuted_own"] == own[:, order]).all()
    assert_near(changed["removed"] @ source, torch.zeros(2), atol=1e-2)
    removed = own - changed["removed"]
    assert_near(torch.cosine_similarity(removed, source[None]).abs(), torch.ones(2))
    reseeded = change_outputs(outputs, is_changed, {**change, "seed": 1, "from": "random"}, source)
    assert (reseeded[1] != changed["random"][0]).all()


ARGUMENTS = CONDITIONS["arguments"]


def config(conditions, **changes):
    arguments = {"pretrained": TOY_MODEL, **ARGUMENTS, **changes.pop("arguments", {})}
    model = {"model_args": arguments, **changes.pop("model", {})}
    values = {"name": "arms", "dataset": TOY_DATA, "layouts": ["raw"], "max_gen_toks": 8}
    return RunConfig.model_validate({**values, **changes, "model": model, "conditions": conditions})


def plan_requests(settings, limit):
    plan = make_plan(settings, limit=limit)
    return plan, list_requests(plan)


def first_requests(requests):
    """The requests of the first problem, by condition."""
    return {
        request.task.removeprefix("demo_"): request
        for request in requests
        if request.problem_id == requests[0].problem_id
    }


def test_every_cell_of_a_filler_has_requests_with_keys_of_their_own():
    settings = config(["wo", "mless", *CELLS, CONDITIONS["sink"]])
    _, requests = plan_requests(settings, 2)
    assert len({sample_key(request, "") for request in requests}) == len(requests) == 2 * 10
    # an arm's requests are the same whether or not `wo` is in the run
    assert {request.duplicate_number for request in requests} == {0}
    by_condition = first_requests(requests)
    ids = {name: request.prompt_token_ids for name, request in by_condition.items()}
    assert ids["mless-gap"] == ids["mless-scale"] == ids["sink"] == ids["wo"]
    resolved = {"kind": "attention", "layers": [0, 1], "weights": [[0, 1, 1, 0.33]]}
    assert by_condition["sink"].intervention == [resolved]
    assert ids["mless-masked"] == ids["mless"]
    gaps = (by_condition[f"mless-{cell}"].intervention for cell in ("gap", "bias"))
    (gap,), (bias,) = gaps
    size = len(ids["mless"]) - len(ids["wo"])
    assert gap["size"] == bias["size"] == size == len(bias["phantom"])
    assert gap["phantom"] == gap["layers"] == []


def plan_slashes(intervention, **keys):
    """The prompt and the one change of a condition of nine slashes before the system prompt."""
    slashes = {"name": "slashes", "unit": "/", "count": 9, "placement": "before_system", **keys}
    settings = config(["wo", {**slashes, "intervention": intervention}], **PRODUCTS)
    assert RunConfig.model_validate(settings.values_with_defaults()) == settings
    (prompt,) = plan_requests(settings, 1)[0].tasks["products_slashes"].prompts
    return prompt, *prompt.intervention


@with_cases
def test_the_tokens_of_a_part_are_those_of_its_text(change, texts, condition):
    """The changed texts, each with what stands where the first later token begins."""
    intervention = {"kind": "attention", "weight": 0, "layers": "1-2", **change}
    prompt, change = plan_slashes(intervention, **condition)
    starts, ends = prompt.offsets.T
    changed_texts = [
        [prompt.text[starts[start] : ends[end - 1]], prompt.text[ends[later - 1] :][:3]]
        for start, end, later, _ in change["weights"]
    ]
    assert changed_texts == [[text, later_text[:3]] for text, later_text in texts]


@with_cases
def test_the_source_of_outputs_ends_with_a_text(origin, text):
    output = {"kind": "mlp_output", "layers": "2-3", "part": "filler", "count": 3, "from": origin}
    prompt, change = plan_slashes(output)
    assert (change["layers"], change["tokens"]) == ([1, 2], [1, 2, 3])
    size = len(change["source"])
    assert change["source"] == [*prompt.token_ids[:size]]
    assert prompt.text[: prompt.offsets[size - 1][1]].endswith(text)


@with_cases
def test_a_planted_output_is_that_of_the_first_token_alone(changes):
    """Against the hidden states of Hugging Face's model, without our arithmetic."""
    reference, recorded = ReferenceModel(TOY_MODEL, "float32", []), {}
    block = reference.model.model.layers[1]
    alone = AutoModelForCausalLM.from_pretrained(TOY_MODEL, dtype=torch.float32)
    alone.model.layers[1].mlp.register_forward_hook(
        lambda *call: recorded.update(alone=call[-1][0, -1])
    )
    alone(torch.tensor([[5]]))
    # after the hook that changes outputs; the first pass is that of the source
    block.mlp.register_forward_hook(lambda *call: recorded.update({call[-1].shape[1]: call[-1][0]}))
    reference.generate([5, 6, 7, 8, 9], changes, 1)
    recorded["changed"] = recorded[5]
    assert_near(recorded["changed"][2:4], recorded["alone"].expand(2, -1))
    assert (recorded["changed"][4] - recorded["alone"]).abs().max() > 1e-3


def test_in_each_layer_the_last_weight_of_a_token_holds(states):
    _, (request, *_) = plan_requests(config([CONDITIONS["three changes"]], **PRODUCTS), 1)
    activations, *changes = request.intervention
    assert activations["kind"] == "redistribute"
    assert [change["layers"] for change in changes] == [[0], [1, 2], [3]]
    assert [len(change["weights"]) for change in changes] == [1, 2, 1]
    assert_near(attend_to(states, [3, 8, 8, 0], [3, 8, 8, 2]), attend_to(states, [3, 8, 8, 2]))


@with_cases
def test_a_run_that_cannot_have_interventions_is_refused_before_the_model_is_loaded(
    change, message
):
    changes = {"conditions": [ARM], **change}
    settings = config(["wo", *changes.pop("conditions")], **changes)
    with pytest.raises(ConfigError, match=message):
        check_backend(settings)


def test_layers_with_windows_have_a_block_table_of_their_own():
    chunk = Chunk(
        0, 1, first_index=5, request_index=0, changes=[ON], recording=None, queries=range(0)
    )
    group = Group([[ON]])
    group.start_step([chunk], torch.device("cpu"))
    for blocks in ([3, 7], [2, 9]):
        slots = [4 * blocks[0] + offset for offset in range(4)] + [4 * blocks[1], 4 * blocks[1] + 1]
        assert group.slots(torch.tensor([blocks]), 4).tolist() == [slots]


@with_cases
def test_a_model_that_excludes_open_layers_is_refused_before_it_is_loaded(
    kind, layers, context, obstacle, tmp_path
):
    # with short sliding windows, if its architecture has any
    AutoConfig.for_model(kind, **MODELS["short windows"]).save_pretrained(tmp_path)
    message = f"cannot be opened: {kind} has .*{obstacle}"
    with pytest.raises(ConfigError, match=message) if obstacle else nullcontext():
        refuse_to_open({"pretrained": str(tmp_path), "max_model_len": context}, layers)


def interrupt_and_answer(folder, _questions, _name):
    """Stands for a slow answer of Hugging Face, during which the run is interrupted."""
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(30)
    (folder / "answered").touch()


def test_an_interrupted_run_does_not_wait_for_an_answer_of_hugging_face(tmp_path, monkeypatch):
    # also if a shell started the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plan, _ = plan_requests(config([ARM], **PRODUCTS), 1)
    monkeypatch.setattr(intervention_check, "_answer_arm", partial(interrupt_and_answer, tmp_path))
    monkeypatch.setattr(intervention_check, "_make_questions", lambda *_: {"arms": ["arm"]})
    with pytest.raises(KeyboardInterrupt):
        ask_reference(plan, print)
    assert not (tmp_path / "answered").exists()


@with_cases
def test_answers_agree_until_a_near_tie(ours, theirs, expected):
    assert logprob_distance(ours, theirs, 1e-3) == pytest.approx(expected)


@with_cases
def test_answers_that_agree_are_counted_by_condition(answers, expected, refusal):
    reference = {"questions": {"dtype": "float32"}, "answers": expected}
    with pytest.raises(EngineError, match=refusal) if refusal else nullcontext():
        agreement = intervention_check.compare_with_reference(answers, reference)
        assert agreement["prompts"] == {"a": 2, "b": 1}


def test_a_phantom_has_the_effect_of_a_filler_that_all_other_layers_mask():
    reference = ReferenceModel(TOY_MODEL, "float32", [0])
    settings = config(["wo", "mless", *CELLS])
    _, requests = plan_requests(settings, 1)
    by_condition = first_requests(requests)
    phantom, hidden = by_condition["mless-layer-1"], by_condition["mless-masked"]
    later_layers = [*range(1, reference.model.config.num_hidden_layers)]
    ours = reference.generate(phantom.prompt_token_ids, phantom.intervention, 8)
    (change,) = hidden.intervention
    changes = [{**change, "layers": later_layers}]
    theirs = reference.generate(hidden.prompt_token_ids, changes, 8)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4)


@pytest.fixture
def linear(tmp_path):
    """Makes a change of Layer 1's activations: times a factor, plus a term."""
    file = tmp_path / "linear.py"
    file.write_text("def change(activations, _, factor, term): return activations * factor + term")
    change = {"kind": "function", "layers": [0], "file": str(file)}
    return lambda factor, term: {**change, "arguments": {"factor": factor, "term": term}}


def test_changes_of_a_layers_activations_are_made_in_their_order_in_hugging_face(linear):
    reference = ReferenceModel(TOY_MODEL, "float32", [0])
    lists = [[linear(1, 1), linear(2, 0)], [linear(2, 2)], [linear(2, 0), linear(1, 1)]]
    first, same, reverse = (reference.generate([5, 6, 7], changes, 2) for changes in lists)
    assert first["logprobs"] == pytest.approx(same["logprobs"], abs=1e-6)
    assert first["logprobs"] != pytest.approx(reverse["logprobs"], abs=1e-3)


def test_requests_of_a_batch_have_their_changes_in_the_order_of_their_lists(linear):
    output = {"kind": "mlp_output", "layers": [0], "tokens": [5], "seed": 0, "source": [7]}
    first, removed = {**output, "from": "first"}, {**output, "from": "removed"}
    lists = [
        [linear(1, 1), first, linear(2, 0), removed],
        [removed, linear(2, 0), first, linear(1, 1)],
        [first, linear(2, 0)],
    ]
    worker = WorkerInterventions.__new__(WorkerInterventions)  # without a model
    worker._runner = SimpleNamespace(device=torch.device("cpu"), positions=torch.zeros(3))
    worker._activation, worker._groups, worker.applied_rows = torch.relu, {}, 0
    worker._new_outputs, worker._outputs_by_source = None, {(7,): {0: torch.tensor([0.0, 9.0])}}
    worker._chunks = [
        Chunk(row, 1, 5, row, changes, None, range(0)) for row, changes in enumerate(lists)
    ]
    worker._group_chunks()
    activations, outputs = torch.zeros(3, 1), torch.ones(3, 2)
    worker.change_rows(torch.ones(3, 2), activations, 0)
    worker.change_outputs(outputs, 0)
    assert activations.flatten().tolist() == [4, 3, 2]
    assert outputs.tolist() == [[0, 0], [0, 9], [0, 9]]


def test_an_arm_of_several_draws_has_as_many_checked_prompts_as_its_largest_draw():
    settings = config([ARM], **{**PRODUCTS, "fewshot": {"num_fewshot": 1, "draws": 3}}, repeats=1)
    plan, _ = plan_requests(settings, 40)
    (questions,) = intervention_check._make_questions(plan)["arms"].values()
    prompt_counts = sorted(len(task.prompts) for task in plan.tasks.values())
    assert (prompt_counts, len(questions)) == ([12, 13, 15], 4)


def engine_arguments(settings, limit):
    """Engine arguments that name the answers of Hugging Face under all conditions."""
    plan, _ = plan_requests(settings, limit)
    reference = ask_reference(plan, print)
    interventions = {"layers": find_changed_layers(settings.interventions), "reference": reference}
    return {**gpu_share(), **settings.model_arguments(), "interventions": interventions}


@module_fixture
def engine_options(smollm2):
    """Engine arguments that name the reference of eight prompts of SmolLM2 for each of 32 arms.

    The run has four times as many prompts, because a quarter of an arm's prompts is checked.
    """
    arguments = {"pretrained": "smollm2", "kv_cache_memory_bytes": 2**30}
    return engine_arguments(config(CONDITIONS["arms"], arguments=arguments, **PRODUCTS), 32)


@pytest.mark.gpu
@slow_engine
@with_cases
def test_every_arm_has_hugging_faces_answers_compiled_and_in_chunks(
    engine_options, kernels, changes
):
    arguments = engine_options | changes
    with closing(VLLMEngine(arguments, has_sampled_requests=False)) as engine:
        facts = engine.facts()
        agreement = facts["interventions"]
        report(
            f"{describe_agreement(agreement)} ({kernels}, CUDA graphs {facts['cudagraph_mode']})"
        )
        assert set(agreement["prompts"].values()) == {8} and agreement["largest"] < 1e-3


@slow_engine
@ignore_warnings  # of vLLM's worker, where it is in this process
@with_cases
def test_attention_and_outputs_of_mlps_are_changed_in_other_families(
    kind, changes, refusal, tmp_path, monkeypatch
):
    if refusal:  # the error of another process is read from the run's log
        monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    model = build_language_model(kind, **changes)
    save_language_model(tmp_path, model)
    arguments = {"pretrained": str(tmp_path)}
    conditions = [*CONDITIONS["not activations"]]
    if hasattr(model.model.layers[0].mlp, "act_fn"):
        conditions.append(ARM)
    arguments = engine_arguments(config(conditions, arguments=arguments, **PRODUCTS), 4)
    expected = pytest.raises(ModelError, match=refusal) if refusal else nullcontext()
    with expected, closing(VLLMEngine(arguments, has_sampled_requests=False)) as engine:
        assert engine.facts()["interventions"]["largest"] < 1e-3


@slow_engine
@ignore_warnings  # of sockets of earlier engines, which are collected here
def test_an_arm_without_a_salt_of_its_own_gets_the_states_of_other_requests(
    engine_options, monkeypatch
):
    monkeypatch.setattr(intervention_check, "hash_json", lambda values: "one for all")
    with pytest.raises(EngineError, match="does not answer as Hugging Face under interventions"):
        VLLMEngine(engine_options, has_sampled_requests=False)


@slow_engine
@ignore_warnings  # of vLLM's worker, which is in this process
def test_a_hook_that_is_skipped_ends_the_run(engine_options, monkeypatch):
    # so that the worker is in this process, where its hook can be replaced
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setattr(WorkerInterventions, "change_rows", lambda *_: None)
    message = r"interventions and recording reached \d+ of \d+ rows"
    with pytest.raises((EngineError, RuntimeError), match=message):
        VLLMEngine(engine_options, has_sampled_requests=False)
