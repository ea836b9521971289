"""How fast does the built-in engine generate on one device? First whether it is right, then tokens per second.

    python bench/rollout.py --shape 0.5b --peer vllm=25000 --peer hf=3000     # on a machine with a CUDA device
    python bench/rollout.py --device cpu --shape tiny --seqs 16 --n 4 --prompt 8 --max-new 24

Requests: `seqs` responses, `n` to each prompt, of long-tailed lengths (lognormal, clipped); EOS is ignored, log-probs
are given. The first round captures graphs and compiles; the second is timed. `--peer name=tokens_per_second` puts
another engine's figure for the same requests, measured on the same machine, beside ours. Ends with status 1 if a check
fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from burnish.address import address
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.logprobs import token_log_probs
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.rollout.builtin.choice import builtin_engine
from burnish.rollout.engine import Engine, EngineOptions, Request, Sampling

GIB = 1 << 30
QWEN = {"max_position_embeddings": 32768, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
SHAPES = {
    "tiny": {
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True},
    },
    "0.5b": {
        **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
        **{"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    },
    "1.5b": {
        **{"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
        **{"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    },
    "7b": {
        **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
        **{"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    },
}
# Small models of every family whose attention differs.
SIZES = {
    **{"vocab_size": 211, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False, **QWEN},
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWED = {"head_dim": 16, "sliding_window": 24, "layer_types": LAYERS, "query_pre_attn_scalar": 16}
FAMILIES = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=32),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=24),
    "gemma2": lambda: Gemma2Config(**SIZES, **WINDOWED, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gemma3": lambda: Gemma3TextConfig(**SIZES, **WINDOWED),
}
# Of a product with random weights: for greedy tokens one that keeps the likeliest apart; for log-probs that of a 0.5B
# model as its class makes it (0.02 for each of 896 inputs). Larger ones multiply what bfloat16 rounds: at 1.5 it fails.
GREEDY_GAIN, LIKELIHOOD_GAIN = 1.5, 0.6
# Of the log-probs of sampled tokens against a forward of training: (mean, max).
LIMITS = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (5e-3, 0.1)}


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where and how the engine runs."""

    device: torch.device
    eager: bool = False
    look_in: int = 16
    block: int = 64
    compiled: bool | None = None
    memory_share: float = 0.8

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def engine(self, config: PretrainedConfig, dtype: torch.dtype, folder: Path, **more: object) -> Engine:
        """An engine with the weights that its class begins with; the caller closes it."""
        config.save_pretrained(folder)
        extra = {"look_in": self.look_in, "block": self.block}
        if self.compiled is not None:
            extra["compiled"] = self.compiled
        options = EngineOptions(
            ModelSource(str(folder)),
            dtype,
            self.device,
            eos_ids=(2,),
            eager=self.eager,
            device_loop=True,
            memory_share=self.memory_share if self.on_gpu else 0.2,
            extra=extra,
            **more,
        )
        with self.device:  # weights are made where they stay
            return builtin_engine(options)

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def forget(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()


def make_requests(seqs: int, n: int, prompt: int, max_new: int, vocabulary: int, fixed: bool = False, salt: int = 0):
    """The same prompts and lengths for every engine and every call."""
    rng = random.Random(0)
    low, high = (1000, 150_000) if vocabulary > 150_000 else (3, vocabulary)
    prompts = [tuple(rng.randrange(low, high) for _ in range(prompt)) for _ in range(seqs // n)]
    repeated = [ids for ids in prompts for _ in range(n)]
    lengths = [max_new if fixed else max(16, min(max_new, int(rng.lognormvariate(5.5, 0.7)))) for _ in repeated]
    return [
        Request(ids, Sampling(length, ignore_eos=True), address(salt, number))
        for number, (ids, length) in enumerate(zip(repeated, lengths, strict=True))
    ]


# checks


def sensible(model: torch.nn.Module, gain: float, seed: int = 0) -> None:
    """Weights under which a product makes numbers `gain` times as large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * gain * parameter.shape[1] ** -0.5
                parameter.copy_(values)


def check_greedy(bench: Bench, name: str, folder: Path) -> str:
    """Greedy tokens in float32 are those of transformers, whose plain attention knows every family's caps."""
    model = AutoModelForCausalLM.from_config(FAMILIES[name](), attn_implementation="eager").float()
    sensible(model, GREEDY_GAIN)
    model = model.to(bench.device).eval()
    model.generation_config = GenerationConfig()
    prompts = [tuple(random.Random(length).choices(range(3, 211), k=length)) for length in (7, 40, 7, 33)]
    engine = bench.engine(model.config, torch.float32, folder, max_model_len=128, max_num_seqs=8)
    try:
        engine.load_weights(model.named_parameters(), 1)
        sampling = Sampling(60, temperature=0.0, ignore_eos=True)
        futures = engine.generate([Request(ids, sampling, number) for number, ids in enumerate(prompts)])
        for ids, future in zip(prompts, futures, strict=True):
            given = torch.tensor([ids], device=bench.device)
            theirs = model.generate(
                given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=60, pad_token_id=0
            )
            mine, wanted = future.result().ids, theirs[0, len(ids) :].tolist()
            same = [one == other for one, other in zip(mine, wanted, strict=True)]
            assert all(same), f"prompt of {len(ids)} tokens: other token at {same.index(False)}"
    finally:
        engine.close()
    return "60 greedy tokens of 4 prompts equal transformers' in float32"


def training_log_probs(model: torch.nn.Module, rows: list[tuple[int, ...]], answers: list[list[int]]) -> torch.Tensor:
    """Log-probs of the answers by one packed forward, as the trainer makes them."""
    texts = [[*ids, *answer] for ids, answer in zip(rows, answers, strict=True)]
    device = model.device
    tokens = torch.tensor([token for text in texts for token in text], device=device)
    positions = torch.cat([torch.arange(len(text)) for text in texts]).to(device)
    with torch.no_grad():
        hidden = backbone(model)(
            input_ids=tokens[None],
            position_ids=positions[None],
            attention_mask=None,
            use_cache=False,
            segments=[len(text) for text in texts],
        ).last_hidden_state[0]
        found, _ = token_log_probs(hidden[:-1], head_weight(model), tokens[1:], softcap=logit_softcap(model))
    kept, start = [], 0
    for ids, answer in zip(rows, answers, strict=True):
        kept.append(found[start + len(ids) - 1 : start + len(ids) - 1 + len(answer)])
        start += len(ids) + len(answer)
    return torch.cat(kept).float().cpu()


def check_log_probs(bench: Bench, config: PretrainedConfig, dtype: torch.dtype, folder: Path) -> str:
    """Sampled log-probs are those of a training forward; and no longer once one weight has changed by a rank."""
    config.save_pretrained(folder)
    with bench.device:
        model = load_causal_lm(ModelSource(str(folder)), PACKED, dtype, empty=True)
    sensible(model.cpu(), LIKELIHOOD_GAIN)
    model = model.to(bench.device).eval()
    vocabulary = config.vocab_size
    requests = make_requests(32, 4, 48, 96, vocabulary)
    engine = bench.engine(config, dtype, folder, max_model_len=160, max_num_seqs=32)
    try:
        engine.load_weights(model.named_parameters(), 1)
        completions = [future.result() for future in engine.generate(requests)]
    finally:
        engine.close()
    ours = torch.tensor([value for completion in completions for value in completion.log_probs])

    def gaps() -> tuple[float, float]:
        theirs = training_log_probs(model, [r.ids for r in requests], [c.ids for c in completions])
        gap = (ours - theirs).abs()
        return float(gap.mean()), float(gap.max())

    mean, most = gaps()
    limits = LIMITS[dtype]
    assert mean <= limits[0] and most <= limits[1], (mean, most, limits)
    weight = backbone(model).layers[1].mlp.down_proj.weight
    with torch.no_grad():
        left, right = torch.ones(weight.shape[0], 1), torch.ones(1, weight.shape[1])
        weight += (left @ right / weight.shape[1] ** 0.5).to(weight)
    changed = gaps()
    assert changed[0] > limits[0] and changed[1] > limits[1], ("a changed weight goes unseen", changed)
    return (
        f"|engine - training| mean {mean:.1e}, max {most:.1e}; {changed[0]:.1e}, {changed[1]:.1e} once a weight differs"
    )


def run_checks(bench: Bench, dtypes: list[torch.dtype], shape: str, only: str = "") -> bool:
    """Every family, and the shape that is timed; `only` those whose name has this text."""
    good = True
    with tempfile.TemporaryDirectory() as folder:
        named = {f"greedy {name}": lambda name=name: check_greedy(bench, name, Path(folder)) for name in FAMILIES}
        for dtype in dtypes:
            for name in FAMILIES:
                label = f"log-probs {name} {str(dtype).removeprefix('torch.')}"
                named[label] = lambda name=name, dtype=dtype: check_log_probs(
                    bench, FAMILIES[name](), dtype, Path(folder)
                )
        if bench.on_gpu:
            timed = Qwen2Config(**SHAPES[shape], **QWEN, architectures=["Qwen2ForCausalLM"])
            named[f"log-probs {shape} bfloat16"] = lambda: check_log_probs(bench, timed, torch.bfloat16, Path(folder))
        for name, check in ((name, check) for name, check in named.items() if only in name):
            try:
                print(f"ok    {name}: {check()}", flush=True)
            except AssertionError as error:
                good = False
                print(f"FAIL  {name}: {error}", flush=True)
            bench.forget()
    return good


# time


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What the device can do at best: bytes and operations per second."""

    bandwidth: float
    operations: float

    @staticmethod
    def of(device: torch.device, dtype: torch.dtype) -> Ceilings:
        """Measured: a large copy, read and written, and a large product."""
        on_gpu = device.type == "cuda"
        size, side = (GIB, 8192) if on_gpu else (1 << 26, 512)
        source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        copy = _seconds(lambda: target.copy_(source), on_gpu)
        product = _seconds(lambda: left @ right, on_gpu)
        return Ceilings(2 * size / copy, 2 * side**3 / product)


def _seconds(work, on_gpu: bool, times: int = 10) -> float:
    """The median of some calls after two to warm up."""
    found = []
    for _ in range(times + 2):
        started = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return sorted(found[2:])[times // 2]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a token costs: parameters it is multiplied with, bytes of the weights, bytes of a token in the cache."""

    parameters: int
    weight_bytes: int
    cache_bytes: int

    @staticmethod
    def of(config: PretrainedConfig, dtype: torch.dtype) -> Cost:
        hidden, layers = config.hidden_size, config.num_hidden_layers
        head = hidden // config.num_attention_heads
        kv = config.num_key_value_heads * head
        layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * config.intermediate_size
        parameters = layers * layer + config.vocab_size * hidden
        return Cost(parameters, parameters * dtype.itemsize, 2 * layers * kv * dtype.itemsize)

    def step(self, rows: int, tokens: int, ceilings: Ceilings) -> tuple[float, float, float]:
        """Least seconds of one step: weights read, operations, cache read (of so many tokens in all)."""
        return (
            self.weight_bytes / ceilings.bandwidth,
            2 * rows * self.parameters / ceilings.operations,
            tokens * self.cache_bytes / ceilings.bandwidth,
        )


def floor_seconds(requests: list[Request], cost: Cost, ceilings: Ceilings) -> float:
    """The least time for these requests, all decoded together: each step at the larger of its two limits."""
    prompts = {request.ids for request in requests}
    total = 2 * cost.parameters * sum(map(len, prompts)) / ceilings.operations
    for step in range(1, max(request.sampling.max_tokens for request in requests)):
        alive = [request for request in requests if request.sampling.max_tokens > step]
        weights, operations, cache = cost.step(len(alive), sum(len(r.ids) + step for r in alive), ceilings)
        total += max(weights + cache, operations)
    return total


def timed_run(engine: Engine, requests: list[Request], bench: Bench) -> tuple[float, dict[str, float]]:
    """Seconds for all of them, and the engine's counts."""
    engine.stats()
    bench.wait()
    started = time.perf_counter()
    completions = [future.result() for future in engine.generate(requests)]
    seconds = time.perf_counter() - started
    assert [len(c.ids) for c in completions] == [r.sampling.max_tokens for r in requests]
    assert all(len(c.log_probs) == len(c.ids) for c in completions)
    return seconds, engine.stats()


def sleep_and_wake(engine: Engine, request: Request, bench: Bench) -> dict[str, float]:
    """Bytes that the driver gets back, and the time from waking to the first answer."""
    held = torch.cuda.mem_get_info()[0] if bench.on_gpu else 0
    engine.sleep(level=1)
    freed = torch.cuda.mem_get_info()[0] - held if bench.on_gpu else 0
    started = time.perf_counter()
    engine.wake()
    engine.generate([request])[0].result()
    bench.wait()
    return {"sleep_freed_gib": round(freed / GIB, 2), "wake_seconds": round(time.perf_counter() - started, 3)}


def measure(bench: Bench, args: argparse.Namespace, dtype: torch.dtype) -> dict[str, object]:
    config = Qwen2Config(**SHAPES[args.shape], **QWEN, architectures=["Qwen2ForCausalLM"])
    shape = (args.seqs, args.n, args.prompt, args.max_new, config.vocab_size, args.fixed)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        longest = args.prompt + args.max_new
        engine = bench.engine(config, dtype, Path(folder), max_model_len=longest, max_num_seqs=args.max_num_seqs)
        try:
            first, _ = timed_run(engine, make_requests(*shape, salt=1), bench)
            start_up = time.perf_counter() - started
            requests = make_requests(*shape, salt=2)
            seconds, stats = timed_run(engine, requests, bench)
            slept = sleep_and_wake(engine, dataclasses.replace(requests[0], sampling=Sampling(1)), bench)
        finally:
            engine.close()
    tokens = sum(request.sampling.max_tokens for request in requests)
    floor = floor_seconds(requests, Cost.of(config, dtype), Ceilings.of(bench.device, dtype))
    names = ("host_syncs", "graph_replays", "decode_steps", "prefill_tokens", "blocks_in_use", "preemptions")
    return {
        "shape": args.shape,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "ms_per_step": round(1000 * seconds / stats["decode_steps"], 3),
        "roofline_share": round(floor / seconds, 3),
        "start_up_seconds": round(start_up, 1),
        "first_round_seconds": round(first, 1),
        **{name: stats.get(name, 0) for name in names},
        **slept,
    }


def table(found: dict[str, object], peers: list[str]) -> str:
    """Ours beside the others', as Markdown."""
    ours = float(found["tokens_per_second"])
    lines = ["| engine | tokens/s | ours / theirs | share of the roofline |", "|---|---|---|---|"]
    lines.append(f"| built-in, {found['shape']} | {ours:.0f} | 1 | {float(found['roofline_share']):.1%} |")
    for peer in peers:
        name, speed = peer.split("=")
        lines.append(f"| {name} | {float(speed):.0f} | {ours / float(speed):.2f} | |")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="0.5b", choices=SHAPES)
    parser.add_argument("--seqs", type=int, default=1024)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--max-new", type=int, default=1024)
    parser.add_argument("--fixed", action="store_true", help="all responses of the longest length")
    parser.add_argument("--max-num-seqs", type=int, default=1024)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--plain-layers", action="store_true", help="no torch.compile inside the graphs")
    parser.add_argument("--look-in", type=int, default=16, help="tokens between two looks of the host")
    parser.add_argument("--block", type=int, default=64, help="tokens of a block of the cache")
    parser.add_argument("--peer", action="append", default=[], help="name=tokens_per_second of another engine")
    parser.add_argument("--checks", choices=("all", "none", "only"), default="all")
    parser.add_argument("--only", default="", help="checks whose name has this text")
    return parser.parse_args(arguments)


def main() -> int:
    args = parse()
    bench = Bench(torch.device(args.device), args.eager, args.look_in, args.block, False if args.plain_layers else None)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    dtypes = [torch.float32, *([dtype] if bench.on_gpu else [])]
    if args.checks != "none" and not run_checks(bench, dtypes, args.shape, args.only):
        return 1
    if args.checks != "only":
        found = measure(bench, args, dtype)
        print("RESULT", json.dumps(found), flush=True)
        print(table(found, args.peer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
