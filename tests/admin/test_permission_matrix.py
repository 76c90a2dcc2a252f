"""
The matrix: every address of ours, asked with every method, by everybody.

The addresses are read from the URL patterns, so that a new page is in the matrix at once; what is expected follows from
one rule for each kind of page. A page of a kind that is not known fails loudly.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from html.parser import HTMLParser
from typing import Any, Final

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, transaction
from django.test import Client
from django.urls import get_resolver, path

from django_pgbus.models import BlockedExecution, Message
from tests.admin.permissions import DECISIONS, VIEWS
from tests.admin.rows import now
from tests.scale import pages
from tests.scale.pages import MONITORS, OURS, Examples, NoExample
from tests.scale.seed import analyze, seed

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

ROWS: Final = 200
LOGIN: Final = "/admin/login/?next="
METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete")
READING: Final = ("get", "head")
EXEMPT: Final = ("django_migrations", "django_session", "auth_", "django_content_type")  # say nothing about work


class Who(StrEnum):
    """Somebody who asks."""

    ANONYMOUS = "nobody"
    CUSTOMER = "a customer"  # is signed in and not of the staff, with every permission there is
    STAFF = "staff"  # without a permission
    VIEWER = "viewer"  # with the one to view, and no other
    DECIDER = "decider"  # with the one to decide, and not to view
    SUPERUSER = "superuser"


class Kind(StrEnum):
    """A kind of page, with a rule of its own."""

    INDEX = "index"
    APP = "app"
    LIST = "changelist"
    JOBS = "jobs"  # the list of all jobs, which knows what it is asked with
    DETAIL = "change"
    FORM = "form"  # the page of a row, by Django's view of a form
    MOVED = "moved"  # an address without its end
    LEADING = "leading"  # a page that stands elsewhere
    HISTORY = "history"
    NOBODYS = "nobody's"
    DECISION = "decision"
    HEALTH = "health"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A pattern: an address of it, its kind, and which permissions it takes."""

    name: str
    address: str
    kind: Kind
    view: str = ""
    decides: str = ""


# --- the rules ----------------------------------------------------------------------------------------


def expected(page: Page, who: Who, method: str) -> int:
    """Return the status of an answer."""
    if page.kind in {Kind.HEALTH, Kind.METRICS}:
        return _of_monitor(page.kind, who, method)
    if who in {Who.ANONYMOUS, Who.CUSTOMER}:
        return 302  # to the login
    sees = who in {Who.VIEWER, Who.SUPERUSER}
    match page.kind:
        case Kind.INDEX:
            return 200
        case Kind.MOVED:
            return 302
        case Kind.APP:
            return 200 if sees else 404
        case Kind.NOBODYS:
            return 403
        case Kind.FORM:
            return 200 if sees and method != "post" else 403  # nothing is edited here
        case Kind.DECISION:
            if who is not Who.SUPERUSER:
                return 403
            return 200 if method in {*READING, "post"} else 405  # a POST without confirmation is asked about
        case Kind.JOBS if sees and method not in READING:
            return 403 if method == "post" else 405  # a POST names an action that the person may take
        case Kind.LEADING if sees:
            return 302
    return 200 if sees else 403


def _of_monitor(kind: Kind, who: Who, method: str) -> int:
    if method not in READING:
        return 405
    if kind is Kind.HEALTH or who in {Who.VIEWER, Who.SUPERUSER}:
        return 200
    return 401 if who is Who.ANONYMOUS else 403


KINDS: Final = {
    "changelist": Kind.LIST,
    "change": Kind.FORM,
    "entry": Kind.DETAIL,
    "history": Kind.HISTORY,
    "add": Kind.NOBODYS,
    "delete": Kind.NOBODYS,
    "moved": Kind.MOVED,
    **{decision: Kind.DECISION for _, decision in DECISIONS},
}
SPECIAL: Final = {
    "pgbus_message_changelist": Kind.JOBS,
    "pgbus_streamlog_change": Kind.DETAIL,  # ours, where others are forms of Django's
    "pgbus_queuestate_change": Kind.LEADING,
}
OF_MONITORS: Final = {
    "api/metrics": Kind.METRICS,
    "api/health": Kind.HEALTH,
    "api/health/live": Kind.HEALTH,
    "api/health/ready": Kind.HEALTH,
}
OTHER_PERMISSION: Final = {("semaphore", "discard_lock"): "view_uniquenesskey"}


def every_pattern() -> Iterator[Page]:
    """Yield a page for each of our URL patterns."""
    examples = Examples()
    yield Page(name="index", address="/admin/", kind=Kind.INDEX)
    yield Page(name="app_list", address=f"/{OURS}", kind=Kind.APP, view="view_message", decides="discard_job")
    for route, pattern in pages._patterns(get_resolver(), ""):
        if route.startswith(MONITORS):
            kind = OF_MONITORS.get(route.removeprefix(MONITORS))
            if kind is None:
                raise NoExample(f"{route}: say in `OF_MONITORS` what kind of page it is")
            yield Page(name=route, address=f"/{route}", kind=kind, view="view_worker", decides="pause_queue")
        elif route.startswith(OURS):
            yield _page(route, pattern, next(iter(pages._of_pattern(route, pattern, examples))).address)


def _page(route: str, pattern: Any, address: str) -> Page:
    model = route.removeprefix(OURS).partition("/")[0]
    name = pattern.name or f"pgbus_{model}_moved"
    view = name.removeprefix(f"pgbus_{model}_")
    if view not in KINDS:
        raise NoExample(f"{name}: say in `KINDS`, or in `DECISIONS`, what kind of page it is")
    return Page(
        name=name,
        address=address,
        kind=SPECIAL.get(name, KINDS[view]),
        view=OTHER_PERMISSION.get((model, view), VIEWS[model]),
        decides=DECISIONS.get((model, view), "discard_job"),
    )


# --- who asks, and what is there ----------------------------------------------------------------------


class Person:
    """Somebody signed in, who gets the permissions of each page before it is asked."""

    def __init__(self, who: Who, **client: Any) -> None:
        self.who = who
        self.client = Client(raise_request_exception=False, **client)
        self.user: Any = None
        if who is not Who.ANONYMOUS:
            staff = {"is_staff": who is not Who.CUSTOMER, "is_superuser": who is Who.SUPERUSER}
            self.user = get_user_model().objects.create(username=who.value, **staff)
            self.client.force_login(self.user)

    def may(self, page: Page) -> None:
        """Give the permissions that this kind of person has for a page."""
        ours = Permission.objects.filter(content_type__app_label="pgbus")
        match self.who:
            case Who.CUSTOMER:
                self.user.user_permissions.set(ours)
            case Who.VIEWER:
                self.user.user_permissions.set(ours.filter(codename=page.view))
            case Who.DECIDER:
                self.user.user_permissions.set(ours.filter(codename=page.decides))


def contents() -> dict[str, str]:
    """Return a checksum of every table but those that say nothing about work."""
    with connection.cursor() as cursor:
        tables = [name for name in connection.introspection.table_names(cursor) if not name.startswith(EXEMPT)]
        assert {"pgbus_messages", "django_admin_log"} <= {*tables}
        sums = " UNION ALL ".join(
            f"SELECT '{name}', md5(coalesce(string_agg(t::text, chr(10) ORDER BY t::text), '')) FROM {name} AS t"
            for name in tables
        )
        cursor.execute(sums)
        return dict(cursor.fetchall())


@pytest.fixture(scope="module")
def seeded(django_db_setup: None, django_db_blocker: Any) -> Iterator[list[Page]]:
    """Fill the database for all tests here, as a shop has it, and yield the pages."""
    with django_db_blocker.unblock(), transaction.atomic():
        seed(ROWS)
        get_user_model().objects.create_superuser("ann")
        yield list(every_pattern())
        transaction.set_rollback(True)
    with django_db_blocker.unblock():
        analyze()  # estimates outlive what is rolled back


@pytest.fixture
def every(seeded: list[Page], db: None) -> Iterator[list[Page]]:
    """Yield the pages. That something is refused is no news."""
    log = logging.getLogger("django.request")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield seeded
    log.setLevel(level)


# --- the matrix ---------------------------------------------------------------------------------------


@pytest.mark.proves("every-decision-needs-its-permission")
@pytest.mark.parametrize("who", Who)
def test_every_page_answers_each_method_as_its_rule_says_and_changes_nothing(who: Who, every: list[Page]) -> None:
    person, before, wrong = Person(who), contents(), []
    outside = who in {Who.ANONYMOUS, Who.CUSTOMER}
    for page in every:
        person.may(page)
        for method in METHODS:
            response = getattr(person.client, method)(page.address)
            if response.status_code != expected(page, who, method):
                wrong.append((page.name, page.address, method, response.status_code, expected(page, who, method)))
            elif outside and not response.get("Location", LOGIN).startswith(LOGIN):
                wrong.append((page.name, page.address, method, response["Location"], LOGIN))
    assert wrong == [], "\n".join(map(str, wrong))
    assert contents() == before


@pytest.mark.parametrize("who", Who)
def test_a_confirmed_decision_is_carried_out_only_for_those_who_may(who: Who, every: list[Page]) -> None:
    ann, person, wrong = Client(), Person(who), []
    ann.force_login(get_user_model().objects.get(username="ann"))
    for page in decisions(every):
        form = confirmation(ann, page)
        person.may(page)
        with transaction.atomic():
            before = contents()
            status = person.client.post(page.address, form).status_code
            may = who is Who.SUPERUSER
            if (status, contents() != before) != (expected_of_confirmed(who), may):
                wrong.append((page.name, page.address, status, expected_of_confirmed(who)))
            transaction.set_rollback(True)
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.proves("every-decision-needs-its-permission")
def test_a_decision_takes_both_permissions_and_no_more(every: list[Page]) -> None:
    person, wrong = Person(Who.STAFF), []
    for page in decisions(every):
        both = Permission.objects.filter(content_type__app_label="pgbus", codename__in=(page.view, page.decides))
        assert len(both) == 2, page
        person.user.user_permissions.set(both)
        with transaction.atomic():
            before = contents()
            form = confirmation(person.client, page)
            if person.client.post(page.address, form).status_code != 302 or contents() == before:
                wrong.append((page.name, page.address))
            transaction.set_rollback(True)
    assert wrong == [], "\n".join(map(str, wrong))


def test_without_its_token_no_post_reaches_a_page(every: list[Page]) -> None:
    person, before, wrong = Person(Who.SUPERUSER, enforce_csrf_checks=True), contents(), []
    for page in every:
        status = person.client.post(page.address, {"post": "yes"}).status_code
        if status != (405 if page.kind in {Kind.HEALTH, Kind.METRICS} else 403):
            wrong.append((page.name, page.address, status))
    assert wrong == []
    assert contents() == before


@pytest.mark.proves("nothing-happens-before-the-confirmation")
def test_a_parameter_of_the_address_confirms_nothing(every: list[Page]) -> None:
    person, about = Person(Who.SUPERUSER), decisions(every)
    before = contents()
    for page in about:
        address = f"{page.address}{'&' if '?' in page.address else '?'}post=yes&up_to=999999&drops=yes"
        for method in METHODS:
            getattr(person.client, method)(address)
    assert contents() == before


def test_whoever_may_not_read_the_numbers_is_told_no_reason(every: list[Page]) -> None:
    for who in (Who.ANONYMOUS, Who.CUSTOMER, Who.STAFF, Who.DECIDER):
        person = Person(who)
        for page in every:
            if page.kind in {Kind.HEALTH, Kind.METRICS}:
                person.may(page)
                assert b"shop-01" not in (answer := person.client.get(page.address).content), page
                assert page.kind is Kind.METRICS or answer == b'{"ok": true}', (page, who)


def test_a_page_of_an_unknown_kind_fails(every: list[Page], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = admin.site._registry[Message].changelist_view
    for route, name in (("admin/pgbus/message/fresh/", "pgbus_message_fresh"), ("pgbus/api/fresh", "fresh")):
        monkeypatch.setattr(pages, "_patterns", lambda *args, r=route, n=name: [(r, path(r, shown, name=n))])
        with pytest.raises(NoExample, match="fresh"):
            list(every_pattern())


# --- a confirmation -----------------------------------------------------------------------------------


def decisions(every: list[Page]) -> list[Page]:
    """Return the decisions, about what they can change."""
    found = [page for page in every if page.kind is Kind.DECISION]
    assert len(found) == len(DECISIONS)
    running = Message.objects.filter(leased_until__isnull=False).earliest("pk").pk
    for_its_time = BlockedExecution.objects.filter(pk=Examples().parked.pk)
    for_its_time.update(due_at=now() + timedelta(hours=1))  # only such a one can run earlier
    to = {
        "pgbus_message_hand_back": lambda address: re.sub(r"/\d+/", f"/{running}/", address),
        "pgbus_streamlog_rewind": lambda address: f"{address}&to=beginning",
    }
    return [replace(page, address=to.get(page.name, str)(page.address)) for page in found]


def confirmation(client: Client, page: Page) -> dict[str, str]:
    """Return what the form of a confirmation sends."""
    form = Hidden.of(client.get(page.address).content.decode())
    assert form.get("post") == "yes", page
    return form


def expected_of_confirmed(who: Who) -> int:
    """Return the status of a confirmation that is sent."""
    return 302 if who in {Who.ANONYMOUS, Who.CUSTOMER, Who.SUPERUSER} else 403


class Hidden(HTMLParser):
    """Collects what a confirmation sends."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        field = dict(attrs)
        if tag == "input" and field.get("type") == "hidden" and field.get("name"):
            self.fields[field["name"] or ""] = field.get("value") or ""

    @classmethod
    def of(cls, text: str) -> dict[str, str]:
        parser = cls()
        parser.feed(text)
        return parser.fields
