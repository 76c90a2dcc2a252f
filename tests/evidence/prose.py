"""What the page of evidence says around its rules."""

from __future__ import annotations

from typing import Final

INTRO: Final = """# Evidence

Five promises, taken apart into {rules} rules. For each rule this page names what keeps it (a statement, with the rows
that it locks and the clause that counts, a constraint, or a function), why that is enough, the tests that show it, and what
failed when it was taken away. All of it can be checked: the statements stand whole [at the end](#the-statements-whole),
every test is a link, and [one command](#run-it-again) does it again.

## How to read it

- **Kept by**: a statement of `django_pgbus/*/sql.py`, a unique constraint, or a function. A clause that stands inside
  `NOT EXISTS` is quoted from there on.
- **Taken away**: whether the suite was ever run without this clause: *yes* under this rule; *elsewhere* under another one,
  which is linked; *in the suite* by a test of any rule; *no*.
- **Locks and waits**: the tables whose rows it locks, in that order, in which mode, and whether it passes over rows that
  somebody else has locked or waits for them; then the unique indexes at which an insert waits for another transaction that
  inserts the same. A test prepares each statement on a server and compares the tables; the [lock
  order](architecture/index.md#lock-order) is the same everywhere. Left out are ids that a sequence gives (nobody else has
  them), and the key-share locks of foreign keys between the tables of streams (only deleting a group waits for these).
- **Shown by**: the one to four best tests. Where it says *run once more without ...*, the test suite itself takes
  that guard away at each run, and the test has to fail then.
- **Without it**: a guard that was taken away, and what failed: the test, and the first line of why. Where a *run of chaos*
  is named, it was one made for this guard, with the options that stand there; *the* chaos run is [another](#the-chaos-run).

Everything rests on READ COMMITTED, PostgreSQL's default: each statement sees what was committed when it began, and reads
a row that it has waited for anew. So "counted in a statement of its own, after the lock" means: in a snapshot from then on.
Workers set it on their own connections, whatever the role or the database says (`postgres/own_connection.py`). An enqueue or
a publish runs at the level of its caller's transaction; under a stricter one it may end with the serialization error of
PostgreSQL (40001).

## Words

{words}

## In short

The rules that say most of each promise, a guard of each that was taken away, and the test that failed then; all rules follow
below, promise by promise.

{short}

{summary}

A guard that stands under two promises is counted with the first. In the suite itself {breaks} more guards are taken away at
each run, by these {marked} tests."""

AGAIN: Final = """## Run it again

Python 3.11 and pip are all it takes; a PostgreSQL is brought along (`DATABASE_URL` names another one).

```console
$ python3 dev.py evidence            # everything: an hour or two
$ python3 dev.py evidence guards     # takes every guard of this page away, one at a time
$ python3 dev.py evidence sabotages  # those of the chaos, with their tests and a run of chaos made for each
$ python3 dev.py evidence chaos      # ten minutes of all faults
$ python3 dev.py evidence benchmarks # against the peers
$ python3 dev.py evidence page       # only this page, from what is recorded
$ python3 dev.py test -m proves      # the tests of this page, with the guards that they take away themselves
```

Each part writes what it has seen into `docs/evidence/`, and this page is written from there. It is stale if the code
says otherwise: a test compares, and another finds a guard that no longer stands where it is to be taken away."""

ELSEWHERE: Final = """## Measured elsewhere

- Throughput, latency and what they cost, against the peers in the same run: [benchmarks](operations/benchmarks.md)
  ({speed}).
- An hour of mixed work, with memory, connections, table sizes and latencies over time: [soak](operations/soak.md).
- Every page and tool over a million rows: [scale](operations/scale.md).
- Through pgbouncer, and with hosts that are cut off: [beyond one machine](operations/beyond-one-machine.md).
- Faults that other systems had, and the test that looks for each here: [faults](evidence/faults.md)."""

LIMITS: Final = """## Limits of what was shown

- A test shows that a rule held in the interleavings it makes, and that it fails without its guard. It proves nothing
  about interleavings nobody thought of; for these there are tests that make their cases at random
  (`tests/*/test_*_machine.py`, the storms): where the suite is green they have found none, and they can find none that they
  never make{random}.
- One machine with two processors, and its clock. Clock skew between hosts is made by lying to one process about the
  time; a cut network by a proxy or a namespace on the same machine.
- PostgreSQL 18 in all runs of this page, 15 in the suite (`dev.py tox`); 16 and 17 are not run. Default settings but
  for those that `tests/settings.py` names, `fsync` off among them. So `tests/processes` stop the server at once under load
  and start it again, but with files that are not synced: {crash}. A loss of power is not made at all.
- No failover to a standby was made. The grace after a restart does not see one; what protects then is the delivery
  number, and what a standby had not received is lost to everybody.
- Guards are taken away one at a time (or those that stand in for each other together). Several faults at once are made for
  some seconds by `tests/processes/test_chaos.py`; for longer than that, {faults}.
- The functions named beside statements are kept to by tests, not by the database: whoever writes to the tables by
  hand, past the statements, is held only by constraints.
- Speed is measured elsewhere, and only there; the rules of the fifth promise say what is read and locked, which does
  not depend on the machine.
- Where a record is missing this page says so. A record is of the commit that it names, and may be older than the code
  beside it."""
