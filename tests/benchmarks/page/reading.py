"""What the pages tell of a record, in words and tables: the same for HTML and for the documentation."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.figures import is_number, median
from tests.benchmarks.goals import number
from tests.benchmarks.noise import MUCH
from tests.benchmarks.notes import NOTES, title
from tests.benchmarks.record import Record

RUNS: Final = 5
USUAL: Final = {
    "jobs": "JOBS",
    "samples": "SAMPLES",
    "seconds": "SECONDS",
}  # a setting, and where its usual value stands
ROWS: Final = 1_000_000
OF: Final = {"pgbus": "on Django", "refskip": "psycopg"}
# The systems beside one another: what follows their name in a figure, and what that is.
BY_SYSTEM: Final = {
    "jobs": {"": "jobs a second", "_fill": "stored a second", "_worker_us": "processor time of the worker, µs a job"},
    "enqueue": {"_single": "one by one, jobs a second", "_many": "many, jobs a second"},
    "latency": {"_call_p50_ms": "median, ms", "_call_p99_ms": "99th percentile, ms"},
    "depth": {
        "_empty": "beside none, jobs a second",
        "_pending": "beside waiting ones",
        "_delayed": "beside delayed ones",
        "_archived": "beside finished ones",
    },
    "snapshot": {
        "_free": "no snapshot, jobs a second",
        "_held": "snapshot held",
        "_held_last_vs_first": "its last window beside its first",
    },
    "idle": {
        "_statements_s": "statements a second",
        "_processor_percent": "processor, %",
        "_all_mb": "memory in all, MB",
        "_processes": "processes",
        "_connections": "connections",
    },
}
# The parts of a job's microseconds, and which parts of `profile_drain.PARTS` they are of; the rest is dispatch.
BUDGET: Final = {
    "driver": ("claim: statement", "settle: statement", "claim: rows to deliveries"),
    "decode": ("prepare: decode",),
    "user code": ("run: the task",),
    "completion": ("settle:", "outcome:", "run: encode", "reports"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text below their heads."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def caveats(record: Record) -> list[str]:
    """Return why these are no figures of record, in sentences; nothing where they are."""
    found = [f"{fault}." for fault in record.faults]
    if few := [name for name, part in record.parts.items() if part["goals"] and part["settings"]["runs"] < RUNS]:
        found.append(f"Fewer than {RUNS} runs: {', '.join(few)}.")
    if noisy := [name for name, part in record.parts.items() if max(part["settings"]["others_used"], default=0) > MUCH]:
        found.append(f"Others used more than {MUCH:.0%} of the processors: {', '.join(noisy)}.")
    if small := [name for name, part in record.parts.items() if _is_small(name, part["settings"])]:
        found.append(f"Smaller than usual: {', '.join(small)}.")
    commits = {part["commit"] for part in record.parts.values()}
    if len(commits) > 1 or any(commit is None or commit.endswith("+") for commit in commits):
        found.append("The parts were not all measured at one commit.")
    if len({str(_machine(part)) for part in record.parts.values()}) > 1:
        found.append("The parts were not all measured on one machine.")
    return found


def _is_small(name: str, settings: Mapping[str, Any]) -> bool:
    case = importlib.import_module(f"tests.benchmarks.cases.{name}")
    usual = {setting: getattr(case, constant, 0) for setting, constant in USUAL.items()}
    usual |= {"rows": ROWS} if "rows" in settings else {}
    return any((settings.get(setting) or value) < value for setting, value in usual.items())


def _machine(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in part["environment"].items() if name != "fsync_ms"}


def fairness(name: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks of what a benchmark says about itself: "p" or "pre", and the text."""
    module = importlib.import_module(f"tests.benchmarks.cases.{name}")
    for block in inspect.cleandoc(module.__doc__ or "").split("\n\n"):
        text = block.strip("\n")
        yield ("pre", inspect.cleandoc(text)) if text.startswith("    ") else ("p", " ".join(text.split()))


def by_system(part: Mapping[str, Any]) -> Table | None:
    """Return the systems beside one another, None where there is only ours."""
    columns = BY_SYSTEM.get(part["bench"])
    if columns is None:
        return None
    rows = []
    for name in NOTES:
        cells = [_cell(part["runs"], key_of(part["median"], name, ending)) for ending in columns]
        if any(cells):
            found = part["settings"]["versions"].get(name, "")
            rows.append([title(name), named(name, found), *(cell or "-" for cell in cells)])
    return Table(["System", "Version", *columns.values()], rows)


def key_of(medians: Mapping[str, Any], name: str, ending: str) -> str:
    """Return what a figure of a system is called; ours stands without a name where the benchmark is about it."""
    full = f"{name}{ending}"
    return full if name != "pgbus" or full in medians else ending.removeprefix("_")


def _cell(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    there = [run[name] for run in runs if is_number(run.get(name))]
    middle = median(there)
    if middle is None:
        return ""
    spread = f" ({number(min(there))} to {number(max(there))})" if len(there) > 1 else ""
    return number(middle) + spread


def all_runs(part: Mapping[str, Any]) -> Table:
    """Return every number of every run, its median first."""
    heads = ["Figure", "Median", *(f"Run {n + 1}" for n in range(len(part["runs"])))]
    rows = []
    for name, middle in part["median"].items():
        each = (run.get(name) for run in part["runs"])
        rows.append([name, number(middle), *(number(value) if is_number(value) else "-" for value in each)])
    return Table(heads, rows)


def ratios(part: Mapping[str, Any]) -> Table | None:
    """Return the medians of the ratios within the runs, None where there are none."""
    there = [[_ratio(name), number(value)] for name, value in part["ratios"].items() if value is not None]
    return Table(["Ratio, median of the runs", ""], there) if there else None


def _ratio(name: str) -> str:
    words = (title(word) if word != "pgbus" else word for word in name.split("_"))
    return " ".join("beside" if word == "vs" else word for word in words)


def budget(record: Record) -> Table | None:
    """Return where the microseconds of a job go, None where that was not measured."""
    runs = record.parts.get("budget", {}).get("runs")
    if not runs:
        return None
    drained = runs[-1]["drain"]
    sums = {"database": drained["us"] * 0.0} | dict.fromkeys((*BUDGET, "dispatch"), 0.0)
    sums["database"] = sum(us for name, us in drained["processor"].items() if name != "worker")
    for name, us in drained["parts"].items():
        sums[_part(name)] += us
    if not drained["parts"]:
        sums = {"database": sums["database"], "worker process": drained["processor"]["worker"]}
    return Table(["Part of a job", "µs"], [[name, f"{us:.1f}"] for name, us in sums.items()])


def _part(name: str) -> str:
    return next((part for part, starts in BUDGET.items() if name.startswith(starts)), "dispatch")


def steps(record: Record) -> Table | None:
    """Return how long each step from the commit of a job to its start takes, None where that was not measured."""
    runs = record.parts.get("budget", {}).get("runs")
    if not runs:
        return None
    rows = [[step["step"], f"{step['p50']:.0f}", f"{step['p99']:.0f}", step["meaning"]] for step in runs[-1]["latency"]]
    return Table(["Step", "Median, µs", "99th percentile, µs", "What it is"], rows)


def environment(record: Record) -> list[tuple[str, str]]:
    """Return what the figures depend on, from the part that was measured last."""
    if not record.parts:
        return []
    part = max(record.parts.values(), key=lambda part: part["measured"])
    machine, settings = part["environment"], part["settings"]
    redis = next((one["settings"]["redis"] for one in record.parts.values() if "redis" in one["settings"]), None)
    postgres = dict(settings["postgres"])
    optimized = "" if machine["python_optimized"] else ", built without profile-guided optimization"
    return [
        (
            "Machine",
            f"{machine['cores']} processors ({machine['processor']}), {machine['memory_gb']:g} GB, {machine['system']}",
        ),
        ("Disk", f"{machine['fsync_ms']:g} ms for a write that is synced"),
        ("Python", f"{machine['python']}{optimized}, the same for all systems"),
        ("PostgreSQL", _settings(postgres)),
        *([("Redis", _settings(dict(redis)))] if redis else []),
        ("Commit", ", ".join(sorted({str(one["commit"]) for one in record.parts.values()}))),
        ("Measured", _days(record)),
        ("Took", f"{sum(one['took'] for one in record.parts.values()) / 60:.0f} minutes"),
    ]


def _settings(settings: dict[str, Any]) -> str:
    version = settings.pop("server_version").split()[0]
    return f"{version}; " + ", ".join(f"{name} {value}" for name, value in settings.items() if value != "")


def _days(record: Record) -> str:
    days = sorted({part["measured"][:10] for part in record.parts.values()})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def peers(record: Record) -> list[str]:
    """Return the systems that were measured anywhere, ours first."""
    there = {name for part in record.parts.values() for name in part["settings"]["versions"]}
    return [name for name in NOTES if name in there]


def version(record: Record, name: str) -> str:
    """Return which version of a system was measured."""
    found = next((v[name] for part in record.parts.values() if name in (v := part["settings"]["versions"])), "")
    return named(name, found)


def named(name: str, found: str) -> str:
    """Return a version with what it is of, where that is not the system itself."""
    return f"{OF[name]} {found}".strip() if found and name in OF else found
