"""Do adapters, number formats, offloading and kernels do on a GPU what they say? Prints one line per check.

    python bench/gpu_models.py               # on a machine with a CUDA device: a model of 0.1B, made here
    python bench/gpu_models.py --device cpu  # the same code on a tiny model; what is about device memory is left out

Ends with status 1 if a check fails.
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

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import burnish.loop.backends
from burnish.batch import Ragged
from burnish.config import load
from burnish.demo.tiny import END, PAD, make_tokenizer
from burnish.loop.build import build
from burnish.loop.run import Run
from burnish.loop.step import train_step

MIB = 1 << 20
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
FSDP = f"{ACTOR}.fsdp_config"
LORA = (f"{MODEL}.lora_rank=16", f"{ACTOR}.optim.lr=1e-3")
LONG = (f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",)


@dataclasses.dataclass
class Bench:
    """Where the model is, on what device it runs, and how long rows are."""

    folder: Path
    device: str
    tokens: int

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @contextlib.contextmanager
    def run(self, *overrides: str):
        """A Run of this model, closed and forgotten afterwards."""
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
                self.forget()

    def forget(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def batch(self, run: Run):
        """Eight rows of full length, the same for every run."""
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

    def taught(self, *overrides: str, steps: int = 2) -> tuple[list[float], float, float, float]:
        """(gradient norms, MiB held between phases, peak MiB of teaching, seconds) of a policy without its engine."""
        with self.run(*overrides) as run:
            run.rollout.engine.sleep(level=2)
            batch, norms = self.batch(run), []
            self.forget()
            held = self.mib()
            started = time.perf_counter()
            for step in range(1, steps + 1):
                norms.append(run.learner.policy.update(batch, step).metrics["actor/grad_norm"])
            seconds = time.perf_counter() - started
            assert all(norm > 0 for norm in norms), norms
            peak = torch.cuda.max_memory_allocated() / MIB if self.on_gpu else 0.0
            return norms, min(held, self.mib()), peak, seconds

    def mib(self) -> float:
        return torch.cuda.memory_allocated() / MIB if self.on_gpu else 0.0


class NotHere(Exception):
    """A check that this machine cannot make."""


def near(one: list[float], other: list[float], rel: float = 0.02) -> bool:
    return all(abs(a - b) <= rel * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True))


def check_weights_offload(bench: Bench) -> str:
    plain, on = bench.taught(), bench.taught(f"{FSDP}.param_offload=true")
    assert near(plain[0], on[0]), (plain[0], on[0])
    assert not bench.on_gpu or on[1] < plain[1] - 0.9 * weights_mib(bench), (plain[1], on[1])
    return f"between phases {plain[1]:.0f} -> {on[1]:.0f} MiB; step {plain[3]:.2f} -> {on[3]:.2f} s"


def check_state_offload(bench: Bench) -> str:
    plain, on = bench.taught(), bench.taught(f"{FSDP}.optimizer_offload=true")
    assert near(plain[0], on[0]), (plain[0], on[0])
    assert not bench.on_gpu or on[1] < plain[1] - 1.8 * weights_mib(bench), (plain[1], on[1])
    return f"between phases {plain[1]:.0f} -> {on[1]:.0f} MiB"


def check_offload_policy(bench: Bench) -> str:
    plain, on = bench.taught(), bench.taught(f"{FSDP}.offload_policy=true")
    assert near(plain[0], on[0]), (plain[0], on[0])
    assert not bench.on_gpu or (on[1] < 0.2 * plain[1] and on[2] < plain[2] - 1.8 * weights_mib(bench)), (plain, on)
    return f"between phases {plain[1]:.0f} -> {on[1]:.0f} MiB, peak {plain[2]:.0f} -> {on[2]:.0f} MiB"


def check_reference_offload(bench: Bench) -> str:
    held = {}
    for offload in ("false", "true"):
        overrides = (f"{ACTOR}.use_kl_loss=true", f"actor_rollout_ref.ref.fsdp_config.param_offload={offload}")
        with bench.run(*overrides) as run:
            batch = bench.batch(run).keep("prompt_ids", "responses")
            read = run.learner.reference.compute_log_probs(batch).flat
            bench.forget()
            held[offload] = (bench.mib(), read)
    assert torch.equal(held["true"][1], held["false"][1])
    assert not bench.on_gpu or held["true"][0] < held["false"][0] - 0.9 * weights_mib(bench), held
    return f"between phases {held['false'][0]:.0f} -> {held['true'][0]:.0f} MiB"


def check_activation_offload(bench: Bench) -> str:
    keep = (*LONG, f"{MODEL}.enable_gradient_checkpointing=false")
    plain, on = bench.taught(*keep), bench.taught(*keep, f"{MODEL}.enable_activation_offload=true")
    assert near(plain[0], on[0]), (plain[0], on[0])
    assert not bench.on_gpu or on[2] < 0.9 * plain[2], (plain[2], on[2])
    both = bench.taught(*LONG, f"{MODEL}.enable_activation_offload=true")
    assert near(plain[0], both[0]), (plain[0], both[0])
    return f"peak {plain[2]:.0f} -> {on[2]:.0f} MiB ({both[2]:.0f} with checkpointing); {plain[3]:.2f} -> {on[3]:.2f} s"


def check_recompute(bench: Bench) -> str:
    plain = bench.taught(*LONG, f"{MODEL}.enable_gradient_checkpointing=false")
    each = bench.taught(*LONG)
    groups = bench.taught(*LONG, f"{MODEL}.recompute.method=uniform", f"{MODEL}.recompute.num_layers=2")
    block = bench.taught(*LONG, f"{MODEL}.recompute.method=block", f"{MODEL}.recompute.num_layers=1")
    assert all(near(plain[0], other[0]) for other in (each, groups, block))
    assert not bench.on_gpu or each[2] < block[2] < plain[2], (each[2], block[2], plain[2])
    return f"peak none {plain[2]:.0f}, block {block[2]:.0f}, each {each[2]:.0f}, groups {groups[2]:.0f} MiB"


def check_lora(bench: Bench, *more: str) -> str:
    """After two steps the engine's merged copy scores what the policy reads."""
    with bench.run(*LORA, *more, f"{ACTOR}.use_kl_loss=true") as run:
        run.sync_weights()
        base = {
            name: p.detach().clone()
            for name, p in run.learner.policy.backend.model.named_parameters()
            if not p.requires_grad
        }
        kls = []
        for start in (0, 8):
            batch, metrics = train_step(run, run.rollout.train_data.batch(range(start, start + 8), epoch=0))
            kls.append(metrics["actor/kl_loss"])
        read = run.learner.policy.compute_log_probs(batch.keep("prompt_ids", "responses"))["old_log_probs"].flat
        rows = [p + r for p, r in zip(batch["prompt_ids"].lists(), batch["responses"].lists(), strict=True)]
        scored = run.rollout.engine.score(rows)
        ours = [x for row, r in zip(scored, batch["responses"].lists(), strict=True) for x in row[len(row) - len(r) :]]
        gap = float((torch.tensor(ours) - read).abs().mean())
        now = dict(run.learner.policy.backend.model.named_parameters())
        assert all(torch.equal(tensor, now[name]) for name, tensor in base.items()), "the base drifted"
        # On a GPU the two passes may be cut differently, and then differ in the last bits.
        assert kls[0] <= (1e-4 if bench.on_gpu else 0.0) and kls[1] > 0, kls
        assert gap < (0.05 if bench.on_gpu else 2e-3), gap
        return f"KL {kls[0]:.0e} -> {kls[1]:.1e}, mean |engine - policy| {gap:.1e}"


def check_lora_offloaded(bench: Bench) -> str:
    return check_lora(bench, f"{FSDP}.param_offload=true", f"{FSDP}.optimizer_offload=true")


def check_four_bits(bench: Bench) -> str:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise NotHere("bitsandbytes is not installed")
    return check_lora(bench, f"{MODEL}.load_in_4bit=true")


def check_formats(bench: Bench) -> str:
    plain = bench.taught(f"{FSDP}.mixed_precision.param_dtype=fp32")
    mixed = bench.taught(f"{FSDP}.mixed_precision.param_dtype=bf16")
    kept = bench.taught(f"{FSDP}.model_dtype=bf16")
    half = bench.taught(f"{FSDP}.mixed_precision.param_dtype=fp16")
    assert all(near(plain[0][:1], other[0][:1], rel=0.1) for other in (mixed, kept, half)), (plain, mixed, kept, half)
    assert not bench.on_gpu or kept[1] < 0.6 * mixed[1], (kept[1], mixed[1])
    return f"gradient fp32 {plain[0][0]:.4f}, bf16 {mixed[0][0]:.4f}, kept bf16 {kept[0][0]:.4f}, fp16 {half[0][0]:.4f}"


def check_compiled_head(bench: Bench) -> str:
    if not bench.on_gpu:
        raise NotHere("compiled on GPUs only")
    plain, on = bench.taught(steps=4), bench.taught(f"{ACTOR}.use_torch_compile=true", steps=4)
    assert near(plain[0], on[0]), (plain[0], on[0])
    return f"{plain[3]:.2f} -> {on[3]:.2f} s for four steps, compiling included"


def check_attention(bench: Bench) -> str:
    names = ["sdpa", "eager"]
    if bench.on_gpu and importlib.util.find_spec("flash_attn"):
        names.append("flash_attention_2")
    if bench.on_gpu and importlib.util.find_spec("flash_attn_interface"):
        names.append("flash_attention_3")
    found = {name: bench.taught(f"{MODEL}.attn_implementation={name}") for name in names}
    assert all(near(found["sdpa"][0], other[0], rel=0.05) for other in found.values()), found
    return ", ".join(f"{name} {other[3]:.2f} s" for name, other in found.items())


def check_liger(bench: Bench) -> str:
    if not bench.on_gpu or importlib.util.find_spec("liger_kernel") is None:
        raise NotHere("liger-kernel is not installed, or there is no GPU")
    plain, on = bench.taught(), bench.taught(f"{MODEL}.use_liger=true")
    assert near(plain[0], on[0], rel=0.05), (plain[0], on[0])
    return f"{plain[3]:.2f} -> {on[3]:.2f} s"


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
    """The model's weights in float32."""
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
    parser.add_argument("--only", help="checks whose name has this text")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.device, tokens=1024 if args.device != "cpu" else 12)
        if bench.on_gpu:
            make_model(bench.folder, hidden=768, layers=12, vocabulary=8192)
        else:
            make_model(bench.folder, hidden=64, layers=4, vocabulary=32)
            # The code of offloading, from one memory to itself.
            burnish.loop.backends.has_own_memory = lambda device: True
        for name, check in CHECKS.items():
            if args.only and args.only not in name:
                continue
            try:
                verdict, told = "PASS", check(bench)
            except NotHere as reason:
                verdict, told = "n/a ", str(reason)
            except Exception as error:
                verdict, told, failed = "FAIL", f"{type(error).__name__}: {str(error)[:300]}", failed + 1
                traceback.print_exc()
            bench.forget()
            print(f"{verdict}  {name:26} {told}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
