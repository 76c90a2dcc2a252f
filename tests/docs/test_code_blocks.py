"""Code in the documentation is Python, and what is marked to be run does what the page says."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from django_pgbus.events.handlers import handlers
from django_pgbus.models import Subscription
from tests.docs.pages import Block, all_blocks, blocks_of
from tests.streams.following import nothing_declared

PYTHON = all_blocks("python")
RUN_PAGES = sorted({block.page for block in PYTHON if block.mark == "run"})


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{block.page}:{block.line}")
def test_it_compiles(block: Block) -> None:
    ast.parse(block.text, filename=f"docs/{block.page}")


@pytest.fixture
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The blocks of one page are one module, so that a worker could import its tasks; nothing else is declared."""
    others = dict(handlers)
    handlers.clear()
    made = ModuleType("docs_" + request.param.removesuffix(".md").replace("/", "_").replace("-", "_"))
    made.__file__ = f"docs/{request.param}"
    sys.modules[made.__name__] = made
    with nothing_declared():
        yield made
    del sys.modules[made.__name__]
    handlers.clear()
    handlers.update(others)


@pytest.mark.django_db
@pytest.mark.parametrize("module", RUN_PAGES, indirect=True)
def test_what_is_marked_runs(module: ModuleType) -> None:
    page = (module.__file__ or "").removeprefix("docs/")
    Subscription.objects.all().delete()
    for block in blocks_of(page):
        if block.language == "python" and block.mark == "run":
            code = compile("\n" * block.line + block.text, f"docs/{page}", "exec")
            exec(code, module.__dict__)


def test_there_are_such_blocks() -> None:
    assert RUN_PAGES
