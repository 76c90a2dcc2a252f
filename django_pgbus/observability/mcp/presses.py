"""What a person may press in the admin about a job, by where the job is; nothing is pressed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Press:
    """A decision that a person may take in the admin: on which page, with which permission, and what comes of it."""

    action: str
    page: str
    permission: str
    effect: str


RESUME: Final = Press(
    action="Resume",
    page="Queues",
    permission="pgbus.pause_queue",
    effect="Workers go on with what waits in the queue.",
)
DISCARD: Final = Press(
    action="Discard",
    page="Jobs",
    permission="pgbus.discard_job",
    effect="The job never runs again; one that runs is told to stop. A batch counts it as failed.",
)
RUN_NOW: Final = Press(
    action="Run now",
    page="Jobs",
    permission="pgbus.run_job_now",
    effect="It does not wait for its time any more: it goes to the end of the line of its queue, attempts as they are. "
    "Limits hold, and a paused queue stays paused.",
)
HAND_BACK: Final = Press(
    action="Hand back",
    page="Jobs",
    permission="pgbus.hand_back_job",
    effect="It is taken from its worker and goes back into the line, no attempt counted. Its run can store nothing any "
    "more, but may go on beside the new one until its worker hears of it: what it does outside of the database is then done "
    "twice.",
)
RELEASE: Final = Press(
    action="Release",
    page="Locks",
    permission="pgbus.release_slot",
    effect="Takes the slots of the key from holders that are not running; those that wait are let in. A holder that may "
    "still run is left alone unless told otherwise: another job would run beside it.",
)
DISCARD_PARKED: Final = Press(
    action="Discard parked",
    page="Locks",
    permission="pgbus.discard_parked",
    effect="Every job that is parked for the key never runs.",
)
DISCARD_LOCK: Final = Press(
    action="Discard the lock",
    page="Locks",
    permission="pgbus.discard_lock",
    effect="Frees the uniqueness key: those that wait are let in, and the job that held it may run beside another.",
)
REDRIVE: Final = Press(
    action="Redrive",
    page="Dead letters",
    permission="pgbus.redrive_dead_letter",
    effect="The job enters the line again with all its attempts; refused while another job holds its uniqueness key.",
)
DISCARD_DEAD: Final = Press(
    action="Discard",
    page="Dead letters",
    permission="pgbus.discard_dead_letter",
    effect="The job never runs again.",
)
