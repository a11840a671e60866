"""The tokens of the gold answer behind a prompt, for the endpoint `answer_logprob`.

Label and answer are tokenized apart from the prompt and from each other, so the same tokens of the
answer are scored under every condition.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from harness.experiment.built_prompts import AnswerTokens, BuiltPrompt
from harness.experiment.prompt import PromptSettings
from harness.experiment.token_checks import ConditionPrompts
from harness.reasoning_markers import find_opened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BOX = "\\boxed{"
"""The label of an answer in a box."""


def add_answers(
    arm: ConditionPrompts, settings: PromptSettings, read: str, tokenizer: PreTrainedTokenizerBase
) -> ConditionPrompts:
    r"""Add the tokens of the accepted answers to the prompts, and a note if answers merge.

    A tokenizer may merge the end of the label with the beginning of the answer, as Qwen's does with
    `{\`. Then another spelling is scored than the one that the model would write. Only a blank at
    the label's end goes to the answer instead.

    Args:
        arm: The prompts of a condition.
        settings: Their settings.
        read: Where the answer is read: `box` or `line`.
        tokenizer: The model's tokenizer.
    """
    encode = partial(tokenizer.encode, add_special_tokens=False)
    prompts, merging_ids = [], set()
    for problem, prompt in zip(arm.problems, arm.prompts, strict=True):
        label = _make_label(prompt, settings, read)
        end = label.rstrip(" ")
        answers = []
        for text in (problem.answer, *problem.alternatives):
            tokens = AnswerTokens(encode(label), encode(text))
            if encode(label + text) != tokens.label + tokens.gold:
                tokens = AnswerTokens(encode(end), encode(label[len(end) :] + text))
                if end == label:
                    merging_ids.add(problem.id)
            answers.append(tokens)
        prompts.append(replace(prompt, answers=tuple(answers)))
    notes = arm.notes
    if merging_ids:
        count = f"{len(merging_ids)} of {len(prompts)} gold answers merge with their label"
        notes = (f"{count}: another spelling is scored.", *notes)
    return replace(arm, prompts=tuple(prompts), notes=notes)


def _make_label(prompt: BuiltPrompt, settings: PromptSettings, read: str) -> str:
    """The text between prompt and answer."""
    _, box, content = prompt.answer_prefix.rpartition(BOX)
    if box and "}" not in content:
        return ""
    _, closing = find_opened(prompt.text, settings.thinking)
    # an answer inside open reasoning would be part of it
    label = f"\n{closing}\n\n" if closing else ""
    _, between, _ = settings.frame
    # the blank that `build_prompt` leaves out of the prompt
    label += between[len(between.rstrip(" ")) :]
    return label + BOX if read == "box" else label
