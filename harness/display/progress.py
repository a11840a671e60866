"""Progress of a long command: bars in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from harness.display.format_table import TABLE_WIDTH
from harness.engines.start_errors import load_step

GRADED_SHARE = 0.9
"""Progress shows the share right once so many of the finished samples are graded."""
LOG_SECONDS = 30.0
"""Between two lines of progress in a log."""

ALL = "all"
"""Name of the last row, which counts all tasks together."""
_bars_shown = Event()
"""They are a sign of life themselves."""


@contextmanager
def sign_of_life() -> Iterator[None]:
    """Say on a terminal after a second and a half that something is being done, unless bars show it."""
    timer = Timer(
        1.5, lambda: _bars_shown.is_set() or print("mless: working", file=sys.stderr, flush=True)
    )
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on stderr, if that is a terminal.

    Yields a function that takes how much is done and how much there is to do.
    """
    with _bars(TimeRemainingColumn()) as bars:
        _bars_shown.set()
        row = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(row, completed=done, total=total)


@contextmanager
def loading(log: Path) -> Iterator[None]:
    """Say within two seconds, and whenever there is something new, for how long a model is being loaded, and its step.

    Args:
        log: What vLLM's processes write, from which the step is read. Other backends tell none.
    """
    over, started, begin = Event(), time.monotonic(), log.stat().st_size if log.exists() else 0

    def watch() -> None:
        told, last = "", 0.0
        while not over.wait(1.0):
            written = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
            step = load_step(written)
            if step != told or time.monotonic() - last >= LOG_SECONDS:
                told, last = step, time.monotonic()
                print(
                    f"mless: loading, {last - started:.0f} s: {step}", file=sys.stderr, flush=True
                )

    Thread(target=watch, name="mless-loading", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Progress:
    """Progress of a run, by task and in all: samples made, share right so far, tokens per second, time left.

    Args:
        totals: Samples that each task has in the end.
        most: Tokens that a completion has at most.
        quiet: Print lines for a log instead of bars, as is always done if stderr is no terminal.

    Attributes:
        running: Tells the task of each unfinished sample, and how many tokens it has. Called in any thread.
    """

    def __init__(self, totals: Mapping[str, int], *, most: int, quiet: bool = False) -> None:
        self._bars = _bars(_Counted(self._speed), quiet=quiet)
        self._most = most
        self.running: Callable[[], Sequence[tuple[str, int]]] = list
        self._rows = {
            name: self._bars.add_task(
                name, start=False, total=total, made=0, tokens=0, scored=0, correct=0
            )
            for name, total in {**totals, ALL: sum(totals.values())}.items()
        }
        self._known: Counter[str] = Counter()
        self._shown = time.monotonic()

    def known(self, task: str) -> None:
        """Count a sample that an earlier session made. Call it before the bars start: there may be a million."""
        self._known.update((task, ALL))

    def sample(self, task: str, tokens: int | None) -> None:
        """Count a finished sample."""
        self._count(task, made=1, tokens=tokens or 0)

    def score(self, task: str, verdict: str) -> None:
        """Count a score."""
        self._count(task, scored=1, correct=int(verdict == "correct"))

    def tick(self) -> None:
        """Print a line if there are no bars and the last line is old enough."""
        if self._bars.disable and time.monotonic() - self._shown >= LOG_SECONDS:
            self.line()

    def line(self) -> None:
        """Print a line for a log now, wrapped at 80 columns."""
        self._shown = time.monotonic()
        done = {
            task.description: f"{task.completed:.0f}/{task.total:.0f}" for task in self._bars.tasks
        }
        *tasks, together = self._bars.tasks
        parts = [
            f"{task.description}\0{done[task.description]}\0{_accuracy(task)}" for task in tasks
        ]
        said = f"mless: {done[ALL]} samples, {self._speed(together)} | {', '.join(parts)}"
        # \0 keeps a task together where the line is wrapped
        lines = textwrap.fill(
            said, TABLE_WIDTH, subsequent_indent="  ", break_on_hyphens=False
        ).replace("\0", " ")
        print(lines, file=sys.stderr, flush=True)

    def _count(self, name: str, **counts: int) -> None:
        for row in (self._rows[name], self._rows[ALL]):
            fields = self._bars.tasks[row].fields
            added = {field: fields[field] + count for field, count in counts.items()}
            self._bars.update(row, advance=counts.get("made", 0), **added)

    def __enter__(self) -> Self:
        """Start the clock, once the model is loaded. Samples counted so far took no time."""
        self._shown = time.monotonic()
        for name, row in self._rows.items():
            self._bars.reset(row, completed=self._known[name])
        self._bars.start()
        _bars_shown.set()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()
        if self._bars.disable:
            self.line()

    def _speed(self, together: Task) -> str:
        """Tokens per second and the time left, at the mean speed since the model was loaded.

        Where the backend tells no tokens, the time left is that of samples. rich's own estimate starts at the first
        finished sample. The samples of a batch finish late and close together, so that it would promise too much.
        """
        seconds, made = together.finished_time or together.elapsed or 0, together.fields["made"]
        running = self.running()
        tokens = together.fields["tokens"] + sum(tokens for _, tokens in running)
        part = (
            self._tokens_left(together, running) / tokens
            if tokens
            else made and (together.remaining or 0) / made
        )
        left = f", {timedelta(seconds=round(part * seconds))} left" if part else ""
        return f"{tokens / max(seconds, 1e-9):,.0f} tokens/s{left}"

    def _tokens_left(self, together: Task, running: Sequence[tuple[str, int]]) -> float:
        """Tokens that are still to come: a sample is expected to be as long as the finished ones of its task.

        Where none is finished those of all tasks count, and before there are any half of what a completion may have.
        One that is longer already is expected to end halfway between here and there.
        """
        left = 0.0
        for task in self._bars.tasks[:-1]:
            known = task.fields if task.fields["made"] else together.fields
            mean = known["tokens"] / known["made"] if known["made"] else self._most / 2
            begun = [tokens for name, tokens in running if name == task.description]
            left += ((task.remaining or 0) - len(begun)) * mean
            left += sum(
                mean - tokens if tokens < mean else (self._most - tokens) / 2 for tokens in begun
            )
        return left


class _Counted(ProgressColumn):
    """Right so far; of all tasks together what `speed` says."""

    def __init__(self, speed: Callable[[Task], str]) -> None:
        super().__init__()
        self._speed = speed

    def render(self, task: Task) -> Text:
        return Text(
            self._speed(task) if task.description == ALL else f"{_accuracy(task):>6} correct"
        )


def _bars(column: ProgressColumn, *, quiet: bool = False) -> Bars:
    """Bars on stderr that end in a column; disabled if stderr is no terminal."""
    console = Console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), column)
    return Bars(*shown, console=console, disable=quiet or not console.is_terminal)


def _accuracy(task: Task) -> str:
    """The share right, once most samples are graded: answers equal to the gold's text are graded before all others."""
    graded = task.fields["scored"] > GRADED_SHARE * task.completed
    return f"{task.fields['correct'] / task.fields['scored']:.1%}" if graded else "-"
