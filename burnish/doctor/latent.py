"""Latent: the dimensions of DeepSeek's attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """DeepSeek's attention: keys and values, and in most models queries, go through narrow matrices."""

    rank: int  # of keys and values
    query_rank: int  # 0: queries have one matrix
    rope: int  # width of a head's part that is rotated, and has one key for all heads
    nope: int  # of the rest of its query and key
    value: int  # of its value
