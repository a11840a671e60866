"""The probe: run chosen prompts through the first layers once, and add a trace of each to a folder."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attention_probe.check_probe import self_check
from attention_probe.measure.measure_prompts import Record, measure_group
from attention_probe.model.load_first_layers import LoadedModel, load_model
from attention_probe.prompts.token_roles import GAP, TokenizedPrompt, tokenize, without_gap
from attention_probe.traces import AttentionTraces, Trace, TraceHeader
from harness import smollm2_model
from harness.analysis.choose_problems import Criterion, count_outcomes, select
from harness.constants import BASELINE, STUDIED, Dtype
from harness.errors import ConfigError, PromptMismatchError, list_near
from harness.experiment.prompt import Layout
from harness.experiment.tokenizer import load_tokenizer
from harness.runs import versions_and_hashes
from harness.runs.answered_prompts import Problem, Source
from harness.runs.records import as_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

GROUP_TOKENS = 1024
"""Tokens in one forward pass, padding included: on a CPU more only take memory, and fall out of the caches."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""From glibc's malloc.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What to record, and of which model.

    Attributes:
        model: Folder, hub name or `smollm2`; None for the model that was run.
        layers: Decoder layers, as indices from 0.
        conditions: Names of conditions; `mless+gap` is the position gap of `mless`. Empty for all that the source
            has and the gap of `mless`. The baseline is always recorded.
        record: What to keep.
        dtype: What the layers are computed in. If it is not float32, one prompt is compared with float32.
        device: `cpu`, `cuda`, ...

    Raises:
        ConfigError: a decomposition over completions.
    """

    model: str | None = None
    layers: tuple[int, ...] = (0,)
    conditions: tuple[str, ...] = ()
    record: Record = field(default_factory=Record)
    dtype: Dtype = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.record.completion and self.record.decompose:
            raise ConfigError(
                "--decompose compares the same queries, and those of --queries completion differ."
            )

    def fitted(self, source: Source) -> ProbeSettings:
        """The settings with the model and the conditions filled in from the source.

        Raises:
            ConfigError: a condition or the baseline is not in the source, or the source does not record where its
                filler stands.
        """
        usual = [name for name in source.conditions if name not in source.changed]
        usual += [f"{STUDIED}{GAP}"] if STUDIED in usual and not self.record.completion else []
        conditions = tuple(dict.fromkeys((BASELINE, *(self.conditions or usual))))
        made_of = {name: without_gap(name, source.conditions) for name in conditions}
        absent = ", ".join(name for name, base in made_of.items() if base not in source.conditions)
        hidden = ", ".join(name for name, base in made_of.items() if base in source.filled_answers)
        changed = ", ".join(name for name, base in made_of.items() if base in source.changed)
        unmarked = any(
            not prompt.requested.segments
            for one in source.problems
            for prompt in one.prompts.values()
        )
        for bad, what in (
            (
                absent,
                f"has no condition {absent}: expected one of {list_near(absent, source.conditions)}",
            ),
            (
                hidden,
                f"does not record where in the answer the filler of {hidden} stands: leave it out of --conditions",
            ),
            (
                changed,
                f"changes the model under {changed}, which the probe does not: leave it out of --conditions",
            ),
            (
                unmarked,
                "does not record where fillers stand: expected a run, or logs that `mless tasks --wrap` made",
            ),
        ):
            if bad:
                raise ConfigError(f"{source.name} {what}.")
        return replace(self, model=self.model or source.model, conditions=conditions)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""
        if self.model is None:
            raise ConfigError("Nothing says which model is probed. Name the model with --model.")
        return load_tokenizer(smollm2_model.resolve_model(self.model))

    def load_model(self, dtype: Dtype) -> LoadedModel:
        """The layers asked, to compute in this type."""
        return load_model(
            str(self.model), layers=self.layers, dtype=getattr(torch, dtype), device=self.device
        )


def run_probe(
    source: Source,
    criterion: Criterion,
    settings: ProbeSettings,
    path: Path,
    *,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure every selected prompt that the folder does not hold yet, and return the session's receipt.

    Args:
        source: Where the prompts are from.
        criterion: Which problems.
        settings: What to record, and of which model.
        path: The folder of traces. It is made, or continued if it is there.
        advance: Called with how many problems are done, and how many there are.

    Raises:
        PromptMismatchError: a prompt is not the one that was run, does not fit the model, or is another than the one
            that the folder holds.
        ModelError: the model cannot be loaded, or gives no attention.
        JournalError: the folder holds other traces, or cannot be written.
        ConfigError: a condition is not in the source, or fewer problems match than were asked for.
    """
    keep_freed_memory()
    settings = settings.fitted(source)
    problems = {problem.id: problem for problem in select(source, criterion)}
    tokenizer = settings.load_tokenizer()
    prompts = {
        name: tokenize(
            problem,
            tokenizer,
            conditions=settings.conditions,
            completion=settings.record.completion,
        )
        for name, problem in problems.items()
    }
    every = [prompt for by_condition in prompts.values() for prompt in by_condition.values()]
    loaded = settings.load_model(settings.dtype)
    context = getattr(loaded.config, "max_position_embeddings", None)
    for prompt in every:
        if context is not None and len(prompt) > context:
            raise PromptMismatchError(
                f"Problem {prompt.problem_id}, condition {prompt.condition!r}: {len(prompt)} tokens; {loaded.name} has "
                f"a context of {context}."
            )
    token_ids = np.unique(np.concatenate([prompt.token_ids for prompt in every])).astype(np.int64)
    loaded.keep_embeddings(torch.from_numpy(token_ids))
    exact = None if settings.dtype == "float32" else settings.load_model("float32")
    checks = self_check(loaded, prompts, settings.record, exact)
    receipt = make_receipt(
        settings,
        tokenizer,
        source={
            "name": source.name,
            "kind": source.kind,
            "prompts_sha256": source.prompts_sha256,
            "metric": source.metric,
        },
        selection={
            "criterion": criterion.model_dump(mode="json"),
            "outcomes": count_outcomes(source, criterion),
            "problems": len(problems),
        },
        checks=checks,
    )
    header = make_header(
        loaded.config,
        as_json(versions_and_hashes.model_fingerprint(loaded.name, loaded.revision)),
        settings,
        layout=source.layout,
        checked=source.kind != "log",
        flip=criterion.flip,
    )
    with AttentionTraces.create(path, header, receipt=receipt) as traces:
        for prompt in every:
            if traces.has(prompt.problem_id, prompt.condition):
                _refuse_other_record(traces, prompt, problems[prompt.problem_id])
        missing = [
            name
            for name in prompts
            if not all(traces.has(name, condition) for condition in settings.conditions)
        ]
        done = len(prompts) - len(missing)
        advance(done, len(prompts))
        for group in _groups([prompts[name] for name in missing]):
            for by_condition, measured in zip(
                group, measure_group(loaded, group, settings.record), strict=True
            ):
                for condition, prompt in by_condition.items():
                    if not traces.has(prompt.problem_id, condition):
                        traces.append(
                            make_trace(problems[prompt.problem_id], prompt, measured[condition])
                        )
            done += len(group)
            advance(done, len(prompts))
    return receipt


def keep_freed_memory() -> None:
    """Tell this process's allocator, if it is glibc's, to keep freed memory for the next tensor.

    By default glibc gives every large block back to the system when it is freed, and the system zeroes it again for the
    next one, page by page. A forward pass frees and takes tens of megabytes at every step, so this costs a twelfth of a
    long prompt's time and a quarter of that of many short ones. Peak memory stays within a few percent.

    Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    with suppress(
        AttributeError, TypeError
    ):  # another C library has no such function, or cannot be found so
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _refuse_other_record(
    traces: AttentionTraces, prompt: TokenizedPrompt, problem: Problem
) -> None:
    """Raise if the folder holds the problem with another prompt, other tokens, or chosen for another reason."""
    found = traces.get(prompt.problem_id, prompt.condition)
    old = found.prompt_sha256, found.token_ids.tolist(), found.outcome, found.control
    if old != (prompt.sha256, prompt.token_ids.tolist(), problem.outcome, problem.is_control):
        raise PromptMismatchError(
            f"{traces.path} holds problem {prompt.problem_id} under {prompt.condition} with another prompt, or from "
            "another selection. Choose another --output."
        )


def _groups(
    problems: Iterable[Mapping[str, TokenizedPrompt]],
) -> Iterator[list[Mapping[str, TokenizedPrompt]]]:
    """Problems of like length together, so that little of a pass is padding."""

    def size(prompts: Mapping[str, TokenizedPrompt]) -> int:
        return max(map(len, prompts.values()))

    group: list[Mapping[str, TokenizedPrompt]] = []
    for prompts in sorted(problems, key=size):
        if group and size(prompts) * (len(group) + 1) > GROUP_TOKENS:
            yield group
            group = []
        group.append(prompts)
    if group:
        yield group


def make_trace(problem: Problem, prompt: TokenizedPrompt, measured: Mapping[str, Any]) -> Trace:
    """The record of one prompt of a chosen problem, with what was measured."""
    return Trace(
        problem_id=problem.id,
        subject=problem.subject,
        level=problem.level,
        cluster=problem.cluster,
        outcome=problem.outcome,
        control=problem.is_control,
        condition=prompt.condition,
        prompt_sha256=prompt.sha256,
        token_ids=prompt.token_ids,
        roles=prompt.roles,
        tokens=prompt.tokens,
        original_pos=prompt.original_pos,
        filler_span=prompt.filler_span,
        **measured,
    )


def make_header(
    config: PretrainedConfig,
    fingerprint: Mapping[str, Any],
    settings: ProbeSettings,
    *,
    layout: str,
    checked: bool = True,
    flip: str | None = None,
) -> TraceHeader:
    """What all records of a folder share.

    Args:
        config: The model's.
        fingerprint: The model's.
        settings: What is recorded.
        layout: Of all prompts.
        checked: Whether mless built the prompts, and so checked that the problem's tokens are the same in all.
        flip: The outcome by which the problems were selected; None if by none.
    """
    record = asdict(settings.record)
    options = {name: value for name, value in record.items() if name != "completion"}
    # where each filler merges other tokens, fewer are common to more
    if layout == Layout.AS_PUBLISHED or not checked:
        options["common_to"] = list(settings.conditions)
    return TraceHeader(
        model=smollm2_model.name_model(str(settings.model)),
        fingerprint=fingerprint,
        layers=tuple(sorted(set(settings.layers))),
        head_count=int(config.num_attention_heads),
        conditions=settings.conditions,
        baseline=BASELINE,
        layout=layout,
        queries="completion" if settings.record.completion else "prompt",
        dtype=settings.dtype,
        options=options | {"model_type": config.model_type},
        flip=flip,
    )


def make_receipt(
    settings: ProbeSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    source: Mapping[str, Any],
    selection: Mapping[str, Any],
    checks: Mapping[str, Any],
) -> dict[str, Any]:
    """What a folder of traces tells of its making.

    Args:
        settings: What is recorded.
        tokenizer: The model's.
        source: Where the prompts are from.
        selection: How the problems were selected, and how many they are.
        checks: What `self_check` measured.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": asdict(settings),
        "tokenizer": smollm2_model.name_model(tokenizer.name_or_path),
        "source": source,
        "selection": selection,
        "self_check": checks,
        **versions_and_hashes.software(),
    }
