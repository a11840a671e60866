"""The grading rule of the study's authors, with its faults, for the audit."""

import re


def authors_rule(prompt_and_completion: str, gold: str | None) -> tuple[bool, bool]:
    r"""The grading rule of the study's authors with its faults, written from a description of it.

    It reads prompt **plus** completion, so an empty `\boxed{}` in the prompt counts as an answer.
    It accepts any answer that is a substring of the gold answer: an empty box is always right, and
    `1` is right for `100`. It knows no mathematics except `rewrite`.

    Source: arXiv 2510.01032 and the behaviour of its code. The rewriting is that of the MATH data
    set (Hendrycks et al. 2021, arXiv 2103.03874).

    Args:
        prompt_and_completion: The prompt followed by the completion.
        gold: The gold answer. None: the problem has no boxed answer.

    Returns:
        Whether the answer is right by the rule as it is, and by the rule without the substring bug.

    Raises:
        IndexError: As in their code, if nothing follows a `\frac` or `\sqrt`.
    """
    answer = authors_answer(prompt_and_completion)
    if answer is None or gold is None:
        return answer == gold, answer == gold
    rewritten_answer = rewrite(answer)
    rewritten_gold = rewrite(gold)
    return rewritten_answer in rewritten_gold, rewritten_answer == rewritten_gold


def authors_answer(prompt_and_completion: str) -> str | None:
    r"""The content of the last `\boxed{...}`. None: there is no box, or the last one is not closed.

    An unclosed box hides the closed ones before it. An `\fbox` is not an answer.
    """
    # The last box is that of the completion. If it has none, a box in the prompt counts.
    _, command, text_after_command = prompt_and_completion.rpartition("\\boxed")
    # as in their code, `\boxed 5` and `\boxed {5}` are not answers
    if not command or not text_after_command.startswith("{"):
        return None
    # the box ends with the brace that closes its first one
    depth = 0
    for brace in re.finditer(r"[{}]", text_after_command):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text_after_command[1 : brace.start()]
    return None


def rewrite(answer: str) -> str:
    r"""Rewrite an answer, or the gold answer, by the rule's steps in their order.

    Answers that mean the same shall become the same text.

    Raises:
        IndexError: As in their code, if nothing follows a `\frac` or `\sqrt`.
    """
    # line breaks and `\!` print nothing, and a backslash may have been doubled: `\\pi` is `\pi`
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    # the size of a fraction or of brackets means nothing: `\dfrac12` is `\frac12`
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = text.replace("\\left", "").replace("\\right", "")
    # units are removed: `30^\circ` is 30, `\$5` is 5, `5\text{ cm}` is 5, and `50\%` is 50
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = text.partition("\\text{ ")[0].replace("\\%", "")
    # a decimal without a digit before its point gets a zero: `.5` is 0.5
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    # the authors take up to two characters for a name: `x=5` is 5, but `10x=5` stays as it is
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    # `\sqrt3` is `\sqrt{3}`; of `\sqrt 3` the blank gets the braces before all blanks are removed
    text = _brace_fractions(_brace_roots(text).replace(" ", ""))
    # 0.5 is the only decimal that the rule reads as a fraction
    if text == "0.5":
        return "\\frac{1}{2}"
    # a quotient of two integers is a fraction: `1/2` is `\frac{1}{2}`
    quotient = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{quotient[1]}}}{{{quotient[2]}}}" if quotient else text


def _brace_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`. Only the first character after the command gets braces."""
    text_before, *texts_after = text.split("\\sqrt")
    return "\\sqrt".join([text_before, *map(_brace_first_character, texts_after)])


def _brace_first_character(text_after: str) -> str:
    """`12` as `{1}2`; a text that begins with a brace as it is."""
    return text_after if text_after[0] == "{" else f"{{{text_after[0]}}}{text_after[1:]}"


def _brace_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`.

    If only one character follows a `\frac`, the text stays as it is.
    """
    braced_text, *texts_after = text.split("\\frac")
    for text_after in texts_after:
        braced_text += "\\frac"
        # a numerator in braces is taken to have a denominator in braces, as `{1}{2}`
        if text_after[0] == "{":
            braced_text += text_after
        # a single character is a numerator without a denominator
        elif len(text_after) < 2:
            return text
        # `12` and `1{2}` become `{1}{2}`
        else:
            braced_text += f"{{{text_after[0]}}}{_brace_first_character(text_after[1:])}"
    return braced_text
