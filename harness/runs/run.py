"""A run as all who read runs see it, whether mless made it or it is lm-eval's logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.runs.run_prompts import RunPrompt

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One run. Facts and the samples' outcomes are cheap; texts are read when they are asked for.

    Attributes:
        name: The path that it was read from.
        facts: Its part of a table's receipt: model, dataset, task_version, grader_version, sampling and so on. What is
            not known is None, and then agrees with anything.
        problems: Of each problem's id the hash of what is asked and its answer (`documents.hash_problem`).
        model: The name or folder that the model was loaded from; None where it is not known.
        receipt: All that is known of how it was made.
        metric: What the verdicts were read from; None where there are none.
        read_frame: Makes `frame`.
        read_texts: Makes a frame with the columns of `harness.load_run`, replicates and rewordings included.
        read_prompts: Every prompt with what came back; of replicates only the first.
    """

    name: str
    facts: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    read_frame: Callable[[], pandas.DataFrame]
    read_texts: Callable[[], pandas.DataFrame]
    read_prompts: Callable[[], Sequence[RunPrompt]]

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """One row per sample, with the columns of `sample_frame.read_frame` without texts.

        Raises:
            RunError: a file is missing or damaged, or a sample is missing, doubled or without a verdict.
        """
        return self.read_frame()

    @property
    def is_logs(self) -> bool:
        """Whether it is lm-eval's logs."""
        return bool(self.facts["source"] == "lm-eval")
