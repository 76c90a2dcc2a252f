"""The arguments that every job of every system carries: about a hundred bytes of JSON."""

from __future__ import annotations

import json
from typing import Any, Final

ARGUMENTS: Final[dict[str, Any]] = {"user_id": 123456, "email": "someone@example.com", "note": "x" * 30, "n": 7}
TEXT: Final = json.dumps({"args": [], "kwargs": ARGUMENTS}, separators=(",", ":"))
