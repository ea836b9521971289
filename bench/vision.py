"""A vision model's rollout and update on one GPU, beside the text model of the same size.

    python bench/vision.py            # on a machine with a CUDA device: the shape of Qwen2.5-VL-3B
    python bench/vision.py --smoke    # tiny, on a CPU

256 prompts with one picture of 448 x 448 pixels (256 tokens) and a short text, 4 samples each of 128 tokens, random
weights, EOS ignored. The text model gets prompts of as many tokens. First the engine's log-probs are compared with the
trainer's, and must change with the picture. Then, after a warm-up on other pictures: tokens per second of the whole
rollout, seconds of the vision tower for all pictures of a step, and one update. The update is measured on `--rows` of
the step's responses and scaled to all of them. MFU counts the language model's FLOPs relative to 989 TFLOP/s; those of
the tower are not counted, so they lower it. The share of vision prefill is the tower's time in a step of rollout and
update. Exits with status 1 if a check fails or that share is above 20 %. What does not fit into `--budget` seconds is
left out, and said.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tables
import torch
from engines import TOKEN_IDS, Bench
from PIL import Image
from shapes import SHAPES, config_of, update_flops
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

from burnish.batch import Batch, Ragged
from burnish.config import load
from burnish.demo.tiny_vision import TINY_FAMILIES, make_vision_model
from burnish.models import attention
from burnish.models.compiled import can_compile, compile_layers
from burnish.models.head_kernels import HEAD_KERNELS
from burnish.models.load import ModelSource, for_language_model, load_tokenizer
from burnish.models.model_input import ModelInput
from burnish.models.vision.encoder import VisionEncoder, load_vision_encoder
from burnish.models.vision.family import vision_family
from burnish.models.vision.features import MediaSlice
from burnish.models.vision.tower import with_stream_attention
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.seeding import derive_seed
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import Policy

PEAK_FLOPS = 989e12
TARGET = 0.20  # share of vision prefill in a step
# Mean absolute difference of log-probs of engine and trainer.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.05}
FAMILY, MODEL, ACTOR = "qwen2_5_vl", "actor_rollout_ref.model", "actor_rollout_ref.actor"
NUM_CHECKED = 8
COLUMNS = {
    "model": "{model}",
    "parameters": "{billions:.2f} B",
    "rollout tokens/s": "{tokens_per_second:,.0f}",
    "update tokens/s": "{update_tokens_per_second:,.0f}",
    "update MFU": "{mfu:.1%}",
    "s per step": "{step_seconds:.1f}",
    "vision prefill s": "{tower_seconds:.2f}",
    "share of the step": "{tower_share:.1%}",
    "engine - trainer": "{difference:.1e}",
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of the measurement."""

    shape: str  # of the language model
    vision: dict[str, Any]
    sections: list[int]
    pixels: int  # per side
    prompts: int = 256
    samples: int = 4
    new_tokens: int = 128
    rows: int = 256  # of the measured update
    micro: int = 4096  # 16,384 do not fit beside the float32 weights of 3B parameters
    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16


TOWER = dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=2048, window_size=112)
FULL = Plan("3B", TOWER | {"fullatt_block_indexes": [7, 15, 23, 31]}, [16, 24, 24], 448)
SMALL_TOWER = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=2, out_hidden_size=64, window_size=56)
SMOKE = Plan(
    *("tiny", SMALL_TOWER | {"fullatt_block_indexes": [1]}, [4, 2, 2], 56),
    **dict(prompts=4, samples=2, new_tokens=6, rows=4, micro=256, device="cpu", dtype=torch.float32),
)


class Clock:
    """The time since the start, with which every line begins."""

    def __init__(self, budget: float) -> None:
        self.started = time.perf_counter()
        self.budget = budget

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.started:6.1f} s  {text}", flush=True)

    def allows(self, what: str, seconds: float) -> bool:
        """Whether this many seconds are left; says so if not."""
        left = self.budget - (time.perf_counter() - self.started)
        if left < seconds:
            self.say(f"LEFT OUT: {what} ({left:.0f} s left, about {seconds:.0f} needed)")
        return left >= seconds


@contextmanager
def timed(on_gpu: bool) -> Iterator[list[float]]:
    seconds: list[float] = []
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    yield seconds
    if on_gpu:
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - started)


# inputs


def vision_config(plan: Plan, folder: Path) -> PretrainedConfig:
    """A config of these sizes in a folder that has tokenizer and processor files too."""
    make_vision_model(folder, FAMILY)
    (folder / "model.safetensors").unlink()
    file = folder / "preprocessor_config.json"
    content = json.loads(file.read_text())
    content["size"] = {"shortest_edge": 28 * 28, "longest_edge": 2 * plan.pixels**2}
    file.write_text(json.dumps(content))
    tiny = AutoConfig.from_pretrained(folder).to_dict()
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": plan.sections}
    text = {**SHAPES[plan.shape], "max_position_embeddings": 32_768, "rope_parameters": rope, **TOKEN_IDS}
    ids = {name: value for name, value in tiny.items() if name.endswith("_token_id")}
    config = AutoConfig.for_model(
        FAMILY, text_config=text, vision_config=plan.vision, tie_word_embeddings=True, **ids | TOKEN_IDS
    )
    config.update({"architectures": ["Qwen2_5_VLForConditionalGeneration"]})
    config.save_pretrained(folder)
    return config


def pictures(plan: Plan, seed: int) -> list[Image.Image]:
    """Noise around a color of each picture's own."""
    generator = np.random.default_rng(seed)
    size = (plan.pixels, plan.pixels, 3)
    colors = generator.integers(0, 224, (plan.prompts, 1, 1, 3), dtype=np.uint8)
    return [Image.fromarray(color + generator.integers(0, 32, size, dtype=np.uint8)) for color in colors]


def seen(plan: Plan, encoder: VisionEncoder, seed: int) -> list[ModelInput]:
    """Prompts with a picture and an own text each."""
    written, rng = TINY_FAMILIES[FAMILY].image, random.Random(seed)
    texts = ["".join(rng.choices("abcdefgh", k=20)) for _ in range(plan.prompts)]
    return [
        encoder.encode(f"{written} {text}?", [image]) for text, image in zip(texts, pictures(plan, seed), strict=True)
    ]


def read(plan: Plan, length: int, vocabulary: int, seed: int) -> list[ModelInput]:
    """Prompts of text alone."""
    rng = random.Random(seed)
    return [ModelInput(tuple(rng.randrange(3, vocabulary) for _ in range(length))) for _ in range(plan.prompts)]


# model, engine, trainer


def policy_of(plan: Plan, config: PretrainedConfig) -> Policy:
    settings = [
        f"{MODEL}.path=random",
        "algorithm.adv_estimator=grpo",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu={plan.micro}",
        f"{ACTOR}.ppo_mini_batch_size={plan.rows}",
        f"{ACTOR}.optim.lr=1e-6",
    ]
    actor = load(settings, check=False).cfg.actor_rollout_ref.actor
    attention.register()
    torch.manual_seed(0)
    family = AutoModelForCausalLM if vision_family(config) is None else AutoModelForImageTextToText
    with torch.device(plan.device):
        implementation = for_language_model(config, attention.PACKED)
        model = family.from_config(config, attn_implementation=implementation, dtype=torch.float32)
    model = with_stream_attention(model)  # as the loader does
    device = torch.device(plan.device)
    if can_compile(model, device):
        compile_layers(model, MODEL)
    on_gpu = plan.device == "cuda"
    options = BackendOptions(head=HEAD_KERNELS["triton" if on_gpu else "torch"](False))
    backend = create_backend(model, device, plan.dtype, options=options)
    backend.create_optimizer(actor.optim, 100, 1)
    return Policy(
        backend,
        actor,
        temperature=1.0,
        rows_per_prompt=1,
        max_response_length=plan.new_tokens,
        inference_micro_batch=MicroBatchSize(tokens=plan.micro),
        seed=0,
    )


def generate(engine: BuiltinEngine, inputs: Sequence[ModelInput], samples: int, length: int) -> list[Completion]:
    sampling = Sampling(length, ignore_eos=True)
    repeated = [input for input in inputs for _ in range(samples)]
    requests = [Request(input, sampling, derive_seed(0, number)) for number, input in enumerate(repeated)]
    completions = [future.result() for future in engine.generate(requests)]
    assert all(len(completion.ids) == length for completion in completions)
    return completions


def batch_of(inputs: Sequence[ModelInput], completions: Sequence[Completion], samples: int) -> Batch:
    repeated = [input for input in inputs for _ in range(samples)][: len(completions)]
    responses = Ragged.of([torch.tensor(each.ids) for each in completions], torch.int64)
    total = len(responses.flat)
    batch = Batch(
        prompt_ids=Ragged.of([torch.tensor(input.ids) for input in repeated], torch.int64),
        responses=responses,
        response_mask=Ragged.like(torch.ones(total), responses),
        old_log_probs=Ragged.of([torch.tensor(each.log_probs) for each in completions], torch.float32),
        advantages=Ragged.like(torch.randn(total, generator=torch.Generator().manual_seed(0)), responses),
    )
    return batch.add(media=[input.media for input in repeated]) if any(input.media for input in inputs) else batch


def log_probs(policy: Policy, batch: Batch) -> torch.Tensor:
    """The trainer's."""
    names = [name for name in batch if name in ("prompt_ids", "responses", "media")]
    return policy.compute_log_probs(batch.keep(*names))["old_log_probs"].flat.cpu()


def check(plan: Plan, policy: Policy, engine: BuiltinEngine, inputs: Sequence[ModelInput]) -> tuple[float, bool]:
    """The mean difference of engine and trainer, and whether it is small and the pictures have an effect."""
    few = inputs[: min(NUM_CHECKED, len(inputs))]
    batch = batch_of(few, generate(engine, few, 1, min(16, plan.new_tokens)), 1)
    ours = log_probs(policy, batch)
    difference = float((ours - batch["old_log_probs"].flat).abs().mean())
    passed = difference <= TOLERANCE[plan.dtype]
    if "media" in batch:
        others = [name for name in batch if name != "media"]
        swapped = batch.keep(*others).add(media=[batch["media"][row - 1] for row in range(len(few))])
        passed &= not torch.equal(log_probs(policy, swapped), ours)
    return difference, passed


def tower_seconds(plan: Plan, policy: Policy, inputs: Sequence[ModelInput], tokens: int = 8192) -> float:
    """Seconds of the vision tower for all pictures of a step, in the engine's dtype and batches."""
    model, family = policy.backend.model, vision_family(policy.backend.model.config)
    assert family is not None
    media, at_once = [input.media[0] for input in inputs], max(1, tokens // inputs[0].media[0].num_tokens)
    groups = [media[start : start + at_once] for start in range(0, len(media), at_once)]

    def run(group: Sequence[Any]) -> None:
        length = group[0].num_tokens
        ids = torch.zeros(len(group) * length, dtype=torch.int64, device=plan.device)
        slices = [MediaSlice.whole(item, number * length) for number, item in enumerate(group)]
        with torch.inference_mode(), torch.autocast(plan.device, plan.dtype, enabled=plan.dtype != torch.float32):
            family.embed(model, ids, slices)

    run(groups[0])
    with timed(plan.device == "cuda") as seconds:
        for group in groups:
            run(group)
    return seconds[0]


# measurement


def measure(
    plan: Plan, name: str, config: PretrainedConfig, sets: Sequence[Sequence[ModelInput]], clock: Clock
) -> tuple[dict[str, Any], bool]:
    """One model's row. `sets`: prompts of the warm-up, and of the measurement."""
    on_gpu, device = plan.device == "cuda", torch.device(plan.device)
    policy = policy_of(plan, config)
    row: dict[str, Any] = {"model": name, "billions": sum(p.numel() for p in policy.backend.model.parameters()) / 1e9}
    clock.say(f"{name}: {row['billions']:.2f} B parameters initialized")
    bench, passed = Bench(device, memory_share=0.25), True
    try:
        completions = roll_out(plan, bench, policy, config, sets, row, clock)
    except RuntimeError:
        if not on_gpu:
            raise
        # The measurement goes on without CUDA graphs, and the status says that they failed.
        clock.say(f"{name}: FAILED with CUDA graphs\n{traceback.format_exc()}")
        passed, row["without_graphs"] = False, True
        bench.forget()
        completions = roll_out(plan, dataclasses.replace(bench, eager=True), policy, config, sets, row, clock)
    passed &= row["agrees"]
    bench.forget()
    if sets[1][0].media:
        row["tower_seconds"] = tower_seconds(plan, policy, sets[1])
        clock.say(f"{name}: vision tower {row['tower_seconds']:.2f} s for {plan.prompts} pictures")
    if clock.allows(f"update of {name}", 35 if on_gpu else 0):
        row |= update(plan, policy, batch_of(sets[1], completions[: plan.rows], plan.samples), config)
        row["step_seconds"] = row["rollout_seconds"] + row["update_seconds"]
        if "tower_seconds" in row:
            row["tower_share"] = row["tower_seconds"] / row["step_seconds"]
        clock.say(f"{name}: update {row['update_seconds']:.1f} s per step, MFU {row['mfu']:.1%}")
    del policy
    bench.forget()
    return row, passed


def roll_out(
    plan: Plan,
    bench: Bench,
    policy: Policy,
    config: PretrainedConfig,
    sets: Sequence[Sequence[ModelInput]],
    row: dict[str, Any],
    clock: Clock,
) -> list[Completion]:
    """The responses of a whole step, after a check and a warm-up; fills in the row."""
    longest, name = max(len(input) for inputs in sets for input in inputs) + plan.new_tokens, row["model"]
    with tempfile.TemporaryDirectory() as folder:
        limits = {"max_model_len": longest, "max_num_seqs": plan.prompts * plan.samples}
        engine = bench.engine(config, plan.dtype, Path(folder), **limits)
        try:
            engine.load_weights(policy.backend.weights(), 1)
            row["difference"], row["agrees"] = check(plan, policy, engine, sets[0])
            agrees = "" if row["agrees"] else " WRONG"
            clock.say(f"{name}: engine and trainer differ by {row['difference']:.1e}{agrees}")
            generate(engine, sets[0], plan.samples, min(20, plan.new_tokens))
            clock.say(f"{name}: engine warm")
            engine.stats()
            with timed(bench.on_gpu) as seconds:
                completions = generate(engine, sets[1], plan.samples, plan.new_tokens)
            row["rollout_seconds"] = seconds[0]
            row["tokens_per_second"] = len(completions) * plan.new_tokens / seconds[0]
            row["engine"] = engine.stats()
            clock.say(f"{name}: rollout {seconds[0]:.2f} s, {row['tokens_per_second']:,.0f} tokens/s")
            return completions
        finally:
            engine.close()


def update(plan: Plan, policy: Policy, batch: Batch, config: PretrainedConfig) -> dict[str, Any]:
    """One update on some rows of a step, after the same one, which compiles; scaled to all rows."""
    on_gpu = plan.device == "cuda"
    policy.update(batch, 1)
    with timed(on_gpu) as seconds:
        policy.update(batch, 2)
    lengths = [len(batch["prompt_ids"][row]) + len(batch["responses"][row]) for row in range(len(batch))]
    flops = update_flops(config.get_text_config(), lengths)
    return {
        "update_seconds": seconds[0] * plan.prompts * plan.samples / len(batch),
        "update_tokens_per_second": sum(lengths) / seconds[0],
        "mfu": flops / seconds[0] / PEAK_FLOPS,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--rows", type=int, help="responses of the measured update")
    parser.add_argument("--budget", type=float, default=140.0, help="seconds")
    tables.add_option(parser)
    args = parser.parse_args()
    plan = SMOKE if args.smoke else FULL
    plan = dataclasses.replace(plan, rows=args.rows or plan.rows)
    clock = Clock(args.budget)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = vision_config(plan, folder)
        tokenizer = load_tokenizer(name, key=MODEL)
        encoder = load_vision_encoder(ModelSource(name), tokenizer)
        started = time.perf_counter()
        sets = [seen(plan, encoder, seed) for seed in (1, 2)]
        per_picture = (time.perf_counter() - started) / (2 * plan.prompts)
        tokens = sets[1][0].media[0].num_tokens
        clock.say(f"processed {2 * plan.prompts} pictures, {per_picture * 1e3:.1f} ms and {tokens} tokens each")
        row, passed = measure(plan, "Qwen2.5-VL-3B" if not args.smoke else "tiny VL", config, sets, clock)
        row |= {"picture_tokens": tokens, "processing_ms": 1e3 * per_picture}
        rows.append(row)
        print(f"RESULT {json.dumps(row)}\n{tables.table(COLUMNS, rows)}", flush=True)
        tables.save(args, "vision", COLUMNS, rows, full=not args.smoke)
    if clock.allows("the text model", 45 if not args.smoke else 0):
        text = config_of(plan.shape)
        text.update({**TOKEN_IDS, "architectures": ["Qwen2ForCausalLM"]})
        length = len(sets[1][0])
        prompts = [read(plan, length, text.vocab_size, seed) for seed in (1, 2)]
        row, text_passed = measure(plan, "text model of the same size", text, prompts, clock)
        rows.append(row)
        passed &= text_passed
        print(f"RESULT {json.dumps(row)}\n{tables.table(COLUMNS, rows)}", flush=True)
        tables.save(args, "vision", COLUMNS, rows, full=not args.smoke)
    share = rows[0].get("tower_share")
    if share is not None and not args.smoke:
        print(f"vision prefill takes {share:.1%} of the step; the target is at most {TARGET:.0%}")
        passed &= share <= TARGET
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
