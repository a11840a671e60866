"""Compares an engine's answers with Hugging Face's: `python -m benchmarks.v2_hooks.check_engine`.

Its argument is a JSON file: Hugging Face's answers, the layers to open, and vLLM's options. It
runs on a GPU, or without one under Triton's interpreter (TRITON_INTERPRET=1).
"""

import json
import sys
from itertools import chain
from pathlib import Path

from benchmarks.v2_hooks.worker import open_layers
from harness.engines.interventions.intervention_check import check_engine


def main() -> None:
    """Print the agreement and vLLM's counts as JSON."""
    reference, layers, options = json.loads(Path(sys.argv[1]).read_text())
    questions = chain.from_iterable(reference["questions"]["arms"].values())
    open_layers(options, layers, [question["intervention"] or [] for question in questions])
    from vllm import LLM

    llm = LLM(**options, disable_log_stats=False)
    agreement = check_engine(llm.llm_engine, reference)
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    print(json.dumps(agreement | counts))


if __name__ == "__main__":
    main()
