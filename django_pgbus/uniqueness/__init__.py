"""
At most one job per key.

A key stands in `pgbus_uniqueness_keys` with the message that holds it; the row is the lock, and there is no timer.
`until_executed` is taken by the statement that stores the message and freed by the transaction that settles it: a
retry, a delay, a pause keep it. `while_executing` is taken at pick-up for one delivery and binds while that delivery is
under a lease; whoever takes it over has fenced out the old holder first. A key is never freed because it is old: the
reaper frees one whose message is proven to be nowhere. Keys are one namespace for all tasks.
"""
