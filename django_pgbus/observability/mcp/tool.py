"""
A tool: a function that reads, with the schemas of what it takes and returns made from its signature.

What it is asked is checked before it runs; a wrong question is answered in words, and what was asked is not repeated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from django_pgbus.observability.mcp.words import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool, as the server offers it."""

    name: str
    description: str
    function: Callable[..., Any]
    asked: type[BaseModel]
    answer: TypeAdapter[Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """Return the tool that a function is; its docstring says what it tells."""
        hints = get_type_hints(function, include_extras=True)
        answer = hints.pop("return")
        parameters = inspect.signature(function).parameters
        given: dict[str, Any] = {
            name: (hint, ... if parameters[name].default is inspect.Parameter.empty else parameters[name].default)
            for name, hint in hints.items()
        }
        return cls(
            name=function.__name__,
            description="\n\n".join(" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")).strip(),
            function=function,
            asked=create_model(function.__name__, __config__=ConfigDict(extra="forbid", strict=True), **given),
            answer=TypeAdapter(answer),
        )

    @property
    def input_schema(self) -> dict[str, Any]:
        """Return the JSON schema of what it takes."""
        return self.asked.model_json_schema()

    @property
    def output_schema(self) -> dict[str, Any]:
        """Return the JSON schema of what it returns."""
        return self.answer.json_schema(mode="serialization")

    def arguments(self, given: Any) -> dict[str, Any]:
        """Return what it is called with; refuses what it does not take."""
        try:
            checked = self.asked.model_validate(given)
        except ValidationError as error:
            raise Refused(self._what_is_wrong(error)) from None
        return {name: getattr(checked, name) for name in self.asked.model_fields}

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the answer as JSON can hold it."""
        answered: dict[str, Any] = self.answer.dump_python(self.function(**arguments), mode="json")
        return answered

    def _what_is_wrong(self, error: ValidationError) -> str:
        found: dict[str, str] = {}
        for problem in error.errors(include_url=False, include_input=False, include_context=False):
            name = str(problem["loc"][0]) if problem["loc"] else ""
            known = name in self.asked.model_fields
            text = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                takes = ", ".join(self.asked.model_fields) or "no arguments"
                text = f"there is no such argument; {self.name} takes {takes}"
            found.setdefault(name if known else "an argument", text[:1].lower() + text[1:])
        return " ".join(f"{name}: {text}." for name, text in found.items())
