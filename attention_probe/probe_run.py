"""The probe: run selected prompts through the first layers once, and store a trace of each.

A *trace* is what was measured of one prompt. A *source* is the problems with their prompts: those
of a run or of logs, or built from a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from attention_probe.probe_settings import ProbeSettings, refuse_changed_model
from attention_probe.probed_model import MeasureProblem, flatten_prompts, open_model
from attention_probe.prompts.prompts_config import PromptsConfig, load_source
from attention_probe.prompts.token_roles import PromptsByCondition, tokenize_prompts_of_problem
from attention_probe.traces import HEADER_FILE, AttentionTraces, Trace, TraceHeader
from harness import smollm2_model
from harness.analysis.problem_selection import Criterion, count_flips, select
from harness.constants import JsonObject
from harness.errors import PromptMismatchError
from harness.experiment.prompts.prompt import Layout
from harness.runs import versions_and_hashes
from harness.runs.prompt_sources import Source
from harness.runs.records import as_json

_read_compared_facts = attrgetter("prompt_sha256", "intervention", "outcome", "control")
"""Reads the facts in which a stored trace must agree with its prompt, besides the tokens."""
Advance = Callable[[int, int], None]
"""Called with the number of finished problems and the number of all problems."""


def probe(
    prompts_config: PromptsConfig,
    settings: ProbeSettings,
    path: Path,
    advance: Advance,
) -> JsonObject:
    """Load the prompts and measure them: what `mless probe` does.

    The arguments and errors are those of `load_source` and `run_probe`.
    """
    source = load_source(prompts_config, settings.conditions, settings.load_tokenizer)
    return run_probe(source, prompts_config, settings, path, advance)


def run_probe(
    source: Source,
    criterion: Criterion,
    settings: ProbeSettings,
    path: Path,
    advance: Advance = lambda finished, total: None,
) -> JsonObject:
    """Measure every selected prompt that the folder lacks, and return the receipt.

    The receipt is that of this session. If no trace is missing, no model is loaded, and the receipt
    is that of the folder.

    Args:
        source: The problems and their prompts.
        criterion: Which problems to select.
        settings: What to record, and of which model.
        path: The folder of traces. It is created, or continued if it exists.
        advance: Reports progress.

    Raises:
        PromptMismatchError: a prompt differs from the one that was run or the one in the folder, or
            is longer than the model's context.
        ModelError: the model cannot be loaded, or gives no attention.
        JournalError: the folder holds traces of another kind, or cannot be written.
        ConfigError: a condition is not in the source, fewer problems match than were requested, or
            the run's model was changed since.
    """
    settings = settings.complete_from(source)
    problems = select(source, criterion)
    tokenizer = settings.load_tokenizer()
    # The prompts are compared before any weights are loaded, so a difference is found in seconds.
    prompts_by_problem = {
        problem.id: tokenize_prompts_of_problem(problem, tokenizer, conditions=settings.conditions)
        for problem in problems
    }
    header = make_header(settings, source, criterion.flip)
    refuse_changed_model(source, settings.model, header.fingerprint)
    if (path / HEADER_FILE).exists():
        with AttentionTraces(path) as traces:
            traces.join_header(header)
            refuse_differing_traces(traces, prompts_by_problem)
            if not select_unmeasured_problems(traces, prompts_by_problem):
                advance(len(prompts_by_problem), len(prompts_by_problem))
                return traces.receipt
    with open_model(settings, prompts_by_problem) as (measure_problem, check_results):
        receipt = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": asdict(settings),
            "tokenizer": smollm2_model.name_model(tokenizer.name_or_path),
            **_describe_prompts(source, criterion, len(problems)),
            "self_check": check_results,
            **versions_and_hashes.software_facts(),
        }
        # The folder is created after the model has been opened, so a failure leaves none behind.
        with AttentionTraces.create(path, header, receipt) as traces:
            # compared again, because another probe may have added traces before the folder's lock
            refuse_differing_traces(traces, prompts_by_problem)
            add_missing_traces(traces, prompts_by_problem, measure_problem, advance)
    return receipt


def _describe_prompts(source: Source, criterion: Criterion, problem_count: int) -> JsonObject:
    """The entries of a receipt that say where the prompts are from and how they were selected."""
    return {
        "source": {
            name: getattr(source, name) for name in ("name", "kind", "prompts_sha256", "metric")
        },
        "selection": {
            # only the fields of a criterion, because a figure's criterion has further ones
            "criterion": criterion.model_dump(mode="json", include={*Criterion.model_fields}),
            "outcomes": count_flips(source, criterion),
            "problems": problem_count,
        },
    }


def refuse_differing_traces(
    traces: AttentionTraces, prompts_by_problem: Mapping[str, PromptsByCondition]
) -> None:
    """Refuse a folder with a trace of another prompt, or from another selection of problems.

    A prompt without a trace is not compared.

    Raises:
        PromptMismatchError: a stored trace differs from its prompt in a compared fact or a token.
    """
    for prompt in flatten_prompts(prompts_by_problem):
        if not traces.has(prompt.problem_id, prompt.condition):
            continue
        trace = traces.get(prompt.problem_id, prompt.condition)
        has_other_facts = _read_compared_facts(trace) != _read_compared_facts(prompt)
        if has_other_facts or trace.token_ids.tolist() != prompt.token_ids.tolist():
            raise PromptMismatchError(
                f"{traces.path} holds problem {prompt.problem_id} under {prompt.condition} with "
                "another prompt or intervention, or from another selection. Choose another "
                "--output."
            )


def select_unmeasured_problems(
    traces: AttentionTraces, prompts_by_problem: Mapping[str, PromptsByCondition]
) -> list[PromptsByCondition]:
    """The prompts of every problem that has no trace under some condition, problem by problem.

    A problem is measured under all conditions even if a single trace is missing: the common queries
    need all of its prompts.
    """
    return [
        problem_prompts
        for problem_id, problem_prompts in prompts_by_problem.items()
        if not all(traces.has(problem_id, condition) for condition in problem_prompts)
    ]


def add_missing_traces(
    traces: AttentionTraces,
    prompts_by_problem: Mapping[str, PromptsByCondition],
    measure_problem: MeasureProblem,
    advance: Advance,
) -> None:
    """Measure every problem that has no trace under some condition, and add the missing traces."""
    unmeasured_problems = select_unmeasured_problems(traces, prompts_by_problem)
    finished_count = len(prompts_by_problem) - len(unmeasured_problems)
    advance(finished_count, len(prompts_by_problem))
    # Short problems first. The order must not change, because figures resample problems in it.
    unmeasured_problems.sort(key=lambda problem_prompts: max(map(len, problem_prompts.values())))
    for problem_prompts in unmeasured_problems:
        fields_by_condition = measure_problem(problem_prompts)
        for condition, prompt in problem_prompts.items():
            if not traces.has(prompt.problem_id, condition):
                traces.append(Trace(**vars(prompt), **fields_by_condition[condition]))
        finished_count += 1
        advance(finished_count, len(prompts_by_problem))


def make_header(settings: ProbeSettings, source: Source, flip: str | None) -> TraceHeader:
    """The facts that all traces of a folder share.

    Args:
        settings: What is recorded.
        source: The problems and their prompts.
        flip: The outcome by which the problems were selected; None if by none.
    """
    config = settings.load_config()
    fingerprint = versions_and_hashes.model_fingerprint(
        smollm2_model.resolve_model(str(settings.model)), settings.arguments.get("revision")
    )
    options: JsonObject = asdict(settings.record)
    # In these prompts a filler may be merged with other tokens. Which tokens all prompts have in
    # common therefore depends on the conditions.
    if source.layout == Layout.AS_PUBLISHED or source.kind == "log":
        options["common_to"] = list(settings.conditions)
    options["model_type"] = config.model_type
    return TraceHeader(
        model=smollm2_model.name_model(str(settings.model)),
        fingerprint=as_json(fingerprint),
        layers=tuple(sorted(set(settings.layers))),
        head_count=int(config.num_attention_heads),
        conditions=settings.conditions,
        layout=source.layout,
        dtype=settings.dtype,
        options=options,
        flip=flip,
    )
