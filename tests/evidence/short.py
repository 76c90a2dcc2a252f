"""The tables at the top of the page: a guard of each leading rule, and how much there is of each promise."""

from __future__ import annotations

from tests.evidence import speed
from tests.evidence.marked import all_marked, showing
from tests.evidence.quoting import edited
from tests.evidence.removals import Removal, best, lead, removals
from tests.evidence.rules import Promise, promises
from tests.evidence.words import at, named, table

HEAD = ("Promise", "Rules", "Tests", "Guards taken away", "of them seen by a test", "and by a run of chaos made for it")


def leading() -> str:
    """Return the rules that say most, each with what was taken away and the test that failed then."""
    rows = []
    for promise in promises():
        rules = {rule.slug: rule for rule in promise.rules}
        for slug, name in promise.lead:
            removal = lead(rules[slug], name)
            test = best(rules[slug], removal)
            rows.append(
                (
                    promise.title,
                    f"[{rules[slug].says}](#{slug})",
                    "; ".join(f"{at(edit.at)}: {edited(edit)}" for edit in removal.edits),
                    named(test) if test else "not recorded yet",
                )
            )
    return table(("Promise", "Rule", "What was taken away", "Test that failed then"), rows)


def summary() -> str:
    """Return the numbers of each promise."""
    counted: set[object] = set()
    return table(HEAD, [_numbers(promise, counted) for promise in promises()])


def breaks() -> tuple[int, int]:
    """Return how many guards the suite takes away by itself, and by how many tests."""
    several = [one for one in all_marked() if one.breaks]
    return sum(len(one.breaks) for one in several), len(several)


def _numbers(promise: Promise, counted: set[object]) -> tuple[str, ...]:
    tests = {test.id for rule in promise.rules for test in showing(rule.slug)}
    mine: dict[object, Removal] = {one.edits: one for rule in promise.rules for one in removals(rule)}
    fresh = [one for edits, one in mine.items() if edits not in counted]
    counted.update(mine)
    seen = sum(one.red for one in fresh)
    by_chaos = sum(bool(one.chaos and one.chaos["red"]) for one in fresh)
    title = f"{promise.title} (benchmarks: {speed.state()})" if promise.is_measured else promise.title
    return (title, *(str(number) for number in (len(promise.rules), len(tests), len(fresh), seen, by_chaos)))
