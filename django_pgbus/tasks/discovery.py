"""Modules of the installed apps that declare something when they are imported: `handlers` and `streams`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from django_pgbus import signals

MODULES: Final = ("streams", "handlers")  # in this order: handlers may name streams


def autodiscover(modules: Sequence[str] = MODULES, *, announce: bool = True) -> dict[str, Exception]:
    """
    Import these modules of every installed app, and return {name of the module: why not} of those that failed.

    One that cannot be imported is announced, unless told otherwise; the others are imported all the same.
    """
    failed: dict[str, Exception] = {}
    for app in apps.get_app_configs():
        for module in modules:
            if app.module is None or not module_has_submodule(app.module, module):
                continue
            name = f"{app.name}.{module}"
            try:
                import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # importing runs code of the project, which may even exit
                failed[name] = error if isinstance(error, Exception) else ImportError(f"It raises {error!r}.")
                if announce:
                    signals.handlers_not_loaded.send_robust(
                        sender=None, app=app.name, module=module, exception=failed[name]
                    )
    return failed
