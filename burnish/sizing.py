"""Constants and rules that determine how much of a machine a run uses: memory, by block sizes, chunk sizes, dtypes and
model families, and CPU threads.

The engine and the trainer allocate by them, and `burnish doctor` plans by them. The doctor must not load torch, so
nothing here imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

GIB = 1 << 30
FLOAT32_BYTES = 4
INT64_BYTES = 8

# Dtypes

# Every accepted spelling -> torch's name.
DTYPE_NAMES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
}
_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def dtype_bytes(name: str) -> int:
    """Bytes per element of a dtype, by any accepted spelling."""
    return _ITEMSIZE[DTYPE_NAMES[name]]


def default_dtype(on_cpu: bool) -> str:
    """The dtype where the config names none."""
    return "float32" if on_cpu else "bfloat16"


# Model families, by their config's model_type

# torch.compile turns a layer of these into one graph. Others break it, for instance by routing tokens to experts.
_OF_VISION = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"}  # language models inside vision models
COMPILED_FAMILIES = frozenset(
    {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "smollm3", "olmo2", *_OF_VISION}
)
# Their forward pass never synchronizes with the host, so a CUDA graph can capture it; others decode eagerly.
CUDA_GRAPH_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", *_OF_VISION})
# The built-in engine keeps their residual stream in float32 under autocast, which handles plain linear layers only.
FLOAT32_RESIDUAL_FAMILIES = COMPILED_FAMILIES
# On a GPU, engine and trainer can compute them with the same batch-invariant kernels (rollout.invariant).
INVARIANT_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "mistral"})


def flash_attention_fits(itemsize: int, head_dim: int, softcap: bool) -> bool:
    """Whether torch's flash kernel supports the attention of a model: 16 bits, no softcap, a supported head size."""
    return itemsize == 2 and not softcap and head_dim % 8 == 0 and head_dim <= 256


# CPU threads


def available_cores() -> int:
    """Physical cores that this process may use: within its affinity and its cgroup's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = len({_siblings(cpu) for cpu in allowed}) or 1
    quota = _cgroup_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cgroup_memory() -> int | None:
    """Bytes that the cgroup grants (v2, else v1), or None without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text())
        except (OSError, ValueError):  # no such file, or `max`
            continue
    return None


def _siblings(cpu: int) -> str:
    """The hardware threads of the CPU's core, as Linux lists them; a CPU alone elsewhere."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_quota() -> float | None:
    """CPUs that the cgroup grants (v2, else v1), or None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except ValueError:  # "max"
        return None


# Training

# A CPU's token budget per micro-batch. Measured: the activations of a layer with more tokens do not fit its caches.
CPU_MICRO_BATCH_TOKENS = 3072
# Tokens of one forward pass of the built-in engine on a CPU. Measured: activations of more do not stay in its caches.
CPU_PREFILL_TOKENS = 2048

# The language-model head: logits are computed in chunks of rows

# Bytes of one chunk's logits and their temporaries. A CPU gains nothing beyond its caches; a GPU needs a few thousand
# rows to saturate a matrix product.
LOGIT_CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1280 << 20}
LOGIT_TILE = 128  # rows of a GPU matrix product's tile
# Devices whose matrix product adds 16-bit operands into a float32 accumulator; others need a second tensor.
FLOAT32_ACCUMULATING_DEVICES = frozenset({"cuda"})


def max_chunk_rows(vocabulary: int, entry_bytes: int, device_type: str) -> int:
    """Rows of logits that the chunk budget allows, in whole tiles on a GPU."""
    budget = LOGIT_CHUNK_BYTES.get(device_type, LOGIT_CHUNK_BYTES["cuda"])
    rows = max(1, budget // (vocabulary * entry_bytes))
    return rows if device_type == "cpu" or rows < LOGIT_TILE else rows // LOGIT_TILE * LOGIT_TILE


def chunk_rows(num_rows: int, vocabulary: int, entry_bytes: int, device_type: str) -> int:
    """Rows per chunk when `num_rows` rows are divided into equal chunks within the budget."""
    limit = max_chunk_rows(vocabulary, entry_bytes, device_type)
    num_chunks = max(1, -(-num_rows // limit))
    rows = -(-num_rows // num_chunks)
    tiled = rows if device_type == "cpu" else -(-rows // LOGIT_TILE) * LOGIT_TILE
    return min(limit, max(1, tiled))


def torch_entry_bytes(itemsize: int, with_entropy: bool) -> int:
    """Bytes alive per logit: the product, its copy in float32 unless it is that, and probabilities for the entropy."""
    statistics = max(itemsize, FLOAT32_BYTES)
    return itemsize + (statistics if statistics != itemsize else 0) + (statistics if with_entropy else 0)


def triton_entry_bytes(itemsize: int, with_entropy: bool) -> int:
    """Bytes alive per logit: the kernel overwrites the product in place."""
    return itemsize


# By the head kernel's name.
ENTRY_BYTES: dict[str, Callable[[int, bool], int]] = {"torch": torch_entry_bytes, "triton": triton_entry_bytes}

# The built-in engine

CACHE_BLOCK = 256  # tokens; the longest run for which CPU attention is bitwise equal however much of it is masked
DEVICE_LOOP_BLOCK = 64  # tokens of a cache block where decoding runs on the device
SYNC_INTERVAL = 16  # tokens decoded on the device between two host synchronizations
FIRST_TOKEN_BATCH = 128  # sequences whose first tokens are sampled together: limits the memory
DIGEST_WIDTH = 4096  # 8-byte words per row of the matrix that a weight's checksum is computed from

FP8_BLOCK = 128  # rows and columns of weights in 8 bits that share a scale (rollout.use_block_quant_rollout)

# Per-sequence decode state on the device. The device updates the first columns; only the host writes the others.
UPDATED_COLUMNS = ("token", "length", "num_tokens", "active")
INT_COLUMNS = (*UPDATED_COLUMNS, "limit", "seed", "greedy", "top_k", "min_tokens", "num_prompt", "offset")
FLOAT_COLUMNS = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
NUM_STOP_TOKENS = 8  # stop-token slots of a sequence before they have to grow


def cache_blocks(max_model_len: int, max_num_seqs: int, block: int, *, device_loop: bool) -> tuple[int, int]:
    """The fewest blocks with which a sequence of full length can run, and the most that all sequences can use.

    Where conversations wait with their KV, `max_num_seqs` are those that run or wait.
    """
    per_sequence = -(-max_model_len // block)
    if not device_loop:
        return per_sequence + 1, per_sequence * (max_num_seqs + 1)
    # Each sequence may hold one more, the partial last block of a prompt that other samples still wait for. Inactive
    # rows write into one block that belongs to no sequence.
    return per_sequence + 2, (per_sequence + 1) * (max_num_seqs + 1)


def capture_sizes(max_num_seqs: int, requested: Sequence[int] | None = None) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph: those requested up to the limit; else more of the small ones, where padding to
    the next size costs most."""
    if requested is not None:
        return tuple(sorted({size for size in requested if size <= max_num_seqs}))
    steps = [*(1, 2, 4, 8, 16, 24, 32, 48), *range(64, 512, 32), *range(512, 1024, 64), *range(1024, 4096, 256)]
    steps += [*range(4096, 8192, 512), *range(8192, max(max_num_seqs, 8193), 1024)]
    return (*(size for size in steps if size < max_num_seqs), max_num_seqs)
