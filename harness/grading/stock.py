"""math_verify as lm-eval's own MATH-500 task calls it: on whole texts, with its defaults.

Kept beside ours so that numbers stay comparable with lm-eval's. It reads any expression in the text, so an answer
without a box can count, and a stray wrong expression can beat the box.

Source: lm_eval/tasks/minerva_math/utils.py, `process_results`, lm-eval 0.4.13.
"""

from __future__ import annotations


def stock_math_verify(completion: str, solution: str) -> bool:
    """Whether math_verify's defaults find the completion's answer equal to the worked solution's."""
    from math_verify import parse, verify

    try:
        return bool(verify(gold=parse(solution), target=parse(str(completion))))
    except Exception:  # lm-eval would stop the run here; a crash is not a correct answer
        return False
