"""What the server does: a tiny model, held by Burnish's own engine.

Where SGLang differs from Burnish, it does as SGLang does: log-probs are those of the bent logits where a
penalty or a ban bends them; prompts are scored at temperature 1; ignore_eos ignores stop tokens too; a response that
ends with its last token was cut for its length; a seed counts only under --enable-deterministic-inference.
"""

from __future__ import annotations

import base64
import json
import pickle
import random
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from burnish.models.load import ModelSource, load_causal_lm, load_config
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin import sampling as drawing
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.rollout.engines.weights import copy_weights
from sglang.protocol import TAGS, Bad, check_ids, check_sampling
from sglang.srt.server_args import ServerArgs

BANNED = -1e8
PLACES = 15  # bits for a place in a row, in a seed


class PacedEngine(BuiltinEngine):
    """Takes so many seconds for a step, until the next abort: tests that interrupt a response must come in time."""

    seconds = 0.0
    num_steps = 0

    def _step(self) -> None:
        time.sleep(self.seconds)
        super()._step()
        self.num_steps += 1


class Host:
    """The model, and the requests it works on."""

    def __init__(self, arguments: ServerArgs) -> None:
        torch.set_num_threads(1)
        placed_noise()
        self.arguments = arguments
        source = ModelSource(arguments.model_path, override_config=json.loads(arguments.json_model_override_args))
        config = load_config(source).get_text_config()
        self.vocabulary = config.vocab_size
        self.context = arguments.context_length or config.max_position_embeddings
        self.eos_ids = tuple(e for e in [config.eos_token_id] if e is not None)
        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer_path or arguments.model_path)
        self.engine = PacedEngine(
            EngineOptions(
                source,
                torch.float32,
                torch.device("cpu"),
                self.eos_ids,
                self.context,
                arguments.max_running_requests or 256,
                invariant=True,
                decode=tokenizer.decode,
            )
        )
        self.plain = load_causal_lm(source, None, torch.float32, empty=True).eval()  # as transformers runs it
        self.released: set[str] = set()
        self.running: dict[str, Future[Completion]] = {}
        self.counts: Counter[str] = Counter()

    # /generate

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.released:
            raise Bad(500, f"the memory of {sorted(self.released)} is released")
        if body.get("stream"):
            raise Bad(400, "this server does not stream")
        params = body.get("sampling_params", {})
        check_sampling(params, self.vocabulary)
        check_ids(body.get("input_ids", []), self.vocabulary, self.context, params.get("max_new_tokens", 128))
        meta = {
            "id": body["rid"],
            "prompt_tokens": len(body["input_ids"]),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        if params.get("max_new_tokens", 128) == 0:
            meta |= {"finish_reason": {"type": "length", "length": 0}, "completion_tokens": 0, **self._scores(body)}
            return {"text": "", "output_ids": [], "meta_info": meta}
        completion = self._complete(body["rid"], self._request(body["input_ids"], params, body))
        meta |= self._told(completion, params)
        if body.get("return_logprob"):
            meta |= self._log_probs(completion, body, params)
        return {"text": "", "output_ids": completion.ids, "meta_info": meta}

    def _request(self, ids: list[int], params: dict[str, Any], body: dict[str, Any]) -> Request:
        if params.get("repetition_penalty", 1.0) != 1:
            raise Bad(400, "this server knows no repetition_penalty")
        ignore_eos = params.get("ignore_eos", False)
        bias = params.get("logit_bias", {})
        if any(value > BANNED for value in bias.values()):
            raise Bad(400, "this server knows a bias that bans, and no other")
        temperature = params.get("temperature", 1.0)
        sampling = Sampling(
            max_tokens=params.get("max_new_tokens", 128),
            temperature=temperature,
            do_sample=temperature >= 1e-6,
            top_k=params.get("top_k", -1),
            top_p=params.get("top_p", 1.0),
            min_p=params.get("min_p", 0.0),
            ignore_eos=ignore_eos,
            min_tokens=params.get("min_new_tokens", 0),
            stop=tuple(params.get("stop", ())),
            stop_token_ids=() if ignore_eos else tuple(params.get("stop_token_ids", ())),
            presence_penalty=params.get("presence_penalty", 0.0),
            frequency_penalty=params.get("frequency_penalty", 0.0),
            bad_words=tuple((int(token),) for token in bias),
            logprobs=body.get("top_logprobs_num", 0),
        )
        exact = self.arguments.enable_deterministic_inference
        seed = params.get("sampling_seed", 42) if exact else random.getrandbits(63)
        return Request(ModelInput(tuple(ids)), sampling, place_seed(seed, len(ids)) if exact else seed)

    def _complete(self, rid: str, request: Request) -> Completion:
        (future,) = self.engine.generate([request])
        self.running[rid] = future
        try:
            return future.result()
        finally:
            del self.running[rid]

    def _told(self, completion: Completion, params: dict[str, Any]) -> dict[str, Any]:
        matched = completion.stop_reason if completion.stop_reason is not None else (completion.ids or [None])[-1]
        reasons = {
            "abort": {"type": "abort", "message": "Aborted"},
            "stop": {"type": "stop", "matched": matched},
            "length": {"type": "length", "length": params.get("max_new_tokens", 128)},
        }
        full = len(completion.ids) >= params.get("max_new_tokens", 128)
        reason = "length" if full and completion.finish_reason == "stop" else completion.finish_reason
        return {"finish_reason": reasons[reason], "completion_tokens": len(completion.ids)}

    def _log_probs(self, completion: Completion, body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        if not completion.ids:
            return {}
        values = completion.log_probs
        if self._bends(params):
            values = self._bent(body["input_ids"], completion.ids, params)
        told = {
            "output_token_logprobs": [[value, token, None] for value, token in zip(values, completion.ids, strict=True)]
        }
        if body.get("top_logprobs_num"):
            places = ([list(column) for column in zip(*place, strict=True)] for place in completion.top_log_probs)
            told["output_top_logprobs"] = [entries(values, tokens) for tokens, values in places]
        return told

    @staticmethod
    def _bends(params: dict[str, Any]) -> bool:
        return any(
            params.get(name) for name in ("presence_penalty", "frequency_penalty", "logit_bias", "min_new_tokens")
        )

    @torch.inference_mode()
    def _bent(self, prompt: list[int], ids: list[int], params: dict[str, Any]) -> list[float]:
        """Log-probs of what the tokens were drawn from, by a pass of its own."""
        logits = self._logits([*prompt, *ids])[len(prompt) - 1 : -1]
        for place in range(len(ids)):
            for token, count in Counter(ids[:place]).items():
                logits[place, token] -= params.get("frequency_penalty", 0.0) * count + params.get(
                    "presence_penalty", 0.0
                )
            for token, bias in params.get("logit_bias", {}).items():
                logits[place, int(token)] += bias
            if place < params.get("min_new_tokens", 0):
                logits[place, [*self.eos_ids, *params.get("stop_token_ids", ())]] = float("-inf")
        heat = params.get("temperature", 1.0) or 1.0
        return torch.log_softmax(logits / heat, -1)[range(len(ids)), ids].tolist()

    @torch.inference_mode()
    def _scores(self, body: dict[str, Any]) -> dict[str, Any]:
        """Of the prompt's own tokens, from logprob_start_len on; the first of them has none."""
        ids, start = body["input_ids"], body.get("logprob_start_len", -1)
        if not body.get("return_logprob") or start < 0:
            return {}
        log_p = torch.log_softmax(self._logits(ids), -1)[start:-1]
        scores = [None, *log_p[range(len(ids) - 1 - start), ids[start + 1 :]].tolist()]
        told = {
            "input_token_logprobs": [[value, token, None] for value, token in zip(scores, ids[start:], strict=True)]
        }
        if body.get("top_logprobs_num"):
            values, tokens = (found.tolist() for found in log_p.topk(body["top_logprobs_num"], -1))
            told["input_top_logprobs"] = [None, *map(entries, values, tokens)]
        return told

    def _logits(self, ids: list[int]) -> torch.Tensor:
        return self.plain(torch.tensor([ids]), use_cache=False).logits[0].float()

    # the other calls

    def abort_request(self, body: dict[str, Any]) -> None:
        chosen = [f for rid, f in list(self.running.items()) if body.get("abort_all") or rid.startswith(body["rid"])]
        self.engine.abort(chosen)
        self.engine.seconds = 0.0

    def flush_cache(self, body: dict[str, Any]) -> str:
        if self.running:
            raise Bad(400, "requests are running")
        return "Cache flushed."

    def update_weights_from_disk(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("load_format", self.arguments.load_format) == "dummy":
            raise Bad(400, "random weights were asked for")
        files = sorted(Path(body["model_path"]).glob("*.safetensors"))
        named = [pair for file in files for pair in load_file(file).items()]
        return self._load(named) | {"num_paused_requests": 0}

    def update_weights_from_tensor(self, body: dict[str, Any]) -> dict[str, Any]:
        each = body["serialized_named_tensors"]
        if len(each) != self.arguments.tp_size:
            raise Bad(400, "one piece for each rank")
        return self._load(
            [(name, tensor.clone()) for name, tensor in pickle.loads(base64.b64decode(each[0]))], part=True
        )

    def _load(self, named: list[tuple[str, torch.Tensor]], part: bool = False) -> dict[str, Any]:
        if "weights" in self.released:
            return {"success": False, "message": "the memory of the weights is released"}
        whole = (dict(self.plain.named_parameters()) if part else {}) | dict(named)
        copy_weights(self.plain, whole.items())
        self.engine.load_weights(whole.items(), 0)
        self.counts["loads"] += 1
        return {"success": True, "message": "Succeeded to update model weights."}

    def release_memory_occupation(self, body: dict[str, Any]) -> None:
        if self.running or not self.arguments.enable_memory_saver:
            raise Bad(500, "release_memory_occupation needs an idle server and --enable-memory-saver")
        self.released |= self._tags(body)

    def resume_memory_occupation(self, body: dict[str, Any]) -> None:
        if not self._tags(body) <= self.released:
            raise Bad(500, f"{body} was not released")
        self.released -= self._tags(body)

    @staticmethod
    def _tags(body: dict[str, Any]) -> set[str]:
        tags = set(body.get("tags", TAGS))
        if not tags <= set(TAGS):
            raise Bad(500, f"unknown tags {tags}")
        return tags

    def get_server_info(self) -> dict[str, Any]:
        return {**vars(self.arguments), "context_length": self.context, "version": "standin", "counts": self.counts}

    # of the stand-in alone

    def standin_pace(self, body: dict[str, Any]) -> None:
        self.engine.seconds, self.engine.num_steps = body["seconds"], 0

    def standin_steps(self, body: dict[str, Any]) -> int:
        return self.engine.num_steps


def entries(values: list[float | None], tokens: list[int]) -> list[list[Any]]:
    """As SGLang writes them: log-prob, token, and its text, which nobody asks for."""
    return [[value, token, None] for value, token in zip(values, tokens, strict=True)]


def place_seed(seed: int, place: int) -> int:
    """SGLang's noise is a function of the seed and the place in the whole row, prompt included: so both are packed."""
    return (seed % (1 << (63 - PLACES))) << PLACES | place


def placed_noise() -> None:
    """Let Burnish's engine unpack them."""
    plain = drawing.uniform
    drawing.uniform = lambda seed, index: plain(seed >> PLACES, (seed & ((1 << PLACES) - 1)) + index)
