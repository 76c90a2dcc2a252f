"""The page `docs/evidence.md`: promise, statement, locks, test, and what went red without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.evidence import chaos, prose, short, speed, whole
from tests.evidence.glossary import glossary
from tests.evidence.marked import Marked, showing
from tests.evidence.quoting import clause, edited
from tests.evidence.removals import Removal, Seen, removals, taken_away
from tests.evidence.rules import Keeper, Promise, Rule, all_rules, promises
from tests.evidence.waits import locks_and_waits
from tests.evidence.words import at, code, named, source, table

SHOWN: Final = 160  # characters of what a test or a run of chaos said
SAYS_NOTHING: Final = ("AssertionError", "assert False", "assert not True", "assert False is True")


def page() -> str:
    """Return the page."""
    breaks, marked = short.breaks()
    intro = prose.INTRO.format(
        rules=sum(1 for _ in all_rules()),
        words=glossary(),
        short=short.leading(),
        summary=short.summary(),
        breaks=breaks,
        marked=marked,
    )
    limits = prose.LIMITS.format(
        random=chaos.of_random_tests(),
        crash=chaos.shown("a crash with `fsync` on", "restart"),
        faults=chaos.shown("several at once"),
    )
    parts = [part for number, promise in enumerate(promises(), 1) for part in _promise(number, promise)]
    elsewhere = prose.ELSEWHERE.format(speed=speed.state())
    return "\n\n".join([intro, *parts, chaos.section(), elsewhere, prose.AGAIN, limits, whole.section()])


def _promise(number: int, promise: Promise) -> Iterator[str]:
    yield f"## {number}. {promise.title}\n\n> {promise.says}"
    if promise.is_measured:
        yield speed.sentences()
    yield from (_rule(rule) for rule in promise.rules)


def _rule(rule: Rule) -> str:
    tests = "\n".join(f"- {_shown(test)}" for test in showing(rule.slug))
    without = "\n".join(line for one in removals(rule) for line in _without(one))
    parts = [
        f"### {rule.title}",
        f"**{rule.says}**",
        _keepers(rule),
        f"*Why it holds.* {rule.why}",
        f"*Shown by*\n\n{tests}",
        f"*Without it*\n\n{without}" if without else "*Without it*: not taken away.",
    ]
    return "\n\n".join(parts)


def _keepers(rule: Rule) -> str:
    head = ["Kept by", "The clause that counts", "Taken away", "Locks and waits"]
    rows = [
        [_kept(keeper), clause(keeper), taken_away(keeper, rule), _locks(keeper), keeper.against]
        for keeper in rule.kept_by
    ]
    if any(keeper.against for keeper in rule.kept_by):
        return table([*head, "Against"], rows)
    return table(head, [row[:-1] for row in rows])


def _kept(keeper: Keeper) -> str:
    if keeper.unique is not None:
        return f"constraint [`{keeper.name}`](../{source(keeper)})"
    return at(keeper.name)


def _locks(keeper: Keeper) -> str:
    return locks_and_waits(keeper.statement) if keeper.statement is not None else ""


def _shown(test: Marked) -> str:
    if not test.breaks:
        return named(test.id)
    return f"{named(test.id)}; run once more {'; and '.join(_as_without(one) for one in test.breaks)}"


def _as_without(words: str) -> str:
    return words if words.startswith(("without", "if ")) else f"with {words}"


def _without(removal: Removal) -> Iterator[str]:
    changed = "; ".join(f"in {at(edit.at)} {edited(edit)}" for edit in removal.edits)
    if removal.says:
        changed = f"{removal.says} (`{removal.name}`; {changed})"
    if not removal.recorded:
        yield f"- {changed}: not recorded yet."
        return
    if not removal.seen:
        yield f"- {changed}: **no test is recorded that saw it** ({removal.recorded})."
        return
    yield f"- {changed} ({removal.recorded}):"
    yield from (f"  - {_failed(seen, removal.in_words)}" for seen in removal.seen)
    if found := removal.chaos:
        options = dict(zip(removal.options[::2], removal.options[1::2], strict=True))
        minutes = options.pop("--minutes")
        others = code(" ".join(f"{name} {value}" for name, value in options.items()))
        seen = "was red" if found["red"] else "was **not** red"
        checks = f"[{code(found['check'])}](#names-of-the-checks)"
        run = f"in a run of {minutes} minutes of chaos with {others}"
        yield f"  - {run} the check {checks} {seen}: {_said(found['line'])}"


def _failed(seen: Seen, in_words: str) -> str:
    case = seen.test.partition("[")[2].rstrip("]")
    test = named(seen.test) + (f" (case {code(case)})" if case and case != "holds" else "")
    ended = "failed" if seen.red else "did **not** fail"
    line = seen.line.strip().rstrip(":")
    bare = line.rpartition(": ")[2] if line.startswith("tests/") else line.removeprefix("AssertionError: ")
    if in_words and bare in SAYS_NOTHING:
        return f"{test} {ended}: {in_words}"
    return f"{test} {ended}: {_said(seen.line)}" + (f" ({in_words})" if in_words else "")


def _said(line: str) -> str:
    """Return the beginning of a line, to the end of a word."""
    return code(line if len(line) <= SHOWN else f"{line[:SHOWN].rpartition(' ')[0]} ...")
