"""The plots of a soak: small multiples over minutes, the warm-up shaded. Needs matplotlib (the group `plots`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.chaos.soak_series import Series

COLORS: Final = ("#0b6e99", "#d1603d", "#5b8c5a", "#8e6c8a", "#c9a227", "#6b7280", "#2f4858", "#b56576")
STYLE: Final = {
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "xtick.color": "#4b5563",
    "ytick.color": "#4b5563",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.3,
    "svg.fonttype": "path",
    "svg.hashsalt": "soak",
}
WIDTH: Final = 9.0
HEIGHT: Final = 2.35  # of one row
MINUTE: Final = 60.0


class Line(NamedTuple):
    """One line of a panel."""

    label: str
    series: Series


class Panel(NamedTuple):
    """One panel: its title with the unit, and its lines."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False


def figures(series: Sequence[Series]) -> dict[str, list[Panel]]:
    """Return the panels of each figure by its name; what has no line is left out."""
    series = [found for found in series if found.points]

    def one(group: str, name: str, label: str = "") -> list[Line]:
        return [Line(label or name, found) for found in series if (found.group, found.name) == (group, name)]

    def those(group: str, of: Callable[[str], bool], shorter: Callable[[str], str] = str) -> list[Line]:
        return [Line(shorter(found.name), found) for found in series if found.group == group and of(found.name)]

    def waits(title: str) -> Panel:
        lines = [line for p in ("p50", "p95", "p99") for line in one("waits", f"{title}, {p}", p)]
        return Panel(f"{title[0].upper()}{title[1:]} (ms)", lines, logarithmic=True)

    def table(name: str, title: str) -> Panel:
        lines = one("sizes", name, "table")
        indexes = [found for found in series if found.group == "sizes" and found.name.startswith(f"{name}/")]
        return Panel(f"{title} (MB)", [*lines, *([Line("indexes", summed(indexes))] if indexes else [])])

    def dead(name: str, title: str) -> Panel:
        return Panel(f"{title} (rows)", [*one("live rows", name, "live"), *one("dead rows", name, "dead")])

    found = {
        "waits": [
            waits("commit to start, jobs due at once"),
            waits("lateness of delayed jobs"),
            waits("commit to start, limited jobs"),
            waits("commit to handled, stream entries"),
        ],
        "memory": [
            Panel("Worker processes, resident (MB)", those("memory", lambda name: name.startswith("worker"))),
            Panel("Supervisors, resident (MB)", those("memory", lambda name: name.startswith("supervisor"))),
            Panel("Process that enqueues, resident (MB)", one("memory", "producers")),
            Panel(
                "PostgreSQL, all processes, not shared (MB)", one("memory", "PostgreSQL, not shared", "all sessions")
            ),
        ],
        "connections": [
            Panel("Connections (number)", _connections(series)),
            Panel("Longest transaction (s)", one("connections", "longest transaction")),
            Panel(
                "Open files of worker processes (number)",
                those("handles", _ends("worker", "open files"), lambda name: name.split(",")[0]),
            ),
            Panel(
                "Threads of worker processes (number)",
                those("handles", _ends("worker", "threads"), lambda name: name.split(",")[0]),
            ),
        ],
        "tables": [table(name, title) for name, title in TABLES.items()]
        + [Panel("All of pgbus (MB)", one("sizes", "all of pgbus", "tables and indexes"))]
        + [Panel("System catalogs (MB)", one("sizes", "system catalogs", "tables and indexes"))],
        "rows": [dead(name, title) for name, title in ROWS.items()],
        "work": [
            Panel("Jobs sent (per second)", one("throughput", "jobs sent")),
            Panel("Processor (cores)", those("processor", lambda name: name != "whole machine")),
            Panel(
                "Statements and commits (per second)", one("throughput", "statements") + one("throughput", "commits")
            ),
            Panel("WAL (MB per second)", one("throughput", "WAL")),
        ],
    }
    drawn = {name: [panel for panel in panels if panel.lines] for name, panels in found.items()}
    return {name: panels for name, panels in drawn.items() if panels}


TABLES: Final = {
    "pgbus_messages": "The line",
    "pgbus_archive": "Archive",
    "pgbus_delayed": "Delayed",
    "pgbus_dead_letters": "Dead letters",
    "pgbus_processed_events": "Claims of events",
    "pgbus_stream_1": "Stream, all partitions",
}
ROWS: Final = {
    "pgbus_messages": "The line",
    "pgbus_archive": "Archive",
    "pgbus_processed_events": "Claims of events",
    "pgbus_semaphore_slots": "Slots",
    "pgbus_uniqueness_keys": "Uniqueness keys",
    "pgbus_batch_counts": "Counts of batches",
}


def _ends(start: str, end: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(start) and name.endswith(end)


def _connections(series: Sequence[Series]) -> list[Line]:
    """Return those of jobs, of the workers themselves, and of who sends."""
    kinds: dict[str, list[Series]] = {"jobs of the workers": [], "the workers' own": [], "producers": []}
    for one in series:
        if one.group == "connections" and one.name.startswith("worker"):
            kinds["jobs of the workers"].append(one)
        elif one.group == "connections" and one.name.startswith("pgbus"):
            kinds["the workers' own"].append(one)
        elif one.group == "connections" and one.name == "producers":
            kinds["producers"].append(one)
    return [Line(label, summed(those)) for label, those in kinds.items() if those]


def summed(series: Iterable[Series]) -> Series:
    """Return the sum of series of the same instants."""
    together: dict[float, float] = {}
    first = None
    for one in series:
        first = first or one
        for at, value in one.points:
            together[at] = together.get(at, 0.0) + value
    assert first
    return Series(first.group, "sum", first.unit, sorted(together.items()))


def draw(series: Sequence[Series], warm_up: float, out: Path, kinds: Sequence[str] = ("svg",)) -> list[Path]:
    """Draw all figures into a folder, and return the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    files = []
    with mpl.rc_context(STYLE):
        for name, panels in figures(series).items():
            rows = (len(panels) + 1) // 2
            figure, axes = pyplot.subplots(rows, 2, figsize=(WIDTH, HEIGHT * rows), squeeze=False, layout="constrained")
            for axis, panel in zip(axes.flat, panels, strict=False):
                _draw_panel(axis, panel, warm_up)
            for axis in axes.flat[len(panels) :]:
                axis.set_visible(False)
            for axis in axes[-1]:
                axis.set_xlabel("minutes since the start")
            for kind in kinds:
                files.append(out / f"{name}.{kind}")
                metadata = {"Date": None} if kind == "svg" else {}
                figure.savefig(files[-1], metadata=metadata, dpi=110)
                if kind == "svg":
                    files[-1].write_text(_rounded(files[-1].read_text()))
            pyplot.close(figure)
    return files


def _rounded(svg: str) -> str:
    """Return a drawing whose lines are exact to a tenth of a point, which is half of the bytes."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)


def _draw_panel(axis: Any, panel: Panel, warm_up: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    last = max(line.series.points[-1][0] for line in panel.lines if line.series.points) / MINUTE
    for line, color in zip(panel.lines, COLORS, strict=False):
        points = line.series.points
        axis.plot([at / MINUTE for at, _ in points], [value for _, value in points], label=line.label, color=color)
    axis.axvspan(0, min(warm_up / MINUTE, last), color="#f3f4f6", zorder=0, linewidth=0)
    axis.set_title(panel.title)
    axis.set_xlim(0, last)
    axis.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    values = [value for line in panel.lines for _, value in line.series.points]
    if panel.logarithmic and min(values) > 0:
        axis.set_yscale("log")
        axis.set_ylim(min(values) / 1.3, max(values) * 3)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 100 * min(values) else (1,)))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(0, max(values) * 1.25 or 1)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if len(panel.lines) > 1:
        axis.legend(loc="upper right", ncols=min(4, len(panel.lines)), handlelength=1.2, columnspacing=1.0)
