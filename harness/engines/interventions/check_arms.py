"""Checks: before the model is loaded, what cannot carry interventions or recording; with it, what vLLM makes of arms.

Every engine answers a few prompts of every arm, and must give what Hugging Face gives with the same arithmetic: the
same tokens until the first near-tie, with the same log-probabilities.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from harness.engines.engine_processes import PLUGIN
from harness.errors import ConfigError, EngineError, ModelError, explain_hub_error
from harness.experiment.plan import Plan, Request, hash_json
from harness.experiment.run_config import RunConfig

ARM_PROMPTS, ARM_TOKENS = 8, 8
"""Prompts of each arm that Hugging Face answers too, and tokens of each answer: a minute for 12 arms of SmolLM2."""
FULL_PRECISION = ("float32", "float64")
"""Types in which vLLM and Hugging Face differ by rounding alone."""
LOGPROB_BOUND = {True: 1e-3, False: 0.2}
"""How far a log-probability of the engine may be from Hugging Face's, in full precision and in half of it. Measured
with SmolLM2 in float32: up to 3e-5."""

OPERATION = "mless::change_rows"
"""The op that changes activations."""
CACHE_OPERATIONS = ("vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update")
"""Operations at which vLLM splits graphs unless `splitting_ops` is given. As we give it, they are listed here.
They name their layer: a graph that contains one would be compiled again for every layer."""
REFERENCE = "reference.json"
"""In a run's folder: what Hugging Face answers under each intervention."""
_UNSUPPORTED = {
    "quantization": "quantised weights",
    "speculative_config": "speculation",
    "kv_cache_dtype": "a cache of another type",
    "batch_invariant": "batch invariance",
    "pipeline_parallel_size": "pipeline parallel",
}
"""Model arguments that opened layers cannot go with, unless they have their usual values."""
_USUAL = (None, False, 1, "1", "auto")


def opened_layers(config: RunConfig) -> dict[str, Any]:
    """Which layers are opened, from 0: whose attention is changed, whose activations are, whose attention is recorded.

    The last are left out where there are none, and are `all` for all.
    """
    changes = [one.intervention for one in config.conditions if one.intervention]
    kinds = {"attention": [one for one in changes if one.kind == "filler"]}
    kinds["activations"] = [one for one in changes if one.kind != "filler"]
    found: dict[str, Any] = {
        name: sorted({layer for one in found for layer in one.layer_indices})
        for name, found in kinds.items()
    }
    return found | ({"recorded": config.recorded_layers} if config.record_attention else {})


def refuse_interventions(config: RunConfig) -> None:
    """Refuse a config whose backend or model arguments cannot carry its interventions, or what it records.

    Raises:
        ConfigError: another backend than vllm, or an argument that they cannot go with.
    """
    names = [one.name for one in config.conditions if one.intervention]
    if not (names or config.record_attention):
        return
    if config.model.backend != "vllm":
        what = f"{names[0]} has an intervention" if names else "attention is recorded"
        raise ConfigError(f"{what}, which needs backend vllm; it is {config.model.backend}.")
    arguments = config.model.model_args
    if names and arguments.get("dtype") in (None, "auto"):
        raise ConfigError(
            "Interventions are checked in the type that vLLM computes in: name model.model_args.dtype."
        )
    _refuse_arguments(arguments, opened_layers(config))


def refuse_to_open(arguments: Mapping[str, Any], layers: Mapping[str, Any]) -> None:
    """Refuse a model whose layers cannot be opened, before it is loaded.

    Raises:
        ConfigError: an argument or an architecture that it cannot go with, or a layer that the model has not.
        ModelError: the model's config cannot be read.
    """
    _refuse_arguments(arguments, layers)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    name = str(arguments["pretrained"])
    try:
        found = AutoConfig.from_pretrained(
            name, revision=arguments.get("revision")
        ).get_text_config()
    except (OSError, ValueError) as error:
        raise ModelError(explain_hub_error(name, error)) from None
    last = (
        max((layer for opened in layers.values() if opened != "all" for layer in opened), default=0)
        + 1
    )
    if last > found.num_hidden_layers:
        raise ConfigError(
            f"What is asked for is in Layer {last}, and the model has {found.num_hidden_layers}."
        )
    with torch.device("meta"):
        decoder = getattr(AutoModelForCausalLM.from_config(found), "model", None)
    block = getattr(decoder, "layers", [None] * last)[last - 1]
    attention, changed = (
        getattr(block, "self_attn", None),
        layers["attention"] or layers["activations"],
    )
    for lacks, what in (
        (attention is None, "no `self_attn` in `model.layers`"),
        (
            changed and not hasattr(getattr(block, "mlp", None), "act_fn"),
            "no `mlp.act_fn` (experts have none)",
        ),
        (
            bool(getattr(found, "sliding_window", None))
            and bool(getattr(found, "use_sliding_window", True)),
            "sliding windows",
        ),
        (getattr(found, "attn_logit_softcapping", None), "soft-capped attention"),
        (hasattr(attention, "sinks"), "attention sinks"),
        (hasattr(attention, "kv_lora_rank"), "latent attention"),
    ):
        if lacks:
            raise ConfigError(
                f"The layers of {name} cannot be opened: {found.model_type} has {what}."
            )


def _refuse_arguments(arguments: Mapping[str, Any], layers: Mapping[str, Sequence[int]]) -> None:
    for key, what in _UNSUPPORTED.items():
        if arguments.get(key) is True or arguments.get(key) not in _USUAL:
            raise ConfigError(
                f"model.model_args.{key} is {arguments[key]!r}: interventions and recording cannot go with {what}."
            )
    if layers["activations"] and arguments.get("tensor_parallel_size") not in _USUAL:
        raise ConfigError(
            "Changed activations need all units of a layer on one GPU: remove tensor_parallel_size."
        )


def ask_reference(
    plan: Plan,
    requests: Iterable[Request],
    folder: Path,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Have Hugging Face answer the first prompts of every arm, unless the folder has its answers.

    Args:
        plan: The run's.
        requests: All of the run.
        folder: The run's.
        advance: Is told how many arms are answered, and how many there are.

    Returns:
        Questions and answers, plain values, which the folder keeps.

    Raises:
        ModelError: Hugging Face cannot load the model or answer.
    """
    file, asked, written = (folder / f"{name}{REFERENCE}" for name in ("", "asked-", "answered-"))
    questions = _questions(plan, requests)
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if known.get("questions") == questions:
        return known
    asked.write_text(json.dumps(questions), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "harness.engines.interventions.hugging_face_answers",
        str(asked),
        str(written),
    ]
    said = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if found := re.fullmatch(r"(\d+) of (\d+) arms\n", line):
                advance(int(found[1]), int(found[2]))
            else:
                said = line.strip() or said
    if process.returncode:
        raise ModelError(f"Hugging Face cannot answer under the interventions: {said}")
    known = {"questions": questions, **json.loads(written.read_text("utf-8"))}
    asked.write_text(json.dumps(known), encoding="utf-8")
    asked.replace(file)
    written.unlink()
    return known


def _questions(plan: Plan, requests: Iterable[Request]) -> dict[str, Any]:
    """The first prompts of every arm, the baseline's first."""
    config, arguments = plan.config, plan.model_arguments
    first_draw = min(arm.draw for arm in plan.arms.values() if arm.prompts)
    names = {
        task: arm.condition.name
        for task, arm in plan.arms.items()
        if arm.condition in config.conditions
        and arm.draw == first_draw
        and arm.layout == config.layouts[0]
    }
    mine: dict[str, list[Request]] = {
        name: [] for name in sorted(names.values(), key=config.baseline_name.__ne__)
    }
    for one in requests:
        if one.task in names and len(mine[names[one.task]]) < ARM_PROMPTS:
            mine[names[one.task]].append(one)
    questions = {
        "model": arguments["pretrained"],
        "revision": arguments.get("revision"),
        "dtype": str(arguments["dtype"]).removeprefix("torch."),
        "layers": opened_layers(config)["activations"],
        "arms": {
            name: [{"token_ids": one.prompt_token_ids, "arm": one.intervention} for one in several]
            for name, several in mine.items()
        },
    }
    plain: dict[str, Any] = json.loads(json.dumps(questions, default=dict))
    return plain


def open_layers(given: dict[str, Any], layers: dict[str, Any]) -> dict[str, Any]:
    """Fill in the engine arguments that interventions need; returns the layers.

    A compiled model is stored under a hash of the arguments, which knows these layers by `additional_config` alone. No
    Python runs in a CUDA graph, so steps in which something is due use graphs that are split at attention and at our
    own op: see `Arms.may_use_full_graph`. vLLM uses full graphs for steps in which all requests decode, and no others.
    """
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the hooks are the V1 runner's
    given["additional_config"] = {**(given.get("additional_config") or {}), PLUGIN: layers}
    if not given.get("enforce_eager"):
        from vllm.config import CompilationConfig

        own = given.get("compilation_config") or {}
        if not isinstance(own, dict):
            raise ConfigError(
                f"model.model_args.compilation_config: interventions need a mapping, got {own!r}."
            )
        split = [*CompilationConfig._attention_ops, *CACHE_OPERATIONS, OPERATION]
        given["compilation_config"] = {
            "splitting_ops": split,
            **own,
            "cudagraph_mode": "FULL_AND_PIECEWISE",
        }
    return layers


def salted_prompt(token_ids: Sequence[int], arm: Mapping[str, Any] | None, own: str = "") -> Any:
    """A prompt for vLLM. With an arm it has a salt: else its cache would give one arm the states of another.

    With a text of its `own` it is computed anew, which recording needs.
    """
    from vllm import TokensPrompt

    prompt = TokensPrompt(prompt_token_ids=list(token_ids))
    if arm or own:
        prompt["cache_salt"] = hash_json([arm, own])
    return prompt


def check_engine(engine: Any, reference: Mapping[str, Any]) -> dict[str, Any]:
    """Have the engine answer what Hugging Face answered, all arms in one batch: see `compare_with_reference`.

    Raises:
        EngineError: an arm does not answer as in Hugging Face.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    found: dict[str, list[Any]] = {
        name: [None] * len(asked) for name, asked in reference["questions"]["arms"].items()
    }
    for name, asked in reference["questions"]["arms"].items():
        for place, one in enumerate(asked):
            arm = one["arm"]
            parameters = SamplingParams(
                temperature=0,
                max_tokens=ARM_TOKENS,
                logprobs=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args={PLUGIN: arm} if arm else None,
            )
            engine.add_request(f"{name} {place}", salted_prompt(one["token_ids"], arm), parameters)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                name, _, place = output.request_id.rpartition(" ")
                tokens = [int(token) for token in output.outputs[0].token_ids]
                likely = [
                    step[token].logprob
                    for step, token in zip(output.outputs[0].logprobs, tokens, strict=True)
                ]
                found[name][int(place)] = {"tokens": tokens, "logprobs": likely}
    kept = sum(engine.collective_rpc("mless_check_rows"))
    agreement = {**compare_with_reference(found, reference), "kept_bytes": kept}
    prompts, agreeing = agreement["prompts"], agreement["agreements"]
    if wrong := [name for name in prompts if agreeing[name] < prompts[name]]:
        counts = ", ".join(f"{name} {agreeing[name]} of {prompts[name]}" for name in wrong)
        raise EngineError(
            f"vLLM does not answer as Hugging Face under interventions. Prompts that agree: {counts}."
        )
    return agreement


def distance(
    ours: Mapping[str, Sequence[Any]], theirs: Mapping[str, Sequence[Any]], bound: float
) -> float:
    """The largest difference of a log-probability of two greedy answers, up to the first near-tie of the second.

    Infinite where they go apart without one.
    """
    furthest = 0.0
    columns = (
        ours["tokens"],
        theirs["tokens"],
        ours["logprobs"],
        theirs["logprobs"],
        theirs["leads"],
    )
    for token, other, one, two, lead in zip(*columns, strict=True):
        if token != other:
            return furthest if lead <= bound else math.inf
        furthest = max(furthest, abs(one - two))
    return furthest


def compare_with_reference(
    found: Mapping[str, Sequence[Mapping[str, Any]]], reference: Mapping[str, Any]
) -> dict[str, Any]:
    """How an engine's answers agree with Hugging Face's.

    Args:
        found: By arm the engine's answers: `tokens` and `logprobs`.
        reference: What `ask_reference` wrote.

    Returns:
        By arm `prompts` and `agreements`: the number of prompts, and of those that the engine answers as Hugging Face.
        `bound` and `largest`: the largest difference of a log-probability that agrees, and that was found.
    """
    bound, theirs = (
        LOGPROB_BOUND[reference["questions"]["dtype"] in FULL_PRECISION],
        reference["answers"],
    )
    distances = {
        name: [distance(*pair, bound) for pair in zip(answers, theirs[name], strict=True)]
        for name, answers in found.items()
    }
    return {
        "prompts": {name: len(answers) for name, answers in found.items()},
        "bound": bound,
        "largest": max(chain.from_iterable(distances.values())),
        "agreements": {
            name: sum(one <= bound for one in several) for name, several in distances.items()
        },
    }


def describe_agreement(agreement: Mapping[str, Any]) -> str:
    """How close the engine's answers are, in a sentence."""
    arms, most = len(agreement["prompts"]), max(agreement["prompts"].values())
    return (
        f"{arms} arms answer as in Hugging Face, {most} prompt{'s' * (most > 1)} each: log-probabilities differ by "
        f"{agreement['largest']:.1g} at most."
    )
