"""When a response is over, and what is seen of it."""

from __future__ import annotations

import pytest

from burnish.rollout.engine import Sampling
from burnish.rollout.stop import finish, stop_string, visible_text

EOS = frozenset({0})


def characters(ids):
    """Token 0 is EOS, which has no text; others are letters, and 27 is a token of three."""
    return "".join("" if token == 0 else "end" if token == 27 else chr(96 + token) for token in ids)


def utf8(ids):
    """Every token is a byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def ids_of(text):
    return [ord(letter) - 96 for letter in text]


@pytest.mark.parametrize(
    ("tokens", "settings", "expected"),
    [
        ([1, 0], {}, ("stop", None)),
        ([1, 0], {"ignore_eos": True}, None),
        ([1, 5], {"stop_token_ids": (5,)}, ("stop", 5)),
        ([1, 5], {"stop_token_ids": (5,), "ignore_eos": True}, ("stop", 5)),
        ([5, 1], {"stop_token_ids": (5,)}, None),
        ([1, 2], {"stop": ("x", "ab")}, ("stop", "ab")),
        ([1, 2, 3], {"stop": ("ab",)}, None),  # an earlier token completed it, and did not end the response then
        ([1, 2], {"stop": ("ab",), "min_tokens": 2}, None),
        ([1, 2, 3, 4], {}, ("length", None)),
        ([1, 2, 3, 0], {}, ("stop", None)),
    ],
)
def test_finish(tokens, settings, expected):
    assert finish(tokens, Sampling(4, **settings), EOS, characters) == expected


def test_a_stop_string_inside_a_token():
    assert stop_string([1, 27], ["nd"], characters) == "nd"
    assert stop_string([1, 27], ["ae"], characters) == "ae"
    assert stop_string([1, 27, 2], ["en", "db"], characters) == "db"


def test_a_stop_string_behind_a_long_response():
    response = ids_of("x" * 500 + "stop")
    found = [stop_string(response[:end], ["stop"], characters) for end in range(1, len(response) + 1)]
    assert found == [None] * (len(response) - 1) + ["stop"]


def test_half_a_character_is_no_character():
    """The byte that completes a character completes the stop string, not the bytes before."""
    text = list("prix: 5 €!".encode())
    found = [stop_string(text[:end], ["€"], utf8) for end in range(1, len(text) + 1)]
    assert found.index("€") == len("prix: 5 €".encode()) - 1 and found[-1] is None
    ended = text[:-1]
    assert visible_text(ended, "€", utf8) == "prix: 5 "


@pytest.mark.parametrize(
    ("ids", "reason", "stop", "text"),
    [
        ([1, 2, 0], "stop", None, "ab"),
        ([1, 2, 5], "stop", 5, "ab"),
        ([1, 27], "stop", "nd", "ae"),
        ([1, 2], "length", None, "ab"),
        ([1, 2, 3, 1, 2], "stop", "ab", "abc"),  # the first one came before min_tokens
    ],
)
def test_the_reader_does_not_see_what_ended_it(ids, reason, stop, text):
    assert visible_text(ids, stop, characters) == text
