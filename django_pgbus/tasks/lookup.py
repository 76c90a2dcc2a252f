"""Tasks by their path: what a worker does to find one, and whether it would."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from django_pgbus.tasks.compat import AnyTask, InvalidTask, Task


def find_task(path: str) -> AnyTask:
    """Return the task at `package.module.name`, or raise ImportError saying what is there instead."""
    found = imported(path, "task")
    if not isinstance(found, Task):
        raise ImportError(f"The task {path} cannot be run: there is a {type(found).__name__}, not a task.")
    return found


def task_at(path: str) -> AnyTask | None:
    """Return the task at a stored path, or None where this process cannot import it."""
    try:
        return find_task(path)
    except (Exception, SystemExit):  # importing runs code of the project
        return None


def imported(path: str, what: str) -> Any:
    """Return what stands at `package.module.name`, or raise ImportError; `what` it should be is a task or a handler."""
    names = path.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ImportError(f"{path!r} is not the path of a {what}.")
    for cut in range(len(names) - 1, 0, -1):
        module_name, rest = ".".join(names[:cut]), names[cut:]
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports something that is not
            continue  # perhaps a class in a module
        for name in rest:
            try:
                found = getattr(found, name)
            except AttributeError:
                raise ImportError(f"The {what} {path} cannot be imported: {module_name} has no {name!r}.") from None
        return found
    raise ImportError(f"The {what} {path} cannot be imported: there is no module {names[0]!r} or what is below it.")


def checked_path(task: AnyTask) -> str:
    """Return the path at which workers will find this very task, or raise InvalidTask."""
    func = task.func
    if func.__module__ == "__main__":
        raise InvalidTask(f"Workers cannot import {func.__name__!r} from a script: move the task into a module.")
    found: Any = sys.modules.get(func.__module__)
    for name in func.__qualname__.split("."):
        found = getattr(found, name, None)
    if isinstance(found, Task) and found.func is func:
        return task.module_path
    there = "nothing" if found is None else "another task" if isinstance(found, Task) else f"a {type(found).__name__}"
    raise InvalidTask(
        f"Workers look for this task at {task.module_path}, where there is {there}: "
        f"bind the task to its function's own name, {func.__name__!r}."
    )
