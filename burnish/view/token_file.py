"""Token records of a step (log/tokens.py), read in parts, and the texts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from burnish.log.tokens import COLUMNS, SAMPLED, TOKENIZER
from burnish.untrusted import read_bytes

MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_PIECE = 200  # characters of one token's text
PER_TOKEN = (*COLUMNS, "flags", "ids", "versions")
SEGMENTS = ("segment_lengths", "segment_kinds", "segment_starts", "segment_seconds")


class TokenFile:
    """The columns of one step. `rows` are trajectories; a row's columns are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._file = safe_open(path, framework="numpy")
        self._names = set(self._file.keys())
        self.metadata: dict[str, str] = self._file.metadata() or {}
        self.lengths = self._column("lengths")
        self.prompt_lengths = self._column("prompt_lengths")
        self._check()
        self._ends, self._prompt_ends = self.lengths.cumsum(dtype=np.int64), self.prompt_lengths.cumsum(dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @cached_property
    def scores(self) -> np.ndarray:
        return self._column("scores")

    @property
    def version(self) -> int | None:
        """The weights that sampled every token, where one set did."""
        text = self.metadata.get("version", "")
        return int(text) if text.removeprefix("-").isdecimal() else None

    def row(self, row: int, start: int = 0, end: int | None = None) -> dict[str, np.ndarray]:
        """Per-token columns of a row's response from token `start` to `end`."""
        first = int(self._ends[row] - self.lengths[row])
        stop = first + min(int(self.lengths[row]), int(self.lengths[row]) if end is None else end)
        part = slice(min(first + start, stop), stop)
        names = [name for name in (*PER_TOKEN, "top_ids", "top_log_probs") if name in self._names]
        return {name: self._file.get_slice(name)[part] for name in names}

    def prompt(self, row: int, start: int = 0, end: int | None = None) -> list[int]:
        """Token ids of a row's prompt."""
        first = int(self._prompt_ends[row] - self.prompt_lengths[row])
        stop = first + min(int(self.prompt_lengths[row]), int(self.prompt_lengths[row]) if end is None else end)
        return self._file.get_slice("prompt_ids")[min(first + start, stop) : stop].tolist()

    def column(self, name: str) -> np.ndarray | None:
        """A whole column, of all rows; None where it was not recorded."""
        return self._column(name) if name in self._names else None

    def row_means(self, name: str) -> list[float] | None:
        """Mean over the sampled tokens of each row; NaN for a row without any."""
        if name not in self._names:
            return None
        sampled = self._column("flags") & SAMPLED > 0
        rows = np.repeat(np.arange(len(self)), self.lengths)[sampled]
        sums = np.bincount(rows, self._column(name)[sampled].astype(np.float64), len(self))
        counts = np.bincount(rows, minlength=len(self))
        return np.divide(sums, counts, out=np.full(len(self), np.nan), where=counts > 0).tolist()

    def times(self) -> list[tuple[float, float]] | None:
        """When the generation of each row started and finished, in seconds since 1970."""
        if not {"started", "finished"} <= self._names:
            return None
        return list(zip(self._column("started").tolist(), self._column("finished").tolist(), strict=True))

    def segments(self) -> list[list[tuple[int, float, float]]] | None:
        """What each row's conversation did when (rollout/episode.py): kind, start in seconds since 1970, seconds."""
        if not set(SEGMENTS) <= self._names:
            return None
        lengths, *columns = (self._column(name) for name in SEGMENTS)
        flat = list(zip(*(column.tolist() for column in columns), strict=True))
        ends = lengths.cumsum(dtype=np.int64).tolist()
        return [flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]

    def _column(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def _check(self) -> None:
        """The file may be anybody's: every column must have the size that the lengths say."""
        sizes = {"prompt_ids": int(self.prompt_lengths.sum()), "ids": int(self.lengths.sum())}
        sizes |= {name: sizes["ids"] for name in PER_TOKEN if name in self._names}
        sizes |= {name: len(self.lengths) for name in ("scores", "started", "finished") if name in self._names}
        if set(SEGMENTS) <= self._names:
            counts = self._column("segment_lengths")
            sizes |= {"segment_lengths": len(self.lengths)} | dict.fromkeys(SEGMENTS[1:], int(counts.sum()))
            if (counts < 0).any():
                raise ValueError("columns do not fit together: segment_lengths")
        wrong = [name for name, size in sizes.items() if self._file.get_slice(name).get_shape()[:1] != [size]]
        if wrong or (self.lengths < 0).any() or (self.prompt_lengths < 0).any():
            raise ValueError(f"columns do not fit together: {', '.join(wrong) or 'lengths'}")


def changed_from(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Places of `before` that are not part of the common subsequence with `after` around equal ends."""
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, before, after, autojunk=False)
    changed: list[int] = []
    for tag, start, end, _, _ in matcher.get_opcodes():
        if tag != "equal":
            changed += range(start, max(end, start + 1))
    return [place for place in changed if place < len(before)]


class TokenTexts:
    """Texts of token ids, by the tokenizer that the run left beside its token records."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKENIZER
        self._texts: dict[int, str] = {}

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_buffer(read_bytes(self.path, limit=MAX_TOKENIZER_BYTES))
        except Exception:  # the library raises plain Exceptions for files that are no tokenizers
            return None

    def text(self, token: int) -> str:
        """The text of one token; its number where there is no tokenizer."""
        if token not in self._texts:
            self._texts[token] = self._decode(token)
        return self._texts[token]

    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [self.text(token) for token in tokens]

    def retokenized(self, tokens: Sequence[int]) -> list[int] | None:
        """The ids that encoding the tokens' text again gives; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _decode(self, token: int) -> str:
        if self._tokenizer is None or token < 0 or self._tokenizer.id_to_token(token) is None:
            return f"#{token}"
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        is_word_start = self._tokenizer.id_to_token(token).startswith(
            "\u2581"
        )  # SentencePiece's space, which decoding a
        return f"{' ' * (is_word_start and not text.startswith(' '))}{text}"[:MAX_PIECE]  # first token drops
