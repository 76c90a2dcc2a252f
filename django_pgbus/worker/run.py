"""`runworker`, from a plan to an exit code."""

from __future__ import annotations

import os

from django.db import OperationalError

from django_pgbus.worker import autoreload
from django_pgbus.worker.health import HealthServer
from django_pgbus.worker.plan import WorkerPlan
from django_pgbus.worker.readiness import wait_for_migrations
from django_pgbus.worker.shutdown import Demands, demands
from django_pgbus.worker.supervisor import Supervisor


class CannotStart(Exception):
    """The worker cannot start; the message says why and what to do."""


def work(plan: WorkerPlan) -> int:
    """
    Work as planned and return the exit code.

    Takes over the signals of this process meanwhile. Raises CannotStart.
    """
    if plan.process.reload:
        return autoreload.work(plan)
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise CannotStart("Worker processes read the settings anew: set DJANGO_SETTINGS_MODULE.")
    wishes = demands()
    wishes.install()
    health = None
    try:
        supervisor = Supervisor(plan, wishes=wishes)
        if plan.health is not None:
            health = _open_health(plan.health, supervisor)
        _await_migrations(wishes)
        return supervisor.run()
    finally:
        if health is not None:
            health.close()
        wishes.restore()


def _open_health(address: tuple[str, int], supervisor: Supervisor) -> HealthServer:
    try:
        health = HealthServer(address, supervisor.status)
    except OSError as error:
        raise CannotStart(f"The health endpoint cannot listen on port {address[1]}: {error.strerror}.") from error
    health.start()
    return health


def _await_migrations(wishes: Demands) -> None:
    try:
        missing = wait_for_migrations(wishes)
    except OperationalError as error:
        raise CannotStart(f"The database cannot be reached: {str(error).strip()}") from error
    if missing:
        raise CannotStart(f"The database lacks {', '.join(missing)}. Run `manage.py migrate`.")
