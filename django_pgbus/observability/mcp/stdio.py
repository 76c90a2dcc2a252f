"""
Serving over stdin and stdout: for a program on this machine that starts the command itself.

Only the protocol goes to the real stdout. Whatever else is printed, by us, by code of the project that is imported on the
way, or by what that starts, goes to stderr.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

import anyio
from mcp.server.stdio import stdio_server

from django_pgbus.observability.mcp.server import build


def serve() -> None:
    """Answer until stdin is closed."""
    sys.stdout.flush()
    protocol = os.dup(1)
    os.dup2(2, 1)
    with open(protocol, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
        anyio.run(_serve, out)


async def _serve(out: TextIOWrapper) -> None:
    server = build()
    async with stdio_server(stdout=anyio.wrap_file(out)) as (questions, answers):
        await server.run(questions, answers, server.create_initialization_options())
