"""A line chart as numbers for an SVG. `lab/_chart.html` draws it, and a table below it shows the figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 52, 276, 12, 190
"""The edges of the plot, in units of the SVG. The template has the same numbers. The names of the lines are to the
right of the plot."""
NAME_HEIGHT = 15
MOST_TICKS = 6


@dataclass(frozen=True)
class Series:
    """A line to draw.

    Attributes:
        name: the name of the line, shown at the right end of the line.
        style: the class of the line in the style sheet: `first` to `fourth`, or `reference` for a line without dots,
            such as a claim or a figure that does not depend on x.
        points: pairs of x and y, sorted by x.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Tick:
    """A number on an axis, and its position."""

    at: str
    text: str


@dataclass(frozen=True)
class ChartLine:
    """A line as drawn: `path` is the `d` of an SVG path, `dots` are pairs of x and y, `name_at` is the name's y."""

    name: str
    style: str
    path: str
    dots: Sequence[tuple[str, str]]
    name_at: str


@dataclass(frozen=True)
class Chart:
    """A chart as it is drawn."""

    title: str
    x_title: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    lines: Sequence[ChartLine]


def line_chart(title: str, x_title: str, series: Sequence[Series], *, logarithmic: bool, unit: str = "") -> Chart:
    """Return a chart.

    Its x axis is logarithmic, because each number of clients or segments is about twice the previous one.

    Args:
        title: quantity on the y axis.
        x_title: quantity on the x axis.
        series: the lines. All have the same values of x, which are positive.
        logarithmic: whether the y axis is logarithmic, too. All y must then be positive. If it is not logarithmic, the
            y axis begins at 0.
        unit: unit, shown after the numbers of the y axis.
    """
    xs = [x for x, _ in series[0].points]
    values = [y for each in series for _, y in each.points]
    ticks = _powers(min(values), max(values)) if logarithmic else _steps(max(values))
    low, high = (ticks[0], ticks[-1])
    shown = [tick for tick in ticks if math.log10(tick).is_integer()] if len(ticks) > MOST_TICKS else ticks

    def x_at(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * _share(math.log(x), math.log(xs[0]), math.log(xs[-1]))

    def y_at(y: float) -> float:
        share = _share(math.log(y), math.log(low), math.log(high)) if logarithmic else _share(y, low, high)
        return BOTTOM - (BOTTOM - TOP) * share

    return Chart(
        title=title,
        x_title=x_title,
        x_ticks=[Tick(f"{x_at(x):.1f}", f"{x:g}") for x in xs[:: 1 if len(xs) <= MOST_TICKS else 2]],
        y_ticks=[Tick(f"{y_at(tick):.1f}", f"{tick:,g}{unit}") for tick in shown],
        lines=_lines([(each, [(x_at(x), y_at(y)) for x, y in each.points]) for each in series]),
    )


def _lines(placed: Sequence[tuple[Series, Sequence[tuple[float, float]]]]) -> list[ChartLine]:
    names = _apart([points[-1][1] for _, points in placed])
    return [
        ChartLine(
            name=each.name,
            style=each.style,
            path="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points),
            dots=[] if each.style == "reference" else [(f"{x:.1f}", f"{y:.1f}") for x, y in points],
            name_at=f"{name_at:.1f}",
        )
        for (each, points), name_at in zip(placed, names, strict=True)
    ]


def _apart(heights: Sequence[float]) -> list[float]:
    """Return the heights of the names, moved apart so that no name covers another, within the plot."""
    from_top = sorted(range(len(heights)), key=lambda index: heights[index])
    found = list(heights)
    least = float(TOP)
    for index in from_top:
        found[index] = max(found[index], least)
        least = found[index] + NAME_HEIGHT
    most = float(BOTTOM)
    for index in reversed(from_top):
        found[index] = min(found[index], most)
        most = found[index] - NAME_HEIGHT
    return found


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _powers(low: float, high: float) -> list[float]:
    """Return numbers that are 1, 2 or 5 times a power of ten. The first is at most `low`, the last at least `high`."""
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    numbers = [digit * 10.0**exponent for exponent in exponents for digit in (1, 2, 5)]
    first = max(number for number in numbers if number <= low * (1 + 1e-9))
    last = min(number for number in numbers if number >= high * (1 - 1e-9))
    return [number for number in numbers if first <= number <= last]


def _steps(high: float) -> list[float]:
    """Return equally spaced numbers from 0 to at least `high`. The step is 1, 2 or 5 times a power of ten."""
    if high <= 0:
        return [0.0, 1.0]
    step = next(step for step in _powers(high / MOST_TICKS, high) if step * (MOST_TICKS - 1) >= high)
    return [step * number for number in range(math.ceil(high / step) + 1)]
