"""The books of the storm see what they are kept for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tests.storm import books

START = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = UUID(int=1), UUID(int=2)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def read(runs, deliveries=(), kills=(), lives=()) -> books.Books:
    """Read books in which each run is (id, worker, pid, limited, allowed, only, began, ended)."""

    def execute(text: str) -> list:
        for name, rows in (
            ("pgbus_archive", lives),
            ("storm_deliveries", deliveries),
            ("storm_kills", kills),
            ("storm_runs", runs),
        ):
            if name in text:
                return list(rows)
        return [(at(1000),)]

    return books.read(execute)


def run(id, began, ended, *, pid=1, worker=ONE, limited="a", allowed=1, only=None):
    return (id, worker, pid, limited, allowed, only, at(began), None if ended is None else at(ended))


def claim(id, delivery, moment, worker=ONE):
    return (id, delivery, worker, at(moment))


CLAIMS = [claim(1, 1, 0), claim(2, 1, 0, TWO)]


def test_one_after_the_other_is_no_excess():
    seen = read([run(1, 1, 2), run(2, 2, 3, worker=TWO)], CLAIMS)
    assert seen.over_the_limit() == []
    assert seen.full() == 1


def test_two_at_once_are_one_too_many():
    (said,) = read([run(1, 1, 3), run(2, 2, 4, worker=TWO)], CLAIMS).over_the_limit()
    assert said.startswith("a: 2 at 2026-01-01 00:00:02")
    assert "allowed 1, the last is #2" in said
    assert read([run(1, 1, 3, allowed=2), run(2, 2, 4, worker=TWO, allowed=2)], CLAIMS).over_the_limit() == []


def test_a_run_without_an_end_lasts():
    assert read([run(1, 1, None), run(2, 900, 901, worker=TWO)], CLAIMS).over_the_limit()


def test_a_kill_ends_the_runs_that_its_process_had_begun():
    runs = [run(1, 1, None, pid=7), run(2, 6, 8, worker=TWO)]
    assert read(runs, CLAIMS, kills=[(7, at(5))]).over_the_limit() == []
    assert read(runs, CLAIMS, kills=[(8, at(5))]).over_the_limit()
    assert read(runs, CLAIMS, kills=[(7, at(0.5))]).over_the_limit()  # an earlier process of that number


def test_a_raised_delivery_number_fences_out():
    runs = [run(1, 1, 20), run(2, 6, 8, worker=TWO)]
    assert read(runs, [*CLAIMS, claim(1, 2, 5, None)]).over_the_limit() == []
    assert read(runs, [*CLAIMS, claim(1, 2, 7, None)]).over_the_limit()


def test_a_run_that_began_after_it_was_fenced_out_does_not_count():
    claims = [claim(1, 1, 0), claim(1, 2, 2, TWO)]
    assert read([run(1, 3, 9), run(1, 4, 8, worker=TWO)], claims).over_the_limit() == []


def test_a_uniqueness_key_has_one_run_and_one_job():
    runs = [run(1, 1, 3, limited=None, only="k"), run(2, 2, 4, worker=TWO, limited=None, only="k")]
    assert len(read(runs, CLAIMS).together()) == 1
    assert len(read([], lives=[("k", at(1), at(3)), ("k", at(2), at(4))]).together()) == 1
    assert read([], lives=[("k", at(1), at(3)), ("k", at(3), at(4)), ("j", at(1), at(2))]).together() == []
