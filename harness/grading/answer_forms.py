"""The answer of a completion whose form nobody has fixed: in a log of another harness, or a table.

The config of our own runs fixes the form before the run.
"""

import re

from harness.boxes import read_boxes
from harness.reasoning_markers import skip_reasoning

NO_FORM = "none"
"""The form of a completion without an answer."""
FORMS = {
    # models that are trained with tags around reasoning and answer, and GLM-V; not `<answer>` in a
    # sentence about the answer
    "<answer>": re.compile(r"<answer>(?![^<]*answer is)|<\|begin_of_box\|>"),
    # the prompts of lm-eval's tasks minerva_math and hendrycks_math
    "Final Answer": re.compile(r"final answer:\s*the final answer is:?", re.I),
    # the solutions of GSM8K; a heading such as `#### 2. Solve` or `#### Step 2` is not an answer
    "####": re.compile(r"####[ \t]*(?!\d+[.)][ \t])(?=[-+$\\(\[.\d])"),
    "Answer:": re.compile(r"(?:^|\*\*)[ #>]{0,9}(?:final )?answer(?:\*\*)?:", re.I | re.M),
    "answer is": re.compile(r"\banswer is\b:?", re.I),
}
"""What stands before an answer, by the name of its form, in the order in which they are tried."""
_ANSWER = re.compile(
    r"[\s*`]*(?:\$\$([^$]+)\$\$|\\\[(.+?)\\\]|(\([A-Z]\))"
    r"|(\S[^\n]*?(?=\*\*|`|\n|\.?(?:\Z|<(?:/\w|\|\w+\|>))|\.\s| I hope it is"
    r"|,? (?:and )?(?:because|since|so|thus)\b)))",
    re.DOTALL,
)
"""Display mathematics, an option such as `(C)`, or the rest of the sentence."""
# a word: `so` in `so 5`, three letters of another script; not `\frac` or `x`
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}|[^\WA-Za-z\d_]{3}|\uff1a")


def find_answer(completion: str) -> tuple[str, str]:
    """The form in which a completion states its last answer, and the answer.

    A box has precedence, then the forms in the order of `FORMS`. Last, a line without a word at the
    end is an answer as it is (`bare`).

    Args:
        completion: The completion; its reasoning is skipped.
    """
    text = (skip_reasoning(completion) or "").strip()
    if boxes := read_boxes(text):
        return "box", boxes[-1]
    for form, marker in FORMS.items():
        ends = [match.end() for match in marker.finditer(text)]
        if ends and (match := _ANSWER.match(text, ends[-1])):
            # only one of the alternatives has matched its group
            return form, match[match.lastindex or 0].strip()
    line = text.rpartition("\n")[2]
    if line and not _WORD.search(line):
        return "bare", line
    return NO_FORM, ""
