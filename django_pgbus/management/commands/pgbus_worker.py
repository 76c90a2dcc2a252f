"""The same as `runworker`, under a name that no other app uses (Channels ships a `runworker` too)."""

from django_pgbus.management.commands.runworker import Command

__all__ = ["Command"]
