"""Randomness is addressed, not streamed: a random number is keyed by what it is for, never by who drew before."""

from __future__ import annotations

import hashlib


def address(*parts: object) -> int:
    """A 63-bit number that depends on these parts alone (run seed, step, prompt ...): the key of a random stream."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
