"""Links to tests and files lead somewhere, and a link that names a test finds it."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, PAGES, text_of

LINK = re.compile(r"\]\((?!https?:|#|mailto:)(?P<target>[^)\s]+)(?: \"(?P<title>[^\"]*)\")?\)")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for found in LINK.finditer(text_of(name)):
        file = (DOCS / name).parent / found["target"].partition("#")[0]
        assert file.exists(), found[0]
        if found["title"] and found["title"].startswith("test_"):
            assert re.search(rf"def {found['title']}\b", file.read_text(encoding="utf-8")), found[0]


def test_the_page_of_cases_names_tests() -> None:
    assert len(re.findall(r'"test_\w+"', text_of("what-happens-when.md"))) > 20
