"""Scoring of boxed answers by the functions of lm-eval's own MATH tasks."""

from lm_eval.tasks.minerva_math import utils as minerva

process_docs = minerva.process_docs


def process_results(doc: dict, results: list[str]) -> dict[str, int]:
    r"""Score one completion.

    `math_verify` is that of `minerva_math500`. `exact_match` is its comparison too, but of the last `\boxed{}`:
    `minerva_math500` reads the sentence "Final Answer: The final answer is ...", which no prompt here asks for.

    Args:
        doc: A problem as `process_docs` returns it: `solution`, and `answer` in minerva's normal form.
        results: The completion, alone in a list.
    """
    scores = minerva.process_results(doc, results)
    box = minerva.last_boxed_only_string(results[0])
    scores["exact_match"] = 0
    if box and box.startswith(("\\boxed{", "\\boxed ")):  # others, such as \fbox, stop `remove_boxed`
        answer = minerva.normalize_final_answer(minerva.remove_boxed(box))
        scores["exact_match"] = int(minerva.is_equiv(answer, doc["answer"]))
    return scores
