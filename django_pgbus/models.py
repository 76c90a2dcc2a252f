"""The models of all components, where Django looks for them."""

from django_pgbus.batches.models import Batch, BatchCount
from django_pgbus.concurrency.models import BlockedExecution, Semaphore, Slot
from django_pgbus.events.models import Subscription
from django_pgbus.idempotency.models import EventCount, ProcessedEvent
from django_pgbus.insights.models import RunCount
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Level, Message, QueueState
from django_pgbus.streams.models import (
    ConsumerGroup,
    Cursor,
    EntryException,
    KeyLease,
    RangeLease,
    RoutedEntry,
    StreamLog,
)
from django_pgbus.uniqueness.models import UniquenessKey
from django_pgbus.worker.models import Election, Worker

__all__ = [
    "Archived",
    "Batch",
    "BatchCount",
    "BlockedExecution",
    "ConsumerGroup",
    "Cursor",
    "DeadLetter",
    "Delayed",
    "Election",
    "EntryException",
    "EventCount",
    "KeyLease",
    "Level",
    "Message",
    "ProcessedEvent",
    "QueueState",
    "RangeLease",
    "RoutedEntry",
    "RunCount",
    "Semaphore",
    "Slot",
    "StreamLog",
    "Subscription",
    "UniquenessKey",
    "Worker",
]
