"""Two ways to send new weights to a server.

`disk`: a folder of safetensors files that the server reads; both must see the folder.
`tensor`: CUDA IPC handles, sent over HTTP. No copy, but trainer and server must share the GPU.
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
import torch.multiprocessing  # registers the pickling of tensors as handles
from safetensors.torch import save_file

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.checkpoint_stream import CheckedStream, Named

Post = Callable[[str, dict[str, Any]], Any]  # path and body -> the server's answer

WEIGHT_SYNCS = Registry("weight sync", key="actor_rollout_ref.rollout.engine_kwargs.sglang.weight_sync")


def weight_sync_method(extra: Mapping[str, Any], device: torch.device, section: str) -> str:
    """The value of engine_kwargs.sglang.weight_sync; by default files, which always work."""
    method = extra.get("weight_sync", "disk")
    if WEIGHT_SYNCS[method].name == "tensor" and (device.type != "cuda" or "base_url" in extra):
        key = f"{section}.engine_kwargs.sglang.weight_sync"
        problem = "requires a server that Burnish starts on its own GPU"
        raise UserError(problem, key=key, value=method, hint=f"{key}=disk")
    return method


def buckets(stream: Iterable[Named], max_bytes: int) -> Iterator[list[Named]]:
    """Lists of whole tensors of about `max_bytes` in total."""
    piece: list[Named] = []
    size = 0
    for name, tensor in stream:
        if piece and size + tensor.nbytes > max_bytes:
            yield piece
            piece, size = [], 0
        piece.append((name, tensor))
        size += tensor.nbytes
    if piece:
        yield piece


@WEIGHT_SYNCS.register("disk")
def send_files(stream: CheckedStream, options: EngineOptions, post: Post) -> None:
    """All at once: the server reads the folder, and loads nothing if a file is bad."""
    folder = Path(tempfile.mkdtemp(prefix="burnish-weights-", dir=options.extra.get("weight_dir")))
    try:
        for number, piece in enumerate(buckets(stream, options.bucket_megabytes << 20)):
            # Copies: a tied weight has two names, and safetensors does not allow shared memory.
            copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in piece}
            save_file(copies, folder / f"model-{number:05d}.safetensors")
        stream.check()
        # load_format explicitly, because the server was started with dummy weights.
        _check_success(post("/update_weights_from_disk", {"model_path": str(folder), "load_format": "auto"}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@WEIGHT_SYNCS.register("tensor")
def send_handles(stream: CheckedStream, options: EngineOptions, post: Post) -> None:
    """Bucket by bucket. A bucket's memory is held until the server has copied it."""
    for piece in buckets(stream, options.bucket_megabytes << 20):
        held = [(name, tensor.detach().contiguous()) for name, tensor in piece]
        each = [handles(held) for _ in range(options.tensor_parallel)]  # a handle can be opened once
        _check_success(post("/update_weights_from_tensor", {"serialized_named_tensors": each, "flush_cache": False}))
    stream.check()


def handles(named: list[Named]) -> str:
    """The tensors as the server expects them: a base64 pickle of their memory handles."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(named)
    return base64.b64encode(buffer.getvalue()).decode()


def _check_success(answer: Any) -> None:
    if not (isinstance(answer, dict) and answer.get("success")):
        raise RuntimeError(f"SGLang rejected the weights: {answer}")
