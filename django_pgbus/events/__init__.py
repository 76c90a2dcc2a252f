"""
Events: published once, handled by everybody who subscribed, each on its own.

`publish` writes one message for each handler whose pattern matches, in the caller's transaction and in one statement; what
matches is read from a table that workers write when they start, so a publisher needs none of the handlers' code. From
then on each copy is a message like a task's: its own retries, backoff, lease and dead letter. One handler's failure
repeats only itself.

A delivery comes at least once. What must not run twice for one event is `transactional`, or `idempotent`: then at most
one run of it counts (`idempotency/`).
"""
