"""Connections that belong to one thread of a worker: out of the pool, and not shared with the code of tasks."""

from __future__ import annotations

import contextlib
from collections import deque
from copy import deepcopy
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgbus.conf import database, get_settings
from django_pgbus.postgres.statement import Statement

# With stale or empty statistics the planner sorts under the row locks or scans the whole line; these say
# what the statements of the line are written for. Never on a connection that the code of tasks uses.
PIN_PLANS = Statement(
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
# compiled for half a second.
SETTLED_IN = Statement(
    sql="""
    SELECT set_config('idle_session_timeout', '0', false),
           set_config('jit', 'off', false),
           set_config('default_transaction_isolation', 'read committed', false)
    """
)
IMPATIENT = Statement(
    sql="""
    SELECT set_config('statement_timeout', %(milliseconds)s::text, false),
           set_config('client_connection_check_interval', %(milliseconds)s::text, false)
    """
)


def own_connection(purpose: str, *, connect_timeout: int = 5, **options: Any) -> BaseDatabaseWrapper:
    """
    Return a connection that this thread now uses for the pgbus alias, not yet opened.

    It never comes from a pool: session settings made on it must not reach anybody else. Where LISTEN_DATABASE
    names a direct connection it is used, since prepared statements and settings do not survive a pooler.
    """
    alias = database()
    template = connections[get_settings().LISTEN_DATABASE or alias]
    settings = deepcopy(template.settings_dict)
    settings["OPTIONS"] = {
        **{key: value for key, value in settings["OPTIONS"].items() if key not in {"pool", "isolation_level"}},
        "server_side_binding": True,
        "prepare_threshold": 0,
        "connect_timeout": connect_timeout,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
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


def close(connection: BaseDatabaseWrapper) -> None:
    """Drop a connection whatever its state."""
    with contextlib.suppress(Exception):
        connection.close()
    connection.connection = None
