#!/usr/bin/env python3
"""
Write the pages that are taken from the code.

    python docs/generate.py            write them
    python docs/generate.py --check    write nothing, exit with 1 if a page is not what the code says

`tests/docs/test_generated.py` does the check. A page that is wrong is corrected where it comes from.
"""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
import re
import sys
import tomllib
from argparse import SUPPRESS, Action
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PACKAGE = ROOT / "django_pgbus"


# --- settings -----------------------------------------------------------------------------------------

ACCEPTS = {
    "duration": "seconds or timedelta",
    "count": "whole number",
    "share": "number",
    "text": "text",
    "flag": "True or False",
}


def settings() -> str:
    """Return the table of `PGBUS`, from `conf.Settings`."""
    from django_pgbus.conf import Settings

    code = "".join(file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py"))
    rows = []
    for field in fields(Settings):
        kind, low = field.metadata["kind"].rstrip("?"), field.metadata["low"]
        accepts = ACCEPTS[kind] + (f" from {low:g}" if low is not None else "") + (" to 1" if kind == "share" else "")
        if field.default is None:
            accepts += ", or None"
        meaning = field.metadata["text"]
        if not re.search(rf"\.{field.name}\b", code):
            meaning += " *Without effect in this version.*"
        rows.append((f"`{field.name}`", _value(field.default, field.metadata["unit"]), accepts, meaning))
    return _table(("Key", "Default", "Accepts", "Meaning"), rows)


def _value(value: Any, unit: str) -> str:
    if unit == "s" and value is not None:
        number = f"`{int(value) if value == int(value) else value}` s"
        return number if _span(value) == f"{value:g} s" else f"{number} ({_span(value)})"
    if unit == "bytes":
        return f"`{value}` ({value / (1 << 20):g} MiB)"
    return f"`{value!r}`"


def _span(seconds: float) -> str:
    for name, size in (("days", 86400), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} s"


# --- signals ------------------------------------------------------------------------------------------


def signals() -> str:
    """Return the tables of signals, from the comments of `signals.py` and the log lines of `log.py`."""
    source = (PACKAGE / "signals.py").read_text(encoding="utf-8")
    said = _log_lines()
    parts: list[str] = []
    rows: list[tuple[str, ...]] = []
    for line in source.splitlines():
        if found := re.match(r"(\w+) = Signal\(\)(?:\s*# (.*))?$", line):
            arguments, remark = [*re.split(r": (?![^(]*\))", found[2] or "", maxsplit=1), ""][:2]
            rows.append((f"`{found[1]}`", arguments, remark, said.get(found[1], "")))
        elif (found := re.match(r"# (.*)", line)) and rows:
            parts += [_signal_table(rows), _sentence(found[1])]
            rows = []
    return "\n\n".join([*parts, _signal_table(rows)])


def _signal_table(rows: list[tuple[str, ...]]) -> str:
    return _table(("Signal", "Arguments", "When", "Log line"), rows)


def _log_lines() -> dict[str, str]:
    """Return {signal: "LEVEL text"} of the receivers in `log.py`."""
    from django_pgbus import log, signals

    names = {id(value): name for name, value in vars(signals).items() if not name.startswith("_")}
    return {names[id(signal)]: _log_line(receiver) for signal, receiver in log.LINES.items()}


def _log_line(receiver: Callable[..., Any]) -> str:
    tree = ast.parse(inspect.getsource(receiver))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _is_name(call.func.value, "logger"):
            if call.func.attr == "log":
                level = "/".join(dict.fromkeys(re.findall(r"logging\.([A-Z]+)", ast.unparse(tree)))) or "by verbosity"
                text = call.args[1]
            else:
                level, text = call.func.attr.upper(), call.args[0]
            return f"{level}: `{_text(text)}`"
    return ""


# --- commands -----------------------------------------------------------------------------------------


def commands() -> str:
    """Return the options of each command, from its parser."""
    from django.core.management import load_command_class
    from django.core.management.base import BaseCommand

    common = {action.dest for action in BaseCommand().create_parser("manage.py", "any")._actions}
    parts = []
    for name in sorted(_commands()):
        command = load_command_class("django_pgbus", name)
        home = type(command).__module__.rpartition(".")[2]
        if home != name:
            parts.append(f"## {name}\n\nThe same command as [{home}](#{home}), under a name no other app uses.")
            continue
        parser = command.create_parser("manage.py", name)
        rows = [_option(action) for action in parser._actions if action.dest not in common]
        parts.append(f"## {name}\n\n{command.help}\n\n" + _table(("Option", "Meaning"), rows))
    return "\n\n".join(parts)


def _commands() -> Iterator[str]:
    return (module.name for module in pkgutil.iter_modules([str(PACKAGE / "management" / "commands")]))


def _option(action: Action) -> tuple[str, str]:
    metavar = action.metavar or action.dest.upper() if action.nargs != 0 else ""
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    default = "" if action.default in (None, False, SUPPRESS) else f" Default: `{action.default}`."
    return f"{names}{f' *{metavar}*' if metavar else ''}", f"{action.help or ''}{default}"


# --- checks -------------------------------------------------------------------------------------------

LEVELS = {"Error": "Error", "Warning": "Warning", "Info": "Info"}


def checks() -> str:
    """Return every system check: its message and its hint, as they stand in the code."""
    titles = dict(re.findall(r"([EWI]\d{3})\s+(\S.*?)(?=\s{2,}|\n)", _docstring(PACKAGE / "checks.py")))
    found: dict[str, list[tuple[str, str, str]]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for id, level, message, hint in _check_calls(ast.parse(file.read_text(encoding="utf-8"))):
            found.setdefault(id, []).append((level, message, hint))
    parts = []
    for id in sorted(found, key=lambda id: ("EWI".index(id[6]), id)):
        level = found[id][0][0]
        title = titles.get(id.removeprefix("pgbus."), "")
        parts.append(f"## {id}\n\n*{level}*{f': {title}.' if title else ''}")
        parts += [_quoted(message, hint) for _, message, hint in found[id] if message]
    return "\n\n".join(parts)


def _check_calls(tree: ast.AST) -> Iterator[tuple[str, str, str, str]]:
    known = {
        node.targets[0].id: _text(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _text(node.value)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in LEVELS:
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        id = given.get("id")
        if isinstance(id, ast.Constant) and str(id.value).startswith("pgbus."):
            message = _text(call.args[0], known) if call.args else ""
            yield str(id.value), LEVELS[call.func.id], message, _text(given.get("hint"), known)


def _quoted(message: str, hint: str) -> str:
    return f"> {message}" + (f"\n>\n> *{hint}*" if hint else "")


# --- what a task declares ------------------------------------------------------------------------------


def declaring() -> str:
    """Return the options of `Unique` and `Limit`, from their fields and docstrings."""
    from django_pgbus.concurrency.policy import Limit
    from django_pgbus.uniqueness.policy import Unique

    parts = []
    for declared, decorator, option in (
        (Unique, "ensures_uniqueness", "unique"),
        (Limit, "limits_concurrency", "limit"),
    ):
        first, _, more = inspect.cleandoc(declared.__doc__ or "").partition("\n\n")
        meanings = _meanings(" ".join(more.split()))
        rows = [
            (
                f"`{field.name}`",
                "required" if field.default is MISSING else _declared_default(field.default),
                _accepted(get_type_hints(declared)[field.name]),
                meanings.get(field.name, first),
            )
            for field in fields(declared)
        ]
        parts.append(
            f"## {decorator}\n\n{first} `@{decorator}(...)` above or below `@task`, or "
            f"`task({option}={declared.__name__}(...))`.\n\n"
            + _table(("Option", "Default", "Accepts", "Meaning"), rows)
        )
    return "\n\n".join(parts)


def _meanings(text: str) -> dict[str, str]:
    """Return {option: what it means} of a docstring whose sentences begin with the options."""
    found = {}
    for sentence in re.split(r"(?<=\.) (?=`\w+` (?:is|says|\())", text):
        name, aside, meaning = re.fullmatch(r"`(\w+)` (?:\((.*?)\) )?(?:is|says) (.*)", sentence).groups()
        found[name] = _sentence(f"{meaning.rstrip('.')} ({aside})" if aside else meaning)
    return found


def _declared_default(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{_span(value.total_seconds())}"
    return f"`{value!r}`"


def _accepted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value!r}`" for value in get_args(hint))
    if hint is int:
        return "whole number from 1"
    return (
        "seconds or timedelta"
        if timedelta in get_args(hint)
        else "function of the task's arguments that returns a text, or None"
    )


# --- batches ------------------------------------------------------------------------------------------

# What signatures and docstrings alone do not tell.
ARGUMENTS = {
    "description": "What it is called, in callbacks and pages.",
    "properties": "A dict that JSON can hold, at most `MAX_PAYLOAD_BYTES`; handed to the callbacks.",
    "on_finish": "Task that is enqueued when the last member has ended.",
    "on_success": "Task that is enqueued with it if no member failed.",
    "on_failure": "Task that is enqueued with it if any member failed.",
    "key": "Uniqueness key that is held until it is finished.",
    "on_conflict": "What becomes of it where another holds the key: `reject`, `discard` or `log`.",
}
ATTRIBUTES = {
    "id": "Its id; None before it is stored, and where it was dropped or its block raised.",
    "description": "As given.",
    "properties": "As JSON gives them back.",
    "refused": "The `JobNotUnique` of a batch that was dropped under `discard` or `log`, else None.",
}
COUNTED = {
    "total": "How many members there are.",
    "succeeded": "How many returned.",
    "failed": "How many gave up or were discarded.",
    "finished_at": "When the batch was finished; None before.",
}


def batches() -> str:
    """Return the arguments, attributes and methods of `Batch`, what stands beside it, and its errors."""
    import django_pgbus
    from django_pgbus.tasks.batch import Batch, Progress

    given = inspect.signature(Batch).parameters.values()
    methods = [(_with_twin(name, getattr(Batch, name)), _first(getattr(Batch, name))) for name in BATCH_METHODS]
    functions = [(_with_twin("current_batch", django_pgbus.current_batch), _first(django_pgbus.current_batch))]
    errors = [(f"`{name}`", _first(getattr(django_pgbus, name))) for name in BATCH_ERRORS]
    counted = [field.name for field in fields(Progress)]
    return "\n\n".join(
        (
            "## Batch",
            DESIGN.sub("", inspect.cleandoc(Batch.__doc__ or "")).partition("\n\n")[2],
            _table(
                ("Argument", "Default", "Meaning"),
                [(f"`{a.name}`", f"`{a.default!r}`", ARGUMENTS[a.name]) for a in given],
            ),
            _table(("Attribute", "Meaning"), [*_meant(ATTRIBUTES, ATTRIBUTES), *_properties(Batch, ["is_open"])]),
            _table(("Method", "What it does"), methods),
            f"## Progress\n\n{_first(Progress)}",
            _table(("Attribute", "Meaning"), [*_meant(counted, COUNTED), *_properties(Progress, vars(Progress))]),
            "## In a running task",
            _table(("Function", "What it does"), functions),
            "## Errors\n\nThe last two are `BatchError`s, all are `PgbusError`s.",
            _table(("Error", "Meaning"), errors),
        )
    )


BATCH_METHODS = ("get", "add", "progress")
BATCH_ERRORS = ("BatchError", "BatchFinished", "BatchDoesNotExist")
DESIGN = re.compile(r" Semantics [\d., ]+\d\.")  # of docstrings, to the design of the product


def _first(documented: Any) -> str:
    return _first_paragraph(documented.__doc__)


def _with_twin(name: str, function: Any) -> str:
    taken = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    arguments = ", ".join(taken.get(p.kind.name, "") + p.name for p in parameters)
    return f"`{name}({arguments})`, `a{name}`"


def _meant(names: Iterable[str], meanings: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", meanings[name]) for name in names]


def _properties(documented: type, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the properties among these names, each with what its docstring says it returns."""
    found = [(name, getattr(documented, name)) for name in names]
    return [
        (f"`{name}`", _sentence(_first(value).removeprefix("Return ")))
        for name, value in found
        if isinstance(value, property)
    ]


# --- streams ------------------------------------------------------------------------------------------

OF_A_STREAM = {
    "name": "1 to 100 letters, digits and `_ - . :`",
    "retention": "How long entries are kept that every group is done with, in seconds or as a timedelta; None for ever. The "
    "last declaration counts.",
    "partition_size": "Positions of one partition, which retention drops whole. The first declaration counts, for ever.",
}
STREAM_DEFAULTS = {"retention": "None", "partition_size": "10,000,000"}
OF_A_CONSUMER = {
    "stream": "The stream, or its name; it is made if it is not there.",
    "group": "1 to 100 printable characters without a slash. Stream and group are what a cursor belongs to.",
    "batch_size": "Up to so many entries at once, as a list, 100,000 at most; None: one entry, from ranges of 100.",
    "start": 'Where a new group begins: `"beginning"`, `"end"`, a position from 1, or a datetime with a time zone.',
    "key": "Function of an entry; those of one key are handled in order. None, or a key of None: it does not matter.",
    "route_to": "A queue, or a function of an entry that returns one or None: each entry becomes a job there. Neither "
    "`batch_size` nor `key` nor `transactional` goes with it.",
    "transactional": "The handler runs in the transaction that commits its range. Not for async handlers.",
    "max_attempts": 'Runs of one entry before it is a dead letter; None is `PGBUS["MAX_ATTEMPTS"]`.',
    "backoff": "`backoff(exception, entry)` returns the seconds to the next attempt, or None to give up.",
    "timeout": "Of one call, in seconds or as a timedelta; with `batch_size` that is a batch.",
    "sensitive": "Keys of the payload, at whatever depth, that nobody may read.",
}
OF_AN_ENTRY = {
    "payload": "As it was appended.",
    "position": "Its place in the stream; ascending, with gaps.",
    "attempt": "Which run of it this is, from 1.",
    "stream": "The name of its stream.",
}
OF_LAG = {
    "entries": "Counts from the lowest position not done with to the head. One failed entry that waits for its next attempt "
    "makes all handled above it count; positions that were rolled back count until the group has passed them.",
    "seconds": "How long the oldest entry among them waits.",
}
STREAM_METHODS = ("append", "append_many", "read", "head", "lag", "ensure")
STREAM_ERRORS = ("InvalidStream", "StreamDoesNotExist", "ConsumeRefused")


def streams() -> str:
    """Return what `Stream`, `consume`, `Entry` and `Lag` take and have, and their errors."""
    import django_pgbus
    from django_pgbus.streams import groups
    from django_pgbus.streams.stream import Lag, Stream

    declared = inspect.signature(django_pgbus.consume).parameters.values()
    methods = [(_with_twin(name, getattr(Stream, name)), _first(getattr(Stream, name))) for name in STREAM_METHODS]
    people = [
        (_signature(name, getattr(groups, name)), _first(getattr(groups, name)).split(" Locks: ")[0])
        for name in ("pause", "resume", "rewind", "repair")
    ]
    return "\n\n".join(
        (
            f"## Stream\n\n{_first(Stream)}",
            _table(
                ("Argument", "Default", "Meaning"),
                [
                    (f"`{a}`", "required" if a == "name" else STREAM_DEFAULTS[a], OF_A_STREAM[a])
                    for a in inspect.signature(Stream).parameters
                ],
            ),
            _table(("Method", "What it does"), [*methods, ("`id()`", _first(Stream.id))]),
            f"## consume\n\n{_first(django_pgbus.consume)}",
            _table(
                ("Argument", "Default", "Meaning"),
                [
                    (
                        f"`{a.name}`",
                        "required" if a.default is inspect.Parameter.empty else f"`{a.default!r}`",
                        OF_A_CONSUMER[a.name],
                    )
                    for a in declared
                ],
            ),
            f"## Entry\n\n{_first(django_pgbus.Entry)}",
            _table(
                ("Attribute", "Meaning"),
                [*_meant(OF_AN_ENTRY, OF_AN_ENTRY), *_properties(django_pgbus.Entry, ["appended_at"])],
            ),
            f"## Lag\n\n{_first(Lag)}",
            _table(("Attribute", "Meaning"), _meant([field.name for field in fields(Lag)], OF_LAG)),
            "## What a person decides\n\nFunctions of `django_pgbus.streams.groups`; the admin asks for confirmation first.",
            _table(("Function", "What it does"), people),
            "## Errors\n\nAll are `PgbusError`s. `InvalidHandler` is raised too, where a consumer cannot be used as it is "
            "declared, and `InvalidPayload`, where an entry cannot be stored.",
            _table(
                ("Error", "Meaning"), [(f"`{name}`", _first(getattr(django_pgbus, name))) for name in STREAM_ERRORS]
            ),
        )
    )


def _signature(name: str, function: Any) -> str:
    return f"`{name}({', '.join(inspect.signature(function).parameters)})`"


# --- the tools of the MCP server ----------------------------------------------------------------------


def mcp() -> str:
    """Return every tool: what it tells, takes and returns, as the schemas that a client gets."""
    from django_pgbus.observability.mcp.tools import TOOLS

    parts, kinds = [], {}
    for tool in TOOLS.values():
        takes = tool.input_schema
        required = takes.get("required", [])
        rows = [
            (f"`{name}`", _json_type(given), _json_default(name, given, required), given["description"])
            for name, given in takes["properties"].items()
        ]
        returns = tool.output_schema
        for name, kind in returns.get("$defs", {}).items():
            assert kinds.setdefault(name, kind) == kind, f"Two kinds of values are called {name}."
        parts.append(
            f"## {tool.name}\n\n{tool.description}\n\n"
            + (_table(("Argument", "Type", "Default", "Meaning"), rows) if rows else "It takes no arguments.")
            + f"\n\nReturns: {_fields(returns)}"
        )
    listed = [f"### {name}\n\n{_fields(kinds[name])}" for name in sorted(kinds)]
    return "\n\n".join([*parts, "## What they return\n\nKinds of values that stand in answers.", *listed])


def _json_default(name: str, given: dict[str, Any], required: list[str]) -> str:
    return "required" if name in required else f"`{json.dumps(given.get('default'))}`"


def _json_type(schema: dict[str, Any]) -> str:
    if found := schema.get("$ref"):
        name = found.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf"):
        return " or ".join(_json_type(option) for option in options)
    if options := schema.get("enum"):
        return ", ".join(f"`{option}`" for option in options)
    if schema.get("type") == "array":
        return f"list of {_json_type(schema['items'])}"
    bounds = [f"{word} {schema[key]}" for word, key in (("from", "minimum"), ("to", "maximum")) if key in schema]
    return " ".join(
        [{"string": "text", "date-time": "time"}.get(schema.get("format") or schema["type"], schema["type"]), *bounds]
    )


def _fields(schema: dict[str, Any]) -> str:
    """Return what a kind of value means, and its fields."""
    meaning = " ".join(schema.get("description", "").split())
    if "properties" not in schema:
        return f"{meaning} {_json_type(schema)}.".strip()
    told = ", ".join(f"`{name}` ({_json_type(inner)})" for name, inner in schema["properties"].items())
    return f"{meaning}\n\n{told}.".strip()


# --- tables -------------------------------------------------------------------------------------------


# What a name alone does not tell; a test finds those that no table has.
MEANINGS = {
    "id": "The task's id: the same wherever it goes, and that of its `TaskResult`.",
    "priority": "-100 to 100, higher first.",
    "backend": "Alias in `TASKS`.",
    "delivery": "How often it was claimed or taken away from a worker; only ever rises. Fences superseded runs.",
    "attempts": "Runs that count. The claim counts one provisionally; handing back and snoozing take it back.",
    "errors": "The last ten failed attempts.",
    "position": "Place in the line; a fresh one each time the task enters it.",
    "suspect": "Its last run or wait ended with its process: claimed one at a time.",
    "started": "Whether the run of this delivery has begun, as far as the last beat knows.",
    "discard_requested": "A person discarded it while it ran.",
    "leased_until": "End of the lease; empty: free to be claimed.",
    "ready_at": "Since when it stands in the line.",
    "claimed_at": "When this delivery was claimed.",
    "due_at": "When it may enter the line.",
    "result": "What the task returned.",
    "note": "What a person should know of its end.",
    "until": "End of the term; the beat of the one elected extends it.",
    "office": "`dispatcher` is the only one.",
    "seen_at": "When it was last announced.",
    "supervisor": "The `runworker` it belongs to.",
    "capacity": "Threads.",
    "superseded": "Runs that lost their lease since the process began.",
    "listening": "Whether notifications arrive; empty: not known.",
    "pgbus_workers.id": "One per process that was started; never used again.",
    "lease": "VISIBILITY_TIMEOUT of this process: silent for longer, it is taken for dead.",
    "batch_id": "The batch that counts it when it ends; empty: none.",
    "pgbus_batches.id": "Of the same sequence as those of the tasks.",
    "pgbus_batches.properties": "What was given with it; handed to the callbacks.",
    "pgbus_batches.callbacks": "What is enqueued when it is finished: `{event: {task, queue, ...}}`.",
    "pgbus_batches.key": "Uniqueness key that it holds until it is finished, as it was chosen.",
    "pgbus_batches.total": "Members, as far as they are folded in.",
    "pgbus_batches.succeeded": "Members that succeeded, as far as they are folded in.",
    "pgbus_batches.failed": "Members that failed, as far as they are folded in.",
    "pgbus_batches.finished_at": "When it was finished; empty: it is not.",
    "pgbus_batch_counts.id": "Of its own sequence.",
    "pgbus_batch_counts.batch_id": "The batch.",
    "pgbus_batch_counts.added": "Members that the transaction enqueued.",
    "pgbus_batch_counts.succeeded": "Members that it settled as succeeded.",
    "pgbus_batch_counts.failed": "Members that it settled as failed.",
    "event_id": "The event that it is a handler's copy of; empty for a task.",
    "topic": "The topic of that event; `STREAM/GROUP` of a routed entry; empty for a task.",
    "task": "Import path of the task, or of the handler.",
    "payload": '`{"args": [...], "kwargs": {...}}`; of an event `{"payload": ..., "headers": {...}}`.',
    "pgbus_processed_events.event_id": "The event.",
    "pgbus_processed_events.handler": "Import path of the handler.",
    "pgbus_processed_events.message_id": "The copy whose delivery holds the claim, or completed it.",
    "pgbus_processed_events.delivery": "That delivery.",
    "pgbus_processed_events.claimed_at": "When it was claimed, or taken over.",
    "pgbus_processed_events.processed_at": "When its holder last showed that it lives.",
    "pgbus_processed_events.leased_until": "Until when it counts as live; empty once it is completed.",
    "pgbus_processed_events.completed_at": "When the handler had done it; empty: not yet.",
    "pgbus_event_counts.id": "Of its own sequence.",
    "pgbus_event_counts.reason": "Why it was skipped: `owned`, `completed` or `cached`.",
    "pgbus_event_counts.name": "The handler of what was skipped, the topic of what met none.",
    "pgbus_event_counts.amount": "How many; rows of one kind are summed.",
    "pgbus_run_counts.id": "Of its own sequence.",
    "pgbus_run_counts.resolution": "The span: `raw` as a worker wrote it, `minute`, `ten_minutes`, `hour`, `total`.",
    "pgbus_run_counts.bucket": "The begin of that span; of a raw row when it was written, of a total what was counted last.",
    "pgbus_run_counts.task": "Import path of the task, or of the handler; empty: all that were too many to be named.",
    "pgbus_run_counts.event": "Whether it is a handler of events.",
    "pgbus_run_counts.succeeded": "Runs that succeeded.",
    "pgbus_run_counts.failed": "Attempts that failed and are tried again, or were discarded meanwhile.",
    "pgbus_run_counts.dead": "Jobs that became dead letters.",
    "pgbus_run_counts.snoozed": "Runs that asked to be run later.",
    "pgbus_run_counts.superseded": "Runs whose delivery was no longer the newest.",
    "pgbus_run_counts.handed_back": "Runs that were cancelled since their process stopped.",
    "pgbus_run_counts.run_seconds": "How long they took, all together.",
    "pgbus_run_counts.wait_seconds": "How long they stood in the line, all together.",
    "pgbus_run_counts.longest": "Seconds of the longest run.",
    "pgbus_run_counts.run": "How many took up to 5, 10, 25, 50, 100, 250, 500 ms, 1, 2.5, 5, 10, 30 s, 1, 5, 30 min, more.",
    "pgbus_run_counts.wait": "How many had waited how long, by the same bounds.",
    "pgbus_subscriptions.id": "Of its own sequence.",
    "pgbus_subscriptions.priority": "Of copies of events that bring none.",
    "pgbus_subscriptions.prefix": "The words before the first wildcard, by which it is found.",
    "pgbus_subscriptions.suffix": "The words after the last wildcard, by which it is found.",
    "pgbus_subscriptions.regex": "What decides whether it matches; one that PostgreSQL cannot read is refused.",
    "pgbus_subscriptions.declared_at": "When a worker last started that has it in its code.",
    "pgbus_streams.id": "Of its own sequence; part of the name of the log, and never given to another one.",
    "pgbus_streams.partition_size": "Positions of one partition; it never changes.",
    "pgbus_streams.retention": "How long entries are kept that all groups are done with; empty: for ever.",
    "pgbus_streams.drops_unhandled": "A person's decision: retention drops what a group has not handled, too.",
    "pgbus_stream_groups.id": "Of its own sequence.",
    "pgbus_stream_groups.handler": "Import path of the function, as the last worker declared it.",
    "pgbus_stream_groups.paused_at": "Since when nothing is claimed for it; empty: it is not paused.",
    "pgbus_stream_groups.declared_at": "When a worker last started that has it in its code.",
    "pgbus_stream_cursors.group_id": "The group.",
    "pgbus_stream_cursors.claimed": "Up to here entries are leased, failed or done.",
    "pgbus_stream_cursors.committed": "Up to here they are done with; only a rewind lowers it.",
    "settled_head": "Up to here nothing can appear any more: proven once.",
    "pending_head": "The head that is settled once `pending_xid` is proven.",
    "pending_xid": "A transaction id that was taken after `pending_head` was read; empty: no observation waits.",
    "fence": "The version of the rule by which it was proven.",
    "epoch": "The cluster, and the file of the sequence, that all of this holds for.",
    "rewinds": "How often it was rewound; what was computed before is not written after.",
    "pgbus_stream_leases.id": "Of its own sequence.",
    "token": "Made by who holds it; whoever does not have it can commit nothing.",
    "pgbus_stream_leases.low": "The range begins after this position.",
    "pgbus_stream_leases.high": "Its last position.",
    "pgbus_stream_leases.worker": "The process that has it.",
    "pgbus_stream_leases.until": "End of the lease; then anybody may claim it again.",
    "pgbus_stream_leases.claimed_at": "When it was last claimed.",
    "pgbus_stream_leases.reclaims": "How often it was claimed from a process that ended; -1: handed back.",
    "pgbus_stream_keys.id": "Of its own sequence.",
    "lease_id": "The range.",
    "pgbus_stream_keys.key": "A key that one of its entries has.",
    "pgbus_stream_exceptions.id": "Of its own sequence.",
    "pgbus_stream_exceptions.position": "The position of the entry.",
    "pgbus_stream_exceptions.attempts": "How often it was run; 0: it waits for one of its key.",
    "pgbus_stream_exceptions.due_at": "When it may be tried again.",
    "pgbus_stream_exceptions.key": "Its key, if the group has one: later entries of it wait.",
    "pgbus_stream_exceptions.until": "End of the lease while it runs.",
    "pgbus_stream_exceptions.exception": "Class of the last error.",
    "pgbus_stream_exceptions.traceback": "The last error, without sensitive values.",
    "pgbus_stream_exceptions.payload": "A copy, once it is a dead letter; before that the log has it.",
    "pgbus_stream_exceptions.appended_at": "A copy, like the payload.",
    "pgbus_stream_routed.group_id": "The group.",
    "pgbus_stream_routed.position": "A position above its mark.",
    "pgbus_uniqueness_keys.message_id": "The task that holds it; the batch, under `until_finished`.",
}


def tables() -> str:
    """Return the tables of the app, from its models."""
    from django.apps import apps
    from django.db import connections

    from django_pgbus.conf import database

    connection = connections[database()]
    parts = []
    for model in sorted(apps.get_app_config("pgbus").get_models(), key=lambda model: model._meta.db_table):
        if not model._meta.managed:
            continue
        rows = [
            (
                f"`{field.column}`",
                f"`{field.db_type(connection)}`{'' if field.null else ' not null'}",
                _column_default(field),
                _column_notes(field),
            )
            for field in model._meta.local_concrete_fields
        ]
        indexes = [f"- `{index.name}` ({', '.join(index.fields)})" for index in model._meta.indexes]
        parts.append(
            f"## {model._meta.db_table}\n\n{_first_paragraph(model.__doc__)} Model: `{model.__name__}`.\n\n"
            + _table(("Column", "Type", "Default", "Meaning"), rows)
            + ("\n\nIndexes:\n\n" + "\n".join(indexes) if indexes else "")
        )
    return "\n\n".join(parts)


def _column_default(field: Any) -> str:
    from django.db.models import NOT_PROVIDED, Value

    default = getattr(field, "db_default", NOT_PROVIDED)
    if default is NOT_PROVIDED:
        return ""
    if isinstance(default, Value):
        default = default.value
    return f"`{getattr(default, 'template', None) or repr(default)}`"


def _column_notes(field: Any) -> str:
    place = f"{field.model._meta.db_table}.{field.column}"
    notes = MEANINGS.get(place) or MEANINGS.get(field.column) or _sentence(str(field.verbose_name))
    if field.primary_key:
        notes += " Primary key."
    if field.choices:
        notes += " One of " + ", ".join(f"`{value}` ({label})" for value, label in field.choices) + "."
    return notes


# --- metrics ------------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the tables of metrics, section by section, from their declarations."""
    from django_pgbus.observability.metrics import OF_THE_SCRAPE
    from django_pgbus.observability.sections import SECTIONS

    parts = [
        f"## {section.title}\n\nSection `{section.name}`.\n\n{_metric_table(section.metrics)}" for section in SECTIONS
    ]
    return "\n\n".join([*parts, f"## The scrape itself\n\n{_metric_table(OF_THE_SCRAPE)}"])


def _metric_table(declared: Iterable[Any]) -> str:
    rows = [
        (
            f"`{metric.name}`",
            metric.kind.value,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help + (" *At least.*" if metric.bounded else ""),
        )
        for metric in declared
    ]
    return _table(("Metric", "Type", "Labels", "Meaning"), rows)


# --- architecture -------------------------------------------------------------------------------------


def lock_order() -> str:
    """Return the lock order, from `postgres/locks.py`."""
    from django_pgbus.postgres import LOCK_ORDER

    rows = [(str(n), f"`{table}`", reason) for n, (table, reason) in enumerate(LOCK_ORDER.items(), 1)]
    return _table(("#", "Table", "Why here"), rows)


def layers() -> str:
    """Return the layers, from the contract of import-linter in `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in project["tool"]["importlinter"]["contracts"] if c["id"] == "layers")
    rows = []
    for layer in contract["layers"]:
        names = [name.strip() for name in layer.split("|")]
        built = [f"`{name}`" for name in names if not name.startswith("(")]
        later = [f"`{name.strip('()')}`" for name in names if name.startswith("(")]
        rows.append((", ".join(built), ", ".join(later)))
    return _table(("Imports only from the lines below it", "Its place is kept"), rows)


def transitions() -> str:
    """Return every way a task enters, moves in or leaves the system, and how a batch begins and ends."""
    homes = (PACKAGE / "tasks" / "lifecycle.py", PACKAGE / "tasks" / "batch_ends.py")
    rows = []
    for function in (node for home in homes for node in ast.parse(home.read_text(encoding="utf-8")).body):
        if not isinstance(function, ast.FunctionDef) or function.name.startswith("_"):
            continue
        text = " ".join((ast.get_docstring(function) or "").split())
        locks = re.search(r"Locks: ([^.]*)\.", text)
        if locks:
            rows.append((f"`{function.name}`", _first_sentence(text), locks[1]))
    return _table(("Function", "What it does", "Locks"), rows)


REFERENCE = re.compile(r" \(semantics [\d., ]+\)")  # of comments, to the design of the product


# --- words --------------------------------------------------------------------------------------------


def _text(node: ast.expr | None, known: dict[str, str] | None = None) -> str:
    """Return a text of the code, with an ellipsis where a value is put in that is not among the `known`."""
    match node:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=parts):
            return " ".join("".join(_part(part, known) for part in parts).split())
        case ast.FormattedValue(value=ast.Name(id=name)) | ast.Name(id=name):
            return (known or {}).get(name, "")
        case ast.IfExp(body=body):
            return _text(body, known)
    return ""


def _part(part: ast.expr, known: dict[str, str] | None) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else _text(part, known) or "…"


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _docstring(file: Path) -> str:
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "") + "\n"


def _first_paragraph(text: str | None) -> str:
    return REFERENCE.sub("", " ".join((text or "").strip().split("\n\n")[0].split()))


def _first_sentence(text: str) -> str:
    return REFERENCE.sub("", text).split(" Locks:")[0].split(". ")[0].rstrip(".") + "."


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


# --- pages --------------------------------------------------------------------------------------------

SETTINGS_INTRO = """# Settings

One dict in the project's settings, every key optional:

```python
PGBUS = {"VISIBILITY_TIMEOUT": 30, "SHUTDOWN_GRACE": 60}
```

It is read when it is first needed and anew after `override_settings`. An unknown key or a wrong value is the check
error [pgbus.E001](checks.md#pgbus-e001), with a suggestion."""

SIGNALS_INTRO = """# Signals

{intro}

Import them from `django_pgbus.signals`. The log lines go to the logger `django_pgbus`; arguments of tasks never appear
in them. Django's own `task_enqueued`, `task_started` and `task_finished` are sent too: see
[decision 6](../decisions/0006-task-finished-before-settlement.md) for when.

## Of tasks and workers"""

CHECKS_INTRO = """# System checks

`manage.py check` runs them, and `pgbus_doctor` shows them first. `pgbus.E013` and `pgbus.W010` ask the database and so
need `manage.py check --database default`. Where a value is put into a message it reads “…” here. Silence one with
Django's `SILENCED_SYSTEM_CHECKS`."""

DECLARING_INTRO = """# Uniqueness and limits, option by option

What they are for, and what each guarantees, is in [the guide](../guides/uniqueness-and-limits.md). Wrong values are
refused where the task is declared, with `InvalidTask`. A task has at most one of each."""

BATCHES_INTRO = """# Batch, method by method

What batches are for, and what holds of them, is in [the guide](../guides/batches.md). All names but Django's own
`InvalidTask`, and `Progress`, which `progress()` returns, are imported from `django_pgbus`."""

STREAMS_INTRO = """# Streams, option by option

What streams are for, and what is guaranteed, is in [the guide](../guides/streams.md); why, in
[Streams: why nothing is skipped](../architecture/streams.md). `Stream`, `consume`, `Entry` and the errors are imported from
`django_pgbus`."""

MCP_INTRO = """# Tools of the MCP server

How to reach the server, and what it tells and what not, is in [the guide](../guides/mcp.md). Every tool only reads,
and may be asked again. Times are UTC; names that end in `_seconds` are seconds. A wrong argument, an id that nobody
knows and a database that is away are answered with an error in words."""

TABLES_INTRO = """# Tables

All stand on one alias, `PGBUS["DATABASE"]`. They may be read; write to them through tasks, the admin and
`django_pgbus.tasks.lifecycle` only: what the columns mean together (a lease and its delivery number, a place in the
line) is kept by those statements. Ids come from the sequence `pgbus_task_id`, places in the line from
`pgbus_position`.

The entries of a stream stand in a table of their own, `pgbus_stream_<id>`, with the columns `position`, `appended_at` and
`payload`, partitioned by position: see [Streams](../guides/streams.md#other-writers) for who else may write there."""

COMMANDS_INTRO = """# Commands

The options that every Django command has are left out. `--verbosity` sets the level of the worker's log lines on the
terminal: 0 warnings, 1 what happens to tasks and processes, 2 sweeps that found nothing too. A project that configures
the logger `django_pgbus` keeps its own handlers and level."""

METRICS_INTRO = """# Metrics

What `/pgbus/api/metrics` and AppSignal tell; how to get at them, and what to do when one is wrong, is in
[the guide](../guides/monitoring.md). All numbers are those of the whole database, whichever process is asked: scrape one.

Zero is told, not left out. A metric marked *at least* stops counting at a bound, so that a backlog of millions costs no more
than one of thousands: ten thousand for each queue and place (a thousand where there are a hundred queues), a million for
parked jobs and slots, a hundred thousand for uniqueness keys.
`pgbus_scrape_lower_bounds` says for how many samples that is so now. At most 500 queues, fifty streams with twenty groups
each (in the order of their names) and 500 tasks (the busiest) get series of their own; `pgbus_series_left_out` counts the
others. Arguments and keys of tasks never appear, nor does a topic."""


def evidence() -> str:
    """Return the promises, and what keeps and shows each."""
    from tests.evidence import page

    return page.page()


def faults() -> str:
    """Return the faults of other systems, and which test looks for each."""
    from tests.evidence import faults

    return faults.page()


def _signals_page() -> str:
    intro = _docstring(PACKAGE / "signals.py").strip().split("\n\n", 1)[1]
    return f"{SIGNALS_INTRO.format(intro=intro)}\n\n{signals()}"


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "evidence.md": ("docs/evidence/*.toml, the marks of the tests and what was recorded", evidence),
    "evidence/faults.md": ("docs/evidence/faults.toml", faults),
    "reference/settings.md": ("django_pgbus/conf.py", lambda: f"{SETTINGS_INTRO}\n\n{settings()}"),
    "reference/signals.md": ("django_pgbus/signals.py and log.py", _signals_page),
    "reference/commands.md": ("django_pgbus/management/commands", lambda: f"{COMMANDS_INTRO}\n\n{commands()}"),
    "reference/declaring.md": (
        "django_pgbus/uniqueness/policy.py and concurrency/policy.py",
        lambda: f"{DECLARING_INTRO}\n\n{declaring()}",
    ),
    "reference/batches.md": ("django_pgbus/tasks/batch.py", lambda: f"{BATCHES_INTRO}\n\n{batches()}"),
    "reference/streams.md": ("django_pgbus/streams", lambda: f"{STREAMS_INTRO}\n\n{streams()}"),
    "reference/metrics.md": ("django_pgbus/observability", lambda: f"{METRICS_INTRO}\n\n{metrics()}"),
    "reference/checks.md": ("django_pgbus/checks.py", lambda: f"{CHECKS_INTRO}\n\n{checks()}"),
    "reference/mcp.md": ("django_pgbus/observability/mcp/tools", lambda: f"{MCP_INTRO}\n\n{mcp()}"),
    "reference/tables.md": ("the models", lambda: f"{TABLES_INTRO}\n\n{tables()}"),
    "architecture/_lock_order.md": ("django_pgbus/postgres/locks.py", lock_order),
    "architecture/_layers.md": ("pyproject.toml", layers),
    "architecture/_transitions.md": ("django_pgbus/tasks/lifecycle.py and batch_ends.py", transitions),
}


def page(name: str) -> str:
    """Return a page as it should be."""
    source, make = PAGES[name]
    return f"<!-- Written by docs/generate.py from {source}; change it there. -->\n\n{make().strip()}\n"


def _set_up() -> None:
    """Set up Django with nothing but our app; no database is asked."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django_pgbus"],
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
        TASKS={"default": {"BACKEND": "django_pgbus.PgbusBackend"}},
    )
    django.setup()


def main(arguments: list[str]) -> int:
    """Write or check all pages; return the exit code."""
    stale = []
    for name in PAGES:
        wanted, file = page(name), DOCS / name
        if not file.exists() or file.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in arguments:
                file.write_text(wanted, encoding="utf-8")
    for name in stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: docs/{name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    _set_up()
    sys.exit(main(sys.argv[1:]))
