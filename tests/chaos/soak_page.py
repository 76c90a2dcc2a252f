"""The part of docs/operations/soak.md that is generated from the record of a run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any, Final

FIGURES: Final = {
    "waits": "Milliseconds on a logarithmic scale; of the jobs of ten seconds, half, 95 and 99 of a hundred waited less.",
    "memory": "Resident memory of each process; of PostgreSQL what its processes do not share, all sessions together.",
    "connections": "Connections, the longest transaction, open files and threads.",
    "tables": "Size of the tables, and of all indexes of each.",
    "rows": "Rows that are there, and dead ones that a vacuum has still to clear, as PostgreSQL estimates them.",
    "work": "What was sent, and what it took.",
}
# Why a series is not flat, where that is known: pattern of "group: name" -> words.
EXPLAINED: Final[dict[str, str]] = {
    "throughput: different statements that name a partition": (
        "Making and dropping a partition names it, so each leaves texts of its own in `pg_stat_statements`, which keeps the "
        "5,000 that are used most. Partitions of the usual size, ten million entries, come seldom."
    ),
}
PACED: Final = ("waits", "throughput", "processor", "live rows", "dead rows", "lag")  # by what the machine has to give
GROUPS: Final = {
    "memory": "Memory",
    "connections": "Connections",
    "handles": "Open files and threads",
    "sizes": "Tables and indexes",
    "live rows": "Rows",
    "dead rows": "Dead rows",
    "waits": "Waits",
    "lag": "Lag of the groups",
    "throughput": "Work",
    "processor": "Processor",
}
SMALL: Final = 1.0  # MB: tables and indexes below are told as one line
FEW: Final = 1000  # rows
CALM: Final = 0.05  # of the processors: what others may use

Row = dict[str, Any]


def page(summary: dict[str, Any]) -> str:
    """Return the generated part."""
    plan = summary["plan"]
    parts = [
        "<!-- Written by tests/chaos/soak.py --record from the record of a run; change it there. -->",
        _settings(summary),
        "## What became of the jobs",
        _books(summary),
        "## What is flat",
        _conclusion(summary),
        _table(summary["series"]),
        "## Over the time",
        *(f"![{text}](soak/{name}.svg)\n\n{text}" for name, text in FIGURES.items()),
        f"Shaded: the first quarter of {plan['hours']:g} hours, the warm-up, which is not judged.",
    ]
    return "\n\n".join(parts) + "\n"


def _settings(summary: dict[str, Any]) -> str:
    plan, machine, postgres = summary["plan"], summary["machine"], summary["postgres"]
    told = ", ".join(f"`{name} = {value}`" for name, value in postgres.items() if name != "server_version")
    busy = (
        ""
        if is_calm(summary)
        else f"\n\n**Others used {summary['others_used']:.0%} of the processors meanwhile: waits and pace say little.**"
    )
    return (
        f"{plan['hours']:g} h at {plan['rate']:g} jobs a second, seed {plan['seed']}, begun {summary['began']}. "
        f"{machine['cores']} cores, Python {machine['python']}, PostgreSQL {postgres['server_version']} beside them: "
        f"{told}. {plan['workers']} `runworker` of {plan['processes']} processes. What is finished is kept for "
        f"{plan['retention']:g} s, a partition of the stream holds {plan['partition']:,} entries, delays last up to "
        f"{plan['longest_delay']:g} s.{busy}"
    )


def _books(summary: dict[str, Any]) -> str:
    books, counted = summary["books"], summary["counted"]
    lines = ["| Kind | Sent | Runs of it | Lost |", "| --- | ---: | ---: | ---: |"]
    for kind, sent in sorted(books["sent"].items(), key=lambda item: -item[1]):
        lines.append(f"| {kind} | {sent:,} | {books['runs'].get(kind, 0):,} | {books['lost'].get(kind, 0):,} |")
    ends = books["runs"].get("end of a batch", 0)
    said = (
        f"{books['jobs']:,} jobs were sent: {sum(books['lost'].values())} were lost, {books['doubled']} ran once too often, "
        f"{sum(summary['left'].values())} were left. {sum(books['refused'].values()):,} were refused since their key was "
        f"held, {books['undone']:,} were rolled back and never ran. {ends:,} batches ended once each. pgbus itself counted "
        f"{counted['succeeded']:,} successes, {counted['failed']:,} failed attempts and {counted['dead']:,} dead letters; "
        f"{summary['archived']:,} rows went through the archive."
    )
    wrong = "".join(f"\n- **{fault}**" for fault in summary["faults"])
    return f"{said}\n{wrong}\n\n" + "\n".join(lines) if wrong else f"{said}\n\n" + "\n".join(lines)


def _conclusion(summary: dict[str, Any]) -> str:
    judged = [row for row in summary["series"] if row["judged"]]
    if all(row["word"] == "too short" for row in judged):
        return "The run was too short for a verdict."
    flat = [row for row in judged if row["word"] == "flat"]
    text = f"Of {len(judged)} series {len(flat)} are flat: their slope is within 5 % of their level in an hour"
    others = [row for row in judged if row["word"] != "flat"]
    if not others:
        return f"{text}."
    calm = is_calm(summary)
    lines = [f"- {_named(row)}: {_slope(row)}, {row['word']}. {explanation(row, calm=calm)}" for row in others]
    return f"{text}. The others:\n\n" + "\n".join(lines)


def _named(row: Row) -> str:
    return f"{GROUPS.get(row['group'], row['group'])}, {row['name']}"


def is_calm(summary: dict[str, Any]) -> bool:
    """Return whether nobody else used the machine."""
    return summary["others_used"] is None or summary["others_used"] <= CALM


def explanation(row: Row, *, calm: bool) -> str:
    """Return why a series is not flat."""
    name = f"{row['group']}: {row['name']}"
    for pattern, words in EXPLAINED.items():
        if fnmatch.fnmatch(name, pattern):
            return words
    return "Not explained." if calm or row["group"] not in PACED else "Others used the machine: says nothing."


def _slope(row: Row) -> str:
    if row["percent"] is None:
        return f"{row['change']:+.3g} {row['unit']} in an hour".replace("  ", " ")
    return f"{row['percent']:+.1f} % in an hour"


def _table(rows: Sequence[Row]) -> str:
    lines = ["| | Level | In an hour | |", "| --- | ---: | ---: | --- |"]
    for group, title in GROUPS.items():
        mine = [row for row in rows if row["group"] == group]
        shown = [row for row in mine if _is_shown(row)]
        if not shown:
            continue
        lines.append(f"| **{title}** | | | |")
        lines += [f"| {row['name']} | {_level(row)} | {_slope(row)} | {_word(row)} |" for row in shown]
        if rest := [row for row in mine if not _is_shown(row)]:
            lines.append(f"| {len(rest)} others, {_rest(group)} | | | {_words(rest)} |")
    return "\n".join(lines)


def _is_shown(row: Row) -> bool:
    if row["word"] not in ("flat", "too short") and row["judged"]:
        return True
    return {
        "sizes": row["level"] >= SMALL,
        "live rows": row["level"] >= FEW,
        "dead rows": row["level"] >= FEW,
        "handles": row["name"].startswith("worker"),
        "waits": not row["name"].endswith("max"),
        "memory": row["judged"],
    }.get(row["group"], True)


def _rest(group: str) -> str:
    return {"sizes": f"below {SMALL:g} MB each", "live rows": f"below {FEW:,} rows each"}.get(
        group, f"below {FEW:,} rows each" if group == "dead rows" else "not judged or of other processes"
    )


def _words(rows: Iterable[Row]) -> str:
    return ", ".join(sorted({_word(row) for row in rows}))


def _word(row: Row) -> str:
    return row["word"] if row["judged"] else "not judged"


def _level(row: Row) -> str:
    level = row["level"]
    digits = 0 if level >= 1000 or level == int(level) else 1 if level >= 10 else 2
    return f"{level:,.{digits}f} {row['unit']}".strip()
