"""The report's figures as inline SVG: rows of dots with intervals, flips, and small panels of attention curves.

Colours are classes that the style sheet fills in, for light, dark and print; conditions differ in the shape of dots and
the dashes of lines too. `Markup.format` escapes whatever is put in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.display.report.attention import MeanCurve
from harness.display.visible import visible
from harness.display.words import MINUS

WIDTH, LEFT, RIGHT, STEP = 460, 128, 64, 27
"""Width of a drawing, of its labels and of its numbers, and the height of a row, in SVG units."""
PANEL = (230, 150)
"""Width and height of a panel of curves."""
LETTERS = 17
"""Characters of a name that are shown beside a row. The whole name is its tooltip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a drawing. Without numbers it is the heading of the rows below."""

    label: str
    slot: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""

    @property
    def is_heading(self) -> bool:
        """Whether it has nothing but a label."""
        return self.value is None and self.low is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """From values to places on an axis."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> str:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return f"{self.start + share * (self.stop - self.start):.1f}"

    def ticks(self, most: int) -> list[float]:
        """Round numbers on the axis, about `most` of them."""
        rough = (self.high - self.low) / most
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def dots(
    rows: Sequence[Row], *, title: str, axis: str, limits: tuple[float, float], band: float | None = None
) -> Markup:
    """Draw one dot with its interval per row.

    Args:
        rows: Rows and headings.
        title: Read out by screen readers.
        axis: Label of the axis.
        limits: Ends of the axis. Intervals are cut there.
        band: Shade the axis from -band to band, and draw a line at zero.
    """
    scale = _Scale(low=limits[0], high=limits[1], start=LEFT, stop=WIDTH - RIGHT)
    height = STEP * len(rows) + 8
    marks = []
    if band is not None:
        edge = f'<rect class="band" x="{scale(-band)}" y="4" width="{float(scale(band)) - float(scale(-band)):.1f}" '
        marks += [Markup(f'{edge}height="{height - 8}"/>'), _rule(scale(0), height)]

    def draw(row: Row, y: float) -> Iterator[Markup]:
        if row.low is not None and row.high is not None:
            yield Markup(f'<path class="whisker s{row.slot}" d="M{scale(row.low)} {y}H{scale(row.high)}"/>')
        if row.value is not None:
            yield _dot(float(scale(row.value)), y, row.slot)

    return _frame(title, [*marks, *_lines(rows, draw), *_axis(scale, height, axis)], height + 40)


def flips(rows: Sequence[Row], *, title: str) -> Markup:
    """Draw bars of problems that went from right to wrong (`low`, to the left) and from wrong to right (`high`)."""
    most = max([1.0, *(abs(end) for row in rows for end in (row.low or 0, row.high or 0))])
    scale = _Scale(low=-most, high=most, start=LEFT + 8, stop=WIDTH - RIGHT - 32)
    height = STEP * len(rows) + 8

    def draw(row: Row, y: float) -> Iterator[Markup]:
        for name, value in (("lost", -(row.low or 0)), ("gained", row.high or 0)):
            x, zero = float(scale(value)), float(scale(0))
            box = f'x="{min(x, zero):.1f}" y="{y - 8}" width="{abs(x - zero):.1f}" height="16"'
            yield Markup(f'<rect class="{name}" {box}/>')

    ends = [
        Markup(f'<text x="{scale(sign * most / 2)}" y="{height + 14}" text-anchor="middle">{words}</text>')
        for sign, words in ((-1, "right to wrong"), (1, "wrong to right"))
    ]
    return _frame(title, [*_lines(rows, draw), _rule(scale(0), height), *ends], height + 22)


def panel(curves: Sequence[MeanCurve], slots: dict[str, int], *, top: float, title: str) -> Markup:
    """Draw one head's mean curves with bands."""
    width, height = PANEL
    last = max([1, *(curve.x[-1] for curve in curves if curve.x)])
    across = _Scale(low=0, high=last, start=38, stop=width - 6)
    up = _Scale(low=0, high=top, start=height - 24, stop=20)
    marks = [Markup('<text class="head" x="38" y="12">{}</text>').format(visible(title))]
    for tick in up.ticks(4):
        marks.append(Markup(f'<path class="grid" d="M38 {up(tick)}H{width - 6}"/>'))
        marks.append(Markup(f'<text x="34" y="{up(tick)}" dy="4" text-anchor="end">{tick:g}</text>'))
    for tick in across.ticks(5):
        marks.append(Markup(f'<text x="{across(tick)}" y="{height - 10}" text-anchor="middle">{tick:g}</text>'))
    for place, curve in enumerate(curves):
        slot = slots.get(curve.condition, 0)
        if curve.low is not None and curve.high is not None:
            ends = list(zip(curve.x, curve.low, curve.high, strict=True))
            whole = [(x, low, high) for x, low, high in ends if low is not None and high is not None]
            there = [f"{across(x)} {up(high)}" for x, _, high in whole]
            back = [f"{across(x)} {up(low)}" for x, low, _ in reversed(whole)]
            if whole:
                marks.append(Markup(f'<path class="area s{slot}" d="M{"L".join(there + back)}Z"/>'))
        line = "L".join(f"{across(x)} {up(mean)}" for x, mean in zip(curve.x, curve.mean, strict=True))
        # later lines lie over earlier ones: thinner, so that a line still shows where both are the same
        thickness = 1.2 + 0.6 * (len(curves) - 1 - place)
        marks.append(Markup(f'<path class="line s{slot}" stroke-width="{thickness:.1f}" d="M{line}"/>'))
    return _frame(title, marks, height, width=width)


def _frame(title: str, marks: Iterable[Markup], height: float, *, width: float = WIDTH) -> Markup:
    start = Markup(f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{{}}">').format(visible(title))
    return start + Markup("").join(marks) + Markup("</svg>")


def _lines(rows: Sequence[Row], draw: Callable[[Row, float], Iterable[Markup]]) -> Iterator[Markup]:
    """Each row's name, what is drawn of it at its height, and its number; a heading has the whole width."""
    for place, row in enumerate(rows):
        y = STEP * place + STEP / 2 + 4
        most = 60 if row.is_heading else LETTERS
        label = visible(row.label)
        short = label if len(label) <= most else f"{label[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
        kind = "head" if row.is_heading else "name"
        text = Markup(f'<text class="{kind}" x="0" y="{y}" dy="4.5"><title>{{}}</title>{{}}</text>')
        yield text.format(label, short)
        if not row.is_heading:
            yield from draw(row, y)
            yield Markup(f'<text x="{WIDTH}" y="{y}" dy="4.5" text-anchor="end">{{}}</text>').format(visible(row.text))


def _rule(x: str, height: float) -> Markup:
    return Markup(f'<path class="rule" d="M{x} 4V{height - 4}"/>')


def _dot(x: float, y: float, slot: int) -> Markup:
    shapes = (
        f"M{x - 5} {y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0",
        f"M{x - 4.5} {y - 4.5}h9v9h-9z",
        f"M{x} {y - 6}l6 6l-6 6l-6 -6z",
        f"M{x} {y - 6}l6 10.5h-12z",
    )
    return Markup(f'<path class="dot s{slot}" d="{shapes[slot % len(shapes)]}"/>')


def _axis(scale: _Scale, height: float, words: str) -> list[Markup]:
    marks = [Markup(f'<path class="axis" d="M{scale.start} {height}H{scale.stop}"/>')]
    for tick in scale.ticks(6):
        marks.append(Markup(f'<path class="axis" d="M{scale(tick)} {height}v4"/>'))
        marks.append(
            Markup(f'<text x="{scale(tick)}" y="{height + 17}" text-anchor="middle">{{}}</text>').format(
                f"{tick:g}".replace("-", MINUS)
            )
        )
    middle = (scale.start + scale.stop) / 2
    marks.append(Markup(f'<text x="{middle}" y="{height + 34}" text-anchor="middle">{{}}</text>').format(words))
    return marks
