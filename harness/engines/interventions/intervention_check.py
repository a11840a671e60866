"""The check of interventions with the loaded engine, against answers of Hugging Face.

Every engine answers a few prompts of every arm. It must give the answers of Hugging Face with the
same arithmetic: the same tokens until the first near-tie, with the same log-probabilities.
"""

import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_processes import (
    PLUGIN,
    die_with_parent,
    end_processes_with_run,
    started_processes,
)
from harness.engines.interventions.open_layers import opened_layers
from harness.errors import EngineError, ModelError, quote_error
from harness.experiment.plan import Plan, hash_json

ARM_PROMPTS, ARM_TOKENS = 8, 8
"""The most prompts of each arm that Hugging Face answers too, and tokens of each answer. 12 arms
of SmolLM2 take a minute."""
CHECKED_SHARE = 0.25
"""The share of an arm's prompts that Hugging Face answers in small runs, but at least 2 prompts."""
FLOAT32_BOUND, HALF_PRECISION_BOUND = 1e-3, 0.2
"""The largest difference of a log-probability between the engine and Hugging Face, by type. In
float32 they differ by rounding alone: with SmolLM2 by up to 3e-5."""


def ask_reference(
    plan: Plan,
    advance: Callable[[int, int], None],
) -> JsonObject:
    """Have Hugging Face answer the first prompts of every arm.

    Args:
        plan: The run's plan.
        advance: Called with the number of answered arms, and with that of all arms.

    Returns:
        Questions and answers as plain values.

    Raises:
        ModelError: Hugging Face cannot load the model or answer.
    """
    questions = _make_questions(plan)
    replies: dict[str, list[JsonObject]] = {}
    # a process of its own, which ends before an engine takes the memory
    spawn = multiprocessing.get_context("spawn")
    with (
        end_processes_with_run(),
        started_processes() as processes,
        ProcessPoolExecutor(1, spawn, die_with_parent) as executor,
    ):
        try:
            for name in questions["arms"]:
                replies[name] = executor.submit(_generate, questions, name).result()
                advance(len(replies), len(questions["arms"]))
        except KeyboardInterrupt:
            # otherwise the executor would wait for the arm that is being answered
            for process in processes:
                process.kill()
            raise
        except Exception as error:  # transformers may raise any error
            raise ModelError(
                f"Hugging Face cannot answer under the interventions: {quote_error(error)}"
            ) from error
    return {"questions": questions, "answers": replies}


def _generate(questions: JsonObject, name: str) -> list[JsonObject]:
    """Answer the questions of an arm with Hugging Face, whose model is loaded once."""
    from harness.engines.interventions.hugging_face_reference import load_reference

    layers = tuple(questions["layers"])
    reference = load_reference(
        questions["model"], questions["dtype"], layers, questions["revision"]
    )
    arm_questions = questions["arms"][name]
    return [reference.generate(**question, token_count=ARM_TOKENS) for question in arm_questions]


def count_checked(prompts: int) -> int:
    """The number of prompts of an arm that Hugging Face answers too, of all prompts of the arm."""
    return min(ARM_PROMPTS, max(2, round(CHECKED_SHARE * prompts)))


def _make_questions(plan: Plan) -> JsonObject:
    """The first prompts of every condition of the config."""
    config, arguments = plan.config, plan.model_arguments
    arms: dict[str, list[JsonObject]] = {condition.name: [] for condition in config.conditions}
    for _, task, _, prompt in plan.rows:
        # a reference condition, such as a positive control, is not in the config
        questions = arms.get(task.condition.name)
        if questions is not None and len(questions) < count_checked(len(task.prompts)):
            questions.append({"token_ids": prompt.token_ids, "intervention": prompt.intervention})
    return {
        "model": arguments["pretrained"],
        "revision": arguments.get("revision"),
        "dtype": arguments["dtype"],
        "layers": opened_layers(config.interventions)["activations"],
        "arms": arms,
    }


def salted_prompt(
    token_ids: Sequence[int], intervention: Sequence[JsonObject] | None, recording: str = ""
) -> Any:
    """A prompt for vLLM, with a salt for its cache if it has an intervention or is recorded.

    Without the salt the cache would give it the states of another intervention. A recorded prompt
    must be computed anew, so its recording has a name that no other has.
    """
    from vllm import TokensPrompt

    prompt = TokensPrompt(prompt_token_ids=list(token_ids))
    if intervention or recording:
        prompt["cache_salt"] = hash_json([intervention, recording])
    return prompt


def check_engine(engine: Any, reference: JsonObject) -> JsonObject:
    """Have the engine answer the questions of Hugging Face, all arms in one batch.

    Returns:
        As `compare_with_reference`.

    Raises:
        EngineError: as `compare_with_reference`.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    replies: dict[str, list[Any]] = {}
    for name, questions in reference["questions"]["arms"].items():
        replies[name] = [None] * len(questions)
        for index, question in enumerate(questions):
            intervention = question["intervention"]
            parameters = SamplingParams(
                temperature=0,
                max_tokens=ARM_TOKENS,
                # no alternatives: only the log-probability of the chosen token is compared
                logprobs=0,
                # all answers then have as many tokens as the reference's
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
                extra_args={PLUGIN: intervention} if intervention else None,
            )
            prompt = salted_prompt(question["token_ids"], intervention)
            engine.add_request(f"{name} {index}", prompt, parameters)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                name, _, index = output.request_id.rpartition(" ")
                completion = output.outputs[0]
                steps = zip(completion.logprobs, completion.token_ids, strict=True)
                replies[name][int(index)] = {
                    "tokens": completion.token_ids,
                    "logprobs": [logprobs[token].logprob for logprobs, token in steps],
                }
    engine.collective_rpc("mless_check_rows")
    return compare_with_reference(replies, reference)


def distance(
    reply: Mapping[str, Sequence[Any]], reference: Mapping[str, Sequence[Any]], bound: float
) -> float:
    """The largest difference of a log-probability of two greedy answers.

    It is taken up to the first token that differs, and infinite if the reference has no near-tie
    there.
    """
    largest_difference = 0.0
    columns = [reference[name] for name in ("tokens", "logprobs", "leads")]
    steps = zip(reply["tokens"], reply["logprobs"], *columns, strict=True)
    for token, logprob, reference_token, reference_logprob, lead in steps:
        # After two different tokens the answers have different prompts, so nothing more can be
        # compared.
        if token != reference_token:
            return largest_difference if lead <= bound else math.inf
        if math.isnan(logprob):  # no number is larger, so the maximum would hide it
            return math.inf
        largest_difference = max(largest_difference, abs(logprob - reference_logprob))
    return largest_difference


def compare_with_reference(
    replies: Mapping[str, Sequence[JsonObject]], reference: JsonObject
) -> JsonObject:
    """The agreement of an engine's answers with those of Hugging Face.

    Args:
        replies: By arm those of the engine: `tokens` and `logprobs`.
        reference: As `ask_reference` returns it.

    Returns:
        `prompts`, their number by arm. `bound` and `largest`: the largest difference of a
        log-probability that agrees, and the largest in these replies.

    Raises:
        EngineError: an arm does not answer as in Hugging Face.
    """
    is_float32 = reference["questions"]["dtype"] == "float32"
    bound = FLOAT32_BOUND if is_float32 else HALF_PRECISION_BOUND
    prompt_counts, faults, largest_difference = {}, [], 0.0
    for name, arm_replies in replies.items():
        pairs = zip(arm_replies, reference["answers"][name], strict=True)
        distances = [distance(reply, expected, bound) for reply, expected in pairs]
        prompt_counts[name] = len(distances)
        largest_difference = max([largest_difference, *distances])
        agreeing = sum(difference <= bound for difference in distances)
        if agreeing < len(distances):
            faults.append(f"{name} {agreeing} of {len(distances)}")
    if faults:
        raise EngineError(
            "vLLM does not answer as Hugging Face under interventions. Prompts that agree: "
            f"{', '.join(faults)}."
        )
    return {"prompts": prompt_counts, "bound": bound, "largest": largest_difference}


def describe_agreement(agreement: JsonObject) -> str:
    """A sentence on how close the engine's answers are."""
    counts = agreement["prompts"].values()
    most = max(counts)
    return (
        f"{len(counts)} arms answer as in Hugging Face, {most} prompt{'s' * (most > 1)} each: "
        f"log-probabilities differ by {agreement['largest']:.1g} at most."
    )
