"""Progress of a long command: bars in a terminal, lines in a log."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Timer
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

from harness.errors import print_message

GRADED_SHARE_FOR_ACCURACY = 0.9
"""Progress shows the accuracy once this share of the finished samples is graded."""
SECONDS_BETWEEN_LINES = 30.0
"""The time between two lines of progress in a log."""

TOTAL_BAR_NAME = "all"
"""The name of the last bar, which counts all tasks together."""
_bars_are_visible = Event()
"""Set once bars are visible: they make the message of `report_slow_start` unnecessary."""


@contextmanager
def report_slow_start() -> Iterator[None]:
    """Print a message on a terminal after 1.5 seconds, unless bars are visible by then."""

    def print_working() -> None:
        if not _bars_are_visible.is_set():
            print_message("working")

    timer = Timer(1.5, print_working)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on stderr, which vanishes at the end; else lines for a log.

    Yields a function that takes the number of finished steps and the number of all steps.
    """
    with _make_bars(TimeRemainingColumn(), transient=True) as bars:
        _bars_are_visible.set()
        bar_id = bars.add_task(title, total=None)
        # work of less than two seconds prints no line
        next_line_time = time.monotonic() + 2

        def update_bar(finished: int, total: int) -> None:
            nonlocal next_line_time
            bars.update(bar_id, completed=finished, total=total)
            if bars.disable and time.monotonic() >= next_line_time:
                print_message(f"{title}: {finished} of {total}")
                next_line_time = time.monotonic() + SECONDS_BETWEEN_LINES

        yield update_bar


class Progress:
    """Progress of a run, by task and in total: samples, accuracy, tokens per second, time left.

    Args:
        total_by_task: The number of samples of each task.
        most_tokens: The most tokens of a completion.
        quiet: Print lines for a log instead of bars, as always if stderr is not a terminal.

    Attributes:
        list_running_tokens: Returns the number of tokens of each unfinished sample. It is called
            in any thread.
    """

    def __init__(
        self, total_by_task: Mapping[str, int], *, most_tokens: int, quiet: bool = False
    ) -> None:
        self._bars = _make_bars(_StatusColumn(self), quiet=quiet)
        self._most_tokens = most_tokens
        # `list()` is empty: until the engine sets another function, no sample is unfinished
        self.list_running_tokens: Callable[[], Sequence[int]] = list
        for name, total in {**total_by_task, TOTAL_BAR_NAME: sum(total_by_task.values())}.items():
            self._bars.add_task(name, start=False, total=total, tokens=0, graded=0, correct=0)
        # a task is rich's record of a bar; that of all tasks together was added last
        *tasks, self._total_task = self._bars.tasks
        self._task_by_name = dict(zip(total_by_task, tasks, strict=True))
        self._recorded_counts: Counter[str] = Counter()

    def count_recorded(self, task_name: str) -> None:
        """Count a sample of an earlier session, before the bars start.

        There may be a million of them, so the bars are not updated.
        """
        self._recorded_counts.update((task_name, TOTAL_BAR_NAME))

    def count_finished(self, task_name: str, tokens: int | None) -> None:
        """Count a finished sample."""
        self._count(task_name, advance=1, tokens=tokens or 0)

    def count_graded(self, task_name: str, verdict: str) -> None:
        """Count a graded sample, and whether it is right."""
        self._count(task_name, graded=1, correct=verdict == "correct")

    def print_line_if_due(self) -> None:
        """Print a line if there are no bars and the last line is old enough."""
        if self._bars.disable and time.monotonic() - self._last_line_time >= SECONDS_BETWEEN_LINES:
            self.print_line()

    def print_line(self) -> None:
        """Print a line for a log now."""
        self._last_line_time = time.monotonic()
        task_texts = [
            f"{name} {task.completed:.0f}/{task.total:.0f} {_format_accuracy(task)}"
            for name, task in self._task_by_name.items()
        ]
        print_message(
            f"{self._total_task.completed:.0f}/{self._total_task.total:.0f} samples, "
            f"{self.describe_speed()} | {', '.join(task_texts)}"
        )

    def _count(self, task_name: str, advance: int = 0, **increments: int) -> None:
        """Advance the bars of a task and of all tasks together, and increase their fields."""
        for task in (self._task_by_name[task_name], self._total_task):
            for field, increment in increments.items():
                task.fields[field] += increment
            self._bars.advance(task.id, advance)

    def __enter__(self) -> Self:
        """Start the clock, once the model is loaded. Recorded samples took no time."""
        self._last_line_time = time.monotonic()
        for task in self._bars.tasks:
            self._bars.reset(task.id, completed=self._recorded_counts[task.description])
        self._bars.start()
        _bars_are_visible.set()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()
        if self._bars.disable:
            self.print_line()

    def describe_speed(self) -> str:
        """Tokens per second and the time left, at the mean speed since the model was loaded.

        The time left is that of the tokens to generate; if the backend reports no tokens, that of
        the samples. It is left out if nothing is finished, or if the estimate is not above 0. A
        sample is expected to have as many tokens as the mean of the finished samples; before any is
        finished, half of the limit.
        """
        total_task = self._total_task
        # `elapsed` continues after the end, so `finished_time` comes first
        seconds = total_task.finished_time or total_task.elapsed or 0
        finished_tokens = total_task.fields["tokens"]
        running_tokens = sum(self.list_running_tokens())
        generated_tokens = finished_tokens + running_tokens
        speed_text = f"{generated_tokens / max(seconds, 1e-9):,.0f} tokens/s"
        finished_samples = total_task.completed - self._recorded_counts[TOTAL_BAR_NAME]
        remaining_samples = total_task.remaining or 0
        # rich's own estimate starts at the first finished sample. The samples of a batch finish
        # late and close together, so that estimate would be too short. The time stays 0 if nothing
        # was generated or finished.
        seconds_left = 0.0
        if generated_tokens:
            tokens_per_sample = (
                finished_tokens / finished_samples if finished_samples else self._most_tokens / 2
            )
            remaining_tokens = remaining_samples * tokens_per_sample - running_tokens
            seconds_left = seconds * remaining_tokens / generated_tokens
        elif finished_samples:
            seconds_left = seconds * remaining_samples / finished_samples
        # the last samples are longer than the mean, so the estimate can fall below 0
        if seconds_left <= 0:
            return speed_text
        return f"{speed_text}, {timedelta(seconds=round(seconds_left))} left"


class _StatusColumn(ProgressColumn):
    """The accuracy of a task; for all tasks together, the speed."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        """The text at the end of a bar, which rich calls for."""
        if task.description == TOTAL_BAR_NAME:
            return Text(self._progress.describe_speed())
        return Text(f"{_format_accuracy(task):>6} correct")


def _make_bars(
    last_column: ProgressColumn, *, quiet: bool = False, transient: bool = False
) -> Bars:
    """Bars on stderr that end in a column; disabled if stderr is not a terminal.

    Transient bars vanish at the end.
    """
    console = Console(stderr=True)
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        last_column,
        console=console,
        disable=quiet or not console.is_terminal,
        transient=transient,
    )


def _format_accuracy(task: Task) -> str:
    """The accuracy, once most samples are graded.

    Answers that equal the gold's text are graded before all others, so an early accuracy would be
    too high.
    """
    if task.fields["graded"] <= GRADED_SHARE_FOR_ACCURACY * task.completed:
        return "-"
    return f"{task.fields['correct'] / task.fields['graded']:.1%}"
