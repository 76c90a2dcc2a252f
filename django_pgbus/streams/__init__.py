"""
Streams: an append-only log that any number of consumer groups read, each at its own pace.

`Stream.append` writes in the caller's transaction, and what is committed stays, in one order, until retention drops it.
A group has a cursor of its own: ranges of entries are leased to its workers, handled, and committed; what fails is
retried on its own. A group can be started later, or rewound, and then reads again what is still there.

Nothing is skipped, although transactions commit in another order than they took their positions: a group never passes a
position that can still appear (`fence.py`, docs/architecture/streams.md). Nothing starves: what proves that is kept until
it proves. An entry is handled at least once; once, where a `transactional` handler writes to this database.
"""
