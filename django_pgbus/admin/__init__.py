"""
The pages of pgbus in Django's admin: jobs, batches, events, streams, locks, queues, workers, insights.

The overview stands at the head of their list (`overview.py`). Registered with the default site; a site of your own gets
them by `register(site)`. All are read-only but for decisions that have their own permission, a confirmation and an entry
in the log (`base.py` holds the rules).
"""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.sites import AdminSite

from django_pgbus.admin.batches import BatchAdmin
from django_pgbus.admin.dead_letters import DeadLetterAdmin
from django_pgbus.admin.events import EventsAdmin
from django_pgbus.admin.insights import InsightsAdmin
from django_pgbus.admin.jobs import ArchivedAdmin, DelayedAdmin, MessageAdmin
from django_pgbus.admin.locks import LocksAdmin
from django_pgbus.admin.parked import ParkedAdmin
from django_pgbus.admin.queues import QueueAdmin
from django_pgbus.admin.streams import StreamsAdmin
from django_pgbus.admin.workers import WorkerAdmin
from django_pgbus.batches.models import Batch
from django_pgbus.concurrency.models import BlockedExecution, Semaphore
from django_pgbus.events.models import Subscription
from django_pgbus.insights.models import RunCount
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message, QueueState
from django_pgbus.streams.models import StreamLog
from django_pgbus.worker.models import Worker

__all__ = ["PAGES", "register"]

PAGES = {
    Message: MessageAdmin,
    Delayed: DelayedAdmin,
    BlockedExecution: ParkedAdmin,
    Archived: ArchivedAdmin,
    DeadLetter: DeadLetterAdmin,
    Batch: BatchAdmin,
    Subscription: EventsAdmin,  # and what becomes of events beside them
    StreamLog: StreamsAdmin,
    Semaphore: LocksAdmin,  # and the uniqueness keys beside them
    QueueState: QueueAdmin,
    Worker: WorkerAdmin,
    RunCount: InsightsAdmin,
}


def register(site: AdminSite) -> None:
    """Register every page with a site."""
    for model, page in PAGES.items():
        site.register(model, page)


register(admin.site)
