"""The storm of `tests/storm`, on a server of its own that keeps its promises to the disk."""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import django

os.environ["PGBUS_EMBEDDED"] = "0"  # the test settings start no server
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.processes.settings"  # those of the workers
os.environ.pop("DATABASE_URL", None)
django.setup()

from tests.benchmarks.server import SETTINGS  # noqa: E402
from tests.processes.harness import started  # noqa: E402
from tests.processes.server import own_server  # noqa: E402
from tests.storm.storm import Plan, Storm, checks  # noqa: E402

TOLD = 5  # of the violations


def storm(jobs: int, kills: int, restart: int, seed: int) -> dict[str, Any]:
    """Let it happen once and return what was seen, with the `checks` that must be 0."""
    place = Path(os.environ.get("BENCH_FOLDER", tempfile.gettempdir()))
    plan = Plan(jobs=jobs, kills=kills, restart=restart, seed=seed)
    with (
        tempfile.TemporaryDirectory(prefix="pgbus-storm-") as folder,
        own_server(place, {**SETTINGS, "shared_preload_libraries": ""}) as server,
        started(Path(folder), server.settings) as start,
    ):

        def restart_server() -> None:
            server.stop("immediate")
            server.start()

        found = Storm(plan, start, restart_server).run()
    said = [*found.over_the_limit[:TOLD], *found.together[:TOLD], *found.unbalanced[:TOLD]]
    rest = {name: value for name, value in asdict(found).items() if name not in checks(found)}
    return {**rest, "checks": checks(found), "said": said}
