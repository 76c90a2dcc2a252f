"""Every text for people is there in German and in French, in the form that is compiled into the wheel."""

from __future__ import annotations

import gettext
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import polib
import pytest
from django.apps import apps
from django.test import Client
from django.urls import reverse
from django.utils import translation
from django.utils.formats import date_format

from django_pgbus.admin import words

PACKAGE = Path(__file__).parents[1] / "django_pgbus"
LANGUAGES = {"de": "nplurals=2; plural=(n != 1);", "fr": "nplurals=2; plural=(n > 1);"}
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|%%")
MARKUP = re.compile(r"</?\w[^>]*>|&\w+;|`[^`]*`")


def catalog(language: str, folder: Path = PACKAGE) -> polib.POFile:
    return polib.pofile(str(folder / "locale" / language / "LC_MESSAGES" / "django.po"))


def keys(entries: polib.POFile) -> dict[tuple[str | None, str], polib.POEntry]:
    return {(entry.msgctxt, entry.msgid): entry for entry in entries}


def forms(entry: polib.POEntry) -> list[str]:
    return list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]


def placeholders(text: str) -> Counter[str]:
    return Counter(PLACEHOLDER.findall(text))


def edges(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> polib.POFile:
    """Return the texts that the code has now."""
    if not shutil.which("xgettext"):
        pytest.skip("GNU gettext is not installed")
    copy = tmp_path_factory.mktemp("texts") / "django_pgbus"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    command = [sys.executable, "-m", "django", "makemessages", "--locale", "de", "--verbosity", "0"]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin:/usr/local/bin"})
    return catalog("de", copy)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_of_the_code_is_translated_and_no_other(language: str, extracted: polib.POFile) -> None:
    assert len(extracted) > 300
    found, known = keys(extracted), keys(catalog(language))
    assert [key for key in found if key not in known] == []
    assert [key for key in known if key not in found] == []
    assert [key for key, entry in found.items() if entry.msgid_plural != known[key].msgid_plural] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_translation_is_unfinished(language: str) -> None:
    entries = catalog(language)
    assert [entry.msgid for entry in entries if entry.obsolete or entry.fuzzy or not entry.translated()] == []
    assert [entry.msgid for entry in entries if entry.msgid_plural and set(entry.msgstr_plural) != {0, 1}] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalog_says_its_language_and_plurals_and_nobody_s_name(language: str) -> None:
    said = catalog(language).metadata
    assert (said["Language"], said["Plural-Forms"]) == (language, LANGUAGES[language])
    assert said["Project-Id-Version"] == "django-pgbus"
    assert "Last-Translator" not in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_names_what_its_text_names(language: str) -> None:
    for entry in catalog(language):
        if not entry.msgid_plural:
            assert placeholders(entry.msgstr) == placeholders(entry.msgid), entry.msgid
            continue
        for text in entry.msgstr_plural.values():  # the singular may say "one" without the number
            assert placeholders(text).keys() <= placeholders(entry.msgid_plural).keys(), entry.msgid
        assert placeholders(entry.msgstr_plural[max(entry.msgstr_plural)]) == placeholders(entry.msgid_plural), (
            entry.msgid
        )


def test_french_says_the_number_wherever_it_may_be_zero() -> None:
    """Zero is singular in French: a singular without the number would say "one" of nothing."""
    for entry in catalog("fr"):
        if entry.msgid_plural and "%(number)s" in entry.msgid:
            assert "%(number)s" in entry.msgstr_plural[0], entry.msgid


@pytest.mark.parametrize("language", LANGUAGES)
def test_markup_code_and_spaces_at_the_edges_stay(language: str) -> None:
    for entry in catalog(language):
        for text in forms(entry):
            assert Counter(MARKUP.findall(text)) == Counter(MARKUP.findall(entry.msgid)), entry.msgid
            assert edges(text) == edges(entry.msgid), entry.msgid


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_ends_as_its_text_does(language: str) -> None:
    """A label stays a label, a sentence a sentence, a question a question."""
    for entry in catalog(language):
        for text, source in zip(forms(entry), [entry.msgid, entry.msgid_plural], strict=False):
            for mark in (".", "?", ":"):
                assert text.endswith(mark) == source.endswith(mark), entry.msgid


def test_french_and_german_are_set_as_their_readers_expect() -> None:
    for entry in catalog("fr"):
        for text in forms(entry):
            assert not re.search(r"(?<!\u00a0)[;?!»]|(?<![\u00a0\d%]):(?!\d)|«(?!\u00a0)|'", text), text
    for entry in catalog("de"):
        for text in forms(entry):
            assert not re.search(r"[\"'”]", text), text
            assert text.count("„") == text.count("“"), text


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / "django.mo"
    with path.open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    written = catalog(language)
    for entry in written:
        assert not (entry.msgctxt and entry.msgid_plural), "npgettext is not looked up here yet"
        if entry.msgid_plural:
            numbers = [compiled.ngettext(entry.msgid, entry.msgid_plural, number) for number in (1, 2)]
            assert numbers == [entry.msgstr_plural[0], entry.msgstr_plural[1]], entry.msgid
        elif entry.msgctxt:
            assert compiled.pgettext(entry.msgctxt, entry.msgid) == entry.msgstr
        else:
            assert compiled.gettext(entry.msgid) == entry.msgstr, entry.msgid


def test_django_finds_the_catalogs() -> None:
    names = {}
    for language in ("en", "de", "fr", "fr-ca"):
        with translation.override(language):
            names[language] = str(apps.get_app_config("pgbus").verbose_name)
    assert names == {
        "en": "Background work",
        "de": "Hintergrundverarbeitung",
        "fr": "Travaux en arrière-plan",
        "fr-ca": "Travaux en arrière-plan",
    }


@pytest.mark.parametrize(
    ("language", "name"), [("en", "DATE_FORMAT"), ("de", "SHORT_DATE_FORMAT"), ("fr", "SHORT_DATE_FORMAT")]
)
def test_dates_are_as_short_as_the_language_allows(language: str, name: str) -> None:
    at = datetime(2026, 11, 30, 21, 21, 8)
    with translation.override(language):
        assert words.moment(at) == f"{date_format(at, name)} 21:21:08".replace(
            " ", "\u00a0", 2 if language == "en" else 0
        )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("asked", "title"), [("de", "Warteschlangen"), ("fr", "Files d\u2019attente"), ("nl", "Queues")]
)
def test_a_page_speaks_the_language_that_the_browser_asks_for(
    asked: str, title: str, admin_client: Client, settings: Any
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    with translation.override(None):  # the middleware leaves its language to the thread
        page = admin_client.get(reverse("admin:pgbus_queuestate_changelist"), headers={"accept-language": asked})
    assert f"<h1>{title}</h1>" in page.content.decode()
