"""What each page asks for, beyond being staff."""

from __future__ import annotations

from typing import Final

VIEWS: Final = {
    "message": "view_message",
    "delayed": "view_delayed",
    "archived": "view_archived",
    "deadletter": "view_deadletter",
    "blockedexecution": "view_blockedexecution",
    "batch": "view_batch",
    "subscription": "view_subscription",
    "streamlog": "view_streamlog",
    "semaphore": "view_semaphore",
    "queuestate": "view_queuestate",
    "worker": "view_worker",
    "runcount": "view_runcount",
}
DECISIONS: Final = {
    ("message", "hand_back"): "hand_back_job",
    ("message", "discard"): "discard_job",
    ("delayed", "run_now"): "run_job_now",
    ("delayed", "discard"): "discard_job",
    ("deadletter", "redrive"): "redrive_dead_letter",
    ("deadletter", "discard"): "discard_dead_letter",
    ("blockedexecution", "run_now"): "run_job_now",
    ("blockedexecution", "discard"): "discard_job",
    ("subscription", "unbind"): "unbind_subscription",
    ("streamlog", "pause"): "pause_group",
    ("streamlog", "resume"): "pause_group",
    ("streamlog", "rewind"): "rewind_group",
    ("streamlog", "override"): "override_retention",
    ("streamlog", "redrive"): "redrive_entry",
    ("streamlog", "discard"): "discard_entry",
    ("streamlog", "redrive_dead"): "redrive_entry",
    ("streamlog", "discard_dead"): "discard_entry",
    ("semaphore", "release"): "release_slot",
    ("semaphore", "discard_parked"): "discard_parked",
    ("semaphore", "discard_lock"): "discard_lock",
    ("queuestate", "pause"): "pause_queue",
    ("queuestate", "resume"): "pause_queue",
}
