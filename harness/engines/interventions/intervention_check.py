"""The check of interventions with the loaded engine, against answers of Hugging Face.

Every engine answers a few prompts of every arm, that is, of every condition. It must give the
answers of Hugging Face with the same arithmetic: the same tokens until the first near-tie, with the
same log-probabilities.
"""

import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_processes import (
    PLUGIN_NAME,
    die_with_parent,
    end_processes_with_run,
    started_processes,
)
from harness.engines.interventions.open_layers import find_changed_layers
from harness.errors import EngineError, ModelError, quote_error
from harness.experiment.plan import Plan, hash_json

MOST_ARM_PROMPTS = 8
"""The most prompts of an arm that Hugging Face answers too: 12 arms of SmolLM2 take a minute."""
ANSWER_TOKEN_COUNT = 8
"""The number of tokens of each of these answers."""
CHECKED_SHARE = 0.25
"""The share of an arm's prompts that Hugging Face answers in small runs, but at least 2 prompts."""
FLOAT32_BOUND = 1e-3
"""The largest difference of a log-probability between the engine and Hugging Face in float32, where
they differ by rounding alone: with SmolLM2 by up to 3e-5."""
HALF_PRECISION_BOUND = 0.2
"""The same in types of half precision."""


def ask_reference(plan: Plan, advance: Callable[[int, int], None]) -> JsonObject:
    """Have Hugging Face answer the first prompts of every arm.

    Args:
        plan: The run's plan.
        advance: Called with the number of answered arms, and with that of all arms.

    Returns:
        As plain values: `questions`, those of `_make_questions`, and `answers`, by arm those of
        `ReferenceModel.generate`.

    Raises:
        ModelError: Hugging Face cannot load the model or answer.
    """
    questions = _make_questions(plan)
    replies_by_arm: dict[str, list[JsonObject]] = {}
    # Hugging Face runs in a process of its own, which ends before an engine needs the memory.
    with (
        end_processes_with_run(),
        started_processes() as processes,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), die_with_parent) as executor,
    ):
        try:
            for arm_name in questions["arms"]:
                replies_by_arm[arm_name] = executor.submit(
                    _answer_arm, questions, arm_name
                ).result()
                advance(len(replies_by_arm), len(questions["arms"]))
        except KeyboardInterrupt:
            # otherwise the executor would wait for the arm that is being answered
            for process in processes:
                process.kill()
            raise
        except Exception as error:  # transformers may raise any error
            raise ModelError(
                f"Hugging Face cannot answer under the interventions: {quote_error(error)}"
            ) from error
    return {"questions": questions, "answers": replies_by_arm}


def _answer_arm(questions: JsonObject, arm_name: str) -> list[JsonObject]:
    """Answer the questions of an arm with Hugging Face, whose model is loaded once."""
    from harness.engines.interventions.hugging_face_reference import load_reference_model

    reference_model = load_reference_model(
        questions["model"], questions["dtype"], tuple(questions["layers"]), questions["revision"]
    )
    return [
        reference_model.generate(**question, token_count=ANSWER_TOKEN_COUNT)
        for question in questions["arms"][arm_name]
    ]


def count_checked(prompt_count: int) -> int:
    """The number of an arm's prompts that Hugging Face answers too."""
    return min(MOST_ARM_PROMPTS, max(2, round(CHECKED_SHARE * prompt_count)))


def _make_questions(plan: Plan) -> JsonObject:
    """The first prompts of every condition of the config by arm, and the model that answers them.

    `count_checked` says how many prompts an arm has. An arm has a task for each draw of examples.
    """
    config = plan.config
    arguments = plan.model_arguments
    questions_by_arm: dict[str, list[JsonObject]] = {
        condition.name: [] for condition in config.conditions
    }
    for _, task, _, prompt in plan.rows:
        # a reference condition, such as a positive control, is no arm: it is not in the config
        arm_questions = questions_by_arm.get(task.condition.name)
        if arm_questions is None or len(arm_questions) >= count_checked(len(task.prompts)):
            continue
        arm_questions.append({"token_ids": prompt.token_ids, "intervention": prompt.intervention})
    return {
        "model": arguments["pretrained"],
        "revision": arguments.get("revision"),
        "dtype": arguments["dtype"],
        # only for activations does `ReferenceModel` have to know the layers
        "layers": find_changed_layers(config.interventions)["activations"],
        "arms": questions_by_arm,
    }


def salted_prompt(
    token_ids: Sequence[int], intervention: Sequence[JsonObject] | None, recording_name: str = ""
) -> Any:
    """A prompt for vLLM, with a salt for its cache if it has an intervention or is recorded.

    Without the salt the cache would give it the states of another intervention. A recorded prompt
    must be computed anew, so its salt has the recording's name, which no other recording has.
    """
    from vllm import TokensPrompt

    prompt = TokensPrompt(prompt_token_ids=list(token_ids))
    if intervention or recording_name:
        prompt["cache_salt"] = hash_json([intervention, recording_name])
    return prompt


def check_engine(engine: Any, questions_and_answers: JsonObject) -> JsonObject:
    """Have the engine answer the questions of Hugging Face, all arms in one batch.

    Returns:
        The agreement of its answers: see `compare_with_reference`.

    Raises:
        EngineError: an arm does not answer as in Hugging Face.
    """
    questions_by_arm = questions_and_answers["questions"]["arms"]
    for arm_name, arm_questions in questions_by_arm.items():
        for index, question in enumerate(arm_questions):
            _submit_question(engine, f"{arm_name} {index}", question)
    reply_by_id: dict[str, JsonObject] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                completion = output.outputs[0]
                steps = zip(completion.logprobs, completion.token_ids, strict=True)
                reply_by_id[output.request_id] = {
                    "tokens": completion.token_ids,
                    "logprobs": [logprobs[token].logprob for logprobs, token in steps],
                }
    # it raises an error if a row that an intervention must change was skipped
    engine.collective_rpc("mless_check_rows")
    replies_by_arm = {
        arm_name: [reply_by_id[f"{arm_name} {index}"] for index in range(len(arm_questions))]
        for arm_name, arm_questions in questions_by_arm.items()
    }
    return compare_with_reference(replies_by_arm, questions_and_answers)


def _submit_question(engine: Any, request_id: str, question: JsonObject) -> None:
    """Hand the engine a question; its answer has as many tokens as that of Hugging Face."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    intervention = question["intervention"]
    parameters = SamplingParams(
        temperature=0,
        max_tokens=ANSWER_TOKEN_COUNT,
        # no alternatives: only the log-probability of the chosen token is compared
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={PLUGIN_NAME: intervention} if intervention else None,
    )
    engine.add_request(request_id, salted_prompt(question["token_ids"], intervention), parameters)


def logprob_distance(
    reply: Mapping[str, Sequence[Any]], expected_reply: Mapping[str, Sequence[Any]], bound: float
) -> float:
    """The largest difference of a log-probability of two greedy answers, step by step.

    After the first step with different tokens nothing can be compared, because the further tokens
    depend on them. In this step the expected reply must have a near-tie: its token leads the next
    best one by `bound` or less. The distance is infinite if it leads by more.
    """
    largest_difference = 0.0
    steps = zip(
        reply["tokens"],
        reply["logprobs"],
        expected_reply["tokens"],
        expected_reply["logprobs"],
        expected_reply["leads"],
        strict=True,
    )
    for token, logprob, expected_token, expected_logprob, lead in steps:
        if token != expected_token:
            return largest_difference if lead <= bound else math.inf
        if math.isnan(logprob):  # `max` would drop it, because no comparison with NaN is true
            return math.inf
        largest_difference = max(largest_difference, abs(logprob - expected_logprob))
    return largest_difference


def compare_with_reference(
    replies_by_arm: Mapping[str, Sequence[JsonObject]], questions_and_answers: JsonObject
) -> JsonObject:
    """The agreement of an engine's answers with those of Hugging Face.

    Args:
        replies_by_arm: Those of the engine: `tokens` and `logprobs`.
        questions_and_answers: As `ask_reference` returns it.

    Returns:
        `prompts`, their number by arm; `bound`, the largest difference of log-probabilities at
        which replies agree; and `largest`, the largest difference in these replies.

    Raises:
        EngineError: an arm does not answer as in Hugging Face.
    """
    dtype = questions_and_answers["questions"]["dtype"]
    bound = FLOAT32_BOUND if dtype == "float32" else HALF_PRECISION_BOUND
    all_distances: list[float] = []
    disagreements = []
    for arm_name, arm_replies in replies_by_arm.items():
        expected_replies = questions_and_answers["answers"][arm_name]
        distances = [
            logprob_distance(reply, expected_reply, bound)
            for reply, expected_reply in zip(arm_replies, expected_replies, strict=True)
        ]
        all_distances += distances
        agreeing_count = sum(distance <= bound for distance in distances)
        if agreeing_count < len(distances):
            disagreements.append(f"{arm_name} {agreeing_count} of {len(distances)}")
    if disagreements:
        raise EngineError(
            "vLLM does not answer as Hugging Face under interventions. Prompts that agree: "
            f"{', '.join(disagreements)}."
        )
    return {
        "prompts": {arm_name: len(replies) for arm_name, replies in replies_by_arm.items()},
        "bound": bound,
        "largest": max(all_distances, default=0.0),
    }


def describe_agreement(agreement: JsonObject) -> str:
    """A sentence on how close the engine's answers are."""
    prompt_counts = agreement["prompts"].values()
    most_prompts = max(prompt_counts)
    noun = "prompts" if most_prompts > 1 else "prompt"
    return (
        f"{len(prompt_counts)} arms answer as in Hugging Face, {most_prompts} {noun} each: "
        f"log-probabilities differ by {agreement['largest']:.1g} at most."
    )
