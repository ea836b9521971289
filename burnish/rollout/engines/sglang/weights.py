"""Two ways to give a server new weights.

`disk`: a folder of safetensors files that the server reads. It works wherever both see the folder.
`tensor`: handles of GPU memory, sent over HTTP. No copy is made on the way, but trainer and server must share the GPU.
"""

from __future__ import annotations

import base64
import io
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing  # teaches the pickler to hand on tensors by handle
from safetensors.torch import save_file

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.checkpoint_stream import CheckedStream, Named

Post = Callable[[str, dict[str, Any]], Any]  # path and body -> the server's answer

WAYS = Registry("way to send weights", key="actor_rollout_ref.rollout.engine_kwargs.sglang.weight_sync")


def way_to_send(extra: Mapping[str, Any], device: torch.device, section: str) -> str:
    """What engine_kwargs.sglang.weight_sync says; files if it says nothing, because they work everywhere."""
    asked = extra.get("weight_sync", "disk")
    if WAYS[asked].name == "tensor" and (device.type != "cuda" or "base_url" in extra):
        key = f"{section}.engine_kwargs.sglang.weight_sync"
        problem = "memory can be handed on only to a server that Burnish starts on its own GPU"
        raise UserError(problem, key=key, value=asked, hint=f"{key}=disk")
    return asked


def buckets(stream: Iterable[Named], most: int) -> Iterator[list[Named]]:
    """Pieces of about `most` bytes; a tensor is never cut."""
    piece: list[Named] = []
    size = 0
    for name, tensor in stream:
        if piece and size + tensor.nbytes > most:
            yield piece
            piece, size = [], 0
        piece.append((name, tensor))
        size += tensor.nbytes
    if piece:
        yield piece


@WAYS.register("disk")
def send_files(stream: CheckedStream, options: EngineOptions, post: Post) -> None:
    """All at once: the server reads the folder, and takes nothing if a file is bad."""
    folder = Path(tempfile.mkdtemp(prefix="burnish-weights-", dir=options.extra.get("weight_dir")))
    try:
        for number, piece in enumerate(buckets(stream, options.bucket_megabytes << 20)):
            # A copy of each: a tied weight comes under two names, and the format takes no two names of one memory.
            copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in piece}
            save_file(copies, folder / f"model-{number:05d}.safetensors")
        stream.check()
        # Named, because the server was started with random weights and would make such again.
        _told(post("/update_weights_from_disk", {"model_path": str(folder), "load_format": "auto"}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@WAYS.register("tensor")
def send_handles(stream: CheckedStream, options: EngineOptions, post: Post) -> None:
    """Bucket by bucket. A bucket's memory is held until the server has copied it."""
    for piece in buckets(stream, options.bucket_megabytes << 20):
        held = [(name, tensor.detach().contiguous()) for name, tensor in piece]
        each = [handles(held) for _ in range(options.tensor_parallel)]  # a handle can be opened once
        _told(post("/update_weights_from_tensor", {"serialized_named_tensors": each, "flush_cache": False}))
    stream.check()


def handles(named: list[Named]) -> str:
    """The tensors as the server reads them: a pickle that says where their memory is, in base64."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(named)
    return base64.b64encode(buffer.getvalue()).decode()


def _told(answer: Any) -> None:
    if not (isinstance(answer, dict) and answer.get("success")):
        raise RuntimeError(f"SGLang did not take the weights: {answer}")
