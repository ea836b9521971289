"""Pixels between the controller and its workers: each picture is sent to a worker once, and later by its digest.

A picture is part of every sample of its prompt, of every turn, and of each phase of a step. Both sides keep the newest
pictures; the receiver keeps more, so that whatever the sender takes for known is there.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from burnish.batch import Batch
from burnish.distributed.worker_group import WorkerGroup
from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engine import Request

MAX_BYTES = 2 << 30  # of tensors that the sender takes for known; a host keeps twice as many
ARRIVAL_SECONDS = 120.0  # requests are received on several threads: a picture may come after its digest
COLUMN = "media"

Key = tuple[str, bytes]


def key_of(media: Media) -> Key:
    return media.kind, media.digest


def without_pixels(media: Media) -> Media:
    return replace(media, tensors={}, source=None)


class Recent:
    """Pictures by key, the newest ones within a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, tuple[Media | None, int]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Media | None:
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def add(self, media: Media, *, keep: bool = True) -> None:
        key, size = key_of(media), sum(tensor.nbytes for tensor in media.tensors.values())
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        self._entries[key], self.num_bytes = (media if keep else None, size), self.num_bytes + size
        while self.num_bytes > self.max_bytes and len(self._entries) > 1:
            self.num_bytes -= self._entries.popitem(last=False)[1][1]


class MediaSender:
    """The controller's side: which pictures each worker of a group has."""

    def __init__(self, size: int, max_bytes: int = MAX_BYTES) -> None:
        self._known = [Recent(max_bytes) for _ in range(size)]
        self._lock = threading.Lock()

    def forget(self, rank: int) -> None:
        """This worker has lost what it had."""
        with self._lock:
            self._known[rank] = Recent(self._known[rank].max_bytes)

    def missing(self, ranks: Iterable[int], media: Iterable[Media]) -> list[Media]:
        """Those that one of the workers does not have; from now on all of them do."""
        unique = {key_of(item): item for item in media}
        missing = {}
        with self._lock:
            for rank in ranks:
                known = self._known[rank]
                missing |= {key: item for key, item in unique.items() if key not in known}
                for item in unique.values():
                    known.add(item, keep=False)
        return list(missing.values())

    def pack_requests(self, rank: int, requests: Sequence[Request], *, sources: bool) -> tuple[list[Request], list]:
        """Requests without pixels, and the pictures to send with them; `sources`: the engine wants the originals."""
        new = self.missing([rank], (media for request in requests for media in request.input.media))
        if not sources:
            new = [replace(media, source=None) for media in new]
        stubs: dict[int, ModelInput] = {}  # samples of a prompt share its input, on both sides
        packed = []
        for request in requests:
            if request.input.media:
                input = stubs.get(id(request.input))
                if input is None:
                    media = tuple(map(without_pixels, request.input.media))
                    input = stubs[id(request.input)] = ModelInput(request.input.ids, media)
                request = replace(request, input=input)
            packed.append(request)
        return packed, new

    def pack_batch(self, batch: Batch, ranks: Sequence[int]) -> tuple[Batch, list[Media]]:
        """A batch without pixels, and the pictures to send to these workers."""
        if COLUMN not in batch:
            return batch, []
        rows: list[tuple[Media, ...]] = batch[COLUMN]
        new = self.missing(ranks, (media for row in rows for media in row))
        others = batch.keep(*(name for name in batch if name != COLUMN))
        column = [tuple(map(without_pixels, row)) for row in rows]
        return others.add(**{COLUMN: column}), [replace(media, source=None) for media in new]


class MediaStore:
    """The worker's side: puts the pixels back."""

    def __init__(self, max_bytes: int = 2 * MAX_BYTES) -> None:
        self._recent = Recent(max_bytes)
        self._arrived = threading.Condition()

    def receive(self, media: Iterable[Media]) -> None:
        with self._arrived:
            for item in media:
                self._recent.add(item)
            self._arrived.notify_all()

    def restore(self, media: Media) -> Media:
        key = key_of(media)
        with self._arrived:
            if not self._arrived.wait_for(lambda: key in self._recent, ARRIVAL_SECONDS):
                raise RuntimeError(f"the pixels of {media.kind} {media.digest.hex()} were never received")
            held = self._recent.get(key)
        assert held is not None
        return replace(media, tensors=held.tensors, source=held.source)

    def restore_requests(self, requests: Sequence[Request]) -> list[Request]:
        inputs: dict[int, ModelInput] = {}
        restored = []
        for request in requests:
            if request.input.media:
                input = inputs.get(id(request.input))
                if input is None:
                    media = tuple(map(self.restore, request.input.media))
                    input = inputs[id(request.input)] = ModelInput(request.input.ids, media)
                request = replace(request, input=input)
            restored.append(request)
        return restored

    def restore_batch(self, value: Any) -> Any:
        """A batch with its pixels; anything else unchanged."""
        if not isinstance(value, Batch) or COLUMN not in value:
            return value
        rows = [tuple(map(self.restore, row)) for row in value[COLUMN]]
        return value.keep(*(name for name in value if name != COLUMN)).add(**{COLUMN: rows})


_SENDERS: weakref.WeakKeyDictionary[WorkerGroup, MediaSender] = weakref.WeakKeyDictionary()


def sender_of(group: WorkerGroup) -> MediaSender:
    """The one sender of a group, whose roles share the pictures that its workers hold."""
    if group not in _SENDERS:
        _SENDERS[group] = MediaSender(group.size)
    return _SENDERS[group]
