"""
Connections that belong to one thread of a worker: out of the pool, and not shared with the code of tasks.

What such a session is set to is set once. Through a transaction pooler the session is not ours: others would get what we
set and lack what we prepared. There each statement carries its settings, and none is prepared.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from copy import deepcopy
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgbus.conf import database, get_settings
from django_pgbus.postgres.pooler import carrier_of
from django_pgbus.postgres.statement import Statement

# A host that is cut off sends nothing, not even that it has gone. Who waits for an answer learns it by these: 25 seconds
# after the last word, or when what was sent is not acknowledged for ten. Without them the system tries for a quarter of an
# hour, and the server keeps the session for two hours.
NOTICES: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000}
_SETTING: Final = re.compile(r"set_config\('(\w+)', (?:'(.*?)'|%\((\w+)\)s::text), false\)")


class SessionSettings(Statement):
    """A statement that sets what a session of ours is to have, by `set_config` and nothing else."""

    def hold(self, **params: str) -> None:
        """Let all statements on this thread's connection, which is open, run with them."""
        carrier = carrier_of(connections[database()])
        if carrier is None:
            self.tuples(**params)
        else:
            carrier.take({name: params.get(param, value) for name, value, param in _SETTING.findall(self.sql)})


# With stale or empty statistics the planner sorts under the row locks or scans the whole line; these say
# what the statements of the line are written for. Never on a connection that the code of tasks uses.
PIN_PLANS = SessionSettings(
    sql="""
    SELECT set_config('enable_seqscan', 'off', false),
           set_config('enable_bitmapscan', 'off', false),
           set_config('enable_sort', 'off', false),
           set_config('enable_hashjoin', 'off', false),
           set_config('enable_mergejoin', 'off', false),
           set_config('plan_cache_mode', 'force_generic_plan', false)
    """
)
# What somebody set for all sessions of the database or role: ours rest for long, and are written for READ COMMITTED. Their
# statements take less than a millisecond; before PostgreSQL 18 a pinned plan looks so expensive that each would be
# compiled for half a second. The server is to notice a host that was cut off as we do: meanwhile it keeps what a session has
# locked. (A session through a socket ignores that.)
SETTLED_IN = SessionSettings(
    sql="""
    SELECT set_config('idle_session_timeout', '0', false),
           set_config('jit', 'off', false),
           set_config('default_transaction_isolation', 'read committed', false),
           set_config('tcp_keepalives_idle', '10', false),
           set_config('tcp_keepalives_interval', '5', false),
           set_config('tcp_keepalives_count', '3', false),
           set_config('tcp_user_timeout', '10000', false)
    """
)
IMPATIENT = SessionSettings(
    sql="""
    SELECT set_config('statement_timeout', %(milliseconds)s::text, false),
           set_config('client_connection_check_interval', %(milliseconds)s::text, false)
    """
)


def own_connection(purpose: str, *, connect_timeout: int = 5, **options: Any) -> BaseDatabaseWrapper:
    """
    Return a connection that this thread now uses for the pgbus alias, not yet opened.

    It never comes from a pool of Django's, since it is set otherwise than others. Where LISTEN_DATABASE names a direct
    connection it is used.
    """
    alias = database()
    template = connections[get_settings().LISTEN_DATABASE or alias]
    settings = deepcopy(template.settings_dict)
    settings["OPTIONS"] = {
        **{key: value for key, value in settings["OPTIONS"].items() if key not in {"pool", "isolation_level"}},
        "server_side_binding": True,
        "prepare_threshold": None,
        "connect_timeout": connect_timeout,
        **NOTICES,
        "application_name": f"pgbus {purpose}",
        **options,
    }
    settings["CONN_MAX_AGE"] = None
    settings["CONN_HEALTH_CHECKS"] = False
    settings["ATOMIC_REQUESTS"] = False
    settings["AUTOCOMMIT"] = True
    connection = template.__class__(settings, alias)
    connection.queries_log = deque(maxlen=0)  # Under DEBUG too: nobody reads it, and it would grow.
    connections[alias] = connection
    return connection


def prepare_statements(connection: Any) -> None:
    """Let each statement be prepared when it is first used, unless a pooler would lend the session to others meanwhile."""
    if carrier_of(connection) is None:
        connection.connection.prepare_threshold = 0


def close(connection: BaseDatabaseWrapper) -> None:
    """Drop a connection whatever its state."""
    with contextlib.suppress(Exception):
        connection.close()
    connection.connection = None
