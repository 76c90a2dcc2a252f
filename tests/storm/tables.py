"""The tables of the books, and the triggers that see a delivery number rise; they belong to the storm, not to pgbus."""

from __future__ import annotations

from typing import Final

CREATE: Final = """
    CREATE TABLE storm_runs (
        run bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id bigint NOT NULL,
        worker uuid NOT NULL,
        pid int NOT NULL,
        limited text,
        allowed int,
        sole text,
        began timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended timestamptz
    );
    CREATE TABLE storm_kills (
        pid int NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE storm_deliveries (
        id bigint NOT NULL,
        delivery int NOT NULL,
        worker uuid,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE FUNCTION storm_note_message() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO storm_deliveries (id, delivery, worker) VALUES (NEW.id, NEW.delivery, NEW.worker);
        RETURN NULL;
    END $$;
    CREATE FUNCTION storm_note_parked() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO storm_deliveries (id, delivery) VALUES (NEW.id, NEW.delivery);
        RETURN NULL;
    END $$;
    CREATE TRIGGER storm_claimed AFTER UPDATE ON pgbus_messages
        FOR EACH ROW WHEN (NEW.delivery <> OLD.delivery) EXECUTE FUNCTION storm_note_message();
    CREATE TRIGGER storm_moved AFTER INSERT ON pgbus_messages
        FOR EACH ROW WHEN (NEW.delivery > 0) EXECUTE FUNCTION storm_note_message();
    CREATE TRIGGER storm_parked AFTER INSERT ON pgbus_blocked_executions
        FOR EACH ROW WHEN (NEW.delivery > 0) EXECUTE FUNCTION storm_note_parked();
"""
DROP: Final = """
    DROP TRIGGER storm_claimed ON pgbus_messages;
    DROP TRIGGER storm_moved ON pgbus_messages;
    DROP TRIGGER storm_parked ON pgbus_blocked_executions;
    DROP FUNCTION storm_note_message, storm_note_parked;
    DROP TABLE storm_runs, storm_kills, storm_deliveries;
"""
BEGAN: Final = """
    INSERT INTO storm_runs (id, worker, pid, limited, allowed, sole)
    VALUES (%s::bigint, %s::uuid, %s::int, %s::text, %s::int, %s::text)
    RETURNING run
"""
# What is sent twice, after a lost reply, counts from the first time.
ENDED: Final = "UPDATE storm_runs SET ended = clock_timestamp() WHERE run = %s::bigint AND ended IS NULL"
