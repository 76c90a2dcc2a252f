"""Answer questions of machines over stdin and stdout."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    """Serve MCP until stdin is closed."""

    help = (
        "Answers questions of editors and agents about queues, jobs and locks (Model Context Protocol) over stdin and "
        "stdout, until stdin is closed. It only reads. Needs the extra `mcp`."
    )
    requires_system_checks = ()  # their findings would be printed between the answers

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve."""
        if find_spec("mcp") is None:
            raise CommandError('The MCP server needs an extra: pip install "django-pgbus[mcp]".')
        from django_pgbus.observability.mcp.stdio import serve

        serve()
