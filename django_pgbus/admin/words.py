"""Numbers, times and ages as people read them; text in, text out."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.utils.formats import date_format, number_format
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext, pgettext_lazy

from django_pgbus.queues.stats import Count

MINUTE, HOUR, DAY = 60, 3600, 86400
# SHORT_DATE_FORMAT where it reads well: "30.11.2026" in German, but 11/30/2026 in English, which half the world misreads.
DATES: Final = pgettext_lazy("a date format of Django that fits tables", "DATE_FORMAT")
NOTHING: Final = "–"  # noqa: RUF001  (a dash, not a minus)
LITTLE: Final = 0.0005


def number(value: int) -> str:
    """Return a number with the separators of the language."""
    return str(number_format(value, use_l10n=True, force_grouping=True))


def count(value: Count) -> str:
    """Return a count; one that goes on ends in a plus."""
    return f"{number(value.number)}{'+' if value.more else ''}"


def decimal(value: float) -> str:
    """Return a number to as many places as matter: none from a hundred on, one below, two below one."""
    if 0 < value < 0.01:
        return gettext("below %(number)s") % {"number": number_format(0.01, decimal_pos=2, use_l10n=True)}
    places = 0 if value >= 99.95 or value == int(value) else 1 if value >= 1 else 2
    return str(number_format(round(value, places), decimal_pos=places, use_l10n=True, force_grouping=True))


def percent(share: float) -> str:
    """Return a share of 0 to 1 in percent; one that is not quite nothing, or not quite all, does not look like it."""
    if 0 < share < LITTLE:
        shown = number_format(LITTLE * 100, decimal_pos=2, use_l10n=True)
        text = gettext("below %(number)s%%") % {"number": shown}
    elif 1 - LITTLE < share < 1:
        shown = number_format(100 - LITTLE * 100, decimal_pos=2, use_l10n=True)
        text = gettext("above %(number)s%%") % {"number": shown}
    else:
        places = 0 if share in {0, 1} else 1
        shown = number_format(round(share * 100, places), decimal_pos=places, use_l10n=True)
        text = gettext("%(number)s%%") % {"number": shown}
    return _unbroken(text)


def moment(at: datetime | None) -> str:
    """Return a time to the second in the current time zone: job systems are read by the second."""
    if at is None:
        return ""
    local = localtime(at) if is_aware(at) else at
    return f"{_unbroken(date_format(local, str(DATES)))} {local:%H:%M:%S}"


def clock(at: datetime | None) -> str:
    """Return a time to the second, with its date unless that is today."""
    if at is None:
        return ""
    local = localtime(at) if is_aware(at) else at
    return f"{local:%H:%M:%S}" if local.date() == datetime.now(local.tzinfo).date() else moment(at)


def age(seconds: float) -> str:
    """Return a duration in its two largest units, which stay on one line."""
    return _unbroken(_age(max(0.0, seconds)))


def _age(seconds: float) -> str:
    if seconds < 1:
        return gettext("%(milliseconds)d ms") % {"milliseconds": round(seconds * 1000)}
    if seconds < 10:
        return gettext("%(seconds)s s") % {"seconds": number_format(seconds, decimal_pos=1, use_l10n=True)}
    whole = round(seconds)
    if whole < MINUTE:
        return gettext("%(seconds)s s") % {"seconds": whole}
    if whole < HOUR:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": whole // MINUTE, "seconds": whole % MINUTE}
    if whole < DAY:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": whole // HOUR, "minutes": whole % HOUR // MINUTE}
    return gettext("%(days)d d %(hours)d h") % {"days": whole // DAY, "hours": whole % DAY // HOUR}


def _unbroken(text: str) -> str:
    return text.replace(" ", "\u00a0")


def shortened(text: str, most: int) -> str:
    """Return as much of a text as fits a table, so that it can be sent as UTF-8."""
    return showable(text if len(text) <= most else f"{text[:most]}…")


def between(start: datetime | None, end: datetime | None) -> str:
    """Return how long something took, or nothing."""
    return age((end - start).total_seconds()) if start and end else ""


def showable(text: str, most: int | None = None) -> str:
    """Return a text that can be sent as UTF-8, cut after `most` characters, saying so."""
    if most is not None and len(text) > most:
        left_out = gettext("… cut here; %(number)s characters in all") % {"number": number(len(text))}
        text = f"{text[:most]}\n{left_out}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
