"""Makes a worker's long times short, where a test asks for it: there is no setting for them."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings


class ProcessesConfig(AppConfig):
    name = "tests.processes"
    label = "pgbus_test_processes"

    def ready(self) -> None:
        if getattr(settings, "HARD_MARGIN", None) is not None:
            from django_pgbus.tasks import watch

            watch.HARD_MARGIN = settings.HARD_MARGIN
        if getattr(settings, "SWEEP_EVERY", None) is not None:
            from django_pgbus.worker import sweeps  # before the dispatcher takes them over

            sweeps.SWEEPS = tuple(sweep._replace(interval=settings.SWEEP_EVERY) for sweep in sweeps.SWEEPS)
