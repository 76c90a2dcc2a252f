"""Answer questions of machines over stdin and stdout."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from django_pgbus.observability.mcp.extra import require


class Command(BaseCommand):
    """Serve MCP until stdin is closed."""

    help = (
        "Answers questions of editors and agents about queues, jobs and locks (Model Context Protocol) over stdin and "
        "stdout, until stdin is closed. It only reads. Needs the extra `mcp`."
    )
    requires_system_checks = ()  # their findings would be printed between the answers

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve."""
        try:
            require()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        from django_pgbus.observability.mcp.stdio import serve

        serve()
