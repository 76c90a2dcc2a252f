"""An empty shop: each demonstration begins with one, so it can be repeated."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from django_pgbus.conf import get_settings
from django_pgbus.models import (
    Archived,
    Batch,
    BatchCount,
    BlockedExecution,
    DeadLetter,
    Delayed,
    EventCount,
    Message,
    ProcessedEvent,
    Semaphore,
    Slot,
    StreamLog,
    UniquenessKey,
    Worker,
)
from django_pgbus.streams import logs
from shop.importing import TITLE
from shop.jobs import HANDLERS, SHOP
from shop.models import (
    AuditEntry,
    Customer,
    DayTotal,
    Order,
    Payment,
    Receipt,
    Run,
    SalesDay,
    StockMovement,
    Welcome,
)
from shop.streams import ledger

ADMIN = "admin"
SHOP_MODELS = (Run, AuditEntry, DayTotal, SalesDay, StockMovement, Welcome, Receipt, Payment, Order, Customer)
TOPICS = "orders."


def empty_shop() -> None:
    """
    Delete the shop's rows, its jobs and copies of events in any state with what they hold, its ledger, imports and mails.

    Nobody may be working.
    """
    with transaction.atomic():
        for shop_model in SHOP_MODELS:
            shop_model.objects.all().delete()
        for job_model in (Message, Delayed, BlockedExecution):
            jobs = job_model.objects.filter(task__startswith=SHOP)
            for held in (Slot, UniquenessKey):
                held.objects.filter(message_id__in=jobs.values("id")).delete()
            jobs.delete()
        for ended_model in (Archived, DeadLetter):
            ended_model.objects.filter(task__startswith=SHOP).delete()
        ProcessedEvent.objects.filter(handler__startswith=HANDLERS).delete()
        EventCount.objects.filter(Q(name__startswith=HANDLERS) | Q(name__startswith=TOPICS)).delete()
        batches = Batch.objects.filter(description__startswith=TITLE)
        BatchCount.objects.filter(batch_id__in=batches.values("id")).delete()
        batches.delete()
        Semaphore.objects.exclude(key__in=Slot.objects.values("key")).delete()
        StreamLog.objects.filter(name=ledger.name).delete()  # with its groups
        logs.drop_left_behind()  # its entries
        ledger.ensure()
    shutil.rmtree(Path(settings.SHOP_MAIL_FOLDER), ignore_errors=True)


def living_workers() -> list[Worker]:
    """Return the workers of this database that have given a sign of life within a lease."""
    lease = timedelta(seconds=get_settings().VISIBILITY_TIMEOUT)
    return list(Worker.objects.filter(beat_at__gte=Now() - lease))


def ensure_admin() -> bool:
    """Return whether `admin` can log in with the password `admin`, making that user if there is none."""
    user, is_new = get_user_model().objects.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    if is_new:
        user.set_password(ADMIN)
        user.save()
    return bool(user.check_password(ADMIN))
