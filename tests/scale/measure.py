"""What a page takes: its status, milliseconds and queries."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.scale.pages import Page, every_page

TIMES: Final = 3
MOST_QUERIES: Final = 25
FRAMES: Final = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")  # around queries; they ask nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What became of a page; `slowest` is its slowest statement, with its milliseconds."""

    page: str
    address: str
    status: int
    expected: int
    milliseconds: float
    cpu: (
        float | None
    )  # milliseconds of work, here and in the database: what is left of the time on a machine that idles
    queries: int
    slowest: str
    most_milliseconds: float

    @property
    def complaint(self) -> str:
        """Return what is wrong with it, or nothing."""
        wrong = []
        if self.status != self.expected:
            wrong.append(f"status {self.status}, not {self.expected}")
        if self.milliseconds > self.most_milliseconds:
            wrong.append(f"over {self.most_milliseconds:g} ms")
        if self.queries > MOST_QUERIES:
            wrong.append(f"over {MOST_QUERIES} queries")
        return ", ".join(wrong)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "complaint": self.complaint}


def superuser() -> Client:
    """Return the client of a superuser, without middleware's help for errors."""
    user, _ = get_user_model().objects.get_or_create(username="scale", is_staff=True, is_superuser=True)
    client = Client(raise_request_exception=False)
    client.force_login(user)
    return client


def visit_all(times: int = TIMES) -> Iterator[Visit]:
    """Yield a visit of every page there is."""
    client, log = superuser(), logging.getLogger("django.request")
    level = log.level
    log.setLevel(logging.CRITICAL)  # what is refused is expected, or told
    try:
        for page in every_page():
            yield visit(client, page, times)
    finally:
        log.setLevel(level)


def visit(client: Client, page: Page, times: int = TIMES) -> Visit:
    """Ask for a page so often, and return what it took: the median time, the most queries."""
    took, asked, status = [], [], 0
    worked = _cpu()
    slowest = (0.0, "")
    for _ in range(times):
        ContentType.objects.clear_cache()
        connection.queries_log.clear()
        with CaptureQueriesContext(connection) as queries:
            began = time.perf_counter()
            status = client.get(page.address).status_code
            took.append((time.perf_counter() - began) * 1000)
        asked.append(sum(not query["sql"].startswith(FRAMES) for query in queries.captured_queries))
        slowest = max([slowest, *((float(query["time"]) * 1000, query["sql"]) for query in queries.captured_queries)])
    ended = _cpu()
    return Visit(
        page=page.name,
        address=page.address,
        status=status,
        expected=page.status,
        milliseconds=round(median(took), 1),
        cpu=None if worked is None or ended is None else round((ended - worked) * 1000 / times, 1),
        queries=max(asked),
        most_milliseconds=page.most_milliseconds,
        slowest=f"{slowest[0]:.0f} ms: {' '.join(slowest[1].split())}",
    )


def _cpu() -> float | None:
    """Return the seconds that this process and its session of the database have worked, None if that is elsewhere."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
