"""The tests that name a rule with `@pytest.mark.proves(...)`, read from their text: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.evidence.places import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A test, the rules it shows, and the guards without which it runs once more in the suite and has to fail."""

    file: str
    home: str  # its class
    name: str
    slugs: tuple[str, ...]
    breaks: tuple[str, ...]

    @property
    def id(self) -> str:
        """Return what pytest calls it."""
        return f"{self.file}::{self.home}{self.name}"

    @property
    def is_slow(self) -> bool:
        """Return whether it starts workers, or looks for its cases at random."""
        return self.file.startswith("tests/processes/") or self.file.endswith("_machine.py")

    @property
    def sentence(self) -> str:
        """Return its name in words."""
        return self.name.removeprefix("test_").replace("_", " ")


@cache
def all_marked() -> tuple[Marked, ...]:
    """Return the tests that show a rule."""
    return tuple(one for file in sorted((ROOT / "tests").rglob("test_*.py")) for one in _of_file(file))


def showing(slug: str) -> list[Marked]:
    """Return the tests that show this rule."""
    return [one for one in all_marked() if slug in one.slugs]


def _of_file(file: Path) -> Iterator[Marked]:
    text = file.read_text(encoding="utf-8")
    if "mark.proves(" not in text:
        return
    module = _Module(file)
    within = [
        (module.tree, ""),
        *((node, f"{node.name}::") for node in module.tree.body if isinstance(node, ast.ClassDef)),
    ]
    for home, function in ((home, node) for parent, home in within for node in parent.body):
        if not isinstance(function, Function):
            continue
        slugs, breaks = [], []
        for call in function.decorator_list:
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.proves":
                slugs += [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            elif isinstance(call, ast.Call) and ast.unparse(call.func) == "fails_if":
                breaks += [module.words(argument) for argument in call.args]
            elif isinstance(call, ast.Call) and ast.unparse(call.func) == "fails_without":
                breaks.append(module.without(call.args[:2]))
        if slugs:
            yield Marked(
                file=file.relative_to(ROOT).as_posix(),
                home=home,
                name=function.name,
                slugs=tuple(slugs),
                breaks=tuple(breaks),
            )


class _Module:
    """A test module, and what its names stand for."""

    def __init__(self, file: Path) -> None:
        self.tree = ast.parse(file.read_text(encoding="utf-8"))
        self.values: dict[str, ast.expr] = {}
        self.functions: dict[str, str] = {}
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.values[name] = value
                case ast.FunctionDef(name=name):
                    self.functions[name] = " ".join((ast.get_docstring(node) or name.replace("_", " ")).split())
                case ast.ImportFrom(module=str(home), names=names) if home.startswith("tests."):
                    other = _module((ROOT / home.replace(".", "/")).with_suffix(".py"))
                    for alias in names if other else ():
                        self._take(alias.asname or alias.name, alias.name, other)

    def _take(self, name: str, there: str, other: _Module | None) -> None:
        if other and there in other.values:
            self.values[name] = other.values[there]
        if other and there in other.functions:
            self.functions[name] = other.functions[there]

    def words(self, broken: ast.expr) -> str:
        """Return how an argument of `fails_if` breaks the rule, in words."""
        match broken:
            case ast.Name(id=name) if name in self.functions:
                return self.functions[name]
            case ast.Name(id=name) if name in self.values:
                return self.words(self.values[name])
            case ast.Call(func=ast.Name(id="without"), args=args):
                return self.without(args)
            case ast.Call(func=ast.Name(id="at_the_same_time"), args=parts):
                return ", ".join(self.words(part) for part in parts)
            case ast.Starred(value=value):
                return self.words(value)
        return f"`{ast.unparse(broken)}`"

    def without(self, args: Sequence[ast.expr]) -> str:
        """Return what is taken out of which statement."""
        name, *guards = [text for one in args for text in self._texts(one)]
        component, _, name = name.rpartition(".")
        name = f"{component or 'queues'}.sql.{name}"
        return f"without {' and '.join(f'`{one}`' for one in guards)} in `{name}`"

    def _texts(self, guard: ast.expr) -> Iterable[str]:
        match guard:
            case ast.Constant(value=str(text)):
                return [" ".join(text.split())]
            case ast.Tuple(elts=[old, _]):
                return self._texts(old)
            case ast.Starred(value=ast.Name(id=name)) if name in self.values:
                several = self.values[name]
                assert isinstance(several, ast.Tuple)
                return [text for one in several.elts for text in self._texts(one)]
            case ast.Name(id=name) if name in self.values:
                return self._texts(self.values[name])
        return [ast.unparse(guard)]


@cache
def _module(file: Path) -> _Module | None:
    return _Module(file) if file.exists() else None
