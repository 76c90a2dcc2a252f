"""
Topics and the patterns that match them, as AMQP's topic exchange has them.

A topic is words joined by dots. In a pattern `*` stands for one word and `#` for any number, none included: `orders.#`
matches `orders` and `orders.created.eu`, `*.created` matches `orders.created`.

A pattern is compiled once, when it is declared: into the literal words before its first wildcard and after its last
one, by which an index finds it, and a regular expression for PostgreSQL, which decides.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

from django_pgbus.exceptions import InvalidTopic

MAX_LENGTH: Final = 255
ONE, ANY = "*", "#"
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_ALLOWED: Final = "letters A to Z, digits, '-' and '_', joined by single dots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A compiled pattern; `regex` is matched against the topic with a dot before it."""

    text: str
    prefix: str
    suffix: str
    regex: str


def check_topic(topic: object) -> str:
    """Return the topic, or raise InvalidTopic saying what is wrong with it."""
    if not isinstance(topic, str):
        raise InvalidTopic(f"A topic is a text, not a {type(topic).__name__}.")
    text = str.__str__(topic)  # of a member of an enum, its value
    if problem := _problem(text):
        raise InvalidTopic(f"The topic {_shown(text)} {problem}.")
    return text


def compiled(pattern: object) -> Pattern:
    """Return the compiled pattern, or raise InvalidTopic saying what is wrong with it."""
    if not isinstance(pattern, str):
        raise InvalidTopic(f"A pattern of topics is a text, not a {type(pattern).__name__}.")
    return _compiled(str.__str__(pattern))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Pattern:
    words = pattern.split(".")
    if problem := _problem(".".join("x" if word in {ONE, ANY} else word for word in words), pattern):
        raise InvalidTopic(f"The pattern {_shown(pattern)} {problem}. Whole words may be '*' (one word) or '#' (any).")
    words = [word for nth, word in enumerate(words) if not (nth and word == ANY == words[nth - 1])]
    wild = [nth for nth, word in enumerate(words) if word in {ONE, ANY}]
    first, last = (wild[0], wild[-1]) if wild else (len(words), -1)
    return Pattern(
        text=pattern,
        prefix=".".join(words[:first]),
        suffix=".".join(words[last + 1 :]),
        regex="^" + "".join(_part(word) for word in words) + "$",
    )


def matches(pattern: str, topic: str) -> bool:
    """
    Return whether a pattern matches a topic, in time that grows with the product of their lengths.

    Raises InvalidTopic.
    """
    compiled(pattern)
    words = check_topic(topic).split(".")
    reached = [True] + [False] * len(words)  # whether the parts so far can have used up that many words
    for part in pattern.split("."):
        if part == ANY:
            reached = list(accumulate(reached, operator.or_))
        else:
            reached = [False] + [
                before and part in {ONE, word} for before, word in zip(reached[:-1], words, strict=True)
            ]
    return reached[-1]


@lru_cache(maxsize=4096)
def lookups(topic: str) -> tuple[str, str]:
    """
    Return by which prefixes and by which suffixes the patterns are found that may match, each list joined by spaces.

    Both begin with the empty one.
    """
    words = topic.split(".")
    prefixes = [".".join(words[:count]) for count in range(len(words) + 1)]
    suffixes = [".".join(words[len(words) - count :]) for count in range(len(words) + 1)]
    return " ".join(prefixes), " ".join(suffixes)


def _part(word: str) -> str:
    # Not capturing: PostgreSQL then needs no more than its automaton.
    return {ONE: r"\.[^.]+", ANY: r"(?:\.[^.]+)*"}.get(word, rf"\.{word}")


def _problem(text: str, whole: str | None = None) -> str | None:
    if not text:
        return "is empty"
    if len(text if whole is None else whole) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    return _wrong_word(text)


@lru_cache(maxsize=4096)
def _wrong_word(text: str) -> str | None:
    words = text.split(".")
    if "" in words:
        return "has an empty word: a dot at its beginning or end, or two in a row"
    if wrong := next((word for word in words if not _WORD.fullmatch(word)), None):
        return f"has the word {_shown(wrong)}; a topic has {_ALLOWED}"
    return None


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")
