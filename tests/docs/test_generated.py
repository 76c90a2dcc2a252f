"""The pages taken from the code say what the code says."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.conf import settings

from tests.docs.pages import DOCS, generator

generate = generator()


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generate.page(name), "run `python docs/generate.py`"


def test_a_changed_page_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setitem(generate.PAGES, "reference/settings.md", ("somewhere", lambda: "# Other settings"))
    assert generate.main(["--check"]) == 1


def test_every_meaning_belongs_to_a_column() -> None:
    columns = {
        name
        for model in apps.get_app_config("pgbus").get_models()
        for field in model._meta.local_concrete_fields
        for name in (field.column, f"{model._meta.db_table}.{field.column}")
    }
    assert set(generate.MEANINGS) <= columns


def test_every_setting_signal_and_check_is_there() -> None:
    from django_pgbus import signals
    from django_pgbus.conf import Settings

    assert settings.configured
    for name in Settings.__slots__:
        assert f"| `{name}` |" in generate.page("reference/settings.md")
    for name, value in vars(signals).items():
        if isinstance(value, signals.Signal):
            assert f"| `{name}` |" in generate.page("reference/signals.md")
    assert "## pgbus.E001" in generate.page("reference/checks.md")


def test_every_public_name_of_batches_is_there() -> None:
    import django_pgbus

    page = generate.page("reference/batches.md")
    for name in django_pgbus.__all__:
        if "batch" in name.lower():
            assert f"`{name}" in page or f"## {name}" in page
    for name in ("on_success", "refused", "percent", "aadd"):
        assert f"`{name}`" in page


def test_every_argument_of_streams_is_there() -> None:
    import inspect

    import django_pgbus

    page = generate.page("reference/streams.md")
    assert set(generate.OF_A_CONSUMER) == set(inspect.signature(django_pgbus.consume).parameters)
    assert set(generate.OF_A_STREAM) == set(inspect.signature(django_pgbus.Stream).parameters)
    for name in vars(django_pgbus.Stream):
        if not name.startswith("_"):
            assert f"`{name}" in page, name
