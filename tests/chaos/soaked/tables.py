"""
The soak's own tables, none of which grows: what the jobs write down, and the stock of a shop.

`soak_runs` is a ring of four parts, one for each minute in turn. Whoever keeps the books empties a part once its minute is
over; unlogged, so that the WAL that is measured is that of pgbus and of the shop.
"""

from __future__ import annotations

from typing import Final

from django.db import connection

PARTS: Final = 4
ARTICLES: Final = 1000
CREATE: Final = f"""
    CREATE TABLE soak_runs (
        minute smallint NOT NULL DEFAULT ((extract(epoch FROM clock_timestamp())::bigint / 60) % {PARTS}),
        number bigint NOT NULL,
        part smallint NOT NULL,
        began timestamptz NOT NULL DEFAULT clock_timestamp()
    ) PARTITION BY LIST (minute);
    CREATE UNLOGGED TABLE soak_runs_0 PARTITION OF soak_runs FOR VALUES IN (0);
    CREATE UNLOGGED TABLE soak_runs_1 PARTITION OF soak_runs FOR VALUES IN (1);
    CREATE UNLOGGED TABLE soak_runs_2 PARTITION OF soak_runs FOR VALUES IN (2);
    CREATE UNLOGGED TABLE soak_runs_3 PARTITION OF soak_runs FOR VALUES IN (3);
    CREATE TABLE soak_stock (article int PRIMARY KEY, sold bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO soak_stock SELECT number, 0 FROM generate_series(1, {ARTICLES}) AS number;
"""
RAN: Final = "INSERT INTO soak_runs (number, part) VALUES (%s::bigint, %s::smallint)"
RAN_MANY: Final = "INSERT INTO soak_runs (number, part) SELECT unnest(%s::bigint[]), %s::smallint"
SELL: Final = "UPDATE soak_stock SET sold = sold + 1 WHERE article = %s::int"


def ran(number: int, part: int = 0) -> None:
    """Write down that this part of a job began; committed at once unless the job has a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(RAN, [number, part])


def ran_many(numbers: list[int], part: int) -> None:
    """Write down that this part of many began."""
    with connection.cursor() as cursor:
        cursor.execute(RAN_MANY, [numbers, part])


def sell(article: int) -> None:
    """Count one article as sold."""
    with connection.cursor() as cursor:
        cursor.execute(SELL, [article])
