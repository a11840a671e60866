"""What a person sees while a run goes on: a live table in a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LOG_SECONDS = 30.0
"""Between two lines in a log."""


class Progress:
    """Counts samples and scores, and shows them: done of total, tokens a second, time left, accuracy so far.

    Args:
        totals: Samples to have in the end, by task.
        quiet: Lines for a log instead of a live table; also where standard error is no terminal.
    """

    def __init__(self, totals: Mapping[str, int], *, quiet: bool = False) -> None:
        self._totals = totals
        self._done: Counter[str] = Counter()
        self._scored: Counter[str] = Counter()
        self._correct: Counter[str] = Counter()
        self._here = self._tokens = 0
        self._started = self._shown = time.monotonic()
        self._console = Console(stderr=True)
        live = not quiet and self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._table) if live else None

    def known(self, task: str) -> None:
        """Count a sample that an earlier session made."""
        self._done[task] += 1

    def begin(self) -> None:
        """Start the clock: the model is loaded."""
        self._started = time.monotonic()

    def sample(self, task: str, tokens: int | None) -> None:
        """Count a finished sample."""
        self._done[task] += 1
        self._here += 1
        self._tokens += tokens or 0

    def score(self, task: str, verdict: str) -> None:
        """Count a score."""
        self._scored[task] += 1
        self._correct[task] += verdict == "correct"

    def tick(self) -> None:
        """Print a line if it is time for one; the live table redraws itself."""
        if self._live is None and time.monotonic() - self._shown >= LOG_SECONDS:
            self.line()

    def line(self) -> None:
        """Print one line for a log, at once."""
        self._shown = time.monotonic()
        parts = [f"{task} {self._done[task]}/{total} {self._accuracy(task)}" for task, total in self._totals.items()]
        print(f"mless: {self.summary()} | {', '.join(parts)}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """Done of total, tokens a second, time left."""
        done, total = sum(self._done.values()), sum(self._totals.values())
        seconds = max(time.monotonic() - self._started, 1e-9)
        left = (total - done) * seconds / self._here if self._here else None
        eta = "" if left is None or done == total else f", {_clock(left)} left"
        return f"{done}/{total} samples, {self._tokens / seconds:,.0f} tokens/s{eta}"

    def _accuracy(self, task: str) -> str:
        scored = self._scored[task]
        return f"{100 * self._correct[task] / scored:.1f}%" if scored else "-"

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, side in (("task", "left"), ("done", "right"), ("", "left"), ("correct so far", "right")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for task, total in self._totals.items():
            done = self._done[task]
            table.add_row(task, f"{done}/{total}", ProgressBar(total, done, width=24), self._accuracy(task))
        return Group(table, Text(self.summary(), style="bold"))

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live:
            self._live.stop()
        elif self._here:
            self.line()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
