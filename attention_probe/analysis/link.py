"""Does what the first layer did say which problems gained? A regression over all problems, with its null.

The outcome is each problem's change of accuracy, condition minus baseline; the features are what the probe saw in the
problem's prompt, beside its length and level, which might explain the change without any attention: a problem that
is right without filler cannot gain, so that whatever tells hard problems from easy ones predicts something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.averaging import shared_problems
from attention_probe.analysis.regression import (
    FOLDS,
    PERMUTATIONS,
    REPEATS,
    RIDGE,
    SEED,
    Regression,
    coefficients,
    regress,
)
from attention_probe.prompts.token_roles import COMPLETION
from attention_probe.traces import AttentionTraces
from harness.errors import ConfigError, PromptMismatchError, RunError
from harness.runs.sample_frame import load_run

if TYPE_CHECKING:
    import pandas

CONTROLS = ("prompt_length", "level")
NEAR_ZERO = "near_zero_c0.1"
"""Near zero by the study's c for Qwen2.5-Math-7B: one of the shares is enough, they rise and fall together."""
FEWEST, FEWEST_PER_FEATURE, FEWEST_CHANGED = 30, 10, 10
"""Below any of these the result is marked as from too few problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkResult:
    """What `mless link` found.

    Attributes:
        model: Whose traces.
        condition: Minus `baseline`.
        baseline: The other one.
        layout: Of the prompts.
        layer: Whose attention, from 0.
        head: From 0; None for the mean over all heads.
        n: Problems in the regression.
        changed: How many of them changed their accuracy.
        mean_change: Mean change of accuracy, a share.
        features: What the regression is on.
        absent: What it is not on, and why.
        coefficients: Change of accuracy (a share) a standard deviation of the feature, all problems fitted together.
        whole: The regression on all features; None where all accuracies changed alike, or none.
        controls: The one on prompt length and level alone; None without these.
        gain: What attention adds to the controls: R2 difference, p and the difference needed; None without either.
        too_small: Why the problems are too few to tell; empty if they are not.
        notes: What a reader must be told beside it.
        settings: Folds, repeats, ridge penalty, permutations, seed.
    """

    model: str
    condition: str
    baseline: str
    layout: str
    layer: int
    head: int | None
    n: int
    changed: int
    mean_change: float
    features: tuple[str, ...]
    absent: Mapping[str, str]
    coefficients: Mapping[str, float]
    whole: Regression | None
    controls: Regression | None
    gain: Regression | None
    too_small: str
    notes: tuple[str, ...]
    settings: Mapping[str, float]

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.whole is None:
            how = "All problems changed alike" if self.changed else "No problem changed its accuracy"
            return f"{how}: there is nothing to explain."
        if self.too_small:
            return f"Too few problems to tell: {self.too_small}."
        if self.whole.p >= 0.05 or self.whole.r2 <= 0:
            return "These features do not predict which problems gain, no better than chance."
        tail = ""
        if self.gain is not None:
            adds = self.gain.p < 0.05 and self.gain.r2 > 0
            tail = "; attention adds to prompt length and level" if adds else ", but prompt length and level do as well"
        return f"These features predict a share of {self.whole.r2:.3f} of the change{tail}."

    def as_text(self) -> str:
        """The report, a few lines."""
        where = f"Layer {self.layer + 1} " + ("mean over heads" if self.head is None else f"Head {self.head + 1}")
        lines = [
            f"{self.condition} - {self.baseline}, {self.model}, {self.layout}, {where}",
            f"{self.n} problems, {self.changed} changed, mean change of accuracy {100 * self.mean_change:+.1f} points",
            f"verdict: {self.verdict}",
        ]
        for name, part in (("all features", self.whole), ("length and level", self.controls), ("gain", self.gain)):
            if part is not None:
                lines.append(f"{name:<21} R2 {part.r2:+.4f}   p {part.p:.4f}   p < 0.05 needs {part.r2_needed:+.4f}")
        lines += [
            f"{name:<21} {100 * value:+.2f} points a standard deviation"
            for name, value in self.coefficients.items()
            if self.whole is not None
        ]
        lines += [f"left out: {name}: {why}" for name, why in self.absent.items()]
        lines += [f"note: {note}" for note in self.notes]
        told = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return "\n".join([*lines, f"out-of-fold ridge regression: {told}"])

    def as_record(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def link(
    run: Path,
    traces: AttentionTraces,
    condition: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    permutations: int = PERMUTATIONS,
    seed: int = SEED,
) -> LinkResult:
    """Regress each problem's change of accuracy on what the probe saw in its prompt.

    Args:
        run: The run's folder.
        traces: Of that run's prompts, of all problems: not chosen by what became of them.
        condition: Which; against the traces' baseline.
        layer: Whose attention, from 0; the first recorded one by default.
        head: From 0; the mean over all heads by default.
        permutations: Of the outcome.
        seed: Of folds and permutations.

    Raises:
        ConfigError: the traces were selected on outcome, do not hold the condition, layer or head, or share fewer than
            ten problems with the run.
        PromptMismatchError: the traces are of other prompts than the run's.
        RunError: there is no such run, or it lacks the condition.
    """
    header = traces.header
    layer = header.layers[0] if layer is None else layer
    header.layer_index(layer)
    if head is not None:
        header.check_head(head)
    if header.on_outcome:
        raise ConfigError(
            f"the problems of {traces.path} were chosen by what became of them, so that regressing the outcome on them "
            "says nothing. Probe all problems, or a seeded random number of them."
        )
    if condition == header.baseline:
        raise ConfigError(f"{condition} is the baseline itself. Choose another condition.")
    problems = shared_problems(traces, (condition, header.baseline))
    change = _accuracy_change(run, traces, condition, problems)
    if len(change) < FOLDS:
        raise ConfigError(
            f"{len(change)} problems cannot be linked: expected at least {FOLDS} of {run} traced under {condition} and "
            f"{header.baseline}. Probe more of the run."
        )
    columns, absent = _features(traces, condition, list(change), layer, head)
    outcome = np.array(list(change.values()))
    notes = _notes(traces, len(problems), len(change))
    whole = np.isfinite(np.column_stack([outcome, *columns.values()])).all(axis=1)
    if not whole.all():
        notes.append(f"{int((~whole).sum())} problems without a value of some feature were left out")
    outcome, columns = outcome[whole], {name: values[whole] for name, values in columns.items()}
    if not columns or len(outcome) < FOLDS:
        left_out = "; ".join(f"{name}: {why}" for name, why in absent.items())
        raise ConfigError(
            f"{len(outcome)} problems, {len(columns)} features cannot be linked. Left out: {left_out or 'nothing'}. "
            "Probe again with what is missing."
        )
    parts: tuple[Regression | None, ...] = (None, None, None)
    if outcome.min() < outcome.max():
        parts = regress(columns, outcome, controls=CONTROLS, permutations=permutations, seed=seed)
    return LinkResult(
        model=header.model,
        condition=condition,
        baseline=header.baseline,
        layout=header.layout,
        layer=layer,
        head=head,
        n=len(outcome),
        changed=int((outcome != 0).sum()),
        mean_change=float(outcome.mean()),
        features=tuple(columns),
        absent=absent,
        coefficients=coefficients(columns, outcome),
        whole=parts[0],
        controls=parts[1],
        gain=parts[2],
        too_small=_too_small(len(outcome), int((outcome != 0).sum()), len(columns)),
        notes=tuple(notes),
        settings={"folds": FOLDS, "repeats": REPEATS, "ridge": RIDGE, "permutations": permutations, "seed": seed},
    )


def _accuracy_change(run: Path, traces: AttentionTraces, condition: str, problems: Sequence[str]) -> dict[str, float]:
    """Per problem of the traces that the run has too."""
    frame = load_run(run)
    frame = frame[frame["layout"] == traces.header.layout]
    accuracy = {}
    for name in (condition, traces.header.baseline):
        rows = frame[frame["condition"] == name]
        if rows.empty:
            raise RunError(
                f"{run} has no sample under {name} in the layout {traces.header.layout}, as the traces have. Link the "
                "run that the traces were made from."
            )
        _check_prompts(run, traces, name, rows)
        accuracy[name] = rows.groupby("problem_id")["correct"].mean().to_dict()
    with_it, without = accuracy[condition], accuracy[traces.header.baseline]
    return {name: with_it[name] - without[name] for name in problems if name in with_it and name in without}


def _check_prompts(run: Path, traces: AttentionTraces, condition: str, rows: pandas.DataFrame) -> None:
    known = dict(zip(rows["problem_id"], rows["prompt_sha256"], strict=True))
    for entry in traces.entries():
        if entry.condition == condition and known.get(entry.problem_id, entry.prompt_sha256) != entry.prompt_sha256:
            raise PromptMismatchError(
                f"{traces.path} is not of {run}'s prompts: problem {entry.problem_id} under {condition} has another "
                "hash. Link the run that the traces were made from."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """What is kept of a trace: the traces of a whole run would not fit in memory."""

    activations: Mapping[str, float]
    tokens: int
    level: int | None


def _of_prompts(traces: AttentionTraces, condition: str, problems: Sequence[str]) -> list[_Prompt]:
    found = []
    for problem_id in problems:
        trace = traces.get(problem_id, condition)
        size = int(np.count_nonzero(trace.roles != COMPLETION))
        found.append(_Prompt(activations=trace.activations, tokens=size, level=trace.level))
    return found


def _features(
    traces: AttentionTraces, condition: str, problems: Sequence[str], layer: int, head: int | None
) -> tuple[dict[str, NDArray[np.float64]], dict[str, str]]:
    """Columns over the problems, and what could not be had, with the reason."""
    columns: dict[str, NDArray[np.float64]] = {}
    absent: dict[str, str] = {}
    for name, measure in (("filler_mass", "mass_filler"), ("bias", "bias_relative_norm")):
        try:
            _, values = traces.measure(measure, condition, problems)
        except ConfigError:
            hint = "; probe with --decompose" if name == "bias" else ""
            absent[name] = f"{measure} was not recorded for every problem{hint}"
            continue
        of_layer = values[:, traces.header.layer_index(layer)]
        columns[name] = of_layer.mean(axis=1) if head is None else of_layer[:, head]
    filled, original = (_of_prompts(traces, name, problems) for name in (condition, traces.header.baseline))
    if all(NEAR_ZERO in prompt.activations for prompt in (*filled, *original)):
        pairs = zip(filled, original, strict=True)
        columns[f"{NEAR_ZERO}_change"] = np.array(
            [a.activations[NEAR_ZERO] - b.activations[NEAR_ZERO] for a, b in pairs]
        )
    else:
        absent["near_zero_change"] = "activations were not recorded for every prompt; probe with --activations"
    columns["prompt_length"] = np.array([prompt.tokens for prompt in filled], dtype=np.float64)
    levels = [prompt.level for prompt in filled]
    if None in levels:
        absent["level"] = "some problems have none"
    else:
        columns["level"] = np.array(levels, dtype=np.float64)
    for name in [name for name, values in columns.items() if len(np.unique(values[np.isfinite(values)])) < 2]:
        del columns[name]
        absent[name] = "it is the same for every problem"
    return columns, absent


def _notes(traces: AttentionTraces, traced: int, linked: int) -> list[str]:
    notes = []
    if traces.header.random_weights:
        notes.append("the traces are of random weights: a link with them says nothing about the model")
    if traces.header.queries == "completion":
        notes.append(
            "the masses are of the completion's queries: a completion comes with its outcome, not before it, so that "
            "such a link predicts nothing"
        )
    if linked < traced:
        notes.append(f"{traced - linked} of {traced} traced problems are not in the run")
    return notes


def _too_small(n: int, changed: int, features: int) -> str:
    wanted = max(FEWEST, FEWEST_PER_FEATURE * features)
    if n < wanted:
        return f"{n} problems for {features} features, expected at least {wanted}"
    return "" if changed >= FEWEST_CHANGED else f"{changed} of {n} changed, expected at least {FEWEST_CHANGED}"
