"""What a look of `pgbus_doctor` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class Grade(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what it is like, and what to do; `where` names the one thing that it is about."""

    grade: Grade
    subject: str
    text: str
    remedy: str = ""
    where: str = ""


Findings = Iterator[Finding]
Look = Callable[[], Findings]

FORMAT: Final = 1  # of `--json`: counted up when a key goes or changes its meaning, not when one is added
ORDER: Final = (Grade.OK, Grade.WARN, Grade.FAIL)


def worst(findings: Iterable[Finding]) -> Grade:
    """Return the worst grade among them."""
    return max((finding.grade for finding in findings), key=ORDER.index, default=Grade.OK)


def as_document(findings: list[Finding], **more: Any) -> dict[str, Any]:
    """Return what `--json` prints: the worst grade, and every finding with the same five keys."""
    return {
        "format": FORMAT,
        **more,
        "grade": worst(findings),
        "findings": [asdict(finding) for finding in findings],
    }
