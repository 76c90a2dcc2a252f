"""The settings of the workers that these tests start: those of the suite, with the values that a test names."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

_said = json.loads(os.environ.get("PGBUS_TEST_WORKER", "{}"))

INSTALLED_APPS = [*INSTALLED_APPS, "tests.processes"]
DATABASES = {**DATABASES, "default": _said["database"]} if "database" in _said else DATABASES  # noqa: F405
PGBUS = _said.get("pgbus", {})
if os.environ.get("PGBUS_TEST_LISTEN") == "direct":  # through a pooler, and past it
    DATABASES["direct"]["NAME"] = DATABASES["default"]["NAME"]
    PGBUS = {"LISTEN_DATABASE": "direct", **PGBUS}
TIME_ZONE = "Europe/Madrid"
LANGUAGE_CODE = "en"
globals().update(_said.get("settings", {}))

# What no setting says, changed when the apps are ready (apps.py).
HARD_MARGIN = _said.get("hard_margin")
SWEEP_EVERY = _said.get("sweep_every")
