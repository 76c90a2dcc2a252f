"""What `pgbus_doctor` says of streams, and the cursor that it repairs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_pgbus import Stream, consume
from django_pgbus.models import Cursor, EntryException, RangeLease, Worker
from django_pgbus.streams import groups
from django_pgbus.worker import doctor, doctor_streams
from django_pgbus.worker.findings import Grade
from tests.sessions import execute
from tests.streams.following import Claimer, a_group, a_stream, nothing, nothing_declared

Look = Callable[..., list[tuple[str, str]]]
WORKER: dict[str, Any] = {
    "name": "w",
    "host": "h",
    "pid": 1,
    "version": "0",
    "queues": "",
    "capacity": 0,
    "state": "running",
    "lease": timedelta(seconds=30),
}


@pytest.fixture
def look(transactional_db: None) -> Iterator[Look]:
    """Return what is found, but for what other tests have left in the database."""

    def found(follows: str = "ledger/totals") -> list[tuple[str, str]]:
        Worker.objects.all().delete()
        if follows:
            Worker.objects.create(**WORKER, id=uuid.uuid4(), streams=follows)
        everything = list(doctor.examine())
        return [(one.grade, f"{one.text} | {one.remedy}") for one in everything if one.subject == "streams"]

    with nothing_declared():
        yield found


def only(found: list[tuple[str, str]], text: str) -> tuple[str, str]:
    (one,) = [(grade, said) for grade, said in found if text in said]
    return one


def log(stream: Stream) -> str:
    return f"pgbus_stream_{stream.id()}"


def claim(group: str = "totals", limit: int = 100) -> Claimer:
    claimer = Claimer(group=group, limit=limit)
    claimer.look()
    claimer.claim()
    return claimer


def test_what_is_as_it_should_be_is_one_line(look: Look) -> None:
    a_stream(entries=3)
    a_group()
    grade, said = only(look(), "streams, ")
    assert grade == Grade.OK
    assert "1 groups, at most 3 positions behind" in said


@pytest.mark.parametrize("follows", ["", "ledger/total", "other/totals, ledger/mail"])
def test_a_group_that_nobody_follows_is_named(look: Look, follows: str) -> None:
    a_stream(entries=3)
    a_group()
    grade, said = only(look(follows), "ledger/totals")
    assert grade == Grade.FAIL
    assert "is 3 positions behind, and no living worker follows it" in said
    assert "runworker --streams ledger/totals" in said
    assert only(look("ledger/mail, ledger/totals"), "streams, ")[0] == Grade.OK


def test_no_streams_at_all(look: Look) -> None:
    assert [grade for grade, _ in look()] == [Grade.OK]


def test_a_stream_that_was_not_made_is_named(look: Look) -> None:
    Stream("forgotten")
    grade, said = only(look(), "forgotten")
    assert grade == Grade.FAIL
    assert "is declared, and not in the database" in said
    assert "Run migrate" in said


def test_a_log_that_the_proof_cannot_rest_on_is_named(look: Look) -> None:
    ledger = a_stream()
    execute(f"ALTER SEQUENCE {log(ledger)}_position CACHE 10")
    grade, said = only(look(), "CACHE 10")
    assert grade == Grade.FAIL
    assert "claim nothing" in said


def test_partitions_that_are_missing_are_named(look: Look) -> None:
    ledger = a_stream(partition_size=10)
    execute(f"DROP TABLE {log(ledger)}_p1, {log(ledger)}_p2")
    grade, said = only(look(), "lacks")
    assert grade == Grade.WARN
    assert f"{log(ledger)} lacks 2 of its next partitions, the first from 10" in said


def test_a_group_that_refuses_is_named_with_the_way_out(look: Look) -> None:
    a_stream(entries=3)
    a_group()
    Cursor.objects.update(epoch="another/1")
    grade, said = only(look(), "refuses")
    assert grade == Grade.FAIL
    assert "ledger/totals refuses to work: its cursor belongs to another log" in said
    assert "--repair-cursor ledger/totals" in said


def test_a_group_that_no_code_declares_is_named(look: Look) -> None:
    a_stream()
    with nothing_declared():
        a_group(group="gone")
    grade, said = only(look(), "ledger/gone")
    assert grade == Grade.WARN
    assert "this code does not declare it" in said
    assert "ConsumerGroup.objects.get(stream__name='ledger', name='gone').delete()" in said


def test_a_group_that_no_worker_has_ever_followed_is_named(look: Look) -> None:
    a_stream()
    consume("ledger", group="mail")(nothing)
    grade, said = only(look(), "ledger/mail")
    assert grade == Grade.WARN
    assert "ledger/mail is declared, and no worker has ever followed it" in said
    assert "manage.py runworker --streams ledger/mail" in said
    assert not [said for _, said in look("ledger/mail") if "ledger/mail" in said], "a worker is about to write it"
    a_group(group="mail")
    assert not [said for _, said in look() if "ever followed" in said]


def test_a_stream_that_is_read_and_that_nobody_declares_is_named(look: Look) -> None:
    a_group(stream="legder", group="typo")
    grade, said = only(look(), "legder is read")
    assert grade == Grade.WARN
    assert 'legder is read by legder/typo, and no Stream("legder") is in this code' in said
    Stream("legder")
    assert not [said for _, said in look() if "is read by" in said]


def test_of_many_groups_the_first_are_looked_at_and_that_is_said(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgbus.streams.stats.OF_EACH", 1)
    a_stream()
    for name in ("mail", "totals"):
        a_group(group=name)
    assert "ledger has more than 1 groups; the others are not looked at" in only(look(), "more than")[1]


def test_a_paused_group_is_named(look: Look) -> None:
    a_stream(entries=2)
    a_group()
    groups.pause("ledger", "totals")
    assert "ledger/totals is paused, 2 positions behind" in only(look(), "paused")[1]


class TestLate:
    """A group is late when its oldest entry waits for long; the line says what it waits for."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor_streams, "LATE", -1.0)
        monkeypatch.setattr(doctor_streams, "OLD", -1.0)

    def test_one_of_which_nothing_is_claimed(self, look: Look) -> None:
        a_stream(entries=2)
        a_group()
        grade, said = only(look(), "ledger/totals")
        assert grade == Grade.WARN
        assert "is 2 positions behind, the oldest entry waits for 0 s" in said
        assert "more processes" in said

    def test_a_range_that_is_being_handled_and_one_whose_worker_is_silent(self, look: Look) -> None:
        a_stream(entries=2)
        a_group()
        worker = claim().worker
        assert f"1 to 2 are being handled by worker {worker}" in only(look(), "ledger/totals")[1]
        RangeLease.objects.update(until=timezone.now() - timedelta(seconds=1))
        assert "1 to 2 were claimed by a worker that has fallen silent" in only(look(), "ledger/totals")[1]

    def test_an_entry_that_has_failed(self, look: Look) -> None:
        a_stream(entries=2)
        a_group()
        claim()
        EntryException.objects.create(group_id=groups.find("ledger", "totals").id, position=1, attempts=2)
        RangeLease.objects.all().delete()
        assert "the entry at 1 has failed 2 times, and is to be tried again" in only(look(), "ledger/totals")[1]

    def test_a_prepared_transaction_that_holds_a_position(self, look: Look) -> None:
        ledger = a_stream()
        a_group()
        for text in ("BEGIN", f"INSERT INTO {log(ledger)} (payload) VALUES ('1')", "PREPARE TRANSACTION 'left behind'"):
            execute(text)
        try:
            ledger.append(2)
            said = only(look(), "ledger/totals")[1]
            assert "waits for position 1: the oldest transaction that may have it is the prepared transaction" in said
            assert "'left behind' of the database" in said
            assert "ROLLBACK PREPARED" in said
        finally:
            execute("ROLLBACK PREPARED 'left behind'")


def test_a_group_that_pins_what_is_past_its_retention_is_named(look: Look) -> None:
    ledger = a_stream(entries=2, retention=60)
    a_group()
    execute(f"UPDATE {log(ledger)} SET appended_at = appended_at - interval '1 hour'")
    found = look()
    grade, said = only(found, "retention since")
    assert grade == Grade.WARN
    assert "ledger keeps entries that are past its retention since totals has not handled them" in said


# --- repairing ----------------------------------------------------------------------------------------


def repair(*arguments: str) -> str:
    out = StringIO()
    call_command("pgbus_doctor", "--repair-cursor", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def refusing(transactional_db: None) -> Iterator[Claimer]:
    """A group that has claimed 2 of 3 entries, and belongs to another log now."""
    with nothing_declared():
        a_stream(entries=3)
        a_group()
        claimer = claim(limit=2)
        Cursor.objects.update(epoch="another/1", pending_head=99, settled_head=99)
        execute("UPDATE pgbus_stream_cursors SET pending_xid = '1'")
        yield claimer


def test_a_cursor_adopts_the_log_and_stays_where_it_is(refusing: Claimer) -> None:
    RangeLease.objects.all().delete()
    said = repair("ledger/totals")
    assert said.startswith("ledger/totals has adopted the log as it is, and goes on after 2. What comes up to 0 counts")
    row = Cursor.objects.get()
    assert (row.claimed, row.committed, row.pending_head, row.pending_xid) == (2, 0, 0, None)
    assert row.settled_head <= 2
    assert Claimer().poll() == [3]


def test_not_while_a_worker_holds_a_range(refusing: Claimer) -> None:
    with pytest.raises(
        CommandError, match=rf"worker {refusing.worker} holds a range of ledger/totals .* Stop it first"
    ):
        repair("ledger/totals")
    assert Cursor.objects.get().epoch == "another/1"
    assert "has adopted" in repair("ledger/totals", "--force")


def test_not_while_a_worker_follows_the_group(refusing: Claimer) -> None:
    RangeLease.objects.all().delete()
    worker = Worker.objects.create(**WORKER, id=uuid.uuid4(), streams="ledger/mail, ledger/totals")
    with pytest.raises(CommandError, match=r"ledger/totals is followed by w\. Stop it first"):
        repair("ledger/totals")
    Worker.objects.filter(pk=worker.pk).update(beat_at=timezone.now() - timedelta(minutes=1))
    assert "has adopted" in repair("ledger/totals")


def test_a_range_that_has_lapsed_is_nobodys(refusing: Claimer) -> None:
    RangeLease.objects.update(until=timezone.now() - timedelta(seconds=1))
    assert "has adopted" in repair("ledger/totals")


def test_a_group_that_works_is_left_alone(refusing: Claimer) -> None:
    repair("ledger/totals", "--force")
    execute("UPDATE pgbus_stream_cursors SET pending_xid = '7'")
    assert "does not refuse to work: there is nothing to repair" in repair("ledger/totals")
    assert Cursor.objects.get().pending_xid == 7


def test_what_a_repair_cannot_put_right_is_said(refusing: Claimer) -> None:
    execute(f"TRUNCATE {log(Stream('ledger'))} RESTART IDENTITY")
    said = repair("ledger/totals", "--force")
    assert (
        "It refuses still: it has claimed up to 2, and the log has handed out 0 positions only. Rewind it to 0" in said
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--repair-cursor", "ledger"], "'ledger' is no group of a stream; write ledger/totals"),
        (["--repair-cursor", "ledger/nobody"], "no stream 'ledger'|no group 'nobody'"),
        (["--force"], "--force belongs to --repair-cursor"),
    ],
)
def test_what_cannot_be_meant_is_refused(transactional_db: None, arguments: list[str], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        call_command("pgbus_doctor", *arguments, stdout=StringIO())


def test_a_group_without_a_cursor_is_no_group_that_can_be_repaired(refusing: Claimer) -> None:
    Cursor.objects.all().delete()
    with pytest.raises(CommandError, match="has no cursor"):
        repair("ledger/totals")
