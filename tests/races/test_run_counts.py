"""Whoever counts waits for nobody, two sweeps take different rows, and a reader sees each run once, whatever goes on."""

from __future__ import annotations

from unittest import mock

import pytest
from django.db import OperationalError, connection

from django_pgbus.insights import sql, sweeps
from django_pgbus.insights.recording import Tally, Verdict
from django_pgbus.insights.stats import Window, overall, totals
from django_pgbus.models import RunCount
from tests.insights.rows import a_delivery, a_row, in_spans, in_totals, rows, write
from tests.line import COMMITTED
from tests.sessions import PATIENCE, sessions

pytestmark = [COMMITTED, pytest.mark.races]


def total():
    return {runs.task: runs.succeeded for runs in totals()}


def test_a_flush_beside_a_sweep_waits_for_nothing_and_is_not_lost():
    a_row("5 minutes", task="a", number=3)
    with sessions(2) as (sweeper, worker):
        sweeper.open()
        assert sweeper.do(sweeps.sum_written) == 1
        assert worker.begin(write, "a", "b").result(PATIENCE) == 2
        assert total() == {"a": 4, "b": 1}
        sweeper.commit()
    assert total() == {"a": 4, "b": 1}
    assert overall(Window.HOUR).succeeded == 5


def test_a_reader_sees_each_run_once_before_and_after_the_commit():
    for n in range(4):
        a_row(f"{n + 2} minutes", number=5)
    spans, all_time = in_spans(), in_totals()
    with sessions() as sweeper:
        sweeper.open()
        assert sweeper.do(sweeps.sum_written) == 4
        assert (in_spans(), in_totals(), total()) == (spans, all_time, {"t": 20})
        sweeper.commit()
    assert (in_spans(), in_totals(), total()) == (spans, all_time, {"t": 20})


@pytest.mark.parametrize("ends", ["commit", "roll_back"])
def test_two_sweeps_at_once_count_nothing_twice(ends, monkeypatch):
    """They take different rows of the same task; the second cannot have the total that the first has taken."""
    monkeypatch.setattr(sweeps, "BATCH", 3)
    a_row("1 hour", "total", number=100)
    for n in range(6):
        a_row(f"{n + 2} minutes", number=1)
    with sessions(2) as (one, other):
        one.open()
        assert one.do(sweeps.sum_written) == 3
        other.open()
        assert other.begin(sweeps.sum_written).result(PATIENCE) == 3
        assert other.do(sweeps.sum_written) == 0
        assert total() == {"t": 106}
        getattr(one, ends)()
        assert total() == {"t": 106}
        other.commit()
    assert total() == {"t": 106}
    assert overall(Window.HOUR).succeeded == 6
    while sweeps.sum_written():
        pass
    a_row("2 minutes")
    assert (sweeps.sum_written(), total(), rows("total")) == (1, {"t": 107}, 1)


def test_two_sweeps_of_the_same_rows_take_them_once():
    for n in range(6):
        a_row(f"{n + 2} minutes")
    with sessions(2) as (one, other):
        counts = [session.begin(sweeps.sum_written) for session in (one, other)]
        assert sum(count.result(PATIENCE) for count in counts) == 6
    assert (total(), overall(Window.HOUR).succeeded) == ({"t": 6}, 6)


def a_tally():
    tally = Tally()
    tally.add(a_delivery(), Verdict.SUCCEEDED, 0.1)
    return tally


def test_a_locked_table_is_not_waited_for_and_nothing_is_lost():
    tally = a_tally()
    with sessions(2) as (person, worker):
        person.open()
        person.sql("LOCK TABLE pgbus_run_counts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            worker.do(tally.write)
        tally.add(a_delivery(), Verdict.FAILED, 0.1)
        person.roll_back()
        assert worker.do(tally.write) == 1
        assert worker.sql("SHOW lock_timeout") == [("0",)], "it was for that transaction only"
    assert RunCount.objects.values_list("succeeded", "failed").get() == (1, 1)


@pytest.mark.parametrize("statement", ["WAIT_AT_MOST", "COUNT"])
def test_what_certainly_was_not_written_is_kept(statement, monkeypatch):
    tally = a_tally()

    class Lost:
        def tuples(self, **params):
            raise OperationalError("server closed the connection unexpectedly")

        count = tuples

    with monkeypatch.context() as patched:
        patched.setattr(sql, statement, Lost())
        with pytest.raises(OperationalError):
            tally.write()
    assert len(tally) == 1
    assert tally.write() == 1
    assert total() == {"t": 1}


def test_what_may_have_been_written_is_not_written_again():
    """Its COMMIT took effect and was not answered: rather too few for once than twice for ever."""
    tally = a_tally()

    def lost_after_the_commit():
        commit = connection.connection.commit

        def unanswered():
            commit()
            raise OperationalError("server closed the connection unexpectedly")

        with mock.patch.object(connection.connection, "commit", unanswered), pytest.raises(OperationalError):
            tally.write()

    with sessions() as worker:
        worker.do(lost_after_the_commit)
        assert worker.do(tally.write) == 0
    assert total() == {"t": 1}
