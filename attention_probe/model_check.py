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
        run_path = Path(folder, "run")
        try:
            config = load_config(
                resources.folder("configs") / "runs" / "doctor.yaml",
                {"model.model_args.pretrained": model},
            )
            finished_run = run(config, output=run_path)
            paragraphs.append(make_table([finished_run], TableOptions(explain=False)))
            paragraphs.append(_check_attention(run_path))
        except HarnessError as error:
            return "\n\n".join([*paragraphs, f"FAIL    {error}"]), True
    return "\n\n".join(paragraphs), False


def _check_attention(run_path: Path) -> str:
    """Compare the attention that the engine records with that of Hugging Face.

    The prompts and the model are those of the stored run. The traces are stored beside it.

    Raises:
        ModelError: they differ by more than WEIGHT_TOLERANCE.
    """
    mean_weights = []
    # None stands for Hugging Face, and {} for the engine with only the arguments of the run
    for folder_name, engine_arguments in (("reference", None), ("engine", {})):
        settings = ProbeSettings(conditions=(BASELINE, "mless"), engine=engine_arguments)
        traces_path = run_path.with_name(folder_name)
        probe(PromptsConfig(run=run_path, n=1), settings, traces_path, lambda finished, total: None)
        with AttentionTraces(traces_path) as traces:
            mean_weights.append(traces.get(traces.problem_ids[0], "mless").mean_all)
    hugging_face_weights, engine_weights = mean_weights
    difference = float(np.nanmax(np.abs(engine_weights - hugging_face_weights)))
    message = f"Attention differs from that of Hugging Face by at most {difference:.1e}"
    # not `>`, which would let NaN pass
    if not difference <= WEIGHT_TOLERANCE:
        raise ModelError(f"{message}: expected {WEIGHT_TOLERANCE:.0e} or less.")
    return f"ok      {message}."
