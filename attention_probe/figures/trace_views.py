"""What the interactive view of a page shows of a folder of traces."""

from pathlib import Path
from typing import Any

import numpy as np

from attention_probe.analysis.average_curves import shared_problems
from attention_probe.measure.field_definitions import MEASURES
from attention_probe.traces import AttentionTraces, Trace
from harness.constants import JsonObject
from harness.display.report.attention_view import (
    MASS_DIGITS,
    AttentionView,
    describe_conditions,
    describe_prompt,
)
from harness.display.report.report_samples import pack
from harness.experiment.model_settings import label_model
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS

NO_FINDING_NOTE = "Inserted tokens always take attention from the others, which is not a finding."
NO_ROWS_NOTE = (
    "These traces have no rows, so only means are shown. "
    "mless probe ... --rows last:16 stores the rows of the last 16 tokens."
)


def read_view(path: Path) -> AttentionView:
    """The view of the problems that have traces under all conditions.

    Args:
        path: The folder of traces.

    Raises:
        JournalError: the folder does not exist, or is damaged.
        ConfigError: no problem has traces under all conditions.
    """
    with AttentionTraces(path) as traces:
        header = traces.header
        conditions = traces.conditions
        problems: list[JsonObject] = []
        packed_prompts = []
        for problem_id in shared_problems(traces, conditions):
            trace_by_condition = {
                condition: traces.get(problem_id, condition) for condition in conditions
            }
            problems.append(_describe_problem(trace_by_condition))
            prompt_by_condition = {
                condition: describe_prompt(
                    trace.tokens, trace.mean_common, trace.rows, trace.roles, trace.original_pos
                )
                for condition, trace in trace_by_condition.items()
            }
            packed_prompts.append(pack(prompt_by_condition))
    notes = [NO_FINDING_NOTE]
    if not header.options.get("rows"):
        notes.append(NO_ROWS_NOTE)
    return AttentionView(
        facts={
            "name": path.absolute().name,
            "model": label_model(header.model),
            "layers": [layer + 1 for layer in header.layers],
            "queried": "problem",
            "conditions": describe_conditions(conditions),
            "meanings": [MEASURES[f"mass_{region}"].definition for region in TOKEN_REGIONS],
            "notes": notes,
            "selection": traces.receipt.get("selection"),
            "problems": problems,
        },
        prompts=packed_prompts,
        receipt=traces.receipt,
    )


def _describe_problem(trace_by_condition: dict[str, Trace]) -> JsonObject:
    """The facts of a problem, and its masses under each condition."""
    # the facts are the same in all traces of the problem
    trace, *_ = trace_by_condition.values()
    return {
        "id": trace.problem_id,
        "gold_answer": trace.gold_answer,
        "outcome": trace.outcome,
        "control": trace.control,
        "masses": {
            condition: _list_masses(trace) for condition, trace in trace_by_condition.items()
        },
    }


def _list_masses(trace: Trace) -> list[Any]:
    """The masses [region, layer, head]: the attention that the problem's tokens pay to a region.

    None where the prompts share no token of the problem.
    """
    masses = np.array([trace.measures[f"mass_{region}"] for region in TOKEN_REGIONS], np.float64)
    # as objects, because an array of numbers cannot hold None, and JSON has no NaN
    rounded_masses = masses.round(MASS_DIGITS).astype(object)
    rounded_masses[np.isnan(masses)] = None
    return list(rounded_masses.tolist())
