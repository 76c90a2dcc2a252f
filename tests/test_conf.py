"""The settings: defaults, units, checks, and the alias of the tables."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest
from django.test import override_settings

from django_pgbus.conf import Settings, database, get_settings, problems


def complaint(**declared):
    (found,) = problems(declared)
    return " ".join(found)


def test_nothing_has_to_be_set():
    with override_settings(PGBUS={}):
        assert get_settings() == Settings()
    assert list(problems({})) == []


def test_each_setting_says_what_it_is():
    for setting in fields(Settings):
        assert setting.metadata["text"].endswith("."), setting.name
        if setting.metadata["kind"].startswith("duration"):
            assert setting.metadata["unit"] == "s", setting.name


@override_settings(PGBUS={"VISIBILITY_TIMEOUT": timedelta(minutes=1), "POLL_INTERVAL": 2})
def test_durations_are_seconds_or_timedeltas():
    assert get_settings().VISIBILITY_TIMEOUT == 60.0
    assert get_settings().POLL_INTERVAL == 2.0


@pytest.mark.parametrize(("beat", "interval"), [(None, 20.0), (5, 5.0)])
def test_the_beat_is_a_third_of_the_lease_unless_said(beat, interval):
    with override_settings(PGBUS={"VISIBILITY_TIMEOUT": 60, "BEAT_INTERVAL": beat}):
        assert get_settings().beat_interval == interval


def test_a_beat_longer_than_a_third_of_the_lease_is_refused():
    assert "more than a third" in complaint(VISIBILITY_TIMEOUT=30, BEAT_INTERVAL=11)
    assert "more than a third" in complaint(BEAT_INTERVAL=10.5)
    assert list(problems({"VISIBILITY_TIMEOUT": 30, "BEAT_INTERVAL": 10})) == []


def test_an_unknown_name_gets_a_suggestion():
    assert "Did you mean 'MAX_ATTEMPTS'?" in complaint(MAX_ATEMPTS=3)
    assert "Did you mean 'THREADS'?" in complaint(threads=3)
    assert "Known are" in complaint(ZZZZZZZZ=3)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MAX_ATTEMPTS", 0, "at least 1"),
        ("MAX_ATTEMPTS", 2.5, "whole number"),
        ("MAX_ATTEMPTS", True, "must be a number"),
        ("MAX_ATTEMPTS", "5", "must be a number"),
        ("POLL_INTERVAL", -1, "at least"),
        ("POLL_INTERVAL", None, "must be a number of seconds or a timedelta"),
        ("POLL_INTERVAL", float("nan"), "must be a number"),
        ("BACKOFF_CAP", float("inf"), "must be finite"),
        ("BACKOFF_JITTER", 1.5, "at most 1"),
        ("BACKOFF_JITTER", timedelta(1), "must be a number"),
        ("DATABASE", 3, "must be a text"),
        ("DATABASE", "", "must be a text"),
        ("VISIBILITY_TIMEOUT", 0, "at least 1"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(name, value, says):
    assert f"PGBUS[{name!r}]" in complaint(**{name: value})
    assert says in complaint(**{name: value})


def test_all_faults_are_named_at_once():
    assert len(list(problems({"THREADS": 0, "PROCESSES": "x", "NOPE": 1}))) == 3


def test_it_has_to_be_a_dict():
    (found,) = problems(["THREADS"])
    assert "PGBUS is a list." in found


@pytest.mark.parametrize("declared", [{"THREADS": 0}, {"THREADS": "many"}])
def test_wrong_values_are_not_used_silently(declared):
    with override_settings(PGBUS=declared), pytest.raises((TypeError, ValueError), match="must be"):
        get_settings()


class ToOther:
    def db_for_write(self, model, **hints):
        return "other" if model._meta.app_label == "pgbus" else None


def test_the_alias_is_the_one_the_routers_write_to():
    assert database() == "default"
    with override_settings(DATABASE_ROUTERS=[ToOther()]):
        assert database() == "other"
    assert database() == "default"


def test_the_alias_can_be_said():
    with override_settings(PGBUS={"DATABASE": "other"}, DATABASE_ROUTERS=[]):
        assert database() == "other"
