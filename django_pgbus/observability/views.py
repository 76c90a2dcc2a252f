"""
What monitors and orchestrators ask a web process.

The numbers are for the token `METRICS_TOKEN` and for staff (`access.py`). The health of a process is told to anybody as
yes or no, since probes carry no secrets; the reasons only to whoever may read the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from django_pgbus.observability.access import Access, access, bearer
from django_pgbus.observability.health import readiness

View = Callable[[HttpRequest], HttpResponse]

PLAIN: Final = "text/plain; charset=utf-8"
READING: Final = ("GET", "HEAD")


def endpoint(view: View) -> View:
    """
    Return a view that only reads, is kept by nobody, and stands outside of what a project does to its pages.

    Neither ATOMIC_REQUESTS (which needs the database before we can say that it is away), nor a login that is required
    everywhere, nor the check of a CSRF token (where 405 is the answer) comes before it.
    """

    @wraps(view)
    def answered(request: HttpRequest) -> HttpResponse:
        response = view(request) if request.method in READING else HttpResponseNotAllowed(READING)
        response["Cache-Control"] = "no-store"
        return response

    for alias in connections:
        answered = transaction.non_atomic_requests(using=alias)(answered)
    return csrf_exempt(login_not_required(answered))


@endpoint
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the numbers for Prometheus."""
    match access(request):
        case Access.UNKNOWN:
            refusal = HttpResponse("Send the token of PGBUS['METRICS_TOKEN'], or sign in.\n", PLAIN, status=401)
            refusal["WWW-Authenticate"] = 'Bearer realm="pgbus"'
            return refusal
        case Access.REFUSED:
            return HttpResponse("This takes a member of the staff who may view workers.\n", PLAIN, status=403)
    try:
        from django_pgbus.observability.prometheus import exposition
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        text = "prometheus-client is not installed. Install django-pgbus[prometheus].\n"
        return HttpResponse(text, PLAIN, status=501)
    content, content_type = exposition(request.headers.get("Accept", ""))
    return HttpResponse(content, content_type)


@endpoint
def live(request: HttpRequest) -> HttpResponse:
    """Return that this process answers; it asks nobody else."""
    return JsonResponse({"ok": True})


@endpoint
def ready(request: HttpRequest) -> HttpResponse:
    """Return whether this process may get requests."""
    found = readiness()
    # Who is signed in stands in the database, which may be away.
    knows = (found.ok or bearer(request) is not None) and access(request) is Access.GRANTED
    return JsonResponse(found.details() if knows else {"ok": found.ok}, status=200 if found.ok else 503)
