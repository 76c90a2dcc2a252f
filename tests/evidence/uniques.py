"""The unique constraints and primary keys of the tables: what keeps a rule even against a statement that is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.apps import apps
from django.db.models import UniqueConstraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """A unique constraint or primary key, and the file of the model that declares it."""

    name: str
    table: str
    text: str
    file: Path


@cache
def uniques() -> dict[str, Unique]:
    """Return them by name, but those of an id that a sequence gives: nobody else has it."""
    return {one.name: one for model in apps.get_app_config("pgbus").get_models() for one in _of_model(model)}


def of_table(table: str) -> list[Unique]:
    """Return those of a table, named without `pgbus_`."""
    return [one for one in uniques().values() if one.table == f"pgbus_{table}"]


def _of_model(model: Any) -> Iterator[Unique]:
    meta = model._meta
    found = {
        constraint.name: f"UNIQUE ({_columns(meta, constraint.fields)})"
        for constraint in meta.constraints
        if isinstance(constraint, UniqueConstraint)
    }
    key = _columns(meta, [field.name for field in meta.pk_fields])
    if key not in {"id", "message_id"}:
        found[f"{meta.db_table}_pkey"] = f"PRIMARY KEY ({key})"
    for name, text in found.items():
        yield Unique(name=name, table=meta.db_table, text=text, file=Path(inspect.getfile(model)))


def _columns(meta: Any, fields: Any) -> str:
    return ", ".join(meta.get_field(name).column for name in fields)
