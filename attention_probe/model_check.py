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

LARGEST_DIFFERENCE = 1e-4
"""The largest difference between attention weights of the engine and of Hugging Face in float32.
It is ten times what tests allow on a CPU, because a GPU adds in another order."""


def check_model(model: str) -> tuple[str, bool]:
    """The report on a model, and whether a check failed; the report then ends with the failure.

    Args:
        model: A folder, a hub name, or `smollm2`.
    """
    texts = []
    with TemporaryDirectory() as folder:
        path = Path(folder)
        for check in (_check_answers, _check_attention):
            try:
                texts.append(check(model, path))
            except HarnessError as error:
                return "\n\n".join([*texts, f"FAIL    {error}"]), True
    return "\n\n".join(texts), False


def _check_answers(model: str, folder: Path) -> str:
    config = load_config(
        resources.folder("configs") / "runs" / "doctor.yaml",
        {"model.model_args.pretrained": model},
    )
    return make_table([run(config, output=folder / "run")], TableOptions(explain=False))


def _check_attention(_model: str, folder: Path) -> str:
    # the run of `_check_answers` names the model
    means = []
    for name, engine in (("reference", None), ("engine", {})):
        settings = ProbeSettings(conditions=(BASELINE, "mless"), engine=engine)
        prompts = PromptsConfig(run=folder / "run", n=1)
        probe(prompts, settings, folder / name, lambda finished, total: None)
        with AttentionTraces(folder / name) as traces:
            means.append(traces.get(traces.problem_ids[0], "mless").mean_all)
    difference = float(np.nanmax(np.abs(means[0] - means[1])))
    text = f"Attention differs from that of Hugging Face by at most {difference:.1e}"
    if not difference <= LARGEST_DIFFERENCE:
        raise ModelError(f"{text}: expected {LARGEST_DIFFERENCE:.0e} or less.")
    return f"ok      {text}."
