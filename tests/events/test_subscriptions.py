"""Who gets what stands in a table that workers write from their code: also with many of them, in many deployables."""

from __future__ import annotations

import sys

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DataError, connection, transaction
from django.test.utils import CaptureQueriesContext, modify_settings

from django_pgbus import publish, signals
from django_pgbus.apps import _declare_subscriptions
from django_pgbus.events import handlers as declared
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import autodiscover, find_handler, handlers
from django_pgbus.events.subscriptions import declare, stored, unbind
from django_pgbus.models import Message, Subscription
from tests import eventful, jobs
from tests.events import examples
from tests.events.examples import a_handler, many_handlers, nobody_subscribed, path_of  # noqa: F401
from tests.events.test_publishing import heard
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.running import run_burst
from tests.sessions import sessions

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nobody_subscribed")]


def table():
    return set(Subscription.objects.values_list("handler", "pattern"))


# --- declaring ----------------------------------------------------------------------------------------


def test_what_is_declared_stands_in_the_table():
    one = a_handler("app.one", "a.#", "*.b", queue="@mail", priority=-3, idempotent=True)
    assert declare([one, a_handler("app.two", "a.b.c")]) == 3
    rows = {row.pattern: row for row in Subscription.objects.all()}
    assert (rows["a.#"].handler, rows["a.#"].queue, rows["a.#"].priority, rows["a.#"].idempotent) == (
        "app.one",
        "@mail",
        -3,
        True,
    )
    assert (rows["a.#"].prefix, rows["a.#"].suffix) == ("a", "")
    assert (rows["*.b"].prefix, rows["*.b"].suffix) == ("", "b")
    assert (rows["a.b.c"].prefix, rows["a.b.c"].suffix) == ("a.b.c", "a.b.c")
    assert [(row.handler, row.pattern) for row in stored()] == [
        ("app.one", "*.b"),
        ("app.one", "a.#"),
        ("app.two", "a.b.c"),
    ]
    assert [row.idempotent for row in stored()] == [True, True, False]


def test_declared_again_nothing_is_new_and_it_is_known_when():
    declare([a_handler("app.one", "a")])
    before = Subscription.objects.get()
    assert declare([a_handler("app.one", "a")]) == 1
    after = Subscription.objects.get()
    assert (after.id, after.created_at) == (before.id, before.created_at)
    assert after.declared_at > before.declared_at


def test_what_changed_in_the_code_changes_in_the_table():
    declare([a_handler("app.one", "a", "b")])
    kept = Subscription.objects.get(pattern="b").id
    declare([a_handler("app.one", "b", "c.#", queue="@mail", priority=5, idempotent=True)])
    assert table() == {("app.one", "b"), ("app.one", "c.#")}
    row = Subscription.objects.get(pattern="b")
    assert (row.id, row.queue, row.priority, row.idempotent) == (kept, "@mail", 5, True)
    assert publish("a") == 0
    assert publish("c.x") == 1


@pytest.mark.parametrize("regex", ["[", "a{2,1}", "(", "*", "\\"])
def test_an_expression_that_cannot_be_read_is_refused_and_publishing_goes_on(regex):
    """One such row, written by hand, would fail every publish, and the transaction around it."""
    declare([a_handler("app.one", "a")])
    row = Subscription(handler="app.two", pattern="#", queue="@events", regex=regex)
    with pytest.raises(DataError, match="regular expression"), transaction.atomic():
        row.save()
    with pytest.raises(DataError, match="regular expression"), transaction.atomic():
        Subscription.objects.update(regex=regex)
    assert publish("a") == 1
    assert publish("b") == 0


def test_a_pattern_of_an_older_version_of_pgbus_is_compiled_anew():
    declare([a_handler("app.one", "a.#")])
    Subscription.objects.update(prefix="old", regex="old")
    declare([a_handler("app.one", "a.#")])
    assert publish("a.b") == 1


def test_those_of_other_deployables_stay():
    declare([a_handler("billing.one", "a"), a_handler("shop.one", "a"), a_handler("shop.one_more", "b")])
    declare([a_handler("shop.one", "c")])
    assert table() == {("billing.one", "a"), ("shop.one", "c"), ("shop.one_more", "b")}


def test_with_nothing_to_declare_nothing_is_asked():
    declare([a_handler("app.one", "a")])
    with CaptureQueriesContext(connection) as queries:
        assert declare([]) == 0
        assert declare(iter(())) == 0
    assert not queries.captured_queries
    assert table() == {("app.one", "a")}


def test_a_handler_given_twice_is_declared_once():
    one = a_handler("app.one", "a", "b")
    assert declare([one, a_handler("app.one", "a"), one]) == 2
    assert table() == {("app.one", "a"), ("app.one", "b")}


def test_a_thousand_handlers_take_three_statements():
    with CaptureQueriesContext(connection) as queries:
        many_handlers(1000, "a", "b.#")
    assert len([query for query in queries if "pgbus_subscriptions" in query["sql"]]) == 3
    assert Subscription.objects.count() == 2000


def test_with_nothing_given_it_is_what_this_process_has_loaded(monkeypatch):
    monkeypatch.setattr(subscriptions, "handlers", {path: handlers[path] for path in examples.PATHS})
    told, _keep = heard(signals.subscriptions_declared)
    number = declare()
    assert table() == {(path, pattern) for path in examples.PATHS for pattern in handlers[path].patterns}
    assert told == [{"count": number}]


# --- several at once ----------------------------------------------------------------------------------


@COMMITTED
def test_of_two_workers_that_start_at_once_the_second_waits_and_writes_the_same():
    both = [a_handler("app.one", "a", "b"), a_handler("app.two", "a")]
    with sessions(2) as (first, second):
        first.open()
        first.do(declare, both)
        waits = second.begin(declare, list(reversed(both)))
        second.wait_until_blocked()
        first.commit()
        assert waits.result(20) == 3
    assert table() == {("app.one", "a"), ("app.one", "b"), ("app.two", "a")}


@COMMITTED
def test_of_an_old_and_a_new_version_that_start_at_once_one_s_patterns_stand_not_both():
    declare([a_handler("app.one", "old"), a_handler("app.two", "old")])
    with sessions(2) as (new, old):
        new.open()
        new.do(declare, [a_handler("app.one", "new"), a_handler("app.two", "new")])
        waits = old.begin(declare, [a_handler("app.two", "old"), a_handler("app.one", "old")])
        old.wait_until_blocked()
        new.commit()
        assert waits.result(20) == 2
    assert table() == {("app.one", "old"), ("app.two", "old")}


@COMMITTED
def test_publishers_see_the_old_patterns_until_the_new_ones_are_there():
    declare([a_handler("app.one", "a")])
    with sessions() as worker:
        worker.open()
        worker.do(declare, [a_handler("app.one", "b")])
        assert (publish("a"), publish("b")) == (1, 0)
        worker.commit()
    assert (publish("a"), publish("b")) == (0, 1)


# --- removing -----------------------------------------------------------------------------------------


def test_one_pattern_or_all_of_a_handler_are_removed():
    told, _keep = heard(signals.subscription_removed)
    declare([a_handler("app.one", "a", "b", "c"), a_handler("app.two", "a")])
    assert unbind("app.one", "b", by="ann") == ["b"]
    assert table() == {("app.one", "a"), ("app.one", "c"), ("app.two", "a")}
    assert unbind("app.one") == ["a", "c"]
    assert table() == {("app.two", "a")}
    assert told == [
        {"handler": "app.one", "patterns": ["b"], "by": "ann"},
        {"handler": "app.one", "patterns": ["a", "c"], "by": ""},
    ]


def test_removing_what_is_not_there_changes_nothing_and_is_not_told():
    told, _keep = heard(signals.subscription_removed)
    declare([a_handler("app.one", "x")])
    for handler, pattern in (("app.one", "y"), ("app.two", None), ("app.on_", None), ("%", None), ("", "")):
        assert unbind(handler, pattern) == []
    assert table() == {("app.one", "x")}
    assert not told


def test_what_was_published_before_still_comes_and_a_start_subscribes_again():
    declare([a_handler("app.one", "a")])
    publish("a")
    unbind("app.one")
    assert Message.objects.count() == 1
    assert publish("a") == 0
    declare([a_handler("app.one", "a")])
    assert publish("a") == 1


# --- by migrate and by workers ------------------------------------------------------------------------


@pytest.fixture
def only_the_examples(monkeypatch):
    loaded = {path: handlers[path] for path in examples.PATHS}
    monkeypatch.setattr(subscriptions, "handlers", loaded)
    monkeypatch.setattr(declared, "autodiscover", dict)


@pytest.mark.usefixtures("only_the_examples")
def test_migrate_writes_them():
    call_command("migrate", "pgbus", verbosity=0)
    assert (path_of(examples.note), "examples.note.#") in table()


@pytest.mark.usefixtures("only_the_examples")
def test_migrate_of_another_database_or_back_to_before_events_writes_nothing():
    class Before:
        @staticmethod
        def get_model(label, name):
            raise LookupError

    with CaptureQueriesContext(connection) as queries:
        _declare_subscriptions(using="other", apps=apps)
        _declare_subscriptions(using="default", apps=Before)
    assert not queries.captured_queries
    _declare_subscriptions(using="default", apps=apps)
    assert table()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("only_the_examples")
def test_a_worker_writes_them_when_it_starts():
    assert run_burst("*, @*") == 0
    assert (path_of(examples.note), "examples.note.#") in table()


@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_subscriptions_cannot_be_written_works_all_the_same(monkeypatch):
    def fails(**kwargs):
        raise RuntimeError("no")

    monkeypatch.setattr("django_pgbus.events.subscriptions.declare", fails)
    failed, _keep = heard(signals.loop_failed)
    result = jobs.noop.enqueue()
    assert run_burst() == 0
    result.refresh()
    assert result.is_finished
    assert [str(call["exception"]) for call in failed] == ["no"]


@pytest.fixture
def three_apps(tmp_path, monkeypatch):
    """Apps of which the first two have handlers that cannot be imported, and the third one that can."""
    broken = {"ev_syntax": "this is no Python", "ev_exits": "import sys\nsys.exit(3)\n"}
    fine = "from django_pgbus import subscribe\n\n@subscribe('ev.fine')\ndef fine(event): ...\n"
    for name, text in {**broken, "ev_fine": fine}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "handlers.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(declared, "handlers", {})
    yield ["ev_syntax", "ev_exits", "ev_fine"]
    for name in [name for name in sys.modules if name.startswith("ev_")]:
        del sys.modules[name]


def test_handlers_that_cannot_be_imported_are_announced_and_keep_no_other_from_its_own(three_apps):
    told, _keep = heard(signals.handlers_not_loaded)
    with modify_settings(INSTALLED_APPS={"prepend": list(reversed(three_apps))}):
        autodiscover()
    assert sorted(call["app"] for call in told) == ["ev_exits", "ev_syntax"]
    assert {call["app"]: type(call["exception"]) for call in told}["ev_syntax"] is SyntaxError
    assert "ev_fine.handlers.fine" in declared.handlers


def test_an_app_without_handlers_is_no_fault():
    told, _keep = heard(signals.handlers_not_loaded)
    autodiscover()
    assert told == []


def test_a_handler_whose_module_exits_is_unknown():
    assert subscriptions.unknown(["tests.admin.exits.handler", eventful.PLAIN]) == ["tests.admin.exits.handler"]


def test_a_handler_that_was_renamed_runs_under_its_old_name_and_gets_each_event_once(monkeypatch):
    monkeypatch.setattr(eventful, "of_old", eventful.plain, raising=False)
    old = f"{eventful.__name__}.of_old"
    Subscription.objects.all().delete()
    Subscription.objects.create(handler=old, pattern="eventful.plain", queue="@events", regex=r"^\.eventful\.plain$")
    gone = Subscription.objects.create(handler="shop.handlers.gone", pattern="a", queue="@events", regex=r"^\.a$")
    handler, call = find_handler(old)
    assert (handler.path, call) == (eventful.PLAIN, eventful.plain)
    assert subscriptions.unknown([old, gone.handler]) == [gone.handler]
    subscriptions.declare()
    assert not Subscription.objects.filter(handler=old).exists()
    assert Subscription.objects.filter(handler=gone.handler).exists()
