"""`django_pgbus` can be imported, and its backend named in TASKS, before there are settings or apps."""

from __future__ import annotations

import subprocess
import sys

import pytest

import django_pgbus


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", django_pgbus.__all__)
def test_every_public_name_is_there(name):
    assert getattr(django_pgbus, name).__name__ == name
    assert name in dir(django_pgbus)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="has no attribute 'ensures'"):
        _ = django_pgbus.ensures
    with pytest.raises(ImportError):
        from django_pgbus import nothing_at_all  # noqa: F401


def test_importing_the_package_imports_no_part_of_it():
    code = "import sys, django_pgbus; print([name for name in sys.modules if name.startswith(('django_pgbus.', 'django.'))])"
    assert run(code) == "[]"


def test_a_task_can_be_declared_before_the_apps_are_ready():
    code = """
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}})
import sys, types
module = sys.modules["shop"] = types.ModuleType("shop")
exec('''
from django_pgbus import task
@task(max_attempts=3)
def pay(order_id): ...
''', module.__dict__)
from django.apps import apps
models = [name for name in sys.modules if name.startswith("django_pgbus") and name.endswith("models")]
print(module.pay.max_attempts, apps.apps_ready, models)
"""
    assert run(code) == "3 False []"
