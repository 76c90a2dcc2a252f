"""
Many tasks, one end.

A member carries the id of its batch wherever it goes. What was added, succeeded and failed is counted by rows that are
inserted in the transaction that enqueues or settles, never by an UPDATE of the batch: neither a caller nor a completer
waits for it. The end is decided like a promotion: after its commit, whoever settled a member sums without a lock; if
nothing is outstanding it locks the batch, passing over one that somebody has locked, folds the rows into it in a second
statement, and enqueues the callbacks in the transaction that writes that it is finished. Whoever held the lock looks
again after its own commit, so the last one always finds it. A sweep does the rest.

Nobody ever sees a batch that is not filled: it is committed together with its members. Opening one again takes a share
lock on its row until the caller's commit: it cannot be finished meanwhile.
"""
