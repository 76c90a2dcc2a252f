"""
A server for machines that ask questions: what waits, why, and who holds what (Model Context Protocol).

It only reads. Each call has a connection of its own, in a transaction that PostgreSQL lets write nothing, with a limit of
time; answers are bounded, in English, and made of the `stats.py` that admin and metrics read. Arguments, results, tracebacks
and data are redacted unless the server allows them (`PGBUS["MCP_PAYLOADS"]`) and the caller asks; what a task declares as
sensitive stays masked even then. Names and keys are told: without them nothing could be explained.

    manage.py pgbus_mcp          over stdin and stdout, for a program on this machine (`stdio.py`)
    asgi.with_mcp(application)   over HTTP, beside a Django application, with a bearer token

Needs the extra `mcp`; nothing else of pgbus imports this.
"""
