"""From what a config or a command says about prompts to the prompts themselves: a source and a selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attention_probe.figures.config import PromptsConfig
from harness.analysis.selection import Selection, select
from harness.analysis.selection_criterion import Criterion
from harness.experiment.conditions import named_condition, named_conditions
from harness.experiment.config import open_dataset
from harness.runs.prompt_source import BASELINE, Source, build_source, read_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def open_source(
    prompts: PromptsConfig, conditions: Sequence[str], load_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> Source:
    """The prompts of a run as they were run, or those of a dataset, built for the model's tokenizer.

    `conditions` are those to build, the named ones if it is empty; the baseline is always among them.

    Raises:
        HarnessError: the run, the dataset or the tokenizer cannot be had, or a prompt breaks a guarantee.
    """
    answered = prompts.run or prompts.logs
    if answered is not None:
        return read_source(answered, layout=prompts.layout and str(prompts.layout), metric=prompts.metric)
    assert prompts.dataset is not None  # the config has one of the two
    return build_source(
        open_dataset(prompts.dataset),
        [named_condition(name) for name in dict.fromkeys((BASELINE, *(conditions or named_conditions())))],
        load_tokenizer(),
        str(prompts.layout or "raw"),
        instruction=prompts.instruction,
    )


def choose(prompts: PromptsConfig, source: Source) -> Selection:
    """The selection that the config describes.

    Raises:
        ConfigError: it names what the source does not have, or too few problems match.
    """
    return select(
        source,
        Criterion(
            flip=prompts.flip,
            baseline=prompts.baseline,
            condition=prompts.condition,
            repeats=prompts.repeats,
            subject=prompts.subject,
            level=prompts.level,
            ids=prompts.ids or None,
            n=prompts.n,
            seed=prompts.seed,
            controls=prompts.controls,
        ),
    )
