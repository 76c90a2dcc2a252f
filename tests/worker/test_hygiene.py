"""What a job leaves behind of its thread's connections, however they came to be, is not there for the next one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from django.db import connection, connections, transaction

from django_pgbus.worker.hygiene import tidy
from tests.line import COMMITTED

pytestmark = COMMITTED


def in_a_thread(job: Callable[[], Any], *, idle: bool = False) -> tuple[Any, Any]:
    """Return what a job returns in a fresh thread, and that thread's connection once it is tidied up."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(tidy, idle=False).result(30)
        left = thread.submit(job).result(30)
        thread.submit(tidy, idle=idle).result(30)
        after = thread.submit(lambda: connections["default"]).result(30)
        thread.submit(connections.close_all).result(30)
    return left, after


def leave_a_transaction_open() -> Any:
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connection.connection


@pytest.mark.parametrize("idle", [False, True])
def test_a_transaction_that_is_left_open_is_closed(idle: bool) -> None:
    left, after = in_a_thread(leave_a_transaction_open, idle=idle)
    assert left.closed
    assert not after.in_atomic_block


def test_one_that_took_the_place_of_another_is_looked_after() -> None:
    def replace() -> Any:
        connections["default"] = connection.copy()
        return leave_a_transaction_open()

    left, after = in_a_thread(replace)
    assert left.closed
    assert not after.in_atomic_block


def test_one_that_could_not_be_made_ready_is_looked_after() -> None:
    """Django keeps it, and announces it to nobody."""

    def connect_by_half() -> Any:
        half = mock.patch.object(type(connections["default"]), "init_connection_state", side_effect=OSError("half"))
        with half, pytest.raises(OSError, match="half"):
            connection.connect()
        return leave_a_transaction_open()

    left, after = in_a_thread(connect_by_half)
    assert left.closed
    assert not after.in_atomic_block


def test_one_that_stands_in_no_place_is_left_alone() -> None:
    others = []

    def open_another() -> None:
        others.append(connection.copy())
        others[0].inc_thread_sharing()
        others[0].set_autocommit(False)

    in_a_thread(open_another)
    assert not others[0].get_autocommit()
    others[0].close()
