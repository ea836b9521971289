"""Checks of adapters, number formats, offloading and kernels on a GPU; prints one line per check.

    python bench/gpu_models.py               # on a machine with a CUDA device: a random model of 0.1B
    python bench/gpu_models.py --device cpu  # tiny; checks of device memory are skipped

Exits with status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import math
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import burnish.loop.backends
from burnish.batch import Ragged
from burnish.config import load
from burnish.demo.tiny import END, PAD, make_tokenizer
from burnish.loop.build import build
from burnish.loop.run import Run
from burnish.loop.step import learn_and_sync, produce

MIB = 1 << 20
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
FSDP = f"{ACTOR}.fsdp_config"
LORA = (f"{MODEL}.lora_rank=16", f"{ACTOR}.optim.lr=1e-3")
LONG = (f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",)


class Measured(NamedTuple):
    norms: list[float]  # gradient norm of every step
    held: float  # MiB allocated between phases
    peak: float  # MiB during updates
    seconds: float


@dataclasses.dataclass
class Bench:
    """The model folder, the device, and the response length."""

    folder: Path
    device: str
    tokens: int

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @contextlib.contextmanager
    def run(self, *overrides: str):
        """A Run of this model, closed and freed afterwards."""
        rows = [
            {
                "prompt": [{"role": "user", "content": f"{n}+{n}"}],
                "data_source": "any",
                "reward_model": {"ground_truth": ""},
            }
            for n in range(16)
        ]
        with tempfile.TemporaryDirectory() as out:
            settings = [
                f"{MODEL}.path={self.folder}",
                "algorithm.adv_estimator=grpo",
                "data.train_batch_size=8",
                "data.max_prompt_length=32",
                f"data.max_response_length={self.tokens}",
                f"{ACTOR}.ppo_mini_batch_size=8",
                f"{ACTOR}.optim.lr=1e-4",
                "actor_rollout_ref.rollout.n=1",
                "actor_rollout_ref.rollout.max_num_seqs=8",
                "actor_rollout_ref.rollout.gpu_memory_utilization=0.1",
                "reward.num_workers=0",
                "trainer.logger=[]",
                f"trainer.device={self.device}",
                "trainer.total_training_steps=4",
                f"trainer.default_local_dir={out}",
                *([] if self.on_gpu else [f"{MODEL}.fused_kernel_options.impl_backend=torch"]),
                *overrides,
            ]
            run = build(
                load(settings, given=["data.train_files"]).cfg, lambda solution_str: len(solution_str) % 7, rows
            )
            try:
                yield run
            finally:
                run.close()
                del run
                self.free()

    def free(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def batch(self, run: Run):
        """Eight sequences of full length, the same for every run."""
        prompts = run.rollout.train_data.batch(range(8), epoch=0)
        generator = torch.Generator().manual_seed(0)
        vocabulary = run.learner.policy.backend.model.config.vocab_size
        responses = Ragged.of([torch.randint(3, vocabulary, (self.tokens,), generator=generator)] * 8, torch.int64)
        total = len(responses.flat)
        return prompts.add(
            responses=responses,
            response_mask=Ragged.like(torch.ones(total), responses),
            old_log_probs=Ragged.like(torch.full((total,), -math.log(vocabulary)), responses),
            advantages=Ragged.like(torch.randn(total, generator=generator), responses),
        )

    def update(self, *overrides: str, steps: int = 2) -> Measured:
        """Update a policy while its engine sleeps."""
        with self.run(*overrides) as run:
            run.rollout.engine.sleep(level=2)
            batch, norms = self.batch(run), []
            self.free()
            held = self.mib()
            started = time.perf_counter()
            for step in range(1, steps + 1):
                norms.append(run.learner.policy.update(batch, step).metrics["actor/grad_norm"])
            seconds = time.perf_counter() - started
            assert all(norm > 0 for norm in norms), norms
            peak = torch.cuda.max_memory_allocated() / MIB if self.on_gpu else 0.0
            return Measured(norms, min(held, self.mib()), peak, seconds)

    def mib(self) -> float:
        return torch.cuda.memory_allocated() / MIB if self.on_gpu else 0.0


class Unavailable(Exception):
    """A check that this machine cannot run."""


def close(one: list[float], other: list[float], rel: float = 0.02) -> bool:
    return all(abs(a - b) <= rel * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def check_weights_offload(bench: Bench) -> str:
    plain, on = bench.update(), bench.update(f"{FSDP}.param_offload=true")
    assert close(plain.norms, on.norms), (plain.norms, on.norms)
    assert not bench.on_gpu or on.held < plain.held - 0.9 * weights_mib(bench), (plain.held, on.held)
    return f"between phases {plain.held:.0f} -> {on.held:.0f} MiB; step {plain.seconds:.2f} -> {on.seconds:.2f} s"


def check_state_offload(bench: Bench) -> str:
    plain, on = bench.update(), bench.update(f"{FSDP}.optimizer_offload=true")
    assert close(plain.norms, on.norms), (plain.norms, on.norms)
    assert not bench.on_gpu or on.held < plain.held - 1.8 * weights_mib(bench), (plain.held, on.held)
    return f"between phases {plain.held:.0f} -> {on.held:.0f} MiB"


def check_offload_policy(bench: Bench) -> str:
    plain, on = bench.update(), bench.update(f"{FSDP}.offload_policy=true")
    assert close(plain.norms, on.norms), (plain.norms, on.norms)
    assert not bench.on_gpu or (on.held < 0.2 * plain.held and on.peak < plain.peak - 1.8 * weights_mib(bench)), (
        plain,
        on,
    )
    return f"between phases {plain.held:.0f} -> {on.held:.0f} MiB, peak {plain.peak:.0f} -> {on.peak:.0f} MiB"


def check_reference_offload(bench: Bench) -> str:
    held = {}
    for offload in ("false", "true"):
        overrides = (f"{ACTOR}.use_kl_loss=true", f"actor_rollout_ref.ref.fsdp_config.param_offload={offload}")
        with bench.run(*overrides) as run:
            batch = bench.batch(run).keep("prompt_ids", "responses")
            log_probs = run.learner.reference.compute_log_probs(batch).flat
            bench.free()
            held[offload] = (bench.mib(), log_probs)
    assert torch.equal(held["true"][1], held["false"][1])
    assert not bench.on_gpu or held["true"][0] < held["false"][0] - 0.9 * weights_mib(bench), held
    return f"between phases {held['false'][0]:.0f} -> {held['true'][0]:.0f} MiB"


def check_activation_offload(bench: Bench) -> str:
    keep = (*LONG, f"{MODEL}.enable_gradient_checkpointing=false")
    plain, on = bench.update(*keep), bench.update(*keep, f"{MODEL}.enable_activation_offload=true")
    assert close(plain.norms, on.norms), (plain.norms, on.norms)
    assert not bench.on_gpu or on.peak < 0.9 * plain.peak, (plain.peak, on.peak)
    both = bench.update(*LONG, f"{MODEL}.enable_activation_offload=true")
    assert close(plain.norms, both.norms), (plain.norms, both.norms)
    peaks = f"peak {plain.peak:.0f} -> {on.peak:.0f} MiB ({both.peak:.0f} with checkpointing)"
    return f"{peaks}; {plain.seconds:.2f} -> {on.seconds:.2f} s"


def check_recompute(bench: Bench) -> str:
    plain = bench.update(*LONG, f"{MODEL}.enable_gradient_checkpointing=false")
    each = bench.update(*LONG)
    groups = bench.update(*LONG, f"{MODEL}.recompute.method=uniform", f"{MODEL}.recompute.num_layers=2")
    block = bench.update(*LONG, f"{MODEL}.recompute.method=block", f"{MODEL}.recompute.num_layers=1")
    assert all(close(plain.norms, other.norms) for other in (each, groups, block))
    assert not bench.on_gpu or each.peak < block.peak < plain.peak, (each.peak, block.peak, plain.peak)
    return f"peak none {plain.peak:.0f}, block {block.peak:.0f}, each {each.peak:.0f}, groups {groups.peak:.0f} MiB"


def check_lora(bench: Bench, *more: str) -> str:
    """After two steps, the engine's merged weights give the policy's log-probs."""
    with bench.run(*LORA, *more, f"{ACTOR}.use_kl_loss=true") as run:
        run.sync_weights()
        base = {
            name: p.detach().clone()
            for name, p in run.learner.policy.backend.model.named_parameters()
            if not p.requires_grad
        }
        kls = []
        for step in (1, 2):
            _, batch, metrics = learn_and_sync(run.rollout, run.learner, produce(run.rollout, step))
            kls.append(metrics["actor/kl_loss"])
        expected = run.learner.policy.compute_log_probs(batch.keep("prompt_ids", "responses"))["old_log_probs"].flat
        rows = [p + r for p, r in zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)]
        scored = run.rollout.engine.score(rows)
        ours = [x for row, r in zip(scored, batch["responses"].lists(), strict=True) for x in row[len(row) - len(r) :]]
        difference = float((torch.tensor(ours) - expected).abs().mean())
        now = dict(run.learner.policy.backend.model.named_parameters())
        assert all(torch.equal(tensor, now[name]) for name, tensor in base.items()), "base weights changed"
        # On a GPU the two passes may use different micro-batches, and then differ in the last bits.
        assert kls[0] <= (1e-4 if bench.on_gpu else 0.0) and kls[1] > 0, kls
        assert difference < (0.05 if bench.on_gpu else 2e-3), difference
        return f"KL {kls[0]:.0e} -> {kls[1]:.1e}, mean |engine - policy| {difference:.1e}"


def check_lora_offloaded(bench: Bench) -> str:
    return check_lora(bench, f"{FSDP}.param_offload=true", f"{FSDP}.optimizer_offload=true")


def check_four_bits(bench: Bench) -> str:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Unavailable("bitsandbytes is not installed")
    return check_lora(bench, f"{MODEL}.load_in_4bit=true")


def check_formats(bench: Bench) -> str:
    plain = bench.update(f"{FSDP}.mixed_precision.param_dtype=fp32")
    mixed = bench.update(f"{FSDP}.mixed_precision.param_dtype=bf16")
    kept = bench.update(f"{FSDP}.model_dtype=bf16")
    half = bench.update(f"{FSDP}.mixed_precision.param_dtype=fp16")
    assert all(close(plain.norms[:1], other.norms[:1], rel=0.1) for other in (mixed, kept, half)), (
        plain,
        mixed,
        kept,
        half,
    )
    assert not bench.on_gpu or kept.held < 0.6 * mixed.held, (kept.held, mixed.held)
    names = {"fp32": plain, "bf16": mixed, "bf16 weights": kept, "fp16": half}
    return f"gradient norm {', '.join(f'{name} {run.norms[0]:.4f}' for name, run in names.items())}"


def check_compiled_head(bench: Bench) -> str:
    if not bench.on_gpu:
        raise Unavailable("the head is compiled on GPUs only")
    plain, on = bench.update(steps=4), bench.update(f"{ACTOR}.use_torch_compile=true", steps=4)
    assert close(plain.norms, on.norms), (plain.norms, on.norms)
    return f"{plain.seconds:.2f} -> {on.seconds:.2f} s for four steps, compiling included"


def check_attention(bench: Bench) -> str:
    names = ["sdpa", "eager"]
    if bench.on_gpu and importlib.util.find_spec("flash_attn"):
        names.append("flash_attention_2")
    if bench.on_gpu and importlib.util.find_spec("flash_attn_interface"):
        names.append("flash_attention_3")
    results = {name: bench.update(f"{MODEL}.attn_implementation={name}") for name in names}
    assert all(close(results["sdpa"].norms, other.norms, rel=0.05) for other in results.values()), results
    return ", ".join(f"{name} {other.seconds:.2f} s" for name, other in results.items())


def check_liger(bench: Bench) -> str:
    if not bench.on_gpu or importlib.util.find_spec("liger_kernel") is None:
        raise Unavailable("requires liger-kernel and a GPU")
    plain, on = bench.update(), bench.update(f"{MODEL}.use_liger=true")
    assert close(plain.norms, on.norms, rel=0.05), (plain.norms, on.norms)
    return f"{plain.seconds:.2f} -> {on.seconds:.2f} s"


CHECKS = {
    "param_offload": check_weights_offload,
    "optimizer_offload": check_state_offload,
    "offload_policy": check_offload_policy,
    "reference param_offload": check_reference_offload,
    "enable_activation_offload": check_activation_offload,
    "recompute": check_recompute,
    "LoRA": check_lora,
    "LoRA, offloaded": check_lora_offloaded,
    "load_in_4bit": check_four_bits,
    "number formats": check_formats,
    "use_torch_compile": check_compiled_head,
    "attn_implementation": check_attention,
    "use_liger": check_liger,
}


def weights_mib(bench: Bench) -> float:
    """Size of the model's weights in float32."""
    return sum(file.stat().st_size for file in bench.folder.glob("*.safetensors")) / MIB


def make_model(folder: Path, hidden: int, layers: int, vocabulary: int) -> None:
    tokenizer = make_tokenizer("0123456789+")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=max(vocabulary, len(tokenizer)),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 16 if hidden < 256 else hidden // 64,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", help="checks whose name contains this text")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.device, tokens=1024 if args.device != "cpu" else 12)
        if bench.on_gpu:
            make_model(bench.folder, hidden=768, layers=12, vocabulary=8192)
        else:
            make_model(bench.folder, hidden=64, layers=4, vocabulary=32)
            # Run the offloading code although host and device memory are the same.
            burnish.loop.backends.has_own_memory = lambda device: True
        for name, check in CHECKS.items():
            if args.only and args.only not in name:
                continue
            try:
                verdict, text = "PASS", check(bench)
            except Unavailable as reason:
                verdict, text = "n/a ", str(reason)
            except Exception as error:
                verdict, text, failed = "FAIL", f"{type(error).__name__}: {str(error)[:300]}", failed + 1
                traceback.print_exc()
            bench.free()
            print(f"{verdict}  {name:26} {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
