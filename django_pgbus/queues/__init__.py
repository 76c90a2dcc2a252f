"""
Queues: at-least-once messages.

A message stands in exactly one table: the line (ready, or leased to one delivery), the delayed, the archive of
what finished, or the dead letters. It takes id, delivery number, attempts and error history wherever it goes, in
one transaction each time. A claim raises the delivery number and sets a lease; whoever names an older delivery, or
a message nobody holds, changes nothing. A lease that lapsed is released by any worker's look and never renewed.
On failure of a worker the message goes back into the line; on failure of PostgreSQL nothing is half done.
"""
