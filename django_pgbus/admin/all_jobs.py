"""
All jobs in one list, whatever state they are in, with the reason why each waits.

Its rows come from four tables, found by their ids (`tasks/stats.py`); a part that took too long is named, and the rest
is shown. What is chosen here may be in several places: a decision is carried out by the pages of these places, each for
the jobs that it fits, and the others are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.exceptions import NotRegistered
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import job_words, words
from django_pgbus.admin.base import within_bounds
from django_pgbus.admin.bounds import REACH, TookTooLongError, bounded
from django_pgbus.admin.decisions import LISTED, SEEN, DecidingAdmin, Decision
from django_pgbus.admin.event_filters import parsed_event
from django_pgbus.admin.given import parsed_moment, parsed_text
from django_pgbus.admin.job_tabs import ALL, QUICK, tabs
from django_pgbus.admin.lists import NEWEST
from django_pgbus.admin.shown import shown_path
from django_pgbus.admin.work import WorkAdmin
from django_pgbus.batches.models import Batch
from django_pgbus.concurrency.models import BlockedExecution, Semaphore
from django_pgbus.events import stats as event_stats
from django_pgbus.events.models import Subscription
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.queues.stats import LIMIT, pauses
from django_pgbus.tasks import stats
from django_pgbus.tasks.results import parsed_id
from django_pgbus.tasks.stats import AtKey, Job, Look
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Text

MODELS: Final[dict[str, type[Model]]] = {
    stats.LINE: Message,
    stats.DELAYED: Delayed,
    stats.PARKED: BlockedExecution,
    stats.DEAD: DeadLetter,
    stats.DONE: Archived,
}
NAMES: Final[dict[str, Text]] = {
    stats.LINE: _("the line"),
    stats.DELAYED: _("delayed jobs"),
    stats.PARKED: _("parked jobs"),
    stats.DEAD: _("dead letters"),
}
PER_PAGE: Final = 50
EACH: Final = 1_000  # milliseconds for one place, once all together took too long
ASKED: Final = frozenset({"q", "below"})  # whatever else is asked for is a filter of the line
ORDER: Final = ("run_now", "hand_back", "redrive", "discard")
LABELS: Final[dict[str, Text]] = {
    "run_now": _("Run selected jobs now"),
    "hand_back": _("Hand back selected jobs"),
    "redrive": _("Redrive selected dead letters"),
    "discard": _("Discard selected jobs"),
}


NOBODY: Final = AtKey()
Note = dict[str, Text]


@dataclass(slots=True, kw_only=True)
class Found:
    """What a page shows: ids, the highest first, what there is to say, and where the next page begins."""

    ids: Sequence[int]
    notes: list[Note]
    below: int | None = None
    key: AtKey = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The chosen jobs of one place, and who carries a decision out for them."""

    admin: DecidingAdmin
    decision: Decision
    jobs: Sequence[Job]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job as a confirmation names it."""

    text: str
    found_task: Any

    def __str__(self) -> str:
        return self.text


class AllJobsAdmin(WorkAdmin):
    """The page of all jobs."""

    def shows_all(self, request: HttpRequest) -> bool:
        """Return whether a request is for all jobs, and not for a part of the line."""
        return request.GET.keys() <= ASKED

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Return all jobs; with a filter of the line, that part of it."""
        return self.all_jobs(request) if self.shows_all(request) else super().changelist_view(request, extra_context)

    @within_bounds
    def all_jobs(self, request: HttpRequest) -> HttpResponse:
        """Return the page of all jobs, or what a decision about some of them leads to."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        match request.method:
            case "GET" | "HEAD":
                return self._list(request)
            case "POST":
                return self._decide_on_chosen(request, request.POST.get("action", ""))
        return HttpResponseNotAllowed(["GET", "HEAD", "POST"])

    # --- the list -----------------------------------------------------------------------------------------

    def _list(self, request: HttpRequest) -> HttpResponse:
        search = parsed_text(request.GET, "q")
        places = [place for place in stats.OPEN if self.link(request, MODELS[place])]
        below = parsed_id(request.GET.get("below", "")) or stats.NEWEST_OF_ALL
        found = self._searched(request, places, search, below) if search else self._newest(places, below)
        rows = list(self._rows(request, found)) if found.ids else []
        older = {**({"q": search} if search else {}), "below": found.below}
        context = {
            "title": _("Jobs"),
            "tabs": tabs(self, request, ALL),
            "search": words.showable(search),
            "rows": rows,
            "notes": found.notes,
            "actions": [(name, LABELS[name]) for name in ORDER if any(self._deciders(request, name).values())],
            "first_url": f"?{urlencode({'q': search})}" if search else self.url("changelist"),
            "is_first": below == stats.NEWEST_OF_ALL,
            "older_url": f"?{urlencode(older)}" if found.below else "",
            "finished_url": self.link(request, Archived, q=search) if search else "",
        }
        return self.page(request, "jobs.html", context)

    def _newest(self, places: Sequence[str], below: int) -> Found:
        look, notes = _gathered(lambda some: stats.newest(some, PER_PAGE + 1, below), places)
        ids = look.ids
        return Found(ids=ids[:PER_PAGE], notes=notes, below=ids[PER_PAGE - 1] if len(ids) > PER_PAGE else None)

    def _searched(self, request: HttpRequest, places: Sequence[str], search: str, below: int) -> Found:
        if (pk := parsed_id(search)) is not None:
            return Found(ids=[pk], notes=[])
        if (event := parsed_event(search)) is not None:
            copies = event_stats.copies(event, PER_PAGE)
            url = self.link(request, Subscription, q=event)
            leads: Note = {"text": _("This is the ID of an event: see what became of it."), "url": url}
            return Found(ids=[copy.id for copy in copies], notes=[leads] if url else [])
        key = self._at_key(request, search) if below == stats.NEWEST_OF_ALL else NOBODY
        look, notes = _gathered(lambda some: stats.named(search, some, PER_PAGE + 1, REACH, below), places)
        ids = look.ids
        notes = [*self._of_key(request, search, key), *notes]
        if look.unseen is not None:
            notes.append({"text": NEWEST % {"number": words.number(REACH)}, "url": ""})
        return Found(
            ids=sorted({*key.jobs, *ids[:PER_PAGE]}, reverse=True),
            notes=notes,
            below=ids[PER_PAGE - 1] if len(ids) > PER_PAGE else None,
            key=key,
        )

    def _at_key(self, request: HttpRequest, search: str) -> AtKey:
        """Return who has to do with a key, as far as this person may see it."""
        user: Any = request.user
        found = stats.at_key(search, PER_PAGE)
        unique = user.has_perm("pgbus.view_uniquenesskey")
        return AtKey(
            parked=found.parked if self.link(request, BlockedExecution) else (),
            slots=found.slots if user.has_perm("pgbus.view_semaphore") else (),
            locks=found.locks if unique else (),
            batches=found.batches if unique else (),
        )

    def _of_key(self, request: HttpRequest, search: str, key: AtKey) -> Iterator[Note]:
        """Yield who has to do with the key that was searched for, in words."""
        locks = self.link(request, Semaphore, q=search)
        if key.slots:
            told = {"number": _up_to(number := len(key.slots))}
            text = ngettext(
                "%(number)s job holds a slot of this key.", "%(number)s jobs hold a slot of this key.", number
            )
            yield {"text": text % told, "url": locks}
        if key.locks:
            yield {"text": gettext("Job %(id)s holds this uniqueness key.") % {"id": key.locks[0]}, "url": locks}
        for batch in key.batches:
            url = self.link(request, Batch, "change", quote(batch))
            yield {"text": gettext("Batch %(id)s holds this uniqueness key.") % {"id": batch}, "url": url}
        if key.parked:
            told = {"number": _up_to(number := len(key.parked))}
            text = ngettext("%(number)s job is parked for it.", "%(number)s jobs are parked for it.", number)
            yield {"text": text % told, "url": locks}

    def _rows(self, request: HttpRequest, found: Found) -> Iterator[dict[str, Any]]:
        visible = [place for place, model in MODELS.items() if self.link(request, model)]
        jobs = stats.jobs(found.ids, visible)
        now = waiting.situation()
        paths = {(job.task, job_words.of_event(job)) for job in jobs}
        codes = {(path, of_event): job_words.code_at(path, of_event=of_event) for path, of_event in paths}
        for job in jobs:
            code = codes[job.task, job_words.of_event(job)]
            stands = job_words.standing(job, now, has_code=code is not None)
            when, moment = job_words.when(job, now.pauses.now)
            yield {
                "id": str(job.id),
                "text": words.shortened(str(job), 200),
                "url": self.link(request, MODELS[job.place], "change", quote(job.id)),
                "path": shown_path(job.task),
                "found": code is not None,
                "topic": _topic(job),
                "queue": words.showable(job.queue),
                "standing": stands,
                "why": job_words.why(job, stands, code),
                "key": job_words.key(job),
                "key_url": self.link(request, Semaphore, q=job.key) if job.key else "",
                "holds": _holds(job, found.key),
                "error": job_words.error(job),
                "attempts": words.number(job.attempts),
                "when": when,
                "moment": moment,
                "selectable": job.place != stats.DONE,
            }

    # --- decisions ----------------------------------------------------------------------------------------

    def _deciders(self, request: HttpRequest, name: str) -> dict[str, tuple[DecidingAdmin, Decision] | None]:
        """Return who carries out a decision in each place, None where there is no such decision for this person."""
        found: dict[str, tuple[DecidingAdmin, Decision] | None] = {}
        for place in stats.OPEN:
            try:
                other: Any = self.admin_site.get_model_admin(MODELS[place])
            except NotRegistered:
                continue
            named = [one for one in getattr(other, "decisions", ()) if one.name == name and other.may(request, one)]
            found[place] = (other, named[0]) if named else None
        return found

    def _decide_on_chosen(self, request: HttpRequest, name: str) -> HttpResponse:
        deciders = self._deciders(request, name)
        if not any(deciders.values()):
            raise PermissionDenied
        ids = [pk for text in request.POST.getlist(ACTION_CHECKBOX_NAME)[:LIMIT] if (pk := parsed_id(text))]
        jobs = stats.jobs(ids, [place for place in deciders if self.link(request, MODELS[place])]) if ids else []
        if not jobs:
            text = gettext("Nothing was changed: none of the chosen jobs is here.")
            self.message_user(request, text if ids else gettext("No job was chosen."), messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        fitting = list(_fitting(jobs, deciders))
        unfit = len(jobs) - sum(len(one.jobs) for one in fitting)
        if request.POST.get("post") != "yes" and fitting:
            return self._ask_about_chosen(request, name, ids, fitting, unfit)
        for one in fitting:
            seen = parsed_moment(request.POST.get(SEEN, ""))
            told = one.admin.carry_out(request, one.decision, [job.id for job in one.jobs], seen)
            one.admin.tell(request, told)
        for number, tell in ((unfit, _unfit), (len(set(ids)) - len(jobs), _gone)):
            if number:
                self.message_user(request, tell(number), messages.WARNING)
        return HttpResponseRedirect(request.get_full_path())

    def _ask_about_chosen(
        self, request: HttpRequest, name: str, ids: Sequence[int], fitting: Sequence[Fitting], unfit: int
    ) -> HttpResponse:
        jobs = [job for one in fitting for job in one.jobs]
        warnings = dict.fromkeys(str(one.decision.warning) for one in fitting)
        first = fitting[0].decision
        rows = [
            Chosen(words.showable(str(job)), job_words.code_at(job.task, of_event=job_words.of_event(job)))
            for job in jobs[:LISTED]
        ]
        context = {
            "title": first.question(len(jobs)),
            "crumb": first.label,
            "warning": " ".join(warnings),
            "button": first.button(len(jobs)),
            "destroys": first.destroys,
            "aside": _unfit(unfit) if unfit else "",
            "rows": rows,
            "not_listed": words.number(len(jobs) - len(rows)) if len(jobs) > len(rows) else "",
            "hidden": [
                *((ACTION_CHECKBOX_NAME, id) for id in ids),
                ("action", name),
                (SEEN, pauses().now.isoformat()),
            ],
            "back": request.get_full_path(),
        }
        return self.page(request, "confirm.html", context)


def _fitting(jobs: Sequence[Job], deciders: dict[str, tuple[DecidingAdmin, Decision] | None]) -> Iterator[Fitting]:
    """Yield who carries out a decision for which of these jobs; those that it means nothing for are in none."""
    for place, decider in deciders.items():
        if decider is None:
            continue
        admin, decision = decider
        if fit := [job for job in jobs if job.place == place and decision.fits(job)]:
            yield Fitting(admin=admin, decision=decision, jobs=fit)


def _unfit(number: int) -> str:
    text = ngettext(
        "%(number)s of the chosen jobs is in no state for this, or you may not decide so: it is left as it is.",
        "%(number)s of the chosen jobs are in no state for this, or you may not decide so: they are left as they are.",
        number,
    )
    return text % {"number": words.number(number)}


def _gone(number: int) -> str:
    text = ngettext(
        "%(number)s of the chosen jobs had left before and was not touched.",
        "%(number)s of the chosen jobs had left before and were not touched.",
        number,
    )
    return text % {"number": words.number(number)}


def _topic(job: Job) -> Text:
    """Return the topic of a copy of an event, nothing for a task."""
    if not job_words.of_event(job):
        return ""
    return _("without a topic") if job.topic is None else words.showable(job.topic)


def _holds(job: Job, key: AtKey) -> str:
    if job.id in key.slots:
        return gettext("Holds a slot of this key.")
    return gettext("Holds this uniqueness key.") if job.id in key.locks else ""


def _up_to(number: int) -> str:
    return f"{words.number(number)}{'+' if number >= PER_PAGE else ''}"


def _gathered(read: Callable[[Sequence[str]], Look], places: Sequence[str]) -> tuple[Look, list[Note]]:
    """Return what is found in all places; if that takes too long in each by itself, and what is missing."""
    try:
        with bounded(QUICK):
            return read(places), []
    except TookTooLongError:
        looks: list[Look] = []
        notes: list[Note] = []
        for place in places:
            try:
                with bounded(EACH):
                    looks.append(read([place]))
            except TookTooLongError:
                text = gettext("This took too long, and is not shown: %(place)s.") % {"place": NAMES[place]}
                notes.append({"text": text, "url": ""})
        ids = {id for look in looks for id in look.ids}
        unseen = max((look.unseen for look in looks if look.unseen is not None), default=None)
        return Look(ids=sorted(ids, reverse=True)[: PER_PAGE + 1], unseen=unseen), notes
