"""A plan as people read it before a run: what is asked of the model, what the run can show, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from harness.analysis.forecast import describe_outlook, describe_power
from harness.experiment.conditions import BASELINE
from harness.experiment.plan import Arm, Plan


def describe_plan(plan: Plan) -> str:
    """The plan as text: requests, what they can show, prompt lengths, tokens, time."""
    config = plan.config
    part = f", shard {plan.shard}" if plan.shard else ""
    extra = [f"{BASELINE} {config.replicates} times"] if config.replicates > 1 else []
    extra += [f"prompt null of {config.prompt_null} edits"] if config.prompt_null else []
    lines = [
        f"model     {config.model.display_name} through {config.model.backend}",
        f"dataset   {plan.dataset.name}, {len(plan.dataset.problems)} problems{part}, {plan.dataset.source}",
        f"sampling  {config.sampling_words}, at most {config.max_gen_toks} tokens each",
        f"requests  {plan.size}" + (f": {', '.join(extra)}" if extra else ""),
        *describe_power(config, len(plan.whole.problems[: plan.limit])),
    ]
    rows = [("condition", "layout", "filler", "span", "prompt tokens: least", "median", "most")]
    total = 0
    for (name, layout), arms in _shown_together(plan.arms).items():
        reports = [report for arm in arms for report in arm.built.reports]
        if not reports:
            rows.append((name, layout, "?", "?", "?", "?", "?"))
            continue
        lengths = [len(report.prompt_token_ids) for report in reports]
        total += sum(lengths) * config.samples_per_problem * arms[0].replicates
        low, high = reports[0].filler_span or (0, 0)
        rows.append(
            (
                name,
                layout,
                str(max(report.filler_tokens for report in reports)),
                f"{low}-{high}" if high else "-",
                str(min(lengths)),
                f"{statistics.median(lengths):.0f}",
                str(max(lengths)),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    if total:
        lines.append(f"tokens    {total:,} in prompts, at most {plan.size * config.max_gen_toks:,} generated")
    else:
        lines.append("tokens    unknown: name a tokenizer (--set model.arguments.tokenizer=NAME)")
    lines.append(describe_outlook(config, len(plan.whole.problems[: plan.limit]), plan.size))
    return "\n".join(lines)


def _shown_together(arms: Sequence[Arm]) -> dict[tuple[str, str], list[Arm]]:
    """The arms by the name that the plan gives them, and layout: all edits of a prompt null are one line."""
    shown: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        name = "prompt null" if arm.built.condition.edit else arm.built.condition.name
        shown.setdefault((name, str(arm.built.layout)), []).append(arm)
    return shown
