"""
The worker: what runs for ever, and the only place that waits or starts threads.

`runworker` is a supervisor and N spawned processes. A job that was claimed is in the end settled, handed back
without counting an attempt (a stop that was asked for), or released with its attempt counted if it had started (a
process that died): by the supervisor at once, by its lapsed lease if the supervisor is gone too. Nothing is handed
back before the process that ran it has ended. One demand to stop drains, the second stops at once, the third kills;
none is ever waited for longer than the grace and a margin. A lost database is waited for, and every wait obeys
signals. A child that loses its supervisor drains by itself.
"""
