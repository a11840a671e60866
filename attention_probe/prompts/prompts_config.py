"""Get the prompts that a config or a command describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from attention_probe.prompts.token_roles import GAP_SUFFIX
from harness.analysis.problem_selection import Criterion
from harness.constants import BASELINE
from harness.experiment.conditions import NAMED_CONDITIONS, as_condition
from harness.experiment.problems import AnyDataset, open_dataset
from harness.experiment.prompts.prompt import Layout
from harness.runs.prompt_sources import Source, build_source
from harness.runs.run_reader import Run, source_of
from harness.yaml_settings import UserPath

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptsConfig(Criterion):
    """The averaged prompts, from one of `run`, `logs` and `dataset`."""

    run: UserPath | None = None
    """A run, an lm-eval output folder, or a sample log."""
    logs: dict[str, UserPath] | None = None
    """Sample logs of any task, by condition."""
    dataset: AnyDataset | None = None
    """Problems, as in a run config."""
    metric: str | None = None
    """The metric of logs, such as `exact_match,strict-match`."""
    layout: Layout | None = None
    """One of the run's layouts."""

    @model_validator(mode="after")
    def _require_one_source(self) -> Self:
        source_keys = [
            name for name in ("run", "logs", "dataset") if getattr(self, name) is not None
        ]
        if len(source_keys) != 1:
            key_text = " and ".join(source_keys or ["none"])
            raise ValueError(f"expected exactly one of `run`, `logs` and `dataset`, got {key_text}")
        return self


def load_source(
    prompts_config: PromptsConfig,
    conditions: Sequence[str],
    load_tokenizer: Callable[[], PreTrainedTokenizerBase],
) -> Source:
    """The prompts of a run or of logs, or prompts built from a dataset for the model's tokenizer.

    Args:
        prompts_config: Where the prompts are from.
        conditions: The conditions to build from a dataset; all named conditions if it is empty. The
            baseline is always built.
        load_tokenizer: Loads the model's tokenizer, which only a dataset needs.

    Raises:
        HarnessError: the run, the dataset or the tokenizer is not available, or a prompt breaks a
            guarantee.
    """
    run_or_logs = prompts_config.run or prompts_config.logs
    if run_or_logs is not None:
        run = Run.load(run_or_logs, metric=prompts_config.metric)
        return source_of(run, layout=prompts_config.layout)
    assert prompts_config.dataset is not None  # because the config has exactly one source
    # the prompt of a position gap (`mless+gap`) is made from that of its condition (`mless`)
    condition_names = [name.removesuffix(GAP_SUFFIX) for name in conditions] or NAMED_CONDITIONS
    return build_source(
        open_dataset(prompts_config.dataset),
        [as_condition(name) for name in dict.fromkeys((BASELINE, *condition_names))],
        load_tokenizer(),
        str(prompts_config.layout or Layout.RAW),
    )
