"""Checks of interventions and recording, before the model is loaded and with the loaded engine.

Every engine answers a few prompts of every arm. It must give the answers of Hugging Face with the
same arithmetic: the same tokens until the first near-tie, with the same log-probabilities.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_processes import PLUGIN
from harness.errors import ConfigError, EngineError, ModelError, explain_hub_error
from harness.experiment.plan import Plan, Request, hash_json
from harness.experiment.run_config import RunConfig

ARM_PROMPTS, ARM_TOKENS = 8, 8
"""Prompts of each arm that Hugging Face answers too, and tokens of each answer. 12 arms of SmolLM2
take a minute."""
LOGPROB_BOUNDS = {"float32": 1e-3, "float64": 1e-3}
HALF_PRECISION_BOUND = 0.2
"""The largest difference of a log-probability between the engine and Hugging Face, by type. In the
types of LOGPROB_BOUNDS they differ by rounding alone: with SmolLM2 in float32 by up to 3e-5."""

OPERATION = "mless::change_rows"
"""The operation that changes activations."""
CACHE_OPERATIONS = ("vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update")
"""Operations at which vLLM splits graphs unless `splitting_ops` is set. We set it, so they are
listed here. Each names its layer: a graph that contains one would be compiled again for every
layer."""
REFERENCE = "reference.json"
"""The file in a run's folder with the answers of Hugging Face under each intervention."""
_UNSUPPORTED = {
    "quantization": "quantised weights",
    "speculative_config": "speculation",
    "kv_cache_dtype": "a cache of another type",
    "batch_invariant": "batch invariance",
    "pipeline_parallel_size": "pipeline parallel",
}
"""Model arguments that exclude open layers, unless they have a value of _DEFAULTS."""
_DEFAULTS = (None, False, 1, "1", "auto")


def opened_layers(config: RunConfig) -> JsonObject:
    """The layers, from 0, that the interventions and the recording of a config need open.

    `attention` and `activations` are the layers in which these are changed. `recorded` are those
    whose attention is recorded, or `all`; it is missing if none is recorded.
    """
    numbers: dict[str, set[int]] = {"attention": set(), "activations": set()}
    for condition in config.conditions:
        if intervention := condition.intervention:
            kind = "attention" if intervention.kind == "filler" else "activations"
            numbers[kind].update(intervention.layer_indices)
    layers: JsonObject = {kind: sorted(numbers[kind]) for kind in numbers}
    if config.record_attention:
        layers["recorded"] = config.recorded_layers
    return layers


def refuse_interventions(config: RunConfig) -> None:
    """Refuse a config whose backend or model arguments exclude its interventions or its recording.

    Raises:
        ConfigError: the backend is not vllm, or an argument excludes them.
    """
    names = [condition.name for condition in config.conditions if condition.intervention]
    if not names and not config.record_attention:
        return
    if config.model.backend != "vllm":
        reason = f"{names[0]} has an intervention" if names else "attention is recorded"
        raise ConfigError(f"{reason}, which needs backend vllm; it is {config.model.backend}.")
    arguments = config.model.model_args
    if names and arguments.get("dtype") in (None, "auto"):
        raise ConfigError(
            "Interventions are checked in the type that vLLM computes in: name "
            "model.model_args.dtype."
        )
    _refuse_arguments(arguments, opened_layers(config))


def refuse_to_open(arguments: Mapping[str, Any], layers: JsonObject) -> None:
    """Refuse a model whose layers cannot be opened, before it is loaded.

    Raises:
        ConfigError: an argument or the architecture excludes it, or the model has no such layer.
        ModelError: the model's config cannot be read.
    """
    _refuse_arguments(arguments, layers)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    name = str(arguments["pretrained"])
    try:
        config = AutoConfig.from_pretrained(name, revision=arguments.get("revision"))
        config = config.get_text_config()
    except (OSError, ValueError) as error:
        raise ModelError(explain_hub_error(name, error)) from None
    last = 0
    for numbers in layers.values():
        if numbers != "all":
            last = max([last, *numbers])
    if last >= config.num_hidden_layers:
        raise ConfigError(
            f"Layer {last + 1} is requested, but the model has {config.num_hidden_layers} layers."
        )
    # without memory for weights: only the classes of the modules matter
    with torch.device("meta"):
        decoder: Any = getattr(AutoModelForCausalLM.from_config(config), "model", None)
    block = decoder.layers[last] if hasattr(decoder, "layers") else None
    changes_layers = bool(layers["attention"] or layers["activations"])
    if obstacle := _find_obstacle(config, block, changes_layers):
        raise ConfigError(
            f"The layers of {name} cannot be opened: {config.model_type} has {obstacle}."
        )


def _find_obstacle(config: Any, block: Any, changes_layers: bool) -> str | None:
    """The property of a model that excludes open layers; None if there is none."""
    attention = getattr(block, "self_attn", None)
    activation = getattr(getattr(block, "mlp", None), "act_fn", None)
    uses_windows = getattr(config, "use_sliding_window", True)
    obstacles = {
        "no `self_attn` in `model.layers`": attention is None,
        "no `mlp.act_fn` (experts have none)": changes_layers and activation is None,
        "sliding windows": uses_windows and getattr(config, "sliding_window", None),
        "soft-capped attention": getattr(config, "attn_logit_softcapping", None),
        "attention sinks": hasattr(attention, "sinks"),
        "latent attention": hasattr(attention, "kv_lora_rank"),
    }
    return next((obstacle for obstacle, exists in obstacles.items() if exists), None)


def _refuse_arguments(arguments: Mapping[str, Any], layers: Mapping[str, Sequence[int]]) -> None:
    for name, feature in _UNSUPPORTED.items():
        value = arguments.get(name)
        # True equals 1, which is a default of sizes only
        if value is True or value not in _DEFAULTS:
            raise ConfigError(
                f"model.model_args.{name} is {value!r}: interventions and recording cannot go with "
                f"{feature}."
            )
    if layers["activations"] and arguments.get("tensor_parallel_size") not in _DEFAULTS:
        raise ConfigError(
            "Changed activations need all units of a layer on one GPU: remove tensor_parallel_size."
        )


def ask_reference(
    plan: Plan,
    requests: Iterable[Request],
    folder: Path,
    advance: Callable[[int, int], None] = lambda count, total: None,
) -> JsonObject:
    """Have Hugging Face answer the first prompts of every arm, unless the folder has its answers.

    Args:
        plan: The run's plan.
        requests: All requests of the run.
        folder: The run's folder.
        advance: Called with the number of answered arms, and with that of all arms.

    Returns:
        Questions and answers as plain values, which are stored in the folder.

    Raises:
        ModelError: Hugging Face cannot load the model or answer.
    """
    path = folder / REFERENCE
    questions = _make_questions(plan, requests)
    reference: JsonObject = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if reference.get("questions") == questions:
        return reference
    draft = folder / f"asked-{REFERENCE}"
    draft.write_text(json.dumps(questions), encoding="utf-8")
    module = "harness.engines.interventions.hugging_face_answers"
    command = [sys.executable, "-m", module, str(draft)]
    last_line = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if progress := re.fullmatch(r"(\d+) of (\d+) arms\n", line):
                advance(int(progress[1]), int(progress[2]))
            elif line.strip():
                last_line = line.strip()
    if process.returncode:
        raise ModelError(f"Hugging Face cannot answer under the interventions: {last_line}")
    # renamed when it is complete, so a killed process leaves no half of an answer
    draft.replace(path)
    reference = json.loads(path.read_text("utf-8"))
    return reference


def _make_questions(plan: Plan, requests: Iterable[Request]) -> JsonObject:
    """The first prompts of every arm, those of the baseline before the others."""
    config, arguments = plan.config, plan.model_arguments
    first_draw = min(arm.draw for arm in plan.arms.values() if arm.prompts)
    names = {}
    for task, arm in plan.arms.items():
        is_first = arm.draw == first_draw and arm.layout == config.layouts[0]
        if is_first and arm.condition in config.conditions:
            names[task] = arm.condition.name
    arms: dict[str, list[JsonObject]] = {
        name: [] for name in sorted(names.values(), key=config.baseline_name.__ne__)
    }
    for request in requests:
        name = names.get(request.task)
        if name and len(arms[name]) < ARM_PROMPTS:
            question = {"token_ids": request.prompt_token_ids, "arm": request.intervention}
            arms[name].append(question)
    questions = {
        "model": arguments["pretrained"],
        "revision": arguments.get("revision"),
        "dtype": str(arguments["dtype"]).removeprefix("torch."),
        "layers": opened_layers(config)["activations"],
        "arms": arms,
    }
    # as they are read from the file, with lists in place of tuples
    plain: JsonObject = json.loads(json.dumps(questions, default=dict))
    return plain


def open_layers(options: JsonObject, layers: JsonObject) -> None:
    """Fill in the engine arguments that interventions need.

    A compiled model is stored under a hash of the arguments, in which only `additional_config` has
    these layers. No Python runs in a CUDA graph, so steps in which rows are changed or recorded use
    graphs that are split at attention and at our own operation: see `Arms.may_use_full_graph`. vLLM
    uses full graphs only for steps in which all requests decode.
    """
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the hooks are the V1 runner's
    options["additional_config"] = {**(options.get("additional_config") or {}), PLUGIN: layers}
    if not options.get("enforce_eager"):
        from vllm.config import CompilationConfig

        compilation = options.get("compilation_config") or {}
        if not isinstance(compilation, dict):
            raise ConfigError(
                "model.model_args.compilation_config: interventions need a mapping, got "
                f"{compilation!r}."
            )
        operations = [*CompilationConfig._attention_ops, *CACHE_OPERATIONS, OPERATION]
        options["compilation_config"] = {
            "splitting_ops": operations,
            **compilation,
            "cudagraph_mode": "FULL_AND_PIECEWISE",
        }


def salted_prompt(token_ids: Sequence[int], arm: JsonObject | None, recording: str = "") -> Any:
    """A prompt for vLLM, with a salt for its cache if it has an arm or is recorded.

    Without the salt the cache would give an arm the states of another. A recorded prompt must be
    computed anew, so its recording has a name that no other has.
    """
    from vllm import TokensPrompt

    prompt = TokensPrompt(prompt_token_ids=list(token_ids))
    if arm or recording:
        prompt["cache_salt"] = hash_json([arm, recording])
    return prompt


def check_engine(engine: Any, reference: JsonObject) -> JsonObject:
    """Have the engine answer the questions of Hugging Face, all arms in one batch.

    Returns:
        As `compare_with_reference`, and `kept_bytes`, the memory of the open layers' states.

    Raises:
        EngineError: an arm does not answer as in Hugging Face.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    answers: dict[str, list[Any]] = {}
    for name, questions in reference["questions"]["arms"].items():
        answers[name] = [None] * len(questions)
        for index, question in enumerate(questions):
            arm = question["arm"]
            parameters = SamplingParams(
                temperature=0,
                max_tokens=ARM_TOKENS,
                # that of the chosen token alone
                logprobs=0,
                # all answers then have as many tokens as the reference's
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args={PLUGIN: arm} if arm else None,
            )
            prompt = salted_prompt(question["token_ids"], arm)
            engine.add_request(f"{name} {index}", prompt, parameters)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                name, _, index = output.request_id.rpartition(" ")
                answers[name][int(index)] = _read_answer(output.outputs[0])
    stored_bytes = sum(engine.collective_rpc("mless_check_rows"))
    agreement = {**compare_with_reference(answers, reference), "kept_bytes": stored_bytes}
    counts = []
    for name, prompt_count in agreement["prompts"].items():
        agreeing = agreement["agreements"][name]
        if agreeing < prompt_count:
            counts.append(f"{name} {agreeing} of {prompt_count}")
    if counts:
        raise EngineError(
            "vLLM does not answer as Hugging Face under interventions. Prompts that agree: "
            f"{', '.join(counts)}."
        )
    return agreement


def _read_answer(completion: Any) -> dict[str, list[Any]]:
    tokens = [int(token) for token in completion.token_ids]
    steps = zip(completion.logprobs, tokens, strict=True)
    return {"tokens": tokens, "logprobs": [logprobs[token].logprob for logprobs, token in steps]}


def distance(
    answer: Mapping[str, Sequence[Any]], reference: Mapping[str, Sequence[Any]], bound: float
) -> float:
    """The largest difference of a log-probability of two greedy answers.

    It is taken up to the first token that differs, and infinite if the reference has no near-tie
    there.
    """
    largest = 0.0
    columns = [reference[name] for name in ("tokens", "logprobs", "leads")]
    steps = zip(answer["tokens"], answer["logprobs"], *columns, strict=True)
    for token, logprob, reference_token, reference_logprob, lead in steps:
        # After two different tokens the answers have different prompts, so nothing more can be
        # compared.
        if token != reference_token:
            return largest if lead <= bound else math.inf
        largest = max(largest, abs(logprob - reference_logprob))
    return largest


def compare_with_reference(
    answers: Mapping[str, Sequence[JsonObject]], reference: JsonObject
) -> JsonObject:
    """The agreement of an engine's answers with those of Hugging Face.

    Args:
        answers: By arm the engine's answers: `tokens` and `logprobs`.
        reference: As `ask_reference` returns it.

    Returns:
        By arm `prompts` and `agreements`: the number of prompts, and of those with agreeing
        answers. `bound` and `largest`: the largest difference of a log-probability that agrees, and
        the largest in these answers.
    """
    bound = LOGPROB_BOUNDS.get(reference["questions"]["dtype"], HALF_PRECISION_BOUND)
    prompts, agreements, largest = {}, {}, 0.0
    for name, arm_answers in answers.items():
        pairs = zip(arm_answers, reference["answers"][name], strict=True)
        distances = [distance(answer, expected, bound) for answer, expected in pairs]
        prompts[name] = len(distances)
        agreements[name] = sum(difference <= bound for difference in distances)
        largest = max([largest, *distances])
    return {"prompts": prompts, "bound": bound, "largest": largest, "agreements": agreements}


def describe_agreement(agreement: JsonObject) -> str:
    """A sentence on how close the engine's answers are."""
    prompts = agreement["prompts"]
    most = max(prompts.values())
    return (
        f"{len(prompts)} arms answer as in Hugging Face, {most} prompt{'s' * (most > 1)} each: "
        f"log-probabilities differ by {agreement['largest']:.1g} at most."
    )
