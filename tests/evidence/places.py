"""Where a statement, function, class or constant stands, read from the text: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "django_pgbus"


class Place(NamedTuple):
    """A file, the lines from `start` to before `end`, and whether that is a function or class."""

    file: Path
    start: int
    end: int
    is_code: bool

    @property
    def text(self) -> str:
        """Return what stands there."""
        return "".join(self.file.read_text(encoding="utf-8").splitlines(keepends=True)[self.start : self.end])


@cache
def place_of(name: str) -> Place:
    """Return the place of a dotted name within the package, or of a path in the repository; LookupError if there is none."""
    if "/" in name:
        file = ROOT / name
        return Place(file, 0, len(file.read_text(encoding="utf-8").splitlines()), is_code=False)
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        file = (ROOT / PACKAGE / "/".join(parts[:length])).with_suffix(".py")
        if file.exists():
            node = _node(_parsed(file), parts[length:])
            return Place(file, node.lineno - 1, node.end_lineno or node.lineno, is_code=hasattr(node, "body"))
    raise LookupError(f"There is no {name}.")


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _node(tree: ast.Module, names: Sequence[str]) -> ast.stmt:
    body: Sequence[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for name in names:
        found = next((node for node in body if name in _names(node)), None)
        if found is None:
            raise LookupError(f"There is no {'.'.join(names)}.")
        body = getattr(found, "body", [])
    assert found is not None
    return found


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []
