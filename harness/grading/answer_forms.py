"""Find the answer of a completion whose form is unknown: in a log of another harness, or a table.

A form is the way in which an answer is marked: in a box, after `Answer:`, after `####`.

The config of our own runs fixes the form before the run.
"""

import re

from harness.boxes import read_boxes
from harness.reasoning_markers import skip_reasoning

NO_FORM = "none"
"""The form of a completion without an answer."""
MARKER_BY_FORM = {
    # Models that are trained with tags around reasoning and answer write the first one, and GLM-V
    # the second. A sentence about the tag, such as `in <answer> the answer is`, does not count.
    "<answer>": re.compile(r"<answer>(?![^<]*answer is)|<\|begin_of_box\|>"),
    # lm-eval's tasks minerva_math and hendrycks_math ask for this sentence
    "Final Answer": re.compile(r"final answer:\s*the final answer is:?", re.I),
    # GSM8K's solutions end so; a heading such as `#### 2. Solve` or `#### Step 2` is not an answer
    "####": re.compile(r"####[ \t]*(?!\d+[.)][ \t])(?=[-+$\\(\[.\d])"),
    # at the beginning of a line or in bold type, because `the answer: 5` may be an intermediate one
    "Answer:": re.compile(r"(?:^|\*\*)[ #>]{0,9}(?:final )?answer(?:\*\*)?:", re.I | re.M),
    "answer is": re.compile(r"\banswer is\b:?", re.I),
}
"""The marker before an answer, by the name of its form, in the order in which they are tried."""
_ANSWER_AFTER_MARKER = re.compile(
    # display mathematics such as `$$5$$` and `\[5\]`, or an option such as `(C)`
    r"[\s*`]*(?:\$\$([^$]+)\$\$|\\\[(.+?)\\\]|(\([A-Z]\))"
    # Or the text up to the end of bold type, code, the line, the completion or the sentence, up to
    # a tag, as in `5</answer>`, or up to Minerva's closing words `I hope it is correct`.
    r"|(\S[^\n]*?(?=\*\*|`|\n|\.?(?:\Z|<(?:/\w|\|\w+\|>))|\.\s| I hope it is"
    # the text also ends before a reason or a conclusion, as in `5, because`
    r"|,? (?:and )?(?:because|since|so|thus)\b)))",
    re.DOTALL,
)
"""The answer after a marker: exactly one of the four groups matches, and is the answer."""
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}|[^\WA-Za-z\d_]{3}|\uff1a")
r"""Matches what a line does not have if it is only an answer: `so` in `so 5`, three letters of
another script, or the colon of Chinese texts, but not `\frac` or `x`."""


def find_answer(completion: str) -> tuple[str, str]:
    """The form in which a completion states its last answer, and the answer.

    A box has precedence, then the forms in the order of `MARKER_BY_FORM`. If there is none, a last
    line without words is an answer as it is (`bare`).

    Args:
        completion: The completion; its reasoning is skipped.
    """
    text = (skip_reasoning(completion) or "").strip()
    if boxes := read_boxes(text):
        return "box", boxes[-1]
    for form, marker in MARKER_BY_FORM.items():
        marker_ends = [match.end() for match in marker.finditer(text)]
        # only the last marker counts, because a model may correct itself
        if marker_ends and (match := _ANSWER_AFTER_MARKER.match(text, marker_ends[-1])):
            # the last group that matched is the only one
            return form, match[match.lastindex or 0].strip()
    last_line = text.rpartition("\n")[2]
    if last_line and not _WORD.search(last_line):
        return "bare", last_line
    return NO_FORM, ""
