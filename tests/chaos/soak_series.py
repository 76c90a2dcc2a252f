"""The series of a soak: what is judged, in which unit, and which change is too small to be called one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

Sample = dict[str, Any]
Points = list[tuple[float, float]]
MINUTE: Final = 60.0
WAITS: Final = ("p50", "p95", "p99", "max")
WAIT_NAMES: Final = {
    "start": "commit to start, jobs due at once",
    "late": "lateness of delayed jobs",
    "limited": "commit to start, limited jobs",
    "stream": "commit to handled, stream entries",
    "batch": "commit to start, members of batches",
    "behind": "producer behind its instant",
}


@dataclass(frozen=True, slots=True)
class Series:
    """One series: where it belongs, its name and unit, its points, and the change in an hour that is nothing."""

    group: str
    name: str
    unit: str
    points: Points
    small: float = 0.0
    judged: bool = True


def all_of(found: dict[str, Any]) -> list[Series]:
    """Return every series of a run, as long as it sent."""
    seconds = found["plan"]["hours"] * 3600
    samples = [sample for sample in found["samples"] if sample["at"] <= seconds]
    waits = {name: [row for row in rows if row[0] <= seconds] for name, rows in found.get("waits", {}).items()}
    return [
        *_memory(samples),
        *_handles(samples),
        *_sizes(samples),
        *_dead(samples),
        *_waits(waits),
        *_work(samples),
    ]


def _plain(samples: list[Sample], value: Callable[[Sample], float | None]) -> Points:
    return [(sample["at"], float(one)) for sample in samples if (one := value(sample)) is not None]


def _rate(samples: list[Sample], value: Callable[[Sample], float | None]) -> Points:
    """Return what a counter gained in a second, between two samples."""
    points = _plain(samples, value)
    return [(at, (after - before) / (at - was)) for (was, before), (at, after) in pairwise(points)]


def _names(samples: list[Sample], of: str) -> list[str]:
    return sorted({name for sample in samples for name in sample[of]})


def _memory(samples: list[Sample]) -> Iterator[Series]:
    for name in _names(samples, "processes"):
        yield Series(
            "memory",
            name,
            "MB",
            _plain(samples, lambda sample: sample["processes"].get(name, {}).get("rss")),  # noqa: B023
            judged=name != "observer",
        )
    yield Series("memory", "PostgreSQL, not shared", "MB", _plain(samples, lambda sample: sample["server"]["uss"]))


def _handles(samples: list[Sample]) -> Iterator[Series]:
    for name in _names(samples, "processes"):
        for what, unit in (("fds", "open files"), ("threads", "threads")):
            yield Series(
                "handles",
                f"{name}, {unit}",
                "",
                _plain(samples, lambda sample: sample["processes"].get(name, {}).get(what)),  # noqa: B023
                judged=name != "observer",
            )
    names = _names(samples, "sessions")
    for name in names:
        yield Series(
            "connections",
            name or "(no name)",
            "",
            _plain(samples, lambda sample: sample["sessions"].get(name, 0)),  # noqa: B023
        )
    yield Series("connections", "all", "", _plain(samples, lambda sample: sum(sample["sessions"].values())))
    yield Series(
        "connections",
        "longest transaction",
        "s",
        _plain(samples, lambda s: s["whole"]["longest_transaction"]),
        small=0.5,
    )


def _sizes(samples: list[Sample]) -> Iterator[Series]:
    for name in _names(samples, "relations"):
        yield Series("sizes", name, "MB", _plain(samples, lambda sample: sample["relations"].get(name)), small=0.5)  # noqa: B023
    yield Series("sizes", "all of pgbus", "MB", _plain(samples, lambda sample: sum(sample["relations"].values())))
    yield Series(
        "sizes", "system catalogs", "MB", _plain(samples, lambda s: s["whole"]["catalogs"] / (1 << 20)), small=0.5
    )
    yield Series("sizes", "database", "MB", _plain(samples, lambda s: s["whole"]["database"] / (1 << 20)))


def _dead(samples: list[Sample]) -> Iterator[Series]:
    for name in _names(samples, "tuples"):
        for what in ("live", "dead"):
            yield Series(
                f"{what} rows",
                name,
                "rows",
                _plain(samples, lambda sample: sample["tuples"].get(name, {}).get(what)),  # noqa: B023
                small=500,
            )
    yield Series("vacuums", "vacuums of all tables", "/min", _rate(samples, _vacuums), judged=False)
    yield Series(
        "dead rows", "pg_attribute", "rows", _plain(samples, lambda s: s["whole"]["dead_attributes"]), small=500
    )


def _vacuums(sample: Sample) -> float:
    return 60.0 * sum(one["vacuums"] for one in sample["tuples"].values())


def _waits(waits: dict[str, list[list[float]]]) -> Iterator[Series]:
    for name, title in WAIT_NAMES.items():
        for nth, percentile in enumerate(WAITS, 2):
            points = [(row[0], 1000 * row[nth]) for row in waits.get(name, []) if row[0] > 0]
            if points:
                # A maximum is one job of three thousand: it is shown, and not judged.
                yield Series("waits", f"{title}, {percentile}", "ms", points, small=0.5, judged=percentile != "max")


def _work(samples: list[Sample]) -> Iterator[Series]:
    yield Series("throughput", "jobs sent", "/s", _rate(samples, lambda sample: sample["sent"]))
    # PostgreSQL tells of the commits of a busy session in bursts, once a minute.
    yield Series("throughput", "commits", "/s", _rate(samples, lambda sample: sample["whole"]["commits"]), judged=False)
    yield Series("throughput", "statements", "/s", _rate(samples, lambda sample: sample["whole"]["statements_calls"]))
    yield Series("throughput", "WAL", "MB/s", _rate(samples, lambda sample: sample["whole"]["wal"] / (1 << 20)))
    apart = all("statements_partition_texts" in sample["whole"] for sample in samples)
    yield Series(
        "throughput",
        "different statements",
        "",
        _plain(samples, lambda s: s["whole"]["statements_texts"]),
        judged=apart,
    )
    yield Series(
        "throughput",
        "different statements that name a partition",
        "",
        _plain(samples, lambda sample: sample["whole"].get("statements_partition_texts")),
    )
    yield Series("processor", "PostgreSQL", "cores", _rate(samples, lambda sample: sample["server"]["cpu"]))
    yield Series("processor", "workers", "cores", _rate(samples, _cpu_of("worker", "supervisor")))
    yield Series("processor", "producers", "cores", _rate(samples, _cpu_of("producers")))
    yield Series("processor", "whole machine", "cores", _rate(samples, lambda s: s["machine"]["used"]), judged=False)
    for name in _names(samples, "lag"):
        yield Series("lag", name, "entries", _plain(samples, lambda sample: sample["lag"].get(name)), small=50)  # noqa: B023


def _cpu_of(*roles: str) -> Callable[[Sample], float]:
    return lambda sample: sum(one["cpu"] for name, one in sample["processes"].items() if name.startswith(roles))


def thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return the median of each minute, for a record that is small."""
    minutes: dict[int, list[float]] = {}
    for at, value in points:
        minutes.setdefault(int(at // MINUTE), []).append(value)
    return [[minute, float(f"{median(values):.5g}")] for minute, values in sorted(minutes.items())]
