"""
Markup in every text that a user or a project can write, on every page there is.

The columns are read from the database and the pages from the URL patterns, so that neither a new column nor a new page is
forgotten. What pages tell after a decision is in `test_markup.py` too, with what is special about each.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import F
from django.test import Client

from django_pgbus.models import StreamLog
from tests.admin.markup import ESCAPED, harmless
from tests.admin.rows import now
from tests.scale import pages
from tests.scale.pages import Examples, Page, every_page
from tests.scale.seed import seed

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

ROWS: Final = 200
ANN: Final = """<b title="'a&b">"""  # a person, who is named on every page
EVIL: Final = """"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp"""
HALF: Final = {"task", "handler"}  # the others can be imported, so that their arguments are shown
# Words of ours, which the code chooses and compares.
OURS: Final = {
    "backend": "an alias of the settings",
    "epoch": "of the log",
    "office": "of an election",
    "outcome": "a choice",
    "prefix": "of a pattern",
    "reason": "a choice",
    "regex": "of a pattern",
    "resolution": "a choice",
    "state": "a choice",
    "status": "a choice",
    "strategy": "a choice",
    "suffix": "of a pattern",
    "waits_for": "a choice",
}
TEXTS: Final = """
    SELECT attrelid::regclass::text, attname, format_type(atttypid, NULL),
           information_schema._pg_char_max_length(atttypid, atttypmod)
    FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid
    WHERE relname LIKE 'pgbus\\_%%' AND relkind IN ('r', 'p') AND NOT relispartition AND attnum > 0 AND NOT attisdropped
      AND format_type(atttypid, NULL) IN ('text', 'character varying', 'json', 'jsonb')
    ORDER BY 1, 2
"""
DOCUMENTS: Final = {
    "payload": {"args": [EVIL], "kwargs": {EVIL: {EVIL: [EVIL]}}, "payload": {EVIL: EVIL}, "headers": {EVIL: EVIL}},
    "errors": [
        {"exception": EVIL, "traceback": f"Traceback\n{EVIL}\nshop.{EVIL}: {EVIL}", "worker": EVIL, "attempt": 1}
    ],
    "properties": {EVIL: [EVIL]},
    "callbacks": {"on_finish": {"task": EVIL, "queue": EVIL, "priority": 0, "backend": "default", "due_in": 0.0}},
    "result": {EVIL: EVIL},
}
KEYS: Final = ("key", "name")  # of what constrains a job


class EvilExamples(Examples):
    """What to ask, where every name has markup before it."""

    @property
    def stream(self) -> StreamLog:  # type: ignore[override]
        """Return the stream with the most entries."""
        return StreamLog.objects.get(name=f"{EVIL}ledger")

    def given(self) -> dict[str, Any]:
        """Return a value for each filter that offers none to choose from."""
        return {**super().given(), "queue": f"{EVIL}q001"}

    def of_pages(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the queries; each list is searched for markup, too."""
        asked = {
            name: {
                label: {key: self._evil(key, value) for key, value in query.items()} for label, query in found.items()
            }
            for name, found in super().of_pages().items()
        }
        for name in ("semaphore", "streamlog", "subscription"):
            asked[f"pgbus_{name}_changelist"]["searched for markup"] = {"q": EVIL}
        return asked

    def _evil(self, key: str, value: Any) -> Any:
        return f"{EVIL}{value}" if key in {"group", "queue"} else value

    def objects(self, model: Any) -> dict[str, Any]:
        """Return the rows to look at."""
        name = model._meta.model_name
        if name == "queuestate":
            return {"paused": quote(f"{EVIL}q007")}
        if any(field.name == "task" for field in model._meta.fields):
            rows = model._default_manager.order_by("pk").annotate(half=F("pk") % 2)
            return {label: rows.filter(half=half).first().pk for half, label in enumerate(("gone", "importable"))}
        return super().objects(model)


def plant() -> list[str]:
    """Write markup into every text that is not ours, and return which."""
    with connection.cursor() as cursor:
        cursor.execute(TEXTS)
        columns = [found for found in cursor.fetchall() if found[1] not in OURS]
        for table, column, kind, longest in columns:
            if column == "constraints":
                for key in KEYS:
                    cursor.execute(
                        f"UPDATE {table} SET constraints = replace(constraints::text, %s, %s)::{kind}",
                        [f'"{key}" : "', f'"{key}" : {json.dumps(EVIL)[:-1]}'],
                    )
            elif column in DOCUMENTS:
                document = json.dumps(DOCUMENTS[column])
                cursor.execute(f"UPDATE {table} SET {column} = %s::{kind} WHERE {column} IS NOT NULL", [document])
            else:
                which = "AND id %% 2 = 0" if column in HALF and table != "pgbus_processed_events" else ""
                cursor.execute(
                    f"UPDATE {table} SET {column} = left(%s || {column}, %s) WHERE {column} IS NOT NULL {which}",
                    [EVIL, longest or 10_000],
                )
    return [f"{table}.{column}" for table, column, *_ in columns]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A superuser with markup in their name, in a database that is full of it."""
    seed(ROWS)
    planted = plant()
    assert {"pgbus_messages.task", "pgbus_streams.name", "pgbus_workers.host", "pgbus_archive.note"} <= {*planted}
    monkeypatch.setattr(pages, "Examples", EvilExamples)
    ann = get_user_model().objects.create_superuser(ANN)
    client = Client()
    client.force_login(ann)
    return client


def of_admin() -> list[Page]:
    return [page for page in every_page() if page.address.startswith("/admin/") and page.status == 200]


@pytest.mark.proves("nothing-from-outside-is-markup")
def test_on_every_page(client: Client) -> None:
    told = {}
    for page in of_admin():
        text = harmless(client, page.address)
        assert ANN not in text, page.name
        assert "&amp;lt;" not in text, f"{page.name} escapes twice"
        told[page.name] = ESCAPED in text
    may_be = ("searched", "history", "index")  # finds nothing, or nobody has done anything yet
    silent = [name for name, shown in told.items() if not shown and not any(part in name for part in may_be)]
    assert silent == []


def test_in_what_is_asked_for(client: Client) -> None:
    """What stands in an address comes from outside, too."""
    names = (
        "q",
        "queue",
        "key",
        "batch",
        "event",
        "state",
        "job",
        "window",
        "order",
        "group",
        "stream",
        "entry",
        "to",
        "o",
    )
    query = urlencode(dict.fromkeys((*names, "position", "p", "below", "task", "after", "e", "all"), EVIL))
    for path in sorted({page.address.partition("?")[0] for page in of_admin()}):
        for asked in (query, urlencode({"q": EVIL}), urlencode({"queue": EVIL, "window": "24h"})):
            harmless(client, f"{path}?{asked}", status={200, 400})


@pytest.mark.proves("nothing-from-outside-is-markup")
def test_in_what_a_decision_tells_and_the_log_keeps(client: Client) -> None:
    for page in of_admin():
        if page.name.split()[0].endswith(("_changelist", "_change", "_history", "_entry")) or "pgbus" not in page.name:
            continue
        response = client.post(page.address, {"post": "yes", "up_to": 99999, "drops": "yes", "after": 0, "seen": now()})
        assert response.status_code in {200, 302}, page
        if response.status_code == 302:
            harmless(client, response["Location"])
    harmless(client, "/admin/")  # recent actions
