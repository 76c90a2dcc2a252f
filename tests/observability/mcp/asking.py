"""Asking the tools, in this process."""

from __future__ import annotations

from typing import Any

from django_pgbus.observability.mcp.server import answer


def ask(tool: str, **given: Any) -> Any:
    """Return the answer of a tool."""
    answered = answer(tool, given)
    assert not answered.is_error, answered.content
    return answered.structured_content


def refusal(tool: str, **given: Any) -> str:
    """Return why a tool does not answer."""
    answered = answer(tool, given)
    assert answered.is_error, answered.content
    assert answered.structured_content is None
    (content,) = answered.content
    return str(content.text)
