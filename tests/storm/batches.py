"""
The batches of the storm: every other chunk of jobs is one, with all three callbacks.

At every look, which is one snapshot, the members that are somewhere must be those that the counts call outstanding; in the
end each batch has called back once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tests.storm import tasks
from tests.storm.books import Execute

CALLBACKS: Final[dict[str, Any]] = {
    "on_finish": tasks.batch_finished,
    "on_success": tasks.batch_succeeded,
    "on_failure": tasks.batch_failed,
}
# In one statement, and so by one snapshot: how many members stand somewhere, and how many are outstanding.
UNBALANCED: Final = """
    SELECT batch.id, batch.total + counted.added - batch.succeeded - batch.failed - counted.settled, live.members
    FROM pgbus_batches AS batch
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(one.added), 0) AS added, coalesce(sum(one.succeeded + one.failed), 0) AS settled
        FROM pgbus_batch_counts AS one
        WHERE one.batch_id = batch.id
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM pgbus_messages WHERE batch_id = batch.id)
             + (SELECT count(*) FROM pgbus_delayed WHERE batch_id = batch.id)
             + (SELECT count(*) FROM pgbus_blocked_executions WHERE batch_id = batch.id) AS members
    ) AS live
    WHERE live.members <> batch.total + counted.added - batch.succeeded - batch.failed - counted.settled
       OR (batch.finished_at IS NOT NULL AND live.members > 0)
"""
ENDED: Final = "SELECT id, total, succeeded, failed, finished_at IS NOT NULL FROM pgbus_batches"
CALLED: Final = """
    SELECT task, (payload #>> '{args,0,id}')::bigint
    FROM pgbus_archive
    WHERE task = ANY (%s)
      AND outcome = 'succeeded'
"""


def wrong_at_the_end(execute: Execute, members: dict[int, int]) -> list[str]:
    """Return what is wrong with the batches once everything is settled; `members` are those that were sent."""
    finish, success, failure = (task.module_path for task in CALLBACKS.values())
    called = Counter(execute(CALLED, [finish, success, failure]))
    found = []
    ended = {id: rest for id, *rest in execute(ENDED)}
    if ended.keys() != members.keys():
        found.append(f"{len(members)} batches were committed, {len(ended)} are there")
    for id, (total, succeeded, failed, finished) in ended.items():
        if not finished or total != succeeded + failed or total != members.get(id):
            found.append(f"batch {id}: {members.get(id)} sent, {total} = {succeeded} + {failed}, finished: {finished}")
        due = Counter({(finish, id): 1, (failure if failed else success, id): 1})
        got = Counter({key: number for key, number in called.items() if key[1] == id})
        if got != due:
            found.append(f"batch {id}: called back {dict(got)}")
    return found
