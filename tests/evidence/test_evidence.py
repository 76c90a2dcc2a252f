"""The pages of evidence say what is so: what they name exists, and what was recorded was seen."""

from __future__ import annotations

import re

import pytest

from tests.chaos.sabotages import SABOTAGES
from tests.chaos.shadow import fits
from tests.evidence import faults
from tests.evidence.guards import Breakable, all_guards
from tests.evidence.marked import all_marked, showing
from tests.evidence.places import ROOT, place_of
from tests.evidence.records import GUARDS, Record
from tests.evidence.removals import lead, removals
from tests.evidence.rules import Rule, all_rules, promises
from tests.evidence.words import anchor

RULES = list(all_rules())
BREAKABLE = list(all_guards())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.slug)
def test_a_rule_names_what_keeps_it_and_has_tests(rule: Rule) -> None:
    assert rule.kept_by
    for keeper in rule.kept_by:
        assert keeper.clause in keeper.text, f"{keeper.name} does not contain it"
    assert showing(rule.slug), f'no test is marked with @pytest.mark.proves("{rule.slug}")'


def test_every_promise_is_kept_by_statements() -> None:
    assert len(promises()) == 5
    for promise in promises():
        assert any(keeper.statement for rule in promise.rules for keeper in rule.kept_by), promise.title
        for slug, name in promise.lead:
            (rule,) = (rule for rule in promise.rules if rule.slug == slug)
            assert any(keeper.statement for keeper in rule.kept_by), slug
            assert lead(rule, name).edits, name


def test_every_mark_names_a_rule_and_each_rule_has_a_name_of_its_own() -> None:
    slugs = [rule.slug for rule in RULES]
    assert len(slugs) == len(set(slugs))
    for test in all_marked():
        assert set(test.slugs) <= set(slugs), test.id


@pytest.mark.parametrize("guard", BREAKABLE, ids=lambda guard: guard.name)
def test_a_guard_stands_where_it_is_to_be_taken_away(guard: Breakable) -> None:
    assert guard.tests, "no test of the rule is named like that"
    if guard.all_must:
        assert {test.rpartition("::")[2] for test in guard.tests} == set(guard.guard.tests)
    fits(guard.guard.edits)


def test_every_sabotage_belongs_to_a_rule() -> None:
    assert {name for rule in RULES for name in rule.sabotages} == set(SABOTAGES)


def test_what_was_recorded_was_seen() -> None:
    recorded = Record.read(GUARDS)
    for guard in BREAKABLE:
        if (entry := recorded.of_guard(guard)) is not None:
            seen = {test for test, _ in entry["red"]}
            assert (guard.tests <= seen) if guard.all_must else seen, f"{guard.name} was taken away, and no test saw it"


def test_faults_are_looked_for_by_tests_that_exist() -> None:
    found = list(faults.all_faults())
    assert len({fault.what for fault in found}) == len(found)
    for fault in found:
        assert fault.tests or fault.note, fault.what
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert re.search(rf"def {name}\b", (ROOT / file).read_text(encoding="utf-8")), test


def test_a_clause_that_is_not_there_is_missed() -> None:
    (rule, *_) = RULES
    assert "FOR UPDATE NOWAIT" not in rule.kept_by[0].text
    with pytest.raises(LookupError):
        place_of("queues.sql.NO_SUCH_STATEMENT")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.slug)
def test_the_title_of_a_rule_leads_to_its_name(rule: Rule) -> None:
    assert anchor(rule.title) == rule.slug


def test_words_are_of_sabotages_of_the_rule() -> None:
    for rule in RULES:
        assert {name for name, _ in rule.in_words} <= set(rule.sabotages), rule.slug
    assert all(removals(rule) for rule in RULES if rule.guards or rule.sabotages)
