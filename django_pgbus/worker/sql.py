"""The statements of the workers' own rows: liveness, and who is the dispatcher."""

from django_pgbus.postgres import Statement

# A row that somebody deleted under a living process comes back with its next beat.
BEAT = Statement(
    sql="""
    INSERT INTO pgbus_workers AS worker (id, supervisor, name, host, pid, version, queues, streams, capacity,
                                         running, superseded, state, listening, lease)
    VALUES (%(id)s::uuid, %(supervisor)s::uuid, %(name)s::text, %(host)s::text, %(pid)s::int, %(version)s::text,
            %(queues)s::text, %(streams)s::text, %(capacity)s::int, %(running)s::int, %(superseded)s::int, %(state)s::text,
            %(listening)s::boolean, %(lease)s::interval)
    ON CONFLICT (id) DO UPDATE
    SET running = excluded.running,
        superseded = excluded.superseded,
        state = excluded.state,
        listening = excluded.listening,
        beat_at = statement_timestamp()
    RETURNING (SELECT election.worker
               FROM pgbus_election AS election
               WHERE election.office = 'dispatcher'
                 AND election.until > statement_timestamp()) AS dispatcher
    """,
    locks=("workers",),
)

# Asked only by the dispatcher itself, and when there is none: an idle process writes its own row and nothing else.
RUN_FOR_OFFICE = Statement(
    sql="""
    INSERT INTO pgbus_election AS election (office, worker, until)
    VALUES (%(office)s::text, %(worker)s::uuid, statement_timestamp() + %(term)s::interval)
    ON CONFLICT (office) DO UPDATE
    SET worker = excluded.worker,
        until = excluded.until
    WHERE election.worker = excluded.worker
       OR election.until <= statement_timestamp()
    RETURNING election.worker
    """,
    locks=("election",),
)

RESIGN = Statement(
    sql="""
    DELETE FROM pgbus_election
    WHERE worker = %(worker)s::uuid
    """,
    locks=("election",),
)

LEAVE = Statement(
    sql="""
    DELETE FROM pgbus_workers
    WHERE id = %(worker)s::uuid
    """,
    locks=("workers",),
)

# Shown as silent for an hour, then forgotten.
FORGET_SILENT = Statement(
    sql="""
    DELETE FROM pgbus_workers
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM pgbus_workers
        WHERE beat_at < statement_timestamp() - interval '1 hour'
        ORDER BY beat_at
        LIMIT %(limit)s::int
        FOR UPDATE SKIP LOCKED
    ))
    """,
    locks=("workers",),
)
