"""A PostgreSQL that three hosts reach by network, and their workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.hosts.net import network
from tests.hosts.partition import Found, Partition, Plan
from tests.processes.harness import execute, started
from tests.processes.server import SETTINGS, own_server

# What the documentation recommends for the connections of jobs where workers and PostgreSQL are on different machines.
RECOMMENDED: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000",
}


def cut_one_off(plan: Plan, folder: Path, *, recommended: bool = False) -> Found:
    """Return what came of it, with the recommended settings for the connections of jobs or those of the system."""
    with network(3) as net, own_server(options={**SETTINGS, "listen_addresses": net.address}) as server:
        with (server.postgres.cluster / "pg_hba.conf").open("a") as rules:
            rules.write(f"\nhost all all {net.subnet} trust\n")
        execute("SELECT pg_reload_conf()")
        reached = {"HOST": net.address, "PORT": "5432"}
        options = RECOMMENDED if recommended else {}
        with started(folder, {**server.settings, **reached, "OPTIONS": options}) as start:
            return Partition(plan, net.hosts, start, folder).run()
