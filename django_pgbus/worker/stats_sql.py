"""The statement behind `stats.py`."""

from django_pgbus.postgres import Statement

# Ages by the database's clock, which also wrote the beats.
WORKERS = Statement(
    sql="""
    SELECT worker.id, worker.supervisor, worker.name, worker.host, worker.pid, worker.version, worker.queues,
           worker.streams, worker.capacity, worker.running, worker.superseded, worker.state, worker.listening,
           extract(epoch FROM worker.lease)::float8 AS lease,
           worker.started_at,
           worker.beat_at,
           extract(epoch FROM statement_timestamp() - worker.beat_at)::float8 AS silent_for,
           coalesce(worker.id = (
               SELECT election.worker
               FROM pgbus_election AS election
               WHERE election.office = 'dispatcher'
                 AND election.until > statement_timestamp()
           ), false) AS dispatcher
    FROM pgbus_workers AS worker
    ORDER BY worker.name, worker.host, worker.pid, worker.id
    LIMIT %(most)s::int
    """
)
