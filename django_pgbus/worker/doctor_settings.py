"""The look of `pgbus_doctor` at settings of the server: does a commit hold, and do our statements come to their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from django_pgbus.worker import doctor_server_sql as sql
from django_pgbus.worker.findings import Finding, Findings, Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A setting of the server as it should not be, by its value in a new session of ours (times in milliseconds)."""

    name: str
    wrong: Callable[[str], bool]
    grade: Grade
    text: str
    remedy: str


def _is(value: str) -> Callable[[str], bool]:
    return lambda found: found == value


def _below(limit: float) -> Callable[[str], bool]:
    """Match a time that is set (0 is none) and shorter than `limit` seconds."""
    return lambda found: 0 < float(found) < limit * 1000


ON_THE_SERVER: Final = "Set it on in postgresql.conf."
FOR_THE_ROLE: Final = "ALTER ROLE ... SET {name}, or the entry in OPTIONS of the alias."

RULES: Final = (
    Rule(
        name="fsync",
        wrong=_is("off"),
        grade=Grade.FAIL,
        text="is off: a crash of the host can destroy the database, and every job in it",
        remedy=ON_THE_SERVER,
    ),
    Rule(
        name="full_page_writes",
        wrong=_is("off"),
        grade=Grade.WARN,
        text="is off: a crash of the host can leave half of a page, and with it jobs nobody can read",
        remedy=ON_THE_SERVER,
    ),
    Rule(
        name="synchronous_commit",
        wrong=_is("off"),
        grade=Grade.WARN,
        text="is off: a crash of the server takes back the last commits. Jobs just enqueued are gone, runs just finished "
        "take place again",
        remedy=f"{FOR_THE_ROLE} A transaction that can bear the loss turns it off for itself: SET LOCAL.",
    ),
    Rule(
        name="track_counts",
        wrong=_is("off"),
        grade=Grade.FAIL,
        text="is off: autovacuum never learns that there is something to do",
        remedy=ON_THE_SERVER,
    ),
    Rule(
        name="track_activities",
        wrong=_is("off"),
        grade=Grade.WARN,
        text="is off: nobody can see which transaction holds back vacuum, or a group of a stream",
        remedy=ON_THE_SERVER,
    ),
    Rule(
        name="default_transaction_read_only",
        wrong=_is("on"),
        grade=Grade.FAIL,
        text="is on: enqueueing and claiming are refused",
        remedy=FOR_THE_ROLE,
    ),
    Rule(
        name="server_encoding",
        wrong=lambda found: found != "UTF8",
        grade=Grade.WARN,
        text="is {value}: arguments, topics and errors with a character it lacks are refused",
        remedy="Move to a database that was made with ENCODING 'UTF8'.",
    ),
    Rule(
        name="statement_timeout",
        wrong=_below(5),
        grade=Grade.WARN,
        text="is {value} ms: enqueueing many at once, sweeps and pages of the admin may take longer, and are cancelled",
        remedy=FOR_THE_ROLE,
    ),
    Rule(
        name="lock_timeout",
        wrong=_below(1),
        grade=Grade.WARN,
        text="is {value} ms: who waits for a uniqueness key or a slot gives up, and the caller's transaction fails",
        remedy=FOR_THE_ROLE,
    ),
    Rule(
        name="idle_in_transaction_session_timeout",
        wrong=_below(10),
        grade=Grade.WARN,
        text="is {value} ms: a transactional task that does something else for as long loses its connection",
        remedy=FOR_THE_ROLE,
    ),
    Rule(
        name="transaction_timeout",
        wrong=_below(60),
        grade=Grade.WARN,
        text="is {value} ms: it ends transactional tasks, and sweeps, that take longer",
        remedy=FOR_THE_ROLE,
    ),
    Rule(
        name="jit_above_cost",
        wrong=lambda found: 0 <= float(found) < 10_000,
        grade=Grade.WARN,
        text="is {value}: statements of a millisecond are compiled for many of them first",
        remedy="Leave it at 100000, or set jit = off. The workers' own connections do that for themselves.",
    ),
)


def look() -> Findings:
    """Look at the settings that decide whether a commit holds, and whether our statements come to their end."""
    values = {row.name: row.value for row in sql.SETTINGS.rows(names=[*(rule.name for rule in RULES), "jit"])}
    if values.get("jit") == "off":
        values.pop("jit_above_cost", None)
    wrong = [rule for rule in RULES if rule.name in values and rule.wrong(values[rule.name])]
    for rule in wrong:
        yield Finding(
            rule.grade,
            "settings",
            f"{rule.name} {rule.text.format(value=values[rule.name])}",
            rule.remedy.format(name=rule.name),
            rule.name,
        )
    if not wrong:
        unlimited = values.get("idle_in_transaction_session_timeout") == "0"
        yield Finding(
            Grade.OK,
            "settings",
            "a commit is a commit, and nothing cuts our statements short"
            + (
                "; nothing ends a session that forgets its transaction (idle_in_transaction_session_timeout)"
                if unlimited
                else ""
            ),
        )
