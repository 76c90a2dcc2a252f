"""One hook per transaction, for however much it has to say once it is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from django.db import transaction


class Hook(Protocol):
    """Something filled while the transaction lasts; `spoken` once it has been said."""

    spoken: bool

    def speak(self) -> None:
        """Say it; called after the commit."""


H = TypeVar("H", bound=Hook)


def hook_of(connection: Any, make: Callable[[], H]) -> H:
    """
    Return the hook of this kind that will speak after the commit of this transaction; only inside one.

    An earlier one serves if it stands in the list still and in no savepoint that this call is not in: then it speaks
    whenever what this call wrote is committed. One that has spoken does not (Django leaves it in the list of a test).
    """
    savepoints = frozenset(connection.savepoint_ids)
    hooks: dict[Any, tuple[H, frozenset[str]]] = connection.__dict__.setdefault("_pgbus_hooks", {})
    hook, inside = hooks.get(make, (None, savepoints))
    stands = any(getattr(e[1], "__self__", None) is hook for e in reversed(connection.run_on_commit))
    if hook is None or hook.spoken or not stands or not inside <= savepoints:
        hook = make()
        hooks[make] = (hook, savepoints)
        transaction.on_commit(hook.speak, using=connection.alias, robust=True)
    return hook
