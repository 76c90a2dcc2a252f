"""The page `docs/evidence.md`: promise, statement, locks, test, and what went red without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tests.chaos.sabotages import SABOTAGES
from tests.chaos.shadow import Edit
from tests.evidence.chaos import chaos
from tests.evidence.guards import Breakable, all_guards
from tests.evidence.marked import Marked, all_marked, showing
from tests.evidence.records import GUARDS, Record, sabotages, stamped
from tests.evidence.rules import Keeper, Promise, Rule, all_rules, promises
from tests.evidence.words import code, fenced, link_to, of_record, source, table

SHOWN: Final = 160  # characters of what a chaos run said

INTRO = """# Evidence

Five promises, taken apart into {rules} rules. For each rule this page names what keeps it (a statement, with the rows
that it locks and the clause that counts, or a function), why that is enough, the tests that show it, and what failed
when it was taken away. All of it can be checked: the statements stand whole [at the end](#the-statements-whole),
every test is a link, and [one command](#run-it-again) does it again.

## How to read it

- **Kept by**: a statement of `django_pgbus/*/sql.py`, or a function. *Locks* are the tables whose rows it locks, in
  that order; a test prepares each statement on a server and compares. The [lock
  order](architecture/index.md#lock-order) is the same everywhere.
- **Shown by**: the one to four best tests. Where it says *run once more without ...*, the test suite itself takes
  that guard away at each run, and the test has to fail then.
- **Without it**: a guard that was taken away, and what failed: the test, and the first line of why.

## In short

The rules that say most of each promise, the statement that keeps each, and the test that fails without it; all rules follow
below, promise by promise.

{short}

| Promise | Rules | Tests | Guards taken away | of them seen by a test | and by the chaos run |
| --- | --- | --- | --- | --- | --- |
{summary}

In the suite itself {breaks} more guards are taken away at each run, by these {marked} tests."""

AGAIN = """## Run it again

Python 3.11 and pip are all it takes; a PostgreSQL is brought along (`DATABASE_URL` names another one).

```console
$ python3 dev.py evidence            # everything: an hour or two
$ python3 dev.py evidence guards     # takes every guard of this page away, one at a time
$ python3 dev.py evidence sabotages  # those of the chaos run, with their tests and their chaos
$ python3 dev.py evidence chaos      # ten minutes of all faults
$ python3 dev.py evidence benchmarks # against the peers
$ python3 dev.py evidence page       # only this page, from what is recorded
$ python3 dev.py test -m proves      # the tests of this page, with the guards that they take away themselves
```

Each part writes what it has seen into `docs/evidence/`, and this page is written from there. It is stale if the code
says otherwise: a test compares, and another finds a guard that no longer stands where it is to be taken away."""

ELSEWHERE = """## Measured elsewhere

- Throughput, latency and what they cost, against the peers in the same run: [benchmarks](operations/benchmarks.md).
- An hour of mixed work, with memory, connections, table sizes and latencies over time: `docs/operations/soak.md`.
- Every page and tool over a million rows: [scale](operations/scale.md).
- Through pgbouncer, and with hosts that are cut off: `docs/operations/beyond-one-machine.md`.
- Faults that other systems had, and the test that looks for each here: [faults](evidence/faults.md)."""

LIMITS = """## Limits of what was shown

- A test shows that a rule held in the interleavings it makes, and that it fails without its guard. It proves nothing
  about interleavings nobody thought of; for these there are the random tests (`tests/*/test_*_machine.py`, the
  storms, the chaos run), which found none, and can find none that they never make.
- One machine with two processors, and its clock. Clock skew between hosts is made by lying to one process about the
  time; a cut network by a proxy or a namespace on the same machine.
- PostgreSQL 18 in all runs of this page, 15 in the suite (`dev.py tox`); 16 and 17 are not run. Default settings but
  for those that `tests/settings.py` names: in the suite `fsync` and `synchronous_commit` are off, so a crash of the
  server itself is shown by the chaos run only, as an immediate restart, and a loss of power not at all.
- No failover to a standby was made. The grace after a restart does not see one; what protects then is the delivery
  number, and what a standby had not received is lost to everybody.
- Guards are taken away one at a time (or those that stand in for each other together). That two faults at once are
  survived is shown by the chaos run only.
- The functions named beside statements are kept to by tests, not by the database: whoever writes to the tables by
  hand, past the statements, is held only by constraints.
- Speed is measured elsewhere, and only there; the rules of the fifth promise say what is read and locked, which does
  not depend on the machine.
- Where a record is missing this page says so. A record is of the commit that it names, and may be older than the code
  beside it."""


def page() -> str:
    """Return the page."""
    guards = list(all_guards())
    recorded = Record.read(GUARDS)
    parts = [
        INTRO.format(
            rules=sum(1 for _ in all_rules()),
            short=_short(),
            summary="\n".join(_summary(promise, guards, recorded) for promise in promises()),
            breaks=sum(len(one.breaks) for one in all_marked()),
            marked=sum(1 for one in all_marked() if one.breaks),
        )
    ]
    for number, promise in enumerate(promises(), 1):
        parts.append(f"## {number}. {promise.title}\n\n> {promise.says}")
        parts += [_rule(rule, [one for one in guards if one.rule is rule], recorded) for rule in promise.rules]
    return "\n\n".join([*parts, chaos(), ELSEWHERE, AGAIN, LIMITS, _statements()])


def _summary(promise: Promise, guards: Iterable[Breakable], recorded: Record) -> str:
    mine = [one for one in guards if one.rule in promise.rules]
    tests = {test.id for rule in promise.rules for test in showing(rule.slug)}
    red = [one for one in mine if (entry := recorded.of_guard(one)) and entry["red"]]
    sabotaged = {name for rule in promise.rules for name in rule.sabotages}
    entries = [entry for name, entry in sabotages().items() if name in sabotaged]
    seen = [entry for entry in entries if entry["tests"] and all(test["red"] for test in entry["tests"])]
    by_chaos = [entry for entry in entries if entry.get("chaos") and entry["chaos"]["red"]]
    numbers = (len(promise.rules), len(tests), len(mine) + len(sabotaged), len(red) + len(seen), len(by_chaos))
    return f"| {promise.title} | {' | '.join(str(number) for number in numbers)} |"


def _short() -> str:
    rows = []
    for promise in promises():
        for rule in (rule for slug in promise.lead for rule in promise.rules if rule.slug == slug):
            keeper = next(keeper for keeper in rule.kept_by if keeper.statement is not None)
            test = next((test for test in showing(rule.slug) if test.breaks), showing(rule.slug)[0])
            seen = [test for guard in all_guards() if guard.rule is rule for test in _seen_by(guard)]
            seen += [test["id"] for name in rule.sabotages for test in sabotages().get(name, {}).get("tests", ())]
            rows.append(
                (
                    promise.title,
                    f"[{rule.says}](#{rule.slug})",
                    f"{_kept(keeper)}: {code(keeper.clause)}",
                    link_to(seen[0] if seen else test.id),
                )
            )
    return table(("Promise", "Rule", "Kept by", "Test that fails without it"), rows)


def _seen_by(guard: Breakable) -> list[str]:
    entry = Record.read(GUARDS).of_guard(guard)
    return [test for test, _ in entry["red"]] if entry else []


def _rule(rule: Rule, guards: Iterable[Breakable], recorded: Record) -> str:
    rows = [(_kept(keeper), code(keeper.clause), _locks(keeper)) for keeper in rule.kept_by]
    tests = "\n".join(f"- {_shown(test)}" for test in showing(rule.slug))
    without = "\n".join(line for guard in guards for line in _without(guard, recorded))
    sabotaged = "\n".join(line for name in rule.sabotages for line in _sabotaged(name))
    title = rule.slug.replace("-", " ")
    parts = [
        f"### {title[:1].upper()}{title[1:]}",
        f"**{rule.says}**",
        table(("Kept by", "The clause that counts", "Locks"), rows),
        f"*Why it holds.* {rule.why}",
        f"*Shown by*\n\n{tests}",
    ]
    if without or sabotaged:
        parts.append("*Without it*\n\n" + "\n".join(part for part in (without, sabotaged) if part))
    return "\n\n".join(parts)


def _kept(keeper: Keeper) -> str:
    if keeper.statement is not None:
        return f"[`{keeper.name}`](#{anchor(keeper.name)})"
    return f"[`{keeper.name}`](../{source(keeper)})"


def _locks(keeper: Keeper) -> str:
    if keeper.statement is None:
        return ""
    skips = " (skipping)" if "SKIP LOCKED" in keeper.statement.sql else ""
    return ", ".join(f"`{table}`" for table in keeper.statement.locks) + skips if keeper.statement.locks else "none"


def _shown(test: Marked) -> str:
    if not test.breaks:
        return link_to(test.id)
    return f"{link_to(test.id)}; run once more {'; and '.join(_as_without(one) for one in test.breaks)}"


def _as_without(words: str) -> str:
    return words if words.startswith(("without", "if ")) else f"with {words}"


def _without(guard: Breakable, recorded: Record) -> Iterator[str]:
    entry = recorded.of_guard(guard)
    changed = "; ".join(_edit(edit) for edit in guard.guard.edits)
    if entry is None:
        yield f"- {changed}: not recorded yet."
        return
    if not entry["red"]:
        yield f"- {changed}: **no test saw it** ({of_record(entry)})."
        return
    yield f"- {changed} ({of_record(entry)}):"
    for test, line in entry["red"]:
        yield f"  - {link_to(test)} failed: {code(line)}"


def _edit(edit: Edit) -> str:
    old = " ".join(edit.old.split())
    new = " ".join(edit.new.split())
    return f"in `{edit.at}` {code(old)} " + (f"became {code(new)}" if new else "was left out")


def _sabotaged(name: str) -> Iterator[str]:
    entry = sabotages().get(name)
    if entry is None:
        yield f"- {SABOTAGES[name].guard} (`{name}`): not recorded yet."
        return
    yield f"- {entry['guard']} (`{name}` in `{entry['statement']}`; {of_record(stamped('sabotages'))})"
    if not entry.get("tests"):
        yield "  - its tests: not recorded yet"
    for test in entry.get("tests", ()):
        ended = "failed" if test["red"] else "did **not** fail"
        yield f"  - {link_to(test['id'])}{_case(test['id'])} {ended}: {code(test['line'])}"
    if found := entry.get("chaos"):
        seen = "went red" if found["red"] else "did **not** go red"
        after = f"after {found['seconds']:.0f} s: {code(found['line'][:SHOWN])}"
        yield f"  - the check `{found['check']}` of the chaos run {seen} {after}"


def _case(id: str) -> str:
    case = id.partition("[")[2].rstrip("]")
    return f" (case {code(case)})" if case and case != "holds" else ""


def _statements() -> str:
    keepers = {keeper.name: keeper for rule in all_rules() for keeper in rule.kept_by if keeper.statement is not None}
    parts = ["## The statements, whole", "As they are sent. `pgbus_stream_0` stands for the log of any stream."]
    for name in sorted(keepers):
        statement = keepers[name].statement
        assert statement is not None
        parts.append(f"### {name}\n\nLocks: {_locks(keepers[name])}.\n\n" + fenced(statement.sql))
    return "\n\n".join(parts)


def anchor(name: str) -> str:
    """Return the address of the heading of a statement."""
    return name.lower().replace(".", "")
