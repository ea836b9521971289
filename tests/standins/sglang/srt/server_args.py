"""The arguments of the server that Burnish knows of, with SGLang's names and defaults."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass, fields


@dataclass
class ServerArgs:
    model_path: str
    tokenizer_path: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    load_format: str = "auto"
    dtype: str = "auto"
    device: str | None = None
    base_gpu_id: int = 0
    context_length: int | None = None
    json_model_override_args: str = "{}"
    attention_backend: str | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    random_seed: int | None = None
    tp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    pp_size: int = 1
    log_level: str = "info"
    cuda_graph_bs: list[int] | None = None
    trust_remote_code: bool = False
    disable_radix_cache: bool = False
    disable_cuda_graph: bool = False
    enable_memory_saver: bool = False
    enable_deterministic_inference: bool = False


def parse(words: list[str]) -> ServerArgs:
    """A word that is no argument ends the process, as it ends SGLang's."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for field in fields(ServerArgs):
        name = f"--{field.name.replace('_', '-')}"
        if field.type == "bool":
            parser.add_argument(name, action="store_true")
        else:
            kind = next(kind for kind in (float, int, str) if kind.__name__ in field.type)
            default = None if field.default is MISSING else field.default
            many = {"nargs": "+"} if "list" in field.type else {}
            parser.add_argument(name, type=kind, default=default, required=field.default is MISSING, **many)
    return ServerArgs(**vars(parser.parse_args(words)))
