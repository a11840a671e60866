"""Choose problems by flip, subject, level, ids or at random, and save the choice with the hash of every prompt.

Problems chosen for their outcome cannot show what a filler does on average. Such a selection is marked, and can have
matched controls: problems that did not flip.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from harness.analysis.flips import FLIPS, STRICT, UNDECIDED, Criterion
from harness.errors import ConfigError, PromptMismatchError, RunError, list_first
from harness.experiment.conditions import yardstick
from harness.runs.folder import write_output
from harness.runs.prompt_source import Source
from harness.runs.run_prompts import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedProblem:
    """One chosen problem.

    Attributes:
        problem_id, subject, level: Of the problem.
        outcome: From the criterion's baseline to its condition; None if nothing was graded.
        matched_to: For a control, the flipped problem that it is matched to.
        prompts: SHA-256 of the prompt's text by condition.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    problem_id: str
    subject: str
    level: int
    outcome: str | None
    matched_to: str | None = None
    prompts: dict[str, str]

    @property
    def control(self) -> bool:
        """Whether it is a control."""
        return self.matched_to is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Chosen problems, with all that is needed to check that later prompts are the same.

    Attributes:
        source, kind, model, layout, metric, fingerprint, prompts_sha256: The source's.
        criterion: How they were chosen.
        on_outcome: Whether they were chosen by how they were answered.
        outcomes: How many problems had each outcome before n was drawn; empty if nothing was graded.
        problems: The problems in the source's order, then the controls.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    source: str
    kind: str
    model: str | None
    layout: str
    metric: str | None
    fingerprint: dict[str, Any]
    prompts_sha256: str
    criterion: Criterion
    on_outcome: bool
    outcomes: dict[str, int]
    problems: tuple[SelectedProblem, ...]

    def save(self, path: Path) -> None:
        """Write the selection as indented JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_output(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> Selection:
        """Read a selection that `save` wrote.

        Raises:
            ConfigError: the file is missing or is not a selection.
        """
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}. Expected a saved selection.") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{step}." for step in first["loc"])[:-1]
            message = ": ".join(filter(None, [where, first["msg"]]))
            raise ConfigError(f"{path} is not a selection: {message}. Select again.") from None


def select(source: Source, criterion: Criterion) -> Selection:
    """Choose problems of a source by a criterion.

    Raises:
        ConfigError: the source lacks something that the criterion names, or fewer problems match than were asked for.
    """
    candidates = _candidates(source, criterion)
    graded = source.metric is not None and {criterion.baseline, criterion.condition} <= set(source.conditions)
    if criterion.flip is not None:
        require_verdicts(source, criterion)
    outcomes = {p.id: criterion.outcome(p) for p in source.problems} if graded else {}
    counts = Counter(outcomes[problem.id] for problem in candidates if graded)
    matching = [p for p in candidates if criterion.wants(outcomes.get(p.id))]
    draw = random.Random(criterion.seed)
    if len(matching) < (criterion.n or 1):
        raise ConfigError(_explain_shortage(source, criterion, len(matching), len(candidates), counts))
    if criterion.n is not None:
        drawn = {problem.id for problem in draw.sample(matching, criterion.n)}
        matching = [problem for problem in matching if problem.id in drawn]
    rows: list[tuple[Problem, str | None]] = [(problem, None) for problem in matching]
    if criterion.controls:
        unflipped = [p for p in source.problems if outcomes[p.id] in ("both_right", "both_wrong")]
        rows += [(control, flipped.id) for control, flipped in match_controls(matching, unflipped, outcomes, draw)]
    return Selection(
        source=source.name,
        kind=source.kind,
        model=source.model,
        layout=source.layout,
        metric=source.metric,
        fingerprint=dict(source.fingerprint),
        prompts_sha256=source.prompts_sha256,
        criterion=criterion,
        on_outcome=criterion.flip is not None,
        outcomes={name: counts[name] for name in (*FLIPS, UNDECIDED)} if graded else {},
        problems=tuple(
            SelectedProblem(
                problem_id=problem.id,
                subject=problem.subject,
                level=problem.level,
                outcome=outcomes.get(problem.id),
                matched_to=matched_to,
                prompts={condition: prompt.sha256 for condition, prompt in problem.prompts.items()},
            )
            for problem, matched_to in rows
        ),
    )


def selected_problems(selection: Selection, source: Source) -> tuple[Problem, ...]:
    """The chosen problems with their prompts, which are checked by hash.

    Raises:
        RunError: a problem or one of its prompts is not in the source.
        PromptMismatchError: a prompt differs from the selected one, or the source has another layout.
    """
    if source.layout != selection.layout:
        raise PromptMismatchError(
            f"The selection is of the layout {selection.layout}, and {source.name} was read in {source.layout}. "
            "Read it in the selection's layout, or select again."
        )
    known = {problem.id: problem for problem in source.problems}
    chosen = []
    for wanted in selection.problems:
        problem = known.get(wanted.problem_id)
        missing = [name for name in wanted.prompts if problem is None or name not in problem.prompts]
        if problem is None or missing:
            raise RunError(
                f"{source.name} has no prompt of the selected problem {wanted.problem_id} under "
                f"{', '.join(missing)}. Expected the source of the selection, {selection.source}; or select again."
            )
        prompts = {condition: problem.prompts[condition] for condition in wanted.prompts}
        for condition, prompt in prompts.items():
            expected = wanted.prompts[condition]
            if prompt.sha256 != expected:
                raise PromptMismatchError(
                    f"Problem {wanted.problem_id}, condition {condition!r}: {source.name} has another prompt than the "
                    f"one selected: expected SHA-256 {expected[:12]}..., got {prompt.sha256[:12]}... Use the source of "
                    f"the selection, {selection.source}, or select again."
                )
        chosen.append(replace(problem, prompts=prompts))
    return tuple(chosen)


def _candidates(source: Source, criterion: Criterion) -> list[Problem]:
    """The problems of the subject, level and ids asked for."""
    found = list(source.problems)
    for name in ("subject", "level"):
        wanted = getattr(criterion, name)
        if wanted is None:
            continue
        known = {str(getattr(problem, name)) for problem in source.problems}
        if str(wanted) not in known:
            raise ConfigError(
                f"{source.name} has no problem of the {name} {wanted!r}: expected one of {', '.join(sorted(known))}."
            )
        found = [problem for problem in found if getattr(problem, name) == wanted]
    if criterion.ids is None:
        return found
    if unknown := [wanted for wanted in criterion.ids if wanted not in {problem.id for problem in source.problems}]:
        raise ConfigError(
            f"{source.name} has no problem {list_first(unknown)}. Its ids are like {source.problems[0].id}; check the "
            "spelling."
        )
    return [problem for problem in found if problem.id in criterion.ids]


def require_verdicts(source: Source, criterion: Criterion) -> None:
    """Refuse a source in which flips cannot be found.

    Raises:
        ConfigError: it lacks one of the two conditions, or has no verdicts.
    """
    for name in (criterion.baseline, criterion.condition):
        if name not in source.conditions:
            if kind := yardstick(name):
                raise ConfigError(
                    f"{name} is a {kind}, which conditions are held against: expected one of "
                    f"{list_first(source.conditions, 6)}. `mless show` prints its prompts and answers."
                )
            raise ConfigError(
                f"{source.name} has no condition {name!r}, so nothing flips from {criterion.baseline!r} to "
                f"{criterion.condition!r}. It has {list_first(source.conditions, 6)}."
            )
    if source.metric is None:
        raise ConfigError(
            f"{source.name} holds no verdicts, so {criterion.flip} cannot be told. Select from a run or a sample log "
            "with grades, or by subject, level, ids or n."
        )


def _explain_shortage(source: Source, criterion: Criterion, found: int, candidates: int, counts: Counter[str]) -> str:
    wanted = f"{criterion.n} problems" if criterion.n is not None else "at least one problem"
    narrowed = [f"{name} {value}" for name in ("subject", "level") if (value := getattr(criterion, name)) is not None]
    narrowed += [f"{len(criterion.ids)} ids"] if criterion.ids is not None else []
    within = f" ({', '.join(narrowed)})" if narrowed else ""
    if criterion.flip is None:
        return f"Expected {wanted}{within} in {source.name}, got {found}. Lower n, or narrow less."
    told = ", ".join(f"{name} {counts[name]}" for name in (*FLIPS, UNDECIDED))
    return (
        f"Expected {wanted} with {criterion.flip} from {criterion.baseline} to {criterion.condition}{within} in "
        f"{source.name}, got {found} of {candidates}: {told}. Lower n, or choose another flip or condition."
    )


def match_controls(
    flipped: Sequence[Problem], unflipped: Sequence[Problem], outcomes: Mapping[str, str], draw: random.Random
) -> list[tuple[Problem, Problem]]:
    """Match each flipped problem with a control, an unflipped problem of the same subject. No control is used twice.

    Controls with the same verdict without filler are preferred, then those of the nearest level. `draw` decides between
    equally near ones. Returns pairs of control and flipped problem.

    Raises:
        ConfigError: a subject has too few problems that did not flip.
    """
    pools: dict[str, list[Problem]] = {}
    for problem in draw.sample(unflipped, len(unflipped)):  # `min` takes the first of equals
        pools.setdefault(problem.subject, []).append(problem)
    pairs = []
    for problem in flipped:
        pool = pools.get(problem.subject, [])
        if not pool:
            wanted = sum(other.subject == problem.subject for other in flipped)
            there = sum(other.subject == problem.subject for other in unflipped)
            raise ConfigError(
                f"Subject {problem.subject!r}: {wanted} flipped problems need as many controls that did not flip, and "
                f"there are {there}. Lower n, choose another subject, or leave the controls out."
            )
        stayed = "both_wrong" if outcomes[problem.id] == "wrong_to_right" else "both_right"
        nearest = min(pool, key=lambda p: (outcomes[p.id] != stayed, abs(p.level - problem.level)))
        pool.remove(nearest)
        pairs.append((nearest, problem))
    return pairs
