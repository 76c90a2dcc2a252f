"""
At most one run of a handler for one event, however often the event arrives.

A claim is a row for one (event, handler), written when a delivery is picked up and completed in the transaction that
archives it. While it is pending it names its holder, a delivery of a message, and carries a lease of its own, written by the
same beat that renews the message. A claim is silent when its lease has lapsed and its holder is under none: then
it is taken over, in one guarded UPDATE, after the holder was fenced out. So a crash loses nothing, and a handler that only
runs long is left alone.

A delivery that meets a claim is skipped only if another message does the work, or has done it; the only copy of an
event is never skipped, it waits. What was skipped, and what met no handler, is counted by inserted rows.
"""
