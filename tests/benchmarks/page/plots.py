"""
Plots of a record as SVG that stands in an HTML page: text stays text, colours follow the page, light or dark.

Needs matplotlib (the dependency group `plots`). A bar is the median of the runs, a line from its lowest to its highest run.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.figures import is_number, median
from tests.benchmarks.goals import number
from tests.benchmarks.notes import NOTES, title

# What a plot is drawn in, and what the page makes of it.
INK, FAINT, OURS, THEIRS = "#010101", "#020202", "#030303", "#040404"
COLOURS: Final = {INK: "currentColor", FAINT: "var(--line)", OURS: "var(--ours)", THEIRS: "var(--theirs)"}
STYLE: Final = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
}
DASHES: Final = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Bar:
    """What one bar is of: its label, the values of its runs, and whether it is ours."""

    label: str
    values: Sequence[float]
    ours: bool = False


def of(part: Mapping[str, Any]) -> list[str]:
    """Return the plots of one benchmark, none where it has nothing to show."""
    made = PLOTS.get(part["bench"])
    return made(part["runs"]) if made else []


def styled(draw: Callable[..., str]) -> Callable[..., str]:
    """Let a function draw in the style of the page, with names that are those of the plot alone."""

    @functools.wraps(draw)
    def drawn(what: str, *args: Any, **options: Any) -> str:
        import matplotlib as mpl

        with mpl.rc_context(STYLE | {"svg.hashsalt": what}):
            return draw(what, *args, **options)

    return drawn


@styled
def bars(what: str, shown: Sequence[Bar], *, log: bool = False) -> str:
    """Return bars beneath one another, or points where the axis is logarithmic."""
    shown = [bar for bar in shown if bar.values]
    if not shown:
        return ""
    figure, axes = _figure(0.9 + 0.34 * len(shown))
    most = max(max(bar.values) for bar in shown)
    for place, bar in enumerate(shown):
        middle, colour = median(bar.values) or 0.0, OURS if bar.ours else THEIRS
        if log:
            axes.plot([middle], [place], "o", color=colour, markersize=7)
        else:
            axes.barh(place, middle, color=colour, height=0.62)
        axes.plot([min(bar.values), max(bar.values)], [place, place], color=INK, linewidth=1.2, solid_capstyle="butt")
        beside = max(bar.values) * 1.15 if log else max(bar.values) + most * 0.012
        axes.text(beside, place, number(middle), va="center")
    axes.set_yticks(range(len(shown)), [bar.label for bar in shown])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(right=most * 2.5)
    else:
        axes.set_xlim(0, most * 1.14)
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.set_xlabel(what)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    return svg(figure)


@styled
def lines(what: str, across: str, shown: Mapping[str, Sequence[float]], ours: str) -> str:
    """Return one line for each name, over the numbers of its values."""
    if not any(shown.values()):
        return ""
    figure, axes = _figure(2.9)
    others = 0
    for name, values in shown.items():
        style = "-" if name == ours else DASHES[others % len(DASHES)]
        others += name != ours
        colour = OURS if name == ours else THEIRS
        axes.plot(
            range(1, len(values) + 1), values, style, color=colour, linewidth=2, marker="o", markersize=4, label=name
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(what)
    axes.set_xlabel(across)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(linewidth=0.6)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return svg(figure)


def svg(figure: Any) -> str:
    """Return a figure as an element of a page, with its colours."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for drawn, shown in COLOURS.items():
        text = text.replace(drawn, shown)
    return text.replace("<svg ", '<svg role="img" ', 1)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, height), layout="constrained")
    return figure, figure.subplots()


# --- what is plotted of each benchmark -----------------------------------------------------------------

Runs = Sequence[Mapping[str, Any]]
SYSTEMS: Final = tuple(NOTES)


def values(runs: Runs, name: str) -> list[float]:
    """Return what the runs have of a figure."""
    return [run[name] for run in runs if is_number(run.get(name))]


def _of_systems(what: str, ending: str = "", *, log: bool = False) -> Callable[[Runs], list[str]]:
    def made(runs: Runs) -> list[str]:
        shown = [Bar(title(name), values(runs, f"{name}{ending}"), name == "pgbus") for name in SYSTEMS]
        return [bars(what, shown, log=log)]

    return made


def _of_figures(what: str, **names: str) -> Callable[[Runs], list[str]]:
    def made(runs: Runs) -> list[str]:
        return [bars(what, [Bar(label, values(runs, name), ours=True) for name, label in names.items()])]

    return made


def _enqueue(runs: Runs) -> list[str]:
    plots = []
    for way, bare, what in (
        ("single", "bare", "jobs a second, one by one"),
        ("many", "bare_many", "jobs a second, by the thousand"),
    ):
        shown = [
            Bar("bare insert, Django cursor", values(runs, bare)),
            Bar(title("pgbus"), values(runs, way), ours=True),
            *(Bar(title(name), values(runs, f"{name}_{way}")) for name in SYSTEMS if name != "pgbus"),
        ]
        plots.append(bars(what, shown))
    return plots


def _depth(runs: Runs) -> list[str]:
    shown = []
    for state, label in (("pending", "waiting"), ("delayed", "delayed"), ("archived", "finished")):
        for name in SYSTEMS:
            prefix = "" if name == "pgbus" else f"{name}_"
            shares = [
                run[f"{prefix}{state}"] / run[f"{prefix}empty"]
                for run in runs
                if run.get(f"{prefix}{state}") and run.get(f"{prefix}empty")
            ]
            shown.append(Bar(f"{label}: {title(name)}", shares, name == "pgbus"))
    return [bars("drain beside these rows, as a share of the drain without", shown)]


def _snapshot(runs: Runs) -> list[str]:
    shown = {}
    for name in SYSTEMS:
        key = "held_windows" if name == "pgbus" else f"{name}_held_windows"
        free = "free" if name == "pgbus" else f"{name}_free"
        there = [[rate / run[free] for rate in run[key]] for run in runs if run.get(key) and run.get(free)]
        length = min((len(one) for one in there), default=0)
        shown[title(name)] = [median(one[place] for one in there) or 0.0 for place in range(length)]
    shown = {name: rates for name, rates in shown.items() if rates}
    return [lines("share of the rate without a snapshot", "window", shown, title("pgbus"))]


def _idle(runs: Runs) -> list[str]:
    return [
        *_of_systems("statements a second (Redis: commands)", "_statements_s")(runs),
        *_of_systems("MB of all processes of one worker", "_all_mb")(runs),
    ]


def _budget(runs: Runs) -> list[str]:
    parts = runs[-1].get("drain", {}).get("parts", {}) if runs else {}
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return [bars("microseconds of a job in the worker process", [Bar(name, [us], ours=True) for name, us in ordered])]


PLOTS: Final[Mapping[str, Callable[[Runs], list[str]]]] = {
    "jobs": _of_systems("jobs a second, drained by one worker process"),
    "enqueue": _enqueue,
    "latency": _of_systems("milliseconds from the call of enqueue to the start, median", "_call_p50_ms", log=True),
    "depth": _depth,
    "snapshot": _snapshot,
    "idle": _idle,
    "commits": _of_figures(
        "commits a second of 16 clients",
        wake="woken, jobs left alone",
        silent="never woken",
        working="woken, jobs run meanwhile",
        working_silent="polled, jobs run meanwhile",
    ),
    "burst": _of_figures("jobs a second, four processes", rate="burst of jobs"),
    "hotkey": _of_figures(
        "commits a second of 8 clients",
        plain="unlimited",
        hot="one limited key",
        plain_working="unlimited, jobs run meanwhile",
        hot_working="one limited key, jobs run meanwhile",
    ),
    "streams": _of_figures(
        "entries a second",
        paced_rate="paced, appended and handled",
        flat_out="flat out",
        claim_1="claims alone",
        bare_1="bare reads",
    ),
    "batch": _of_figures("jobs a second", plain="plain jobs", batch="members of one batch"),
    "events": _of_figures(
        "copies a second, drained",
        tasks="no-op tasks",
        plain="copies for a handler",
        once="copies for an idempotent handler",
    ),
    "budget": _budget,
}
