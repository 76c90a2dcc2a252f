"""What a look of `pgbus_doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what it is like, and what to do."""

    grade: Grade
    subject: str
    text: str
    remedy: str = ""
