"""The tables of the books, beside those of the storm, and the triggers that see every move of a job; none of pgbus' own."""

from __future__ import annotations

from typing import Final

from tests.storm import tables

CREATE: Final = (
    tables.CREATE
    + """
    ALTER TABLE storm_runs
        ADD COLUMN token uuid UNIQUE, ADD COLUMN kind text, ADD COLUMN attempt int, ADD COLUMN outcome text;
    CREATE TABLE chaos_sent (
        id bigint NOT NULL,
        kind text NOT NULL,
        key text,
        batch_id bigint,
        at timestamptz NOT NULL DEFAULT clock_timestamp(),
        UNIQUE (id)
    );
    CREATE TABLE chaos_effects (id bigint NOT NULL, pid int NOT NULL, at timestamptz DEFAULT clock_timestamp());
    CREATE TABLE chaos_faults (
        fault bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL,
        pids int[] NOT NULL,
        after timestamptz NOT NULL,
        before timestamptz,
        detail text NOT NULL DEFAULT ''
    );
    CREATE TABLE chaos_moves (
        move bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id bigint NOT NULL,
        place text NOT NULL,
        delivery int NOT NULL,
        attempts int NOT NULL,
        leased boolean NOT NULL DEFAULT false,
        lapsed boolean NOT NULL DEFAULT false,
        suspect boolean NOT NULL DEFAULT false,
        started boolean NOT NULL DEFAULT false,
        worker uuid,
        queue text NOT NULL,
        reason text,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE chaos_pauses (queue text NOT NULL, paused boolean NOT NULL, at timestamptz DEFAULT clock_timestamp());
    CREATE FUNCTION chaos_note_pause() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_pauses (queue, paused) VALUES (NEW.queue, NEW.paused_at IS NOT NULL);
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_paused AFTER INSERT OR UPDATE ON pgbus_queue_states
        FOR EACH ROW EXECUTE FUNCTION chaos_note_pause();
    CREATE FUNCTION chaos_note_line() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_moves (id, place, delivery, attempts, leased, lapsed, suspect, started, worker, queue)
        VALUES (NEW.id, 'line', NEW.delivery, NEW.attempts, NEW.leased_until IS NOT NULL,
                TG_OP = 'UPDATE' AND coalesce(OLD.leased_until < clock_timestamp(), false),
                NEW.suspect, NEW.started, NEW.worker, NEW.queue);
        RETURN NULL;
    END $$;
    CREATE FUNCTION chaos_note_elsewhere() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos_moves (id, place, delivery, attempts, worker, queue, reason)
        SELECT NEW.id, TG_ARGV[0], NEW.delivery, NEW.attempts, (to_jsonb(NEW)->>'worker')::uuid, NEW.queue,
               coalesce(to_jsonb(NEW)->>'reason', to_jsonb(NEW)->>'outcome', to_jsonb(NEW)->>'waits_for');
        RETURN NULL;
    END $$;
    CREATE TRIGGER chaos_entered AFTER INSERT ON pgbus_messages FOR EACH ROW EXECUTE FUNCTION chaos_note_line();
    CREATE TRIGGER chaos_changed AFTER UPDATE ON pgbus_messages FOR EACH ROW
        WHEN (NEW.delivery <> OLD.delivery OR NEW.attempts <> OLD.attempts
              OR (NEW.leased_until IS NULL) <> (OLD.leased_until IS NULL))
        EXECUTE FUNCTION chaos_note_line();
    CREATE TRIGGER chaos_delayed AFTER INSERT ON pgbus_delayed
        FOR EACH ROW EXECUTE FUNCTION chaos_note_elsewhere('delayed');
    CREATE TRIGGER chaos_parked AFTER INSERT ON pgbus_blocked_executions
        FOR EACH ROW EXECUTE FUNCTION chaos_note_elsewhere('parked');
    CREATE TRIGGER chaos_archived AFTER INSERT ON pgbus_archive
        FOR EACH ROW EXECUTE FUNCTION chaos_note_elsewhere('archive');
    CREATE TRIGGER chaos_dead AFTER INSERT ON pgbus_dead_letters
        FOR EACH ROW EXECUTE FUNCTION chaos_note_elsewhere('dead');
"""
)
INDEXES: Final = """
    CREATE INDEX ON chaos_moves (id);
    CREATE INDEX ON storm_runs (id);
    ANALYZE;
"""
# A reply may be lost, and the row be there: the run has made its token up, and says it again.
BEGAN: Final = """
    INSERT INTO storm_runs (token, id, worker, pid, kind, attempt, limited, allowed, sole)
    VALUES (%s::uuid, %s::bigint, %s::uuid, %s::int, %s::text, %s::int, %s::text, %s::int, %s::text)
    ON CONFLICT (token) DO NOTHING
"""
ENDED: Final = """
    UPDATE storm_runs SET ended = clock_timestamp(), outcome = %s::text WHERE token = %s::uuid AND ended IS NULL
"""
SENT: Final = """
    INSERT INTO chaos_sent (id, kind, key, batch_id)
    SELECT sent.id, %s::text, %s::text, %s::bigint FROM unnest(%s::bigint[]) AS sent (id)
    ON CONFLICT (id) DO NOTHING
"""
LAST_MOVE: Final = "SELECT max(move) FROM chaos_moves"
