"""Groups by their names: those that are not there, those that are asked for in vain, and what is left alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_pgbus import StreamDoesNotExist, signals
from django_pgbus.models import Cursor
from django_pgbus.streams import groups
from tests.events.test_publishing import heard
from tests.running import run_burst
from tests.streams.following import a_group, a_stream, nothing_declared
from tests.streams.logs import declared  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("declared")]


@pytest.fixture(autouse=True)
def _only_these(declared: object) -> Iterator[None]:  # noqa: F811
    with nothing_declared():
        yield


@pytest.mark.parametrize("change", [groups.pause, groups.resume])
def test_a_group_that_is_not_there_cannot_be_paused_or_resumed(change):
    a_stream()
    a_group(group="mail")
    a_group(group="balances")
    told, _keep = heard(signals.group_paused)
    known = r"has no group 'post'\. A worker declares it .* This code has: ledger/balances, ledger/mail\.$"
    with pytest.raises(StreamDoesNotExist, match=known):
        change("ledger", "post")
    with pytest.raises(
        StreamDoesNotExist, match=r"'legder' has no group 'mail'\. A worker declares it when it starts\.$"
    ):
        change("legder", "mail")
    assert not told


def test_one_that_is_paused_already_is_no_error():
    a_stream()
    a_group()
    assert [groups.resume("ledger", "totals"), groups.pause("ledger", "totals")] == [False, True]
    assert [groups.pause("ledger", "totals"), groups.resume("ledger", "totals")] == [False, True]


def test_a_group_that_does_not_refuse_is_not_repaired():
    a_stream(entries=3)
    a_group()
    Cursor.objects.update(claimed=2, committed=1, settled_head=3)
    before = Cursor.objects.values().get()
    told, _keep = heard(signals.cursor_repaired)
    assert groups.repair("ledger", "totals") == (2, 1)
    assert Cursor.objects.values().get() == before
    assert not told
    Cursor.objects.update(epoch="another/1")
    assert groups.repair("ledger", "totals") == (2, 1)
    assert Cursor.objects.get().settled_head == 0
    assert len(told) == 1


# --- what a worker says at its start ----------------------------------------------------------------------


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    texts = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, text) for level, text in texts if text.startswith(("Follows", "--streams"))]


def test_a_worker_says_what_it_follows_and_what_it_does_not_find(caplog):
    a_group(group="mail")
    a_group(group="balances")
    a_group(stream="orders")
    unknown, _keep = heard(signals.groups_unknown)
    with caplog.at_level(logging.INFO, "django_pgbus"):
        run_burst(streams=("ledger/*", "ledger/nonesuch", "legder/*"))
    known = "there is ledger/balances, ledger/mail, orders/totals."
    assert said(caplog) == [
        ("INFO", "Follows ledger/balances, ledger/mail."),
        ("WARNING", f"--streams ledger/nonesuch names no group of this code; {known}"),
        ("WARNING", f"--streams legder names no group of this code; {known}"),
    ]
    assert [call["pattern"] for call in unknown] == ["ledger/nonesuch", "legder"]


def test_a_worker_of_all_groups_says_nothing_where_there_are_none(caplog):
    with caplog.at_level(logging.INFO, "django_pgbus"):
        run_burst(streams=("*/*",))
        assert said(caplog) == []
        run_burst(streams=("legder/*",))
    assert said(caplog) == [("WARNING", "--streams legder names no group of this code; there is none at all.")]
