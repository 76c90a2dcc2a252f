"""The extra that the server needs: what to say where it is missing, instead of an ImportError from the depths."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from django.core.exceptions import ImproperlyConfigured

WANTED: Final = 2  # the major version whose interface is used


def require() -> None:
    """Raise ImproperlyConfigured, saying what to install, unless the SDK is there in a version that fits."""
    try:
        found = version("mcp")
    except PackageNotFoundError:
        found = ""
    if found.partition(".")[0] != str(WANTED):
        has = f"mcp {found} is installed" if found else "it is not installed"
        raise ImproperlyConfigured(
            f'The MCP server needs the package mcp, version {WANTED}; {has}. Run: pip install "django-pgbus[mcp]"'
        )
