"""
What a person may decide about one key: release its slots, discard who is parked for it, discard a uniqueness lock.

A key holds anything, so it travels in the query string of the confirmation, to which that page posts back, and never in
a path. What the person was shown travels in hidden fields; what came since is left alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.db.models import Model
from django.http import QueryDict
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus import concurrency
from django_pgbus.admin import words
from django_pgbus.admin.given import parsed_moment
from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.concurrency.models import Semaphore
from django_pgbus.concurrency.stats import KeyStats
from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.postgres.keys import StoredKey, why_unusable
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.results import parsed_id
from django_pgbus.uniqueness import keys as unique_keys
from django_pgbus.uniqueness import stats as uniqueness_stats
from django_pgbus.uniqueness.models import UniquenessKey
from django_pgbus.uniqueness.stats import LockStats
from django_pgbus.worker.waiting import Text

Told = tuple[str, int]  # a message, and its level


@dataclass(frozen=True, slots=True)
class Log:
    """Writes the admin's log for a person."""

    user: Any

    @property
    def by(self) -> str:
        """Return what the person is called."""
        return str(self.user.get_username())

    def __call__(self, about: Model, text: str) -> None:
        """Write one line about one thing."""
        LogEntry.objects.log_actions(self.user.pk, [about], CHANGE, text)


class KeyDecision(ABC):
    """
    One thing that may be done to a key.

    `find` returns what is shown and decided about, None if it is gone; `ask` what the confirmation says; `confirmed`
    whether a form comes from that confirmation; `carry_out` does it, logs it and yields what to tell.
    """

    name: ClassVar[str]
    permissions: ClassVar[tuple[str, ...]]
    label: ClassVar[Text]
    gone: ClassVar[Text]  # what is told where `find` finds nothing

    @abstractmethod
    def find(self, query: QueryDict) -> Any:
        """Return what is decided about, None if it is gone."""

    @abstractmethod
    def ask(self, found: Any) -> dict[str, Any]:
        """Return what the confirmation says."""

    @abstractmethod
    def carry_out(self, found: Any, form: QueryDict, log: Log) -> Iterator[Told]:
        """Do it, log it, and yield what to tell."""

    def confirmed(self, form: QueryDict) -> bool:
        """Return whether a form comes from the confirmation."""
        return form.get("post") == "yes"

    def key(self, found: Any) -> str:
        """Return the key that the confirmation shows."""
        return str(found.name or found.key)

    def template(self, found: Any) -> str:
        """Return the page that asks."""
        return "confirm.html"


class Release(KeyDecision):
    """Frees the slots of a key; of jobs that run only if exactly those were shown, with the sterner text."""

    name = "release"
    permissions = ("pgbus.view_semaphore", "pgbus.release_slot")
    label = _("Release")
    gone = _("Nothing was changed: no slot of this key is held any more.")

    def find(self, query: QueryDict) -> KeyStats | None:
        """Return the key if somebody holds a slot of it."""
        found = _limited(query)
        return found if found and found.slots else None

    def ask(self, found: KeyStats) -> dict[str, Any]:
        """Return the plain text, or the sterner one where a holder runs under a lease."""
        slots, running = found.slots.number, len(found.leased)
        number = {"number": words.count(found.slots)}
        button = ngettext("Release %(number)s slot", "Release %(number)s slots", slots) % number
        if not running:
            return {
                "title": ngettext("Release %(number)s slot?", "Release %(number)s slots?", slots) % number,
                "warning": _(
                    "No job that holds a slot of this key is running under a lease. The slots are freed and the next "
                    "parked jobs are let in, never more than the limit. A job whose slot is gone takes a new one when "
                    "it runs again, or is parked."
                ),
                "button": button,
            }
        return {
            "title": ngettext(
                "Release %(number)s slot although a job is running?",
                "Release %(number)s slots although jobs are running?",
                slots,
            )
            % number,
            "warning": ngettext(
                "%(number)s job that holds a slot of this key is probably still running: its lease is fresh. Release it, "
                "and another will start beside it. The running one is told to stop and its result will not count, but "
                "it may go on working until it hears of it. Its job goes back into the line and runs again from the start.",
                "%(number)s jobs that hold slots of this key are probably still running: their leases are fresh. Release "
                "them, and others will start beside them. The running ones are told to stop and their results will not "
                "count, but they may go on working until they hear of it. Their jobs go back into the line and run again "
                "from the start.",
                running,
            )
            % {"number": words.number(running)},
            "stern": True,
            "destroys": True,
            "button": button,
            "hidden": [("running", ",".join(sorted(found.leased)))],
        }

    def carry_out(self, found: KeyStats, form: QueryDict, log: Log) -> Iterator[Told]:
        """Free them, and say how many; runs that were not confirmed keep theirs."""
        shown = _runs(form.get("running", ""))
        kept = [run for run in _runs(",".join(found.leased)) if run not in shown]

        def transition() -> int:
            with transaction.atomic(using=database()):
                freed: int = concurrency.release(StoredKey(found.key), even_running=bool(shown), only=shown)
                if freed:
                    log(Semaphore(key=found.key, name=found.name), _released(freed))
                return freed

        freed = retrying(transition)
        if freed or not kept:
            yield _released(freed), messages.SUCCESS if freed else messages.WARNING
        if kept:
            text = ngettext(
                "%(number)s job is running under a lease that was not confirmed: it keeps its slot.",
                "%(number)s jobs are running under leases that were not confirmed: they keep their slots.",
                len(kept),
            )
            yield text % {"number": words.number(len(kept))}, messages.WARNING


class DiscardParked(KeyDecision):
    """Discards who is parked for a slot of a key, up to the highest id that was shown."""

    name = "discard_parked"
    permissions = ("pgbus.view_semaphore", "pgbus.discard_parked")
    label = _("Discard parked")
    gone = _("Nothing was changed: no job is parked for this key any more.")

    def find(self, query: QueryDict) -> KeyStats | None:
        """Return the key if somebody is parked for it."""
        found = _limited(query)
        return found if found and found.parked else None

    def ask(self, found: KeyStats) -> dict[str, Any]:
        """Return the text that names how many."""
        number = {"number": words.count(found.parked)}
        many = found.parked.number
        return {
            "title": ngettext("Discard %(number)s parked job?", "Discard %(number)s parked jobs?", many) % number,
            "warning": ngettext(
                "%(number)s job that is parked for this key is discarded and never runs. It is kept among the finished "
                "ones. Jobs that are enqueued after this page was opened stay, and so do those that hold a slot.",
                "%(number)s jobs that are parked for this key are discarded and never run. They are kept among the "
                "finished ones. Jobs that are enqueued after this page was opened stay, and so do those that hold a slot.",
                many,
            )
            % number,
            "button": ngettext("Discard %(number)s parked job", "Discard %(number)s parked jobs", many) % number,
            "destroys": True,
            "hidden": [("up_to", found.highest), ("seen_at", found.seen_at)],
        }

    def confirmed(self, form: QueryDict) -> bool:
        """Return whether a form says up to which id."""
        return super().confirmed(form) and parsed_id(form.get("up_to", "")) is not None

    def carry_out(self, found: KeyStats, form: QueryDict, log: Log) -> Iterator[Told]:
        """Discard them batch by batch; the log says before what was decided, and after what was done."""
        up_to, seen_at = parsed_id(form.get("up_to", "")), _time(form.get("seen_at", ""))
        about = Semaphore(key=found.key, name=found.name)
        log(about, gettext("Decided to discard the parked jobs up to job %(id)s.") % {"id": up_to})
        done = concurrency.discard_parked(StoredKey(found.key), up_to=up_to, seen_at=seen_at)
        text = ngettext("%(number)s parked job was discarded.", "%(number)s parked jobs were discarded.", done)
        text %= {"number": words.number(done)}
        log(about, text)
        yield text, messages.SUCCESS if done else messages.WARNING


class DiscardLock(KeyDecision):
    """Frees a uniqueness key that the very job or batch that was shown holds, which itself stays."""

    name = "discard_lock"
    permissions = ("pgbus.view_uniquenesskey", "pgbus.discard_lock")
    label = _("Discard lock")
    gone = _("Nothing was changed: the job or batch does not hold this lock any more.")

    def find(self, query: QueryDict) -> LockStats | None:
        """Return the lock if whoever was shown still holds it."""
        key = query.get("key", "")
        found = None if why_unusable(key) else uniqueness_stats.lock(key)
        return found if found and str(found.message) == query.get("job") else None

    def ask(self, found: LockStats) -> dict[str, Any]:
        """Return the warning that the job may then exist twice, or the batch run beside another."""
        job = {"id": found.message}
        title = gettext("Discard the lock of job %(id)s?")
        if found.of_batch:
            title = gettext("Discard the lock of batch %(id)s?")
            warning = gettext(
                "Batch %(id)s goes on as it is. With its key free another batch with this key may then run beside it: the "
                "same work may be done twice. Nothing undoes that."
            )
        elif found.strategy == UniquenessKey.Strategy.WHILE_EXECUTING:
            warning = gettext(
                "Job %(id)s goes on as it is. With its key free another job of this key may run beside it: the same "
                "work may then be done twice. Nothing undoes that."
            )
        else:
            warning = gettext(
                "Job %(id)s goes on as it is. With its key free the same job can be enqueued once more: it may then "
                "exist twice. Nothing undoes that."
            )
        return {
            "title": title % job,
            "warning": warning % job,
            "button": _("Discard lock"),
            "destroys": True,
        }

    def carry_out(self, found: LockStats, form: QueryDict, log: Log) -> Iterator[Told]:
        """Free the key; once that is committed, who waits for it is let in."""
        job = {"id": found.message}
        log_text = gettext("The lock that job %(id)s held was discarded.")
        done = gettext("The lock of job %(id)s was discarded.")
        gone = gettext("Job %(id)s did not hold the lock any more.")
        if found.of_batch:
            log_text = gettext("The lock that batch %(id)s held was discarded.")
            done = gettext("The lock of batch %(id)s was discarded.")
            gone = gettext("Batch %(id)s did not hold the lock any more.")

        def transition() -> bool:
            with transaction.atomic(using=database()):
                held = unique_keys.discard_lock(StoredKey(found.key), found.message)
                if held:
                    log(UniquenessKey(key=found.key, name=found.name), log_text % job)
                    let_in = partial(lifecycle.let_in, (), [found.key])
                    transaction.on_commit(let_in, using=database(), robust=True)
                return held

        if retrying(transition):
            yield done % job, messages.SUCCESS
        else:
            yield gone % job, messages.WARNING


RELEASE: Final = Release()
DISCARD_PARKED: Final = DiscardParked()
DISCARD_LOCK: Final = DiscardLock()
KEY_DECISIONS: Final[tuple[KeyDecision, ...]] = (RELEASE, DISCARD_PARKED, DISCARD_LOCK)


def _limited(query: QueryDict) -> KeyStats | None:
    key = query.get("key", "")
    return None if why_unusable(key) else concurrency_stats.key(key)


def _runs(text: str) -> frozenset[tuple[int, int]]:
    """Return the (message, delivery) of "message:delivery,..."; what is no such thing is left out."""
    pairs = (part.partition(":") for part in text.split(","))
    return frozenset((int(id), int(delivery)) for id, _, delivery in pairs if parsed_id(id) and parsed_id(delivery))


def _time(text: str) -> str | None:
    """Return a time as PostgreSQL can read it, None for anything else."""
    found = parsed_moment(text)
    return None if found is None else found.isoformat()


def _released(number: int) -> str:
    text = ngettext("%(number)s slot was released.", "%(number)s slots were released.", number)
    return text % {"number": words.number(number)}
