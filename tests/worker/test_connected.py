"""The sessions of a worker, whatever is set for all sessions of the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from django_pgbus.worker.connected import ConnectedLoop
from tests.line import COMMITTED
from tests.sessions import execute

pytestmark = COMMITTED


class Settings(ConnectedLoop):
    part = "test"
    seen: Any = None

    def work(self) -> float:
        names = ("idle_session_timeout", "default_transaction_isolation", "jit")
        self.seen = {name: execute(f"SHOW {name}")[0][0] for name in names}
        return 3600.0


@pytest.fixture
def loop() -> Iterator[Settings]:
    before = connections["default"]
    loop = Settings()
    yield loop
    loop.disconnect()
    connections["default"] = before


@pytest.mark.needs_session("it sets up a session of its own")
def test_settings_of_the_database_that_would_harm_it_do_not_hold(loop):
    name = connections["default"].settings_dict["NAME"]
    execute(f'ALTER DATABASE "{name}" SET idle_session_timeout = 700')
    execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable')
    execute(f'ALTER DATABASE "{name}" SET jit = on')
    try:
        loop.step()
    finally:
        execute(f'ALTER DATABASE "{name}" RESET ALL')
    assert loop.seen == {"idle_session_timeout": "0", "default_transaction_isolation": "read committed", "jit": "off"}


def test_a_session_that_a_hook_lost_and_django_opened_anew_is_made_ours_again(loop):
    """A hook's error is logged and nothing else: nobody tells the loop."""
    loop.step()
    ours = loop._connection
    with transaction.atomic():
        transaction.on_commit(lambda: (ours.close(), ours.ensure_connection()), robust=True)
    loop.seen = None
    loop.step()
    assert loop.seen["jit"] == "off"
    assert loop._connection is not ours
