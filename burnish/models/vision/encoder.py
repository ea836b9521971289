"""VisionEncoder: text with placeholders, and pictures -> a ModelInput whose media are processed once for all."""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from burnish.errors import UserError
from burnish.media import InvalidMedia, Video
from burnish.models.load import ModelSource, load_config
from burnish.models.model_input import Media, MediaKind, ModelInput
from burnish.models.vision.family import VisionFamily, vision_family
from burnish.models.vision.pictures import PROCESSOR_FILES, PROCESSOR_KEY, Pictures, Processed, has_file

if TYPE_CHECKING:
    from PIL.Image import Image

Found = tuple[MediaKind, tuple[bytes, Processed]]  # a picture's digest and what the processor made of it
CACHE_BYTES = 2**31
MAX_SECONDS = 10**6  # of a video
MAX_SHAPES = 10_000  # sizes of pictures whose numbers of tokens are remembered
KEYS: Mapping[MediaKind, str] = {"image": "data.image_key", "video": "data.video_key"}


@dataclass(frozen=True)
class VisionSettings:
    """How pictures are processed, and how many a prompt may have."""

    overrides: Mapping[str, Any] = field(default_factory=dict)  # data.mm_processor_kwargs
    image_patch_size: int | None = None  # data.image_patch_size; None: what the model has
    max_images: int | None = None  # actor_rollout_ref.rollout.limit_images
    max_videos: int | None = None
    cache_bytes: int = CACHE_BYTES  # of processed pictures


class VisionEncoder:
    """Tokenizer and processor of a vision-language model. Threads may share one."""

    def __init__(
        self, family: VisionFamily, pictures: Pictures, tokenizer: Any, settings: VisionSettings, folder: str
    ) -> None:
        self.family = family
        self.tokenizer = tokenizer
        self.settings = settings
        self.folder = folder
        self._pictures = pictures
        self._cache = PictureCache(settings.cache_bytes)
        self._shapes = PictureCache(settings.cache_bytes, max_entries=MAX_SHAPES)
        self._salt = hashlib.blake2b(pictures.description.encode(), digest_size=16).digest()
        kinds: list[MediaKind] = sorted(family.kinds)
        self._kinds: dict[str, MediaKind] = {pictures.placeholders[kind]: kind for kind in kinds}
        longest_first = sorted(self._kinds, key=len, reverse=True)
        self._placeholder = re.compile("|".join(re.escape(text) for text in longest_first))

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """The kinds of media that the model takes."""
        return self.family.kinds

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        """The text that stands for a picture, by kind: what the model's chat template writes."""
        return {kind: self._pictures.placeholders[kind] for kind in self.kinds}

    def encode(
        self,
        text: str,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        *,
        add_special_tokens: bool = False,
        offset: int = 0,
        pixels: bool = True,
    ) -> ModelInput:
        """Tokens of a rendered text in which one placeholder stands for each picture, in order, with the placeholders
        expanded to what the processor makes of the picture.

        `offset`: where these tokens will stand in a longer input; media offsets count from its start. With
        `pixels=False`, media have no tensors, and pictures are processed only where their size does not tell how many
        tokens they take: for lengths. UserError where placeholders and pictures do not match in number.
        """
        self._check(text, images, videos)
        order: list[MediaKind] = [self._kinds[match.group()] for match in self._placeholder.finditer(text)]
        remaining: dict[MediaKind, Iterator[Any]] = {"image": iter(images), "video": iter(videos)}
        pictures = [next(remaining[kind]) for kind in order]
        paired = zip(order, pictures, strict=True)
        found: list[Found] = [(kind, self._process(kind, picture, pixels)) for kind, picture in paired]
        return self._assemble(text, found, pictures, add_special_tokens, offset)

    def _check(self, text: str, images: Sequence[Image], videos: Sequence[Video]) -> None:
        given: dict[MediaKind, int] = {"image": len(images), "video": len(videos)}
        limits = {"image": self.settings.max_images, "video": self.settings.max_videos}
        found = [self._kinds[match.group()] for match in self._placeholder.finditer(text)]
        for kind, count in given.items():
            if count and kind not in self.kinds:
                raise UserError(f"models of type {self.family.name!r} take no {kind}s", key=KEYS[kind])
            if found.count(kind) != count:
                raise InvalidMedia(
                    f"the prompt has {found.count(kind)} placeholders for {kind}s"
                    f" ({self.placeholders.get(kind)!r}), and there are {count} {kind}s",
                    key=KEYS[kind],
                )
            limit = limits[kind]
            if limit is not None and count > limit:
                raise InvalidMedia(f"the prompt has {count} {kind}s, more than the limit of {limit}", key=KEYS[kind])

    def _process(self, kind: MediaKind, picture: Image | Video, pixels: bool = True) -> tuple[bytes, Processed]:
        """The picture's digest, and what the processor makes of it, from the cache where it was seen before."""
        frames = [_rgb(frame) for frame in (picture.frames if isinstance(picture, Video) else (picture,))]
        if not frames or any(not frame.width * frame.height for frame in frames):
            raise InvalidMedia(f"the {kind} has no pixels", key=KEYS[kind])
        if len({frame.size for frame in frames}) > 1:
            raise InvalidMedia("the frames of the video differ in size", key=KEYS[kind])
        stamps = picture.timestamps if isinstance(picture, Video) else None
        if stamps is not None and len(stamps) != len(frames):
            raise InvalidMedia(f"the video has {len(frames)} frames and {len(stamps)} time stamps", key=KEYS[kind])
        if stamps is not None and not all(0 <= stamp < MAX_SECONDS for stamp in stamps):
            raise InvalidMedia(f"its time stamps are not all numbers from 0 to {MAX_SECONDS}", key=KEYS[kind])
        work = self._pictures.video if kind == "video" else self._pictures.image
        argument: Any = Video(frames, stamps) if kind == "video" else frames[0]
        try:
            if not pixels:
                shape = (kind, frames[0].size, len(frames), None if stamps is None else tuple(stamps))
                return b"", self._shapes.get(repr(shape).encode(), lambda: self._shape_of(kind, argument))
            digest = _digest(self._salt, kind, frames, stamps)
            return digest, self._cache.get(digest, lambda: work(argument))
        except ValueError as error:
            problem = f"the processor refuses the {kind} of {frames[0].width} x {frames[0].height} pixels: {error}"
            raise InvalidMedia(problem, key=KEYS[kind]) from error

    def _shape_of(self, kind: MediaKind, picture: Any) -> Processed:
        """What the processor makes of pictures of this size, without tensors."""
        pieces = self._pictures.image_pieces(*picture.size) if kind == "image" else None
        if pieces is not None:
            return Processed(pieces, ({},))
        processed = self._pictures.video(picture) if kind == "video" else self._pictures.image(picture)
        return Processed(processed.pieces, ({},) * len(processed.items))

    def _assemble(
        self,
        text: str,
        found: Sequence[Found],
        pictures: Sequence[Image | Video],
        add_special_tokens: bool,
        offset: int,
    ) -> ModelInput:
        """Tokenize the text with one token for each run of features, then repeat these tokens.

        A feature's token is a special token, which no other text is merged with.
        """
        tokens = {kind: self.tokenizer.convert_ids_to_tokens(self._pictures.feature_ids[kind]) for kind, _ in found}
        parts = self._placeholder.split(text)
        whole = [parts[0]]
        for (kind, (_, processed)), after in zip(found, parts[1:], strict=True):
            whole += [piece if isinstance(piece, str) else tokens[kind] for piece in processed.pieces]
            whole.append(after)
        tokenized = self.tokenizer("".join(whole), add_special_tokens=add_special_tokens)["input_ids"]
        special = {self._pictures.feature_ids[kind] for kind in self.kinds}
        runs = [piece for _, (_, processed) in found for piece in processed.pieces if isinstance(piece, int)]
        if sum(token in special for token in tokenized) != len(runs):
            names = ", ".join(sorted(self.tokenizer.convert_ids_to_tokens(token) for token in special))
            problem = f"the text has tokens that only stand for pictures ({names}) beside the placeholders"
            raise InvalidMedia(problem, key=KEYS["image"])
        ids: list[int] = []
        places: list[tuple[int, int]] = []  # of each run in the ids
        remaining = iter(runs)
        for token in tokenized:
            count = next(remaining) if token in special else 1
            if token in special:
                places.append((len(ids), count))
            ids += [token] * count
        return ModelInput(tuple(ids), tuple(_media(found, pictures, places, offset)))

    def expanded(self, text: str, images: Sequence[Image], videos: Sequence[Video]) -> str:
        """A text whose first placeholders, those of these pictures, are written as their tokens decode."""
        remaining: dict[MediaKind, Iterator[Any]] = {"image": iter(images), "video": iter(videos)}
        count = len(images) + len(videos)
        pieces, end = [], 0
        for match in itertools.islice(self._placeholder.finditer(text), count):
            kind = self._kinds[match.group()]
            picture = next(remaining[kind], None)
            if picture is None:
                break
            token = self.tokenizer.convert_ids_to_tokens(self._pictures.feature_ids[kind])
            processed = self._process(kind, picture, pixels=False)[1].pieces
            pieces.append(text[end : match.start()])
            pieces += [piece if isinstance(piece, str) else token * piece for piece in processed]
            end = match.end()
        return "".join([*pieces, text[end:]])

    def attach(self, ids: Sequence[int], images: Sequence[Image] = (), videos: Sequence[Video] = ()) -> ModelInput:
        """Tokens in which the placeholders are expanded already, with their media. InvalidMedia where they are not."""
        remaining: dict[MediaKind, list[Any]] = {"image": list(images), "video": list(videos)}
        tokens = self._pictures.feature_ids  # both kinds may have the same (SmolVLM)
        found: list[Found] = []
        pictures: list[Image | Video] = []
        places: list[tuple[int, int]] = []
        index = 0
        while index < len(ids):
            token = ids[index]
            kind: MediaKind | None = next((one for one in KEYS if remaining[one] and tokens.get(one) == token), None)
            if kind is None:
                index += 1
                continue
            pictures.append(remaining[kind].pop(0))
            found.append((kind, self._process(kind, pictures[-1], pixels=True)))
            token = ids[index]
            for count in (piece for piece in found[-1][1][1].pieces if isinstance(piece, int)):
                while index < len(ids) and ids[index] != token:
                    index += 1
                end = index + count
                if list(ids[index:end]) != [token] * count or list(ids[end : end + 1]) == [token]:
                    which = f"{kind} {len(pictures) - 1}"
                    problem = f"the tokens of {which} are not the {count} that the model's processor makes: use it"
                    raise InvalidMedia(problem, key=KEYS[kind])
                places.append((index, count))
                index = end
        left = sum(map(len, remaining.values()))
        if left:
            raise InvalidMedia(f"{left} of the pictures have no place in the tokens", key=KEYS["image"])
        return ModelInput(tuple(ids), tuple(_media(found, pictures, places, 0)))


def load_vision_encoder(
    source: ModelSource, tokenizer: Any, settings: VisionSettings = VisionSettings()
) -> VisionEncoder:
    """The encoder of a model; UserError where it takes no pictures."""
    config = load_config(source)
    family = vision_family(config, source.key)
    if family is None:
        raise UserError(
            f"models of type {config.model_type!r} take no images or videos", key=source.key, value=source.path
        )
    folder = source.checked_path()
    if not any(has_file(folder, name) for name in PROCESSOR_FILES):
        problem = f"the model has no {PROCESSOR_FILES[0]}, which says how pictures are processed"
        raise UserError(problem, key=source.key, value=source.path)
    patch_size = config.vision_config.patch_size  # pyright: ignore[reportAttributeAccessIssue]
    if settings.image_patch_size not in (None, patch_size):
        raise UserError(
            "not the size of the patches of this model",
            key="data.image_patch_size",
            value=settings.image_patch_size,
            allowed=[patch_size],
            hint=f"data.image_patch_size={patch_size}",
        )
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        if name in settings.overrides:
            key = f"{PROCESSOR_KEY}.{name}"
            raise UserError("set by the model's weights", key=key, value=settings.overrides[name])
    return VisionEncoder(family, family.pictures(folder, settings.overrides, tokenizer), tokenizer, settings, folder)


class PictureCache:
    """The most recently used pictures, up to a number of bytes and of entries."""

    def __init__(self, max_bytes: int, max_entries: int = 2**20) -> None:
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.nbytes = 0
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, Processed] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return PictureCache, (
            self.max_bytes,
            self.max_entries,
        )  # a copy in another process is empty

    def get(self, digest: bytes, process: Callable[[], Processed]) -> Processed:
        with self._lock:
            if digest in self._entries:
                self._entries.move_to_end(digest)
                return self._entries[digest]
        processed = process()  # outside the lock: others go on; the same picture may be processed twice
        with self._lock:
            if digest not in self._entries and processed.nbytes <= self.max_bytes:
                self._entries[digest] = processed
                self.nbytes += processed.nbytes
                while self.nbytes > self.max_bytes or len(self._entries) > self.max_entries:
                    self.nbytes -= self._entries.popitem(last=False)[1].nbytes
            return self._entries.get(digest, processed)


def _media(
    found: Sequence[Found],
    pictures: Sequence[Image | Video],
    places: Sequence[tuple[int, int]],
    offset: int,
) -> Iterator[Media]:
    """The media items of all pictures, given where their runs of tokens stand. The first item has the picture."""
    remaining = iter(places)
    for (kind, (digest, processed)), picture in zip(found, pictures, strict=True):
        mine = [next(remaining) for piece in processed.pieces if isinstance(piece, int)]
        per_item = len(mine) // len(processed.items)
        for number, tensors in enumerate(processed.items):
            spans = mine[number * per_item : (number + 1) * per_item]
            start, length = spans[0][0], spans[-1][0] + spans[-1][1] - spans[0][0]
            mask = torch.zeros(length, dtype=torch.bool)
            for begin, count in spans:
                mask[begin - start : begin - start + count] = True
            # Spans are part of the digest: crops of one image have the same content but for their number.
            own = hashlib.blake2b(digest + struct.pack("q", number), digest_size=16).digest()
            features, source = None if bool(mask.all()) else mask, None if number else picture
            yield Media(kind, own, offset + start, length, tensors, features, source)


def _rgb(image: Image) -> Image:
    return image if image.mode == "RGB" else image.convert("RGB")


def _digest(salt: bytes, kind: MediaKind, frames: Sequence[Image], stamps: Sequence[float] | None) -> bytes:
    """Of the content and of how it is processed."""
    content = hashlib.blake2b(salt + kind.encode(), digest_size=16)
    for frame in frames:
        content.update(struct.pack("qq", *frame.size))
        content.update(frame.tobytes())
    if stamps is not None:
        content.update(struct.pack(f"{len(stamps)}d", *stamps))
    return content.digest()
