"""Does a model work on this machine? Ten problems, an intervention and a recorded prompt.

The run of configs/runs/doctor.yaml compares the intervention with Hugging Face. Here the attention
that the engine records is compared.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from attention_probe.probe_run import probe
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.prompts_config import PromptsConfig
from attention_probe.traces import AttentionTraces
from harness import resources
from harness.constants import BASELINE
from harness.display.table_page import TableOptions, make_table
from harness.errors import HarnessError, ModelError
from harness.execution.prepared_run import run
from harness.experiment.run_config import load_config

WEIGHT_TOLERANCE = 1e-4
"""The largest difference between attention weights of the engine and of Hugging Face in float32.
It is ten times what tests allow on a CPU, because a GPU adds in another order."""


def check_model(model: str) -> tuple[str, bool]:
    """The report on a model, and whether a check failed; the report then ends with the failure.

    Args:
        model: A folder, a hub name, or `smollm2`.
    """
    paragraphs = []
    with TemporaryDirectory() as folder:
        for check in (_check_answers, _check_attention):
            try:
                paragraphs.append(check(model, Path(folder)))
            except HarnessError as error:
                return "\n\n".join([*paragraphs, f"FAIL    {error}"]), True
    return "\n\n".join(paragraphs), False


def _check_answers(model: str, folder: Path) -> str:
    """Run the problems of doctor.yaml, store the run in the folder, and return its table."""
    config = load_config(
        resources.folder("configs") / "runs" / "doctor.yaml",
        {"model.model_args.pretrained": model},
    )
    return make_table([run(config, output=folder / "run")], TableOptions(explain=False))


def _check_attention(_model: str, folder: Path) -> str:
    """Compare the attention that the engine records with that of Hugging Face.

    Raises:
        ModelError: they differ by more than WEIGHT_TOLERANCE.
    """
    # the prompts are those of the run that `_check_answers` has stored, which also names the model
    mean_weights = []
    for folder_name, engine_arguments in (("reference", None), ("engine", {})):
        settings = ProbeSettings(conditions=(BASELINE, "mless"), engine=engine_arguments)
        prompts = PromptsConfig(run=folder / "run", n=1)
        probe(prompts, settings, folder / folder_name, lambda finished, total: None)
        with AttentionTraces(folder / folder_name) as traces:
            mean_weights.append(traces.get(traces.problem_ids[0], "mless").mean_all)
    difference = float(np.nanmax(np.abs(mean_weights[0] - mean_weights[1])))
    message = f"Attention differs from that of Hugging Face by at most {difference:.1e}"
    # not `>`, which would let NaN pass
    if not difference <= WEIGHT_TOLERANCE:
        raise ModelError(f"{message}: expected {WEIGHT_TOLERANCE:.0e} or less.")
    return f"ok      {message}."
