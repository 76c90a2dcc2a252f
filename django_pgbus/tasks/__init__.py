"""
Tasks: Django's Task API on PostgreSQL.

`enqueue()` is one INSERT in the caller's transaction: rolled back, nothing happened; committed, it will run. Arguments
that would not arrive as they were sent are refused before any SQL, and so is a task that no worker could import. A
task keeps its id for life; its result says READY (in the line, delayed, or waiting for its next attempt), RUNNING,
SUCCESSFUL or FAILED (dead letter or discarded) until `ARCHIVE_RETENTION` is over, also when its code is gone.
A run that fails is tried again after a backoff, `max_attempts` times in all, then becomes a dead letter. With
`transactional=True` the run and its settlement are one transaction. Every way a task enters, moves in or leaves the
system stands in `lifecycle.py`.

`PgbusBackend`, `task` and `enqueue_many` are what users import, from `django_pgbus`.
"""
