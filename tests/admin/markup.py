"""What a browser would run of a page, and texts that want to be run."""

from __future__ import annotations

from collections.abc import Collection
from html.parser import HTMLParser
from typing import Any

from django.test import Client

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7|add:"7" }} \'; --'
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


class Tags(HTMLParser):
    """Collects what a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.events: list[str] = []
        self.images: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img" and not (dict(attrs)["src"] or "").startswith("/static/admin/"):
            self.images.append(dict(attrs)["src"])
        self.events += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.events += [f"{name}={value}" for name, value in attrs if (value or "").startswith("javascript:")]
        if tag == "style" or (tag == "script" and not dict(attrs).get("src")):
            self.inline.append(tag)


def harmless(client: Client, path: str, *, data: dict[str, Any] | None = None, status: Collection[int] = (200,)) -> str:
    """Return the text of a page, of which a browser runs nothing that came from outside."""
    response = client.post(path, data) if data else client.get(path, follow=True)
    assert response.status_code in status, path
    text = response.content.decode()
    seen = Tags()
    seen.feed(text)
    assert not seen.inline, path
    assert not seen.events, path
    assert not seen.images, path
    assert "alert(1)</script>" not in text, path
    return text
