"""
A copy of the repository in which one guard of the product is missing, and commands that run in it.

Each edit names where it is made (`queues.sql.SUCCEED`: a statement, function, class or method), the exact old text, which
must stand there exactly once, and the new one: one that no longer fits is an error, never a sabotage that does nothing.
Every Python process of a copy, children of workers included, refuses to import a django_pgbus from anywhere else.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "django_pgbus"

# Found first on the path, so each interpreter runs it when it starts.
ONLY_THE_COPY: Final = f"""
import importlib.machinery, pathlib, sys

HERE = pathlib.Path(__file__).resolve().parent

class OnlyTheCopy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != {PACKAGE!r}:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or HERE not in pathlib.Path(spec.origin).resolve().parents:
            raise ImportError(f"{{name}} would come from {{spec and spec.origin}} and not from the copy in {{HERE}}")
        return spec

sys.meta_path.insert(0, OnlyTheCopy)
"""


class DoesNotFit(Exception):
    """An edit whose place or old text is not there exactly once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement: `at` is `module.NAME` below the package, or the path of a file where the text is unique in it."""

    at: str
    old: str
    new: str

    def applied(self, root: Path) -> tuple[Path, str]:
        """Return the file it changes and its new text, or raise DoesNotFit."""
        file, first, last = self._place(root)
        lines = file.read_text().splitlines(keepends=True)
        place = "".join(lines[first:last])
        if (found := place.count(self.old)) != 1:
            raise DoesNotFit(f"{self.at}: {self.old!r} stands there {found} times and not once")
        return file, "".join([*lines[:first], place.replace(self.old, self.new), *lines[last:]])

    def _place(self, root: Path) -> tuple[Path, int, int]:
        """Return the file, and the lines of the named place in it."""
        if self.at.endswith(".py"):
            return root / self.at, 0, sys.maxsize
        parts = self.at.split(".")
        for length in range(len(parts), 0, -1):
            file = root.joinpath(PACKAGE, *parts[:length]).with_suffix(".py")
            if file.is_file():
                node = _named(ast.parse(file.read_text()), parts[length:])
                if node is None:
                    break
                return file, node.lineno - 1, node.end_lineno or 0
        raise DoesNotFit(f"{self.at}: there is no such place")


def _named(tree: ast.Module, names: Sequence[str]) -> ast.stmt | None:
    """Return the assignment, function or class that these names lead to."""
    body, found = tree.body, None
    for name in names:
        found = next((node for node in body if name in _names(node)), None)
        if found is None:
            return None
        body = getattr(found, "body", [])
    return found


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=id)):
            return {id}
    return set()


@contextmanager
def edited(edits: Sequence[Edit], root: Path) -> Iterator[None]:
    """Make these edits below `root`, each on what those before it have left, and undo them at the end."""
    before: dict[Path, tuple[str, int]] = {}
    try:
        for edit in edits:
            file, text = edit.applied(root)
            before.setdefault(file, (file.read_text(), file.stat().st_mtime_ns))
            file.write_text(text)
        yield
    finally:
        for file, (text, changed_at) in before.items():
            file.write_text(text)
            os.utime(file, ns=(changed_at, changed_at))  # So that what was compiled of the other text is not used.


def fits(edits: Sequence[Edit]) -> None:
    """Raise DoesNotFit unless all of these can be made in the present tree and leave Python that compiles."""
    with tempfile.TemporaryDirectory(prefix="pgbus-fits-") as folder:
        for edit in edits:
            file = edit._place(ROOT)[0].relative_to(ROOT)
            copy = Path(folder, file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy(ROOT / file, copy)
        with edited(edits, Path(folder)):
            for copy in Path(folder).rglob("*.py"):
                compile(copy.read_text(), str(copy), "exec")


class Shadow:
    """The copy; commands run in it with this interpreter."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def without(self, edits: Sequence[Edit]) -> AbstractContextManager[None]:
        """Make these edits in the copy for as long as the block lasts."""
        return edited(edits, self.root)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of every command."""
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != ROOT]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.root), *others])}

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line of `python arguments`."""
        return [sys.executable, *arguments]

    def run(self, arguments: Sequence[str], *, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `python arguments` in the copy and return what it came to; its output is one text."""
        return subprocess.run(
            self.command(arguments),
            cwd=self.root,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def shadow() -> Iterator[Shadow]:
    """Make a copy, and delete it again."""
    with tempfile.TemporaryDirectory(prefix="pgbus-shadow-") as folder:
        root = Path(folder, "copy").resolve()
        for file in _files():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, root / file)
        (root / "sitecustomize.py").write_text(ONLY_THE_COPY)
        yield Shadow(root)


def _files() -> list[str]:
    """Return what git knows of the working tree, changes and new files included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [file for file in listed.stdout.split("\0") if file and (ROOT / file).is_file()]
