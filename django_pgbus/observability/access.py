"""Who may read the numbers: whoever knows the token, and staff who may see the workers."""

from __future__ import annotations

import secrets
from enum import Enum
from typing import Final

from django.http import HttpRequest

from django_pgbus.conf import get_settings

VIEW: Final = "pgbus.view_worker"  # a superuser has it


class Access(Enum):
    """Whether a request may read, and why not."""

    GRANTED = 200
    UNKNOWN = 401  # says who it is with nothing, or with a wrong token
    REFUSED = 403  # is signed in, and may not


def access(request: HttpRequest) -> Access:
    """Return whether this request may read the numbers. A wrong token is refused whoever is signed in."""
    token = bearer(request)
    if token is not None:
        return Access.GRANTED if is_token(token, get_settings().METRICS_TOKEN) else Access.UNKNOWN
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return Access.UNKNOWN
    return Access.GRANTED if user.is_active and user.is_staff and user.has_perm(VIEW) else Access.REFUSED


def bearer(request: HttpRequest) -> str | None:
    """Return the token of the request, None if it names none."""
    scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def is_token(given: str, wanted: str | None) -> bool:
    """Return whether it is the token that is wanted, in the same time whatever is given; where none is, nothing is."""
    if not wanted:
        return False
    try:
        sent = given.encode("latin-1")  # as the bytes of a header are read
    except UnicodeEncodeError:
        return False
    return secrets.compare_digest(sent, wanted.encode())
