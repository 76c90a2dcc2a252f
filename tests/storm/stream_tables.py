"""The tables of the storm over streams, and the triggers that see ranges and failed entries end; all the storm's own."""

from __future__ import annotations

from typing import Final

STREAM: Final = "storm"
PARTITION: Final = 5000
GROUPS: Final = ("totals", "plain", "keyed", "routed")

CREATE: Final = """
    CREATE TABLE stream_storm_appended (
        id bigint NOT NULL, key int NOT NULL, amount int NOT NULL, stubborn boolean NOT NULL, how text NOT NULL
    );
    CREATE TABLE stream_storm_totaled (position bigint NOT NULL, id bigint NOT NULL);
    CREATE TABLE stream_storm_totals (entries bigint NOT NULL, total bigint NOT NULL);
    INSERT INTO stream_storm_totals VALUES (0, 0);
    CREATE TABLE stream_storm_runs (
        run bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        grp text NOT NULL,
        position bigint NOT NULL,
        id bigint NOT NULL,
        key int NOT NULL,
        pid int NOT NULL,
        began timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz,
        failed boolean NOT NULL DEFAULT false
    );
    CREATE TABLE stream_storm_kills (pid int NOT NULL, after timestamptz NOT NULL, before timestamptz NOT NULL);
    CREATE TABLE stream_storm_ends (group_id bigint, low bigint, high bigint, at timestamptz DEFAULT clock_timestamp());
    CREATE TABLE stream_storm_alone (
        group_id bigint, position bigint, ended boolean, at timestamptz DEFAULT clock_timestamp()
    );
    CREATE TABLE stream_storm_claims (
        kind text, group_id bigint, low bigint, high bigint, worker text, reclaims int, token text,
        lease bigint, pid int, is_held boolean, was_live boolean,
        xid xid8 DEFAULT pg_current_xact_id(), snapshot pg_snapshot DEFAULT pg_current_snapshot(),
        settled bigint, pending_head bigint, pending_xid xid8, at timestamptz DEFAULT clock_timestamp()
    );
    CREATE TABLE stream_storm_workers (id uuid PRIMARY KEY, pid int NOT NULL);
    CREATE TABLE stream_storm_alone_claims (
        group_id bigint, position bigint, is_held boolean, at timestamptz DEFAULT clock_timestamp()
    );
    CREATE TABLE stream_storm_messages (id bigint NOT NULL, position bigint NOT NULL, queue text NOT NULL);

    CREATE FUNCTION stream_storm_note_range() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_ends (group_id, low, high)
        VALUES (OLD.group_id, OLD.low, CASE WHEN TG_OP = 'DELETE' THEN OLD.high ELSE NEW.low END);
        RETURN NULL;
    END $$;
    CREATE FUNCTION stream_storm_note_alone() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO stream_storm_alone (group_id, position, ended) VALUES (NEW.group_id, NEW.position, false);
        ELSE
            INSERT INTO stream_storm_alone (group_id, position, ended) VALUES (OLD.group_id, OLD.position, true);
        END IF;
        RETURN NULL;
    END $$;
    CREATE FUNCTION stream_storm_note_message() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_messages VALUES (NEW.id, (NEW.payload->>'position')::bigint, NEW.queue);
        RETURN NULL;
    END $$;
    CREATE FUNCTION stream_storm_note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_claims
            (kind, group_id, low, high, worker, reclaims, token, lease, pid, is_held, was_live)
        SELECT lower(TG_OP), lease.group_id, lease.low, lease.high, lease.worker, lease.reclaims, lease.token, lease.id,
               (SELECT pid FROM stream_storm_workers AS workers WHERE workers.id = lease.worker),
               TG_OP <> 'DELETE' AND lease.until > statement_timestamp(),
               TG_OP = 'UPDATE' AND OLD.until >= statement_timestamp()
        FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) AS lease;
        RETURN NULL;
    END $$;
    CREATE FUNCTION stream_storm_note_alone_claim() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_alone_claims (group_id, position, is_held)
        VALUES (OLD.group_id, OLD.position, TG_OP = 'UPDATE' AND NEW.token IS NOT NULL);
        RETURN NULL;
    END $$;
    CREATE FUNCTION stream_storm_note_worker() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_workers (id, pid) VALUES (NEW.id, NEW.pid) ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$;
    CREATE TRIGGER stream_storm_worker AFTER INSERT ON pgbus_workers
        FOR EACH ROW EXECUTE FUNCTION stream_storm_note_worker();
    CREATE TRIGGER stream_storm_alone_claimed AFTER DELETE OR UPDATE OF token ON pgbus_stream_exceptions
        FOR EACH ROW EXECUTE FUNCTION stream_storm_note_alone_claim();
    CREATE FUNCTION stream_storm_note_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO stream_storm_claims (kind, group_id, low, high, settled, pending_head, pending_xid)
        VALUES ('moved', OLD.group_id, OLD.claimed, NEW.claimed, NEW.settled_head, OLD.pending_head, OLD.pending_xid);
        RETURN NULL;
    END $$;
    CREATE TRIGGER stream_storm_leased AFTER INSERT OR DELETE OR UPDATE OF token ON pgbus_stream_leases
        FOR EACH ROW EXECUTE FUNCTION stream_storm_note_lease();
    CREATE TRIGGER stream_storm_moved AFTER UPDATE OF claimed ON pgbus_stream_cursors
        FOR EACH ROW WHEN (NEW.claimed > OLD.claimed) EXECUTE FUNCTION stream_storm_note_cursor();
    CREATE TRIGGER stream_storm_ended AFTER DELETE ON pgbus_stream_leases
        FOR EACH ROW EXECUTE FUNCTION stream_storm_note_range();
    CREATE TRIGGER stream_storm_cut AFTER UPDATE OF low ON pgbus_stream_leases
        FOR EACH ROW WHEN (NEW.low > OLD.low) EXECUTE FUNCTION stream_storm_note_range();
    CREATE TRIGGER stream_storm_alone AFTER INSERT OR DELETE ON pgbus_stream_exceptions
        FOR EACH ROW EXECUTE FUNCTION stream_storm_note_alone();
    CREATE TRIGGER stream_storm_dead AFTER UPDATE OF status ON pgbus_stream_exceptions
        FOR EACH ROW WHEN (NEW.status = 'dead') EXECUTE FUNCTION stream_storm_note_alone();
    CREATE TRIGGER stream_storm_routed AFTER INSERT ON pgbus_messages
        FOR EACH ROW WHEN (NEW.topic = 'storm/routed') EXECUTE FUNCTION stream_storm_note_message();
"""


def queue_of(id: int) -> str | None:
    """Return the queue into which an entry is routed."""
    return (None, "storm_a", "storm_b")[id % 3]
