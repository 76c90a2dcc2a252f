"""
Charts: numbers in, the geometry of an SVG out.

Nothing here knows colours or sizes: a chart is drawn in a box of `WIDTH` by `HEIGHT` units, which the style sheet
stretches. Each has its numbers beside it as a table, which the templates show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django_pgbus.admin import words

WIDTH: Final = 1000
HEIGHT: Final = 100
GAP: Final = 0.12  # of a bar's width, between two
LABELS: Final = 5  # along the time
STEPS: Final = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # where a scale may end, times a power of ten
TIMES: Final = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)  # seconds

Tick = Callable[[datetime], str]  # what stands below a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Numbers of a chart: `kind` colours them, `label` says what they are."""

    kind: str
    label: Any
    values: Sequence[float | None]


def sparkline(values: Sequence[float]) -> dict[str, str]:
    """Return the line of some numbers and the area below it; empty without two numbers."""
    if len(values) < 2:
        return {}
    top = max(values) or 1
    step = WIDTH / (len(values) - 1)
    points = [f"{_unit(nth * step)} {_unit(HEIGHT - value / top * HEIGHT)}" for nth, value in enumerate(values)]
    line = "M" + " L".join(points)
    return {"line": line, "area": f"{line} L{WIDTH} {HEIGHT} L0 {HEIGHT}Z", "box": f"0 0 {WIDTH} {HEIGHT}"}


def stacked(times: Sequence[datetime], series: Sequence[Series], tick: Tick) -> dict[str, Any]:
    """Return bars, in which the numbers of one time stand on each other."""
    sums = [sum(value or 0 for value in at) for at in zip(*(one.values for one in series), strict=True)]
    top = _rounded_up(max(sums, default=0), STEPS)
    wide = WIDTH / max(1, len(times))
    below = [0.0] * len(times)
    shapes = []
    for one in series:
        bars = []
        for nth, value in enumerate(one.values):
            if value:
                high = value / top * HEIGHT
                below[nth] += high
                left, upper = _unit(nth * wide + wide * GAP / 2), _unit(HEIGHT - below[nth])
                bars.append(f"M{left} {upper}h{_unit(wide * (1 - GAP))}v{_unit(high)}h-{_unit(wide * (1 - GAP))}z")
        shapes.append({"kind": one.kind, "path": "".join(bars)})
    return _chart(times, series, shapes, tick, [words.decimal(top), words.decimal(top / 2), "0"], words.decimal)


def lines(times: Sequence[datetime], series: Sequence[Series], tick: Tick) -> dict[str, Any]:
    """Return lines of seconds, which end where there is no number."""
    largest = max((value for one in series for value in one.values if value is not None), default=0.0)
    top = next((limit for limit in TIMES if limit >= largest), 0) or _rounded_up(largest, STEPS)
    wide = WIDTH / max(1, len(times))
    shapes = []
    for one in series:
        path, drawing = "", False
        for nth, value in enumerate(one.values):
            if value is not None:
                high = _unit(HEIGHT - value / top * HEIGHT)
                # A step, so that a time with no neighbour is seen as well.
                path += f"{'L' if drawing else 'M'}{_unit(nth * wide)} {high}h{_unit(wide)}"
            drawing = value is not None
        shapes.append({"kind": one.kind, "path": path})
    return _chart(times, series, shapes, tick, [words.age(top), words.age(top / 2), "0"], words.age)


def _chart(
    times: Sequence[datetime],
    series: Sequence[Series],
    shapes: Sequence[dict[str, str]],
    tick: Tick,
    scale: Sequence[str],
    said: Callable[[float], str],
) -> dict[str, Any]:
    cells = [[words.NOTHING if value is None else said(value) for value in one.values] for one in series]
    rows = [
        {"at": words.clock(at), "cells": list(of_time)}
        for at, of_time in zip(times, zip(*cells, strict=True), strict=True)
    ]
    wide = WIDTH / max(1, len(times))
    hints = [
        {"x": _unit(nth * wide), "text": " · ".join([words.clock(at), *map(_said, series, of_time)])}
        for nth, (at, of_time) in enumerate(zip(times, zip(*cells, strict=True), strict=True))
    ]
    return {
        "box": f"0 0 {WIDTH} {HEIGHT}",
        "legend": [{"kind": one.kind, "label": one.label} for one in series],
        "shapes": shapes,
        "scale": scale,
        "times": [tick(times[round(nth * (len(times) - 1) / (LABELS - 1))]) for nth in range(LABELS)] if times else [],
        "hints": hints,
        "wide": _unit(wide),
        "rows": rows,
        "empty": not any(value for one in series for value in one.values),
    }


def _said(one: Series, cell: str) -> str:
    return f"{one.label} {cell}"


def _rounded_up(value: float, steps: Sequence[float]) -> float:
    """Return the next number that is easily read."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in steps if step * power >= value * 0.999999)


def _unit(value: float) -> str:
    """Return a coordinate: the language has no say in it."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
