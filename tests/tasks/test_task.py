"""A task carries its policy from the declaration to the worker, on every Django; a wrong declaration is refused there."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import django
import pytest

from django_pgbus import task
from django_pgbus.tasks.compat import InvalidTask, Task
from django_pgbus.tasks.lookup import find_task
from django_pgbus.tasks.policy import Policy, policy_of
from django_pgbus.tasks.task import PgbusTask, transactional_paths
from tests.tasks import examples
from tests.tasks.examples import Shop, aadd, add, import_order, slower_each_time

if django.VERSION >= (6, 0):
    from django.tasks import task as stock_task
else:
    from django_tasks import task as stock_task


def function(a, b=0, *, token=None): ...


async def afunction(a): ...


# --- declared -----------------------------------------------------------------------------------------


def test_a_bare_decorator_makes_a_task_with_the_defaults():
    assert isinstance(add, PgbusTask)
    assert (add.priority, add.queue_name, add.backend, add.run_after, add.takes_context) == (
        0,
        "default",
        "default",
        None,
        False,
    )
    assert policy_of(add) == Policy(max_attempts=5)
    assert add.call(1, b=2) == 3


def test_every_option_arrives():
    assert import_order.queue_name == "imports"
    assert import_order.priority == 7
    assert policy_of(import_order) == Policy(
        max_attempts=8, backoff=slower_each_time, timeout=300.0, transactional=True, sensitive=("token",)
    )
    assert import_order.module_path in transactional_paths
    assert add.module_path not in transactional_paths


def test_the_setting_s_attempts_apply_when_the_task_runs(settings):
    settings.PGBUS = {"MAX_ATTEMPTS": 2}
    assert policy_of(add).max_attempts == 2
    assert policy_of(import_order).max_attempts == 8


def test_a_task_of_django_s_own_decorator_runs_with_the_defaults():
    made = stock_task(function)
    assert policy_of(made) == Policy(max_attempts=5)
    plain = Task(
        func=function, priority=0, backend="default", queue_name="default", run_after=None, takes_context=False
    )
    assert type(plain) is Task
    assert policy_of(plain) == Policy(max_attempts=5)


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="Django 6.0 passes no options on")
def test_django_s_own_decorator_takes_the_options_too():
    made = stock_task(max_attempts=3, timeout=10)(function)
    assert isinstance(made, PgbusTask)
    assert (made.max_attempts, made.timeout) == (3, 10.0)


def test_a_function_in_a_class_can_be_a_task():
    assert Shop.close.module_path == "tests.tasks.examples.Shop.close"
    assert find_task(Shop.close.module_path) is Shop.close


def test_async_functions_can_be_tasks():
    assert aadd.call(1, 2) == 3


@pytest.mark.parametrize(
    "backend",
    ["immediate.ImmediateBackend", "dummy.DummyBackend"],
)
def test_the_options_are_kept_under_another_backend(settings, backend):
    home = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{home}.backends.{backend}"}}
    made = task(max_attempts=3)(function)
    assert policy_of(made).max_attempts == 3
    assert add.enqueue(1).args == [1]


# --- using --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_after", [timedelta(hours=1), datetime(2030, 1, 1, tzinfo=UTC)])
def test_using_changes_what_django_says_and_keeps_the_rest(run_after):
    later = import_order.using(run_after=run_after, priority=-5, queue_name="slow")
    assert (later.run_after, later.priority, later.queue_name) == (run_after, -5, "slow")
    assert policy_of(later) == policy_of(import_order)
    assert later.using().run_after == run_after
    assert import_order.run_after is None


def test_using_does_not_change_the_policy():
    with pytest.raises(TypeError, match="max_attempts"):
        import_order.using(max_attempts=1)
    with pytest.raises(FrozenInstanceError):
        import_order.max_attempts = 1


# --- copied -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "import_order", "aadd"])
def test_tasks_are_pickled_by_path(name):
    original = getattr(examples, name).using(priority=3, run_after=timedelta(1))
    again = pickle.loads(pickle.dumps(original))
    assert again == original
    assert type(again) is type(original)
    assert hash(again) == hash(original)


def test_copies_are_the_task_itself():
    assert copy.deepcopy({"task": import_order})["task"] is import_order
    assert copy.copy(import_order) is import_order


# --- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attemps": 3}, "task() has no option 'max_attemps'. Did you mean 'max_attempts'?"),
        ({"queue": "mail"}, "Did you mean 'queue_name'?"),
        ({"retry_backoff": 1}, "Did you mean 'backoff'?"),
        ({"zzz": 1}, "It has priority, queue_name, backend, takes_context, max_attempts, "),
        ({"run_after": timedelta(1)}, "write .using(run_after=...)"),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(options, message):
    with pytest.raises(TypeError) as caught:
        task(**options)
    assert message in str(caught.value)


def test_options_are_given_by_name():
    with pytest.raises(TypeError, match=r"task\(queue_name='mail'\)"):
        task("mail")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is a whole number from 1"),
        ({"max_attempts": True}, "max_attempts is a whole number from 1"),
        ({"max_attempts": 2.0}, "max_attempts is a whole number from 1"),
        ({"max_attempts": 2**31}, "max_attempts is a whole number from 1"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": "10"}, "timeout is a number of seconds above 0"),
        ({"timeout": timedelta(-1)}, "timeout is a number of seconds above 0"),
        ({"timeout": float("nan")}, "timeout is a number of seconds above 0"),
        ({"backoff": 10}, "for a constant write `lambda exception, task_result: 10`"),
        ({"backoff": afunction}, "an async function cannot be asked"),
        ({"backoff": lambda exception: 1}, "too many positional arguments"),
        ({"transactional": 1}, "transactional is True or False"),
        ({"sensitive": "token"}, "as in ('token',)"),
        ({"sensitive": ("tokn",)}, "which function() does not take. Did you mean 'token'?"),
        ({"sensitive": (1,)}, "sensitive holds names of arguments"),
        ({"sensitive": 1}, "sensitive is a tuple of names"),
        ({"queue_name": "a,b"}, "contains ','"),
        ({"priority": 101}, "priority must be a whole number between -100 and 100"),
        ({"takes_context": True}, "first argument of 'context'"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_declared(options, message):
    with pytest.raises(InvalidTask) as caught:
        task(**options)(function)
    assert message in str(caught.value)


def test_an_async_function_cannot_be_transactional():
    with pytest.raises(InvalidTask, match="An async function cannot be transactional"):
        task(transactional=True)(afunction)


def test_a_function_inside_a_function_is_refused():
    def inner(): ...

    with pytest.raises(InvalidTask, match="module level"):
        task(inner)


def test_a_task_is_no_function():
    with pytest.raises(InvalidTask, match="module level"):
        task(add)


# --- found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is not the path of a task"),
        ("add", "is not the path of a task"),
        ("..add", "is not the path of a task"),
        ("tests.tasks.examples.add()", "is not the path of a task"),
        ("nowhere.at.all", "there is no module 'nowhere'"),
        ("tests.tasks.gone.add", "tests.tasks has no 'gone'"),
        ("tests.tasks.examples.gone", "tests.tasks.examples has no 'gone'"),
        ("tests.tasks.examples.Shop.open", "tests.tasks.examples has no 'open'"),
        ("tests.tasks.examples.not_a_task", "there is a function, not a task"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_is_there(path, message):
    with pytest.raises(ImportError) as caught:
        find_task(path)
    assert message in str(caught.value)


def test_an_import_that_fails_inside_the_module_is_shown_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "breaks_on_import.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        find_task("breaks_on_import.add")
