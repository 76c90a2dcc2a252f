"""
The order in which rows are locked.

A transaction of ours that locks rows of several tables takes them in this order, and rows of one table by
ascending key. Rows it inserts itself do not count: nobody can wait for them but on the same key.
"""

from typing import Final

LOCK_ORDER: Final = {
    "messages": "Settling a message is the exactly-once claim; without it nothing else may happen.",
    "delayed": "A task waits here or stands in the line, never both: the same claim.",
    "dead_letters": "A redrive takes the task from here into the line: the same claim.",
    "archive": "Only retention deletes here, in transactions of its own.",
    "batches": "Who opens one again keeps it from being finished; who finishes it frees its key and waits for no task.",
    "batch_counts": "Folded into their batch by whoever has it locked; nobody else changes them.",
    "semaphores": "Decides between running and parking: whoever holds it may hand out slots of its key.",
    "semaphore_slots": "Who holds which slot.",
    "blocked_executions": "A parked task is chosen under the lock of its semaphore.",
    "uniqueness_keys": "Taken or freed for the message above.",
    "processed_events": "Who has done which event: taken, completed or released for the message above.",
    "event_counts": "Counts that a sweep sums, in transactions of its own.",
    "run_counts": "Counts of runs that a sweep sums, in transactions of its own.",
    "subscriptions": "Which handler gets which topics: changed when workers start, in transactions of their own.",
    "streams": "One row for each log; whoever makes or drops its partitions holds it meanwhile.",
    "stream_0": "Entries of a log (0 stands for its number): only retention deletes here, below what all groups have done.",
    "stream_groups": "Who reads a stream: declared when workers start, paused by people.",
    "stream_cursors": "Whoever claims or rewinds holds it: ranges are handed out one after the other.",
    "stream_leases": "Committing a range is the claim on its end; after everything its handler did, in its transaction.",
    "stream_keys": "Keys of a range that was leased above.",
    "stream_exceptions": "What failed of a range that was leased above.",
    "stream_routed": "What was routed past the mark of the cursor above.",
    "levels": "Where workers look; written after commit, in a transaction of its own.",
    "queue_states": "A person's decision about one queue.",
    "workers": "A worker's own row, written by its beat after its messages.",
    "election": "Who is the dispatcher: the last thing a beat does.",
}
