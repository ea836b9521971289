"""What SGLang takes and what it refuses: the fields of each call, and the limits of its sampling parameters."""

from __future__ import annotations

import math
from typing import Any

NUMBER, LIST, TEXT, SWITCH = (int, float), (list,), (str,), (bool,)

# The fields of a call that are known here: each with the types it may have.
FIELDS: dict[str, dict[str, tuple]] = {
    "/generate": {
        "rid": TEXT,
        "input_ids": LIST,
        "sampling_params": (dict,),
        "return_logprob": SWITCH,
        "logprob_start_len": (int,),
        "top_logprobs_num": (int,),
        "stream": SWITCH,
    },
    "/abort_request": {"rid": TEXT, "abort_all": SWITCH},
    "/flush_cache": {},
    "/update_weights_from_disk": {"model_path": TEXT, "load_format": TEXT},
    "/update_weights_from_tensor": {"serialized_named_tensors": LIST, "load_format": TEXT, "flush_cache": SWITCH},
    "/release_memory_occupation": {"tags": LIST},
    "/resume_memory_occupation": {"tags": LIST},
    # of the stand-in alone
    "/standin_pace": {"seconds": NUMBER},
    "/standin_steps": {},
}
SAMPLING: dict[str, tuple] = {
    "max_new_tokens": (int,),
    "min_new_tokens": (int,),
    "temperature": NUMBER,
    "top_k": (int,),
    "top_p": NUMBER,
    "min_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "ignore_eos": SWITCH,
    "stop": LIST,
    "stop_token_ids": LIST,
    "logit_bias": (dict,),
    "sampling_seed": (int,),
}
TAGS = ("kv_cache", "weights", "cuda_graph")


class Bad(Exception):
    """Answered with this status and these words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def check_fields(path: str, body: dict[str, Any]) -> None:
    if path not in FIELDS:
        raise Bad(404, "Not Found")
    for name, value in body.items():
        _check_type(name, value, FIELDS[path], 422)


def check_sampling(params: dict[str, Any], vocabulary: int) -> None:
    for name, value in params.items():
        _check_type(name, value, SAMPLING, 400)
    most = params.get("max_new_tokens", 128)
    ranges = {
        "temperature": (0.0, math.inf),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "min_new_tokens": (0, most),
        "max_new_tokens": (0, math.inf),
        "sampling_seed": (0, 2**63 - 1),
    }
    for name, (low, high) in ranges.items():
        if name in params and not low <= params[name] <= high:
            raise Bad(400, f"{name} must be in [{low}, {high}], got {params[name]}.")
    if not 0 < params.get("top_p", 1.0) <= 1:
        raise Bad(400, f"top_p must be in (0, 1], got {params['top_p']}.")
    if params.get("top_k", -1) != -1 and params["top_k"] < 1:
        raise Bad(400, f"top_k must be -1 (disable) or at least 1, got {params['top_k']}.")
    if not 0 < params.get("repetition_penalty", 1.0) <= 2:
        raise Bad(400, "repetition_penalty must be in (0, 2].")
    for token in params.get("logit_bias", {}):
        if not 0 <= int(token) < vocabulary:
            raise Bad(400, f"logit_bias must has keys in [0, {vocabulary - 1}], got {token}.")


def check_ids(ids: list[Any], vocabulary: int, context: int, most: int) -> None:
    if not ids or not all(type(token) is int for token in ids):
        raise Bad(422, "input_ids must be a list of integers")
    if max(ids) >= vocabulary or min(ids) < 0:
        raise Bad(400, f"The input_ids {ids} contains values greater than the vocab size ({vocabulary}).")
    if len(ids) + most > context:
        raise Bad(400, f"Requested token count exceeds the model's maximum context length of {context} tokens.")


def _check_type(name: str, value: Any, known: dict[str, tuple], status: int) -> None:
    if name not in known:
        raise Bad(status, f"unexpected field {name!r}")
    wrong = isinstance(value, bool) and bool not in known[name]
    if wrong or not isinstance(value, known[name]):
        raise Bad(status, f"field {name!r} cannot be {value!r}")
