"""The looks of `pgbus_doctor` at what migrations have made: compared with the models of this code, name by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.db import connections, models
from django.db.migrations.loader import MigrationLoader

from django_pgbus.conf import database
from django_pgbus.worker import doctor_server_sql as sql
from django_pgbus.worker.doctor_project import APP_LABEL, checked
from django_pgbus.worker.findings import Finding, Findings, Grade

# What migrations make by SQL of their own, of which no model knows; a test reads the migrations.
CHECKS: Final = {"pgbus_subscriptions": ("pgbus_subscriptions_regex",)}
FUNCTIONS: Final = ("pgbus_take_transaction_id",)


def migrations() -> Findings:
    """Look whether the server is new enough, and whether code and database are of one version."""
    found = checks.run_checks(tags=[checks.Tags.database], databases=[database()])
    yield from checked("schema", found, "version and migrations are as they should be")
    known = {name for app, name in MigrationLoader(None, ignore_no_migrations=True).disk_migrations if app == APP_LABEL}
    ahead = sorted(row.name for row in sql.APPLIED.rows() if row.name not in known)
    if ahead:
        yield Finding(
            Grade.WARN,
            "schema",
            f"the database has migrations that this code does not know: {', '.join(ahead)}",
            "Deploy the version of pgbus that brought them, here too.",
            ahead[0],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An index as a model declares it; without a name where Django makes one up."""

    table: str
    name: str
    columns: tuple[str, ...]
    is_unique: bool
    is_partial: bool
    create: str

    def matches(self, row: Any) -> bool:
        """Return whether an index of the database does what this one is for."""
        columns = tuple(row.columns)
        if self.is_unique:
            return row.is_unique and columns == self.columns and row.is_partial == self.is_partial
        # Django makes up the name: any index that begins with the column finds its rows.
        return (
            columns[: len(self.columns)] == self.columns
            if not self.name
            else (columns == self.columns and row.is_partial == self.is_partial)
        )


def tables() -> Findings:
    """Look whether every table, column, index, constraint and function is there, and may be used."""
    ours = list(apps.get_app_config(APP_LABEL).get_models())
    names = [model._meta.db_table for model in ours]
    columns: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for row in sql.COLUMNS.rows(tables=names):
        columns[row.table_name][row.name] = row.has_default
    indexes = sql.INDEXES.rows()
    constraints = sql.CONSTRAINTS.rows(tables=names)
    there = [model for model in ours if model._meta.db_table in columns]
    found = [
        *(_missing("table", name, f"Run `manage.py migrate {APP_LABEL}`.") for name in names if name not in columns),
        *(one for model in there for one in _columns(model, columns[model._meta.db_table])),
        *(one for model in there for one in _indexes(model, indexes)),
        *(one for model in there for one in _constraints(model, constraints)),
        *_functions(),
        *_unusable(there, indexes, constraints),
    ]
    yield from found
    if not found:
        yield Finding(Grade.OK, "tables", f"{len(names)} tables and {len(indexes)} indexes are there, and can be used")


def _missing(kind: str, name: str, remedy: str, table: str = "") -> Finding:
    return Finding(Grade.FAIL, "tables", f"the {kind} {name}{f' of {table}' if table else ''} is missing", remedy, name)


def _columns(model: Any, there: dict[str, bool]) -> Iterator[Finding]:
    table = model._meta.db_table
    again = f"Migrations are recorded that did not run (--fake?): see `manage.py sqlmigrate {APP_LABEL} ...`."
    for field in model._meta.local_concrete_fields:
        if field.column is None:  # a composite primary key is none of its own
            continue
        if field.column not in there:
            yield _missing("column", field.column, again, table)
        elif not there[field.column] and (field.has_db_default() or isinstance(field, models.AutoField)):
            yield _missing("default of the column", field.column, again, table)


def _indexes(model: Any, there: list[Any]) -> Iterator[Finding]:
    table = model._meta.db_table
    ours = [row for row in there if row.table_name == table]
    for wanted in _wanted(model):
        if wanted.name:
            same = [row for row in ours if row.name == wanted.name]
            if same and not wanted.matches(same[0]):
                yield Finding(
                    Grade.FAIL,
                    "tables",
                    f"the index {wanted.name} of {table} is another one: ({', '.join(same[0].columns)}) instead of "
                    f"({', '.join(wanted.columns)})",
                    f"DROP INDEX CONCURRENTLY {wanted.name}; {wanted.create}",
                    wanted.name,
                )
        else:
            same = [row for row in ours if wanted.matches(row)]
        if not same:
            yield _missing("index", wanted.name or f"on ({', '.join(wanted.columns)})", wanted.create, table)


def _wanted(model: Any) -> Iterator[Wanted]:
    meta, table = model._meta, model._meta.db_table
    editor: Any = connections[database()].SchemaEditorClass(connections[database()], collect_sql=True)
    key = tuple(field.column for field in getattr(meta, "pk_fields", [meta.pk]))
    yield _one(table, key, f"ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(key)});")
    for field in meta.local_concrete_fields:
        if field.unique and not field.primary_key and field.column is not None:
            yield _one(table, (field.column,), f"ALTER TABLE {table} ADD UNIQUE ({field.column});")
        elif field.db_index and not field.unique:
            create = f"CREATE INDEX CONCURRENTLY ON {table} ({field.column});"
            yield _one(table, (field.column,), create, is_unique=False)
    for index in meta.indexes:
        yield Wanted(
            table=table,
            name=index.name,
            columns=_columns_of(model, index),
            is_unique=False,
            is_partial=index.condition is not None,
            create=f"{index.create_sql(model, editor, concurrently=True)};",
        )
    for constraint in meta.constraints:
        if isinstance(constraint, models.UniqueConstraint):
            yield Wanted(
                table=table,
                name=constraint.name,
                columns=_columns_of(model, constraint),
                is_unique=True,
                is_partial=constraint.condition is not None,
                create=f"{constraint.create_sql(model, editor)};",
            )


def _one(table: str, columns: tuple[str, ...], create: str, *, is_unique: bool = True) -> Wanted:
    return Wanted(table=table, name="", columns=columns, is_unique=is_unique, is_partial=False, create=create)


def _columns_of(model: Any, index: Any) -> tuple[str, ...]:
    """Return the columns of an index; an expression other than a column has no name."""
    names = list(index.fields)
    for expression in index.expressions:
        plain = getattr(expression, "expression", expression)  # of an OrderBy
        names.append(getattr(plain, "name", ""))  # of an F
    return tuple(model._meta.get_field(name).column if name else "" for name in names)


def _constraints(model: Any, there: list[Any]) -> Iterator[Finding]:
    table = model._meta.db_table
    ours = [row for row in there if row.table_name == table]
    editor: Any = connections[database()].SchemaEditorClass(connections[database()], collect_sql=True)
    named = {row.name for row in ours}
    for constraint in model._meta.constraints:
        if isinstance(constraint, models.CheckConstraint) and constraint.name not in named:
            yield _missing("constraint", constraint.name, f"{constraint.create_sql(model, editor)};", table)
    for name in CHECKS.get(table, ()):
        if name not in named:
            yield _missing("constraint", name, "Migrations say how it is made; it must be put back by hand.", table)
    referring = {tuple(row.columns) for row in ours if row.kind == "f"}
    for field in model._meta.local_concrete_fields:
        if field.remote_field and field.db_constraint and (field.column,) not in referring:
            to = field.remote_field.model._meta
            create = (
                f"ALTER TABLE {table} ADD FOREIGN KEY ({field.column}) REFERENCES {to.db_table} ({to.pk.column}) "
                "DEFERRABLE INITIALLY DEFERRED;"
            )
            yield _missing("foreign key", f"on {field.column}", create, table)


def _functions() -> Iterator[Finding]:
    for name in FUNCTIONS:
        if not sql.FUNCTION_IS_THERE.row(name=name).is_there:
            yield _missing("function", name, "The migration 0004 says how it is made, with the triggers of every log.")


def _unusable(ours: list[Any], indexes: list[Any], constraints: list[Any]) -> Iterator[Finding]:
    known = {index.name for model in ours for index in model._meta.indexes}
    for row in indexes:
        if not row.is_usable:
            yield Finding(
                Grade.FAIL if row.name in known or row.is_unique else Grade.WARN,
                "tables",
                f"the index {row.name} of {row.table_name} is invalid: every write pays for it, and nobody may read it",
                f"REINDEX INDEX CONCURRENTLY {row.name};"
                if row.name in known
                else f"DROP INDEX CONCURRENTLY {row.name}, left by a REINDEX or CREATE that failed; or REINDEX it.",
                row.name,
            )
    for row in constraints:
        if not row.is_valid:
            yield Finding(
                Grade.WARN,
                "tables",
                f"the constraint {row.name} of {row.table_name} was never validated: rows of before may break it",
                f"ALTER TABLE {row.table_name} VALIDATE CONSTRAINT {row.name};",
                row.name,
            )
