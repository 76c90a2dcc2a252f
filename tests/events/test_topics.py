"""A pattern matches what AMQP's topic exchange says, in Python and in the statement that publishes, and quickly."""

from __future__ import annotations

import enum
import re
from functools import cache
from itertools import accumulate

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_pgbus.events import subscriptions, topics
from django_pgbus.events.publishing import publish_many
from django_pgbus.events.topics import check_topic, compiled, lookups, matches
from django_pgbus.exceptions import InvalidTopic
from django_pgbus.models import Message
from tests.events.examples import a_handler, nobody_subscribed  # noqa: F401

LITERALS = ["a", "b", "ab", "A", "-", "_", "0"]  # few, so that they meet
words = st.sampled_from([*LITERALS[:2] * 3, *LITERALS])
parts = st.sampled_from(["#"] * 4 + ["*"] * 4 + ["a"] * 4 + [*LITERALS])
some_topics = st.lists(words, min_size=1, max_size=6).map(".".join)
some_patterns = st.lists(parts, min_size=1, max_size=6).map(".".join)
LONG = ".".join("a" * 128)  # 255 characters


def long(strategy):
    return st.lists(strategy, min_size=100, max_size=250).map(lambda found: ".".join(found)[:255].rstrip("."))


def reference(pattern: str, topic: str) -> bool:
    """The definition, word by word."""
    wanted, given_ = pattern.split("."), topic.split(".")

    @cache
    def fits(part: int, word: int) -> bool:
        if part == len(wanted):
            return word == len(given_)
        if wanted[part] == "#":
            return fits(part + 1, word) or (word < len(given_) and fits(part, word + 1))
        return word < len(given_) and wanted[part] in {"*", given_[word]} and fits(part + 1, word + 1)

    return fits(0, 0)


def routed(patterns: list[str], published: list[str]) -> set[tuple[str, str]]:
    """Return (pattern, topic) of what the statement that publishes routes, one handler for each pattern."""
    with transaction.atomic():
        by_path = {f"nowhere.handler_{number}": pattern for number, pattern in enumerate(dict.fromkeys(patterns))}
        subscriptions.declare(a_handler(path, pattern) for path, pattern in by_path.items())
        counts = publish_many((topic, None) for topic in published)
        copies = list(Message.objects.filter(task__in=by_path).values_list("task", "topic"))
        assert sum(counts) >= len(copies)
        found = [(by_path[path], topic) for path, topic in copies]
        transaction.set_rollback(True)
    return set(found)


# --- what matches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders", ["orders"], ["order", "orders.a", "a.orders", "Orders"]),
        ("orders.#", ["orders", "orders.a", "orders.a.b"], ["orders2", "ordersa", "a.orders"]),
        ("orders.*", ["orders.a", "orders.-"], ["orders", "orders.a.b"]),
        ("#", ["a", "a.b", LONG], []),
        ("*", ["a", "ab"], ["a.b"]),
        ("#.#", ["a", "a.b.c"], []),
        ("*.#", ["a", "a.b"], []),
        ("#.*", ["a", "a.b"], []),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("a.#.a", ["a.a", "a.b.a"], ["a", "a.b"]),
        ("a.*.a", ["a.b.a"], ["a", "a.a"]),
        ("a.b.#.b.c", ["a.b.b.c", "a.b.x.b.c"], ["a.b.c"]),
        ("#.a.#", ["a", "a.b", "b.a", "b.a.b"], ["b", "ab"]),
        ("*.a.#.*", ["x.a.y", "x.a.y.z"], ["x.a", "a.y"]),
    ],
)
@pytest.mark.django_db
def test_a_star_is_one_word_and_a_hash_any_number(pattern, yes, no):
    assert [matches(pattern, topic) for topic in yes + no] == [True] * len(yes) + [False] * len(no)
    assert routed([pattern], yes + no) == {(pattern, topic) for topic in yes}


@given(some_patterns, some_topics)
@settings(max_examples=500)
def test_python_says_what_the_definition_says(pattern, topic):
    assert matches(pattern, topic) is reference(pattern, topic)


@given(long(parts), long(words))
def test_python_says_so_of_the_longest_too(pattern, topic):
    assert matches(pattern, topic) is reference(pattern, topic)


@given(st.lists(some_patterns, min_size=1, max_size=8), st.lists(some_topics, min_size=1, max_size=8, unique=True))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(["#", "#.#", "*.#", "#.*", "a.#.a", "#.a.#"], ["a", "a.a", "a.b.a"])
@pytest.mark.django_db
def test_the_statement_that_publishes_says_what_the_definition_says(patterns, published):
    assert routed(patterns, published) == {(p, t) for p in patterns for t in published if reference(p, t)}


@given(st.lists(long(parts), min_size=1, max_size=4), st.lists(long(words), min_size=1, max_size=4, unique=True))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@pytest.mark.django_db
def test_the_statement_says_so_of_the_longest_too(patterns, published):
    assert routed(patterns, published) == {(p, t) for p in patterns for t in published if reference(p, t)}


@given(st.data(), long(words) | some_topics)
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.django_db
def test_a_topic_some_of_whose_words_became_wildcards_is_matched(data, topic):
    """Here nearly everything matches, where of two random texts little does."""
    pattern = ".".join(data.draw(st.sampled_from([word, "*", "#"])) for word in topic.split("."))
    assert matches(pattern, topic)
    assert routed([pattern], [topic]) == {(pattern, topic)}


@given(some_patterns, some_topics)
def test_what_matches_is_found_by_the_words_at_its_ends(pattern, topic):
    prefixes, suffixes = (found.split(" ") for found in lookups(topic))
    one = compiled(pattern)
    assert not reference(pattern, topic) or (one.prefix in prefixes and one.suffix in suffixes)
    assert prefixes[0] == suffixes[0] == ""
    assert prefixes[-1] == suffixes[-1] == topic


# --- how long it takes --------------------------------------------------------------------------------

WORST = [
    ".".join(["#", "a"] * 63 + ["b"]),
    ".".join(["#", "*"] * 63 + ["b"]),
    ".".join(["*", "#"] * 64),
    ".".join(["#", "*", "a"] * 42 + ["b"]),
    ".".join(["#", "a", "a", "b"] * 31),
    ".".join(["#", "a"] + ["*"] * 100 + ["b"]),
    ".".join((["#", "a"] + ["*"] * 20) * 5),
    ".".join(["#"] * 127 + ["b"]),
    "#." + "a" * 250 + ".#",
]


@pytest.mark.parametrize("pattern", WORST)
def test_matching_takes_steps_by_the_product_of_the_lengths_at_most(monkeypatch, pattern):
    steps = 0

    def counted(items):
        nonlocal steps
        for item in items:
            steps += 1
            yield item

    monkeypatch.setattr(topics, "zip", lambda *lists, strict: counted(zip(*lists, strict=strict)), raising=False)
    monkeypatch.setattr(topics, "accumulate", lambda items, function: counted(accumulate(items, function)))
    assert matches(pattern, LONG) is reference(pattern, LONG)
    parts, words = len(pattern.split(".")), len(LONG.split("."))
    assert parts <= steps <= parts * (words + 1)


@pytest.mark.parametrize("pattern", WORST)
def test_the_regular_expression_has_nothing_to_go_back_for(pattern):
    """No group that captures, no back reference, no look-around, nothing repeated in what is repeated but one word."""
    regex = compiled(pattern).regex
    assert len(regex) <= 12 * len(pattern)
    plain = regex.replace(r"(?:\.[^.]+)*", "").replace(r"\.[^.]+", "")
    assert re.fullmatch(r"\^(\\\.[A-Za-z0-9_-]+)*\$", plain)
    assert r")*(?:" not in regex  # of two "#" in a row one does


@pytest.mark.django_db
def test_the_worst_of_them_end_in_postgresql_too():
    published = [LONG, LONG[:-1] + "b", ".".join(["a", "b"] * 64)[:255], "a" * 255]
    assert routed(WORST, published) == {(p, t) for p in WORST for t in published if reference(p, t)}


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        (".", "has an empty word"),
        ("orders.", "has an empty word"),
        (".orders", "has an empty word"),
        ("a..b", "has an empty word"),
        ("a b", "has the word 'a b'"),
        ("orders. paid", "has the word ' paid'"),
        ("orders.created\n", r"has the word 'created\\n'"),
        ("orders/created", "has the word 'orders/created'"),
        ("orders.ord*", r"has the word 'ord\*'"),
        ("orders.#x", "has the word '#x'"),
        ("orders.**", r"has the word '\*\*'"),
        ("bücher", r"has the word 'b\\xfccher'"),
        ("orders.٣", r"has the word '\\u0663'"),
        ("a\x00b", r"has the word 'a\\x00b'"),
        ("a.\udc80", r"has the word '\\udc80'"),
        ("x" * 256, "is longer than 255 characters"),
        ("x." * 128 + "x", "is longer than 255 characters"),
        ("é" * 5000, "is longer than 255 characters"),
    ],
)
def test_what_is_no_topic_and_no_pattern_is_refused_with_a_sentence(text, sentence):
    for check, name in ((check_topic, "The topic "), (compiled, "The pattern ")):
        with pytest.raises(InvalidTopic, match=sentence) as caught:
            check(text)
        assert str(caught.value).startswith(name)
        assert str(caught.value).isascii()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("topic", ["*", "#", "orders.*", "orders.#", "a.*.b"])
def test_a_topic_has_no_wildcards(topic):
    with pytest.raises(InvalidTopic, match="a topic has letters A to Z, digits, '-' and '_'"):
        check_topic(topic)
    compiled(topic)


@pytest.mark.parametrize("value", [None, 1, b"orders", ["orders"], {"orders"}, ("orders", "paid"), object(), print])
def test_what_is_no_text_is_refused(value):
    for check, what in ((check_topic, "A topic is a text"), (compiled, "A pattern of topics is a text")):
        with pytest.raises(InvalidTopic, match=f"{what}, not a {type(value).__name__}"):
            check(value)


def test_the_longest_are_accepted():
    assert check_topic("x" * 255) == "x" * 255
    assert compiled("#." + "x" * 253).suffix == "x" * 253
    assert check_topic(LONG) == LONG


class Topic(enum.StrEnum):
    PAID = "orders.paid"


class OldTopic(str, enum.Enum):  # noqa: UP042
    PAID = "orders.paid"


@pytest.mark.parametrize("member", [Topic.PAID, OldTopic.PAID])
@pytest.mark.usefixtures("nobody_subscribed")
def test_a_member_of_an_enum_of_texts_is_its_text(member):
    """Log lines would show its name, and a cache hand out one for the other: they are equal."""
    topics._compiled.cache_clear()
    assert type(check_topic(member)) is type(compiled(member).text) is str
    subscriptions.declare([a_handler("nowhere.paid", member, "else")])
    assert publish_many([(member, 1), ("orders.paid", 2), (member, 3)]) == [1, 1, 1]
    assert set(Message.objects.filter(task="nowhere.paid").values_list("topic", flat=True)) == {"orders.paid"}


def test_what_is_refused_is_not_kept():
    """A mistake that makes topics out of documents must not fill the memory with them."""
    topics._wrong_word.cache_clear()
    for size in (256, 100_000):
        with pytest.raises(InvalidTopic):
            check_topic("x" * size)
    assert topics._wrong_word.cache_info().currsize == 0
