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
    rewritten_answer, rewritten_gold = rewrite(answer), rewrite(gold)
    return rewritten_answer in rewritten_gold, rewritten_answer == rewritten_gold


def authors_answer(prompt_and_completion: str) -> str | None:
    r"""The content of the last `\boxed{...}`. None: there is no box, or the last one is not closed.

    An unclosed box hides the closed ones before it. Their code also looks for an `\fbox` if there
    is no `\boxed`, and then refuses its form.
    """
    # The last box is that of the completion. If it has none, a box in the prompt counts.
    box_start = prompt_and_completion.rfind("\\boxed")
    if box_start < 0:
        return None
    depth = 0
    for brace in re.compile(r"[{}]").finditer(prompt_and_completion, box_start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            box = prompt_and_completion[box_start : brace.end()]
            prefix = "\\boxed{"
            return box[len(prefix) : -1] if box.startswith(prefix) else None
    return None


def rewrite(answer: str) -> str:
    r"""Rewrite an answer, or the gold answer, by the rule's steps in their order.

    Raises:
        IndexError: As in their code, if nothing follows a `\frac` or `\sqrt`.
    """
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = text.replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = text.partition("\\text{ ")[0].replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    sides = text.split("=")
    # the authors take up to two characters for a name: `x=5` is 5, but `10x=5` stays as it is
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _brace_fractions(_brace_roots(text).replace(" ", ""))
    if text == "0.5":
        return "\\frac{1}{2}"
    quotient = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{quotient[1]}}}{{{quotient[2]}}}" if quotient else text


def _brace_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`. Only the first character after the command gets braces."""
    text_before, *arguments = text.split("\\sqrt")
    return "\\sqrt".join([text_before, *map(_brace_first_character, arguments)])


def _brace_first_character(argument: str) -> str:
    """`12` as `{1}2`; an argument in braces as it is."""
    return argument if argument[0] == "{" else f"{{{argument[0]}}}{argument[1:]}"


def _brace_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`.

    If only one character follows a `\frac`, the text stays as it is.
    """
    braced_text, *fractions = text.split("\\frac")
    for fraction in fractions:
        if fraction[0] != "{":
            if len(fraction) < 2:
                return text
            fraction = f"{{{fraction[0]}}}{_brace_first_character(fraction[1:])}"
        braced_text += "\\frac" + fraction
    return braced_text
