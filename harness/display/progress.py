"""Progress of a long command: bars in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Timer
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from harness.constants import LOG_SECONDS, TABLE_WIDTH

ALL = "all"
"""Name of the last row, which counts all tasks together."""
_bars_shown = Event()
"""They are a sign of life themselves."""


@contextmanager
def sign_of_life() -> Iterator[None]:
    """Say on a terminal after a second and a half that something is being done, unless bars show it."""
    timer = Timer(1.5, lambda: _bars_shown.is_set() or print("mless: working", file=sys.stderr, flush=True))
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


class Progress:
    """Progress of a run, by task and in all: samples made, share right so far, tokens per second, time left.

    Args:
        totals: Samples that each task has in the end.
        quiet: Print lines for a log instead of bars, as is always done if stderr is no terminal.
    """

    def __init__(self, totals: Mapping[str, int], *, quiet: bool = False) -> None:
        self._bars = _bars(_Counted(), quiet=quiet)
        self._rows = {
            name: self._bars.add_task(name, start=False, total=total, made=0, tokens=0, scored=0, correct=0)
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
        done = {task.description: f"{task.completed:.0f}/{task.total:.0f}" for task in self._bars.tasks}
        *tasks, together = self._bars.tasks
        parts = [f"{task.description}\0{done[task.description]}\0{_accuracy(task)}" for task in tasks]
        said = f"mless: {done[ALL]} samples, {_speed(together)} | {', '.join(parts)}"
        # \0 keeps a task together where the line is wrapped
        lines = textwrap.fill(said, TABLE_WIDTH, subsequent_indent="  ", break_on_hyphens=False).replace("\0", " ")
        print(lines, file=sys.stderr, flush=True)

    def _count(self, name: str, **counts: int) -> None:
        for row in (self._rows[name], self._rows[ALL]):
            fields = self._bars.tasks[row].fields
            added = {field: fields[field] + count for field, count in counts.items()}
            self._bars.update(row, advance=counts.get("made", 0), **added)

    def __enter__(self) -> Self:
        """Start the clock, once the model is loaded. Samples counted so far took no time."""
        for name, row in self._rows.items():
            self._bars.reset(row, completed=self._known[name])
        self._bars.start()
        _bars_shown.set()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()
        if self._bars.disable:
            self.line()


class _Counted(ProgressColumn):
    """Right so far; of all tasks together tokens a second and the time left."""

    def render(self, task: Task) -> Text:
        return Text(_speed(task) if task.description == ALL else f"{_accuracy(task):>6} correct")


def _bars(column: ProgressColumn, *, quiet: bool = False) -> Bars:
    """Bars on stderr that end in a column; disabled if stderr is no terminal."""
    console = Console(stderr=True)
    shown = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), column)
    return Bars(*shown, console=console, disable=quiet or not console.is_terminal)


def _accuracy(task: Task) -> str:
    return f"{task.fields['correct'] / task.fields['scored']:.1%}" if task.fields["scored"] else "-"


def _speed(task: Task) -> str:
    """Tokens per second and the time left, as averages since the model was loaded.

    rich's own estimate starts at the first finished sample. The samples of a batch finish late and close together, so
    that it would promise too much.
    """
    seconds, made = task.finished_time or task.elapsed or 0, task.fields["made"]
    left = f", {timedelta(seconds=round(task.remaining * seconds / made))} left" if made and task.remaining else ""
    return f"{task.fields['tokens'] / max(seconds, 1e-9):,.0f} tokens/s{left}"
