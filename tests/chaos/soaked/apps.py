"""Makes short what no setting shortens, so that it reaches its steady state within the soak."""

from __future__ import annotations

import os

from django.apps import AppConfig


class SoakedConfig(AppConfig):
    name = "tests.chaos.soaked"
    label = "soaked"

    def ready(self) -> None:
        """Keep the minutes of run counts as long as finished jobs: two hours would be longer than the soak."""
        from django_pgbus.insights import sweeps

        sweeps.MINUTES_FOR = f"{os.environ['SOAK_RETENTION']} seconds"  # type: ignore[misc]
