"""
The core of the suite through PgBouncer in transaction mode.

`run.py` starts a PostgreSQL and a PgBouncer of its own and runs pytest with every connection of the product going through
the pooler: `--listen direct` names a direct alias in LISTEN_DATABASE, `--listen none` does not, so that a worker is deaf and
polls. A test that needs a session of its own says why (`@pytest.mark.needs_session`), and is left out, counted and listed.
"""
