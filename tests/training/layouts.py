"""The law of layouts: what one process learns of a recorded batch, and what ranks in any layout learn of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DeepseekV3Config,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from burnish.batch import Batch, Ragged
from burnish.config.adapters import AdapterSettings
from burnish.models import attention
from burnish.models.lora import add_adapters
from burnish.models.parts import saved_buffers
from burnish.models.recompute import enable_recompute
from burnish.training.backend import Backend, BackendOptions, ExpertOptions, FsdpOptions, create_backend
from burnish.training.critic import Critic
from burnish.training.dtensor import full_tensor
from burnish.training.inference import compute_scores
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext, build_mesh
from burnish.training.policy import Policy
from burnish.training.reference import Reference
from burnish.training.stages import StageOptions, layer_ranges
from tests.conftest import SIZES, sharpen
from tests.training.conftest import CPU, TEMPERATURE, settings

REPLAY = "router_replay.mode"
FOUR = {**SIZES, "num_hidden_layers": 4}
LATENT: dict[str, Any] = {
    **{**FOUR, "num_key_value_heads": FOUR["num_attention_heads"]},
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**FOUR),
    "qwen3": Qwen3Config(**FOUR, head_dim=8),
    "six heads": Qwen3Config(**{**FOUR, "num_attention_heads": 6, "num_key_value_heads": 3}, head_dim=8),
    "tied qwen2": Qwen2Config(**{**FOUR, "tie_word_embeddings": True}),
    "qwen3 mixture": Qwen3MoeConfig(
        **FOUR, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, mlp_only_layers=[1]
    ),
    # Two attention forms, shared experts, routers that score by a sigmoid and a bias of their own, and a dense layer.
    "deepseek": DeepseekV3Config(**LATENT, q_lora_rank=12, n_group=2, topk_group=1, n_shared_experts=2),
    "deepseek, whole queries": DeepseekV3Config(**LATENT, q_lora_rank=None, n_group=1, topk_group=1),
    "mixtral": MixtralConfig(**FOUR, num_local_experts=4, num_experts_per_tok=2),
    "windowed": MistralConfig(**FOUR, sliding_window=4),
    "capped": Gemma2Config(**FOUR, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0),
}
# Three updates a step, as ragged micro-batches of one or two rows each, and a norm that clips.
ACTOR = {
    "ppo_mini_batch_size": 6,
    "ppo_epochs": 2,
    "use_dynamic_bsz": True,
    "ppo_max_token_len_per_gpu": 12,
    "entropy_coeff": 0.1,
    "use_kl_loss": True,
    "kl_loss_coef": 0.3,
    "optim.lr": 1e-3,
    "optim.weight_decay": 0.1,
    "grad_clip": 0.5,
}
CRITIC = {**{name: ACTOR[name] for name in ("ppo_mini_batch_size", "ppo_epochs", "use_dynamic_bsz")}, "optim.lr": 1e-3}


@dataclass(frozen=True)
class Layout:
    """Sizes of `build_mesh`, with a pipeline's options apart because they are one object there."""

    pipeline: int = 1
    virtual: int = 1
    schedule: str = "1f1b"
    counts: dict[str, Any] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)

    def context(self) -> ParallelContext:
        stages = StageOptions(self.pipeline, self.virtual, self.schedule, **self.counts)
        return build_mesh(CPU, stages=stages, **self.mesh)


@dataclass(frozen=True)
class Case:
    """One training run to repeat in several layouts."""

    model: str
    dtype: torch.dtype = torch.float64
    changes: dict[str, Any] = field(default_factory=dict)
    recompute: tuple[str | None, int | None] | None = None  # method and number of layers

    @property
    def replays(self) -> bool:
        return REPLAY in self.changes


def language_model(
    case: Case,
    parallel: ParallelContext,
    seed: int = 1,
    family: Any = AutoModelForCausalLM,
    adapter: AdapterSettings | None = None,
) -> Backend:
    """The same weights at every call, on every rank."""
    attention.register()
    torch.manual_seed(seed)
    config = MODELS[case.model]
    config.num_labels, config.classifier_dropout = 1, 0.0
    # transformers' grouped matrix products have no float64.
    implementation = {"experts_implementation": "eager"} if case.dtype == torch.float64 else {}
    model = family.from_config(config, attn_implementation=attention.PACKED, dtype=torch.float32, **implementation)
    sharpen(model, seed)
    bias(model)
    model.to(case.dtype)
    if case.recompute is not None:
        stages = parallel.stages
        parts = layer_ranges(FOUR["num_hidden_layers"], stages) if stages.size > 1 else None
        enable_recompute(model, *case.recompute, "actor_rollout_ref.model", parts)
    experts = ExpertOptions(case.changes.get("aux_loss_scope", "model"), REPLAY if case.replays else None)
    sharing = case.changes.get("use_prefix_grouper", False)
    options = BackendOptions(fsdp=FsdpOptions(reduce_dtype=case.dtype), experts=experts, share_prompts=sharing)
    adapters = None if adapter is None else add_adapters(model, adapter, dtype=case.dtype, seed=seed)
    return create_backend(model, CPU, case.dtype, adapters=adapters, options=options, parallel=parallel)


@torch.no_grad()
def bias(model: nn.Module) -> None:
    """Routers that have a bias prefer the last experts."""
    for _, buffer in saved_buffers(model):
        buffer.copy_(torch.linspace(-0.3, 0.3, len(buffer)))


def adapted_policy(case: Case, parallel: ParallelContext) -> Policy:
    """One that trains adapters."""
    adapter = AdapterSettings(
        "actor_rollout_ref.model",
        rank=2,
        alpha=4.0,
        dropout=0.0,
        target_modules="all-linear",
        exclude_modules=None,
        adapter_path=None,
        dora=False,
        dtype=None,
        init_a=None,
        init_b="normal",
    )
    return policy_of(case, parallel, adapter)


def policy_of(case: Case, parallel: ParallelContext, adapter: AdapterSettings | None = None) -> Policy:
    backend = language_model(case, parallel, adapter=adapter)
    actor = settings("actor_rollout_ref.actor", ACTOR | case.changes)
    backend.create_optimizer(actor.optim, 10, 1)
    return Policy(
        backend,
        actor,
        temperature=TEMPERATURE,
        rows_per_prompt=1,
        max_response_length=12,
        inference_micro_batch=MicroBatchSize(tokens=12, share_prompts=actor.use_prefix_grouper),
        seed=1,
    )


def critic_of(case: Case, parallel: ParallelContext) -> Critic:
    backend = language_model(case, parallel, 2, AutoModelForTokenClassification)
    config = settings("critic", CRITIC | {"use_prefix_grouper": case.changes.get("use_prefix_grouper", False)})
    backend.create_optimizer(config.optim, 10, 1)
    return Critic(backend, config, rows_per_prompt=1, max_response_length=12, seed=1)


def own_gradients(backend: Backend) -> dict[str, Tensor]:
    named = backend.model.named_parameters()
    return {name: full_tensor(p.grad).clone() for name, p in named if p.grad is not None}


def train(role: Policy | Critic, batch: Batch, steps: int = 1) -> dict[str, Any]:
    """Metrics of some steps, the first update's gradients of this rank's layers, and all weights at the end."""
    gradients: list[dict[str, Tensor]] = []

    update = role.optimizer.update

    def observed(clip: float) -> Tensor:
        gradients.append(own_gradients(role.backend) if not gradients else {})
        return update(clip)

    role.optimizer.update = observed
    numbers = []
    for number in range(1, steps + 1):
        said = role.update(batch, number)
        numbers.append(dict(getattr(said, "metrics", said)))
    weights = {name: tensor.clone() for name, tensor in role.backend.weights()}
    return {"numbers": numbers, "gradient": gradients[0], "weights": weights}


def study(parallel: ParallelContext, batch: Batch, case: Case) -> dict[str, Any]:
    policy = policy_of(case, parallel)
    columns = policy.compute_log_probs(batch)
    found = train(policy, batch)
    found["columns"] = {name: column.flat for name, column in columns.items()}
    return found


def study_exact_kl(parallel: ParallelContext, batch: Batch, case: Case) -> dict[str, Any]:
    """The KL to a reference over the whole vocabulary, as a column and in the loss."""
    policy = policy_of(case, parallel)
    policy.reference = Reference(language_model(case, parallel, seed=5), TEMPERATURE, MicroBatchSize(tokens=12))
    columns = {**policy.compute_log_probs(batch), "exact_kl": policy.compute_exact_kl(batch)}
    found = train(policy, batch)
    found["columns"] = {name: column.flat for name, column in columns.items()}
    return found


def study_replay(parallel: ParallelContext, batch: Batch, case: Case) -> dict[str, Any]:
    """Choices of experts recorded by the pass over old log-probs; updates that repeat others than the routers' own."""
    policy = policy_of(case, parallel)
    columns = policy.compute_log_probs(batch)
    choices = columns["routed_experts"]
    other = (choices.flat + 1) % policy.backend.routing.num_experts
    other[::5] = policy.backend.routing.missing
    found = train(policy, batch.add(routed_experts=Ragged.like(other, choices)))
    found["columns"] = {name: column.flat for name, column in columns.items()}
    return found


def study_heads(parallel: ParallelContext, batch: Batch, case: Case) -> dict[str, Any]:
    """Critic and reward model."""
    critic = critic_of(case, parallel)
    values = critic.compute_values(batch).flat
    judge = language_model(case, parallel, 3, AutoModelForSequenceClassification)
    scores = compute_scores(judge, batch["prompt_ids"], MicroBatchSize(rows=4))
    return train(critic, batch) | {"columns": {"values": values, "scores": scores}}


def alone(batch: Batch, case: Case, what: Any = study) -> dict[str, Any]:
    return what(SINGLE_PROCESS, batch, case)


def same(found: dict[str, Any], expected: dict[str, Any], close: float) -> None:
    """Equal up to `close`, relative: numbers and columns as they are, tensors in proportion to their norms."""
    for ours, theirs in zip(found["numbers"], expected["numbers"], strict=True):
        assert ours.keys() == theirs.keys()
        for name, number in theirs.items():
            exact = name.endswith(("pg_loss", "vf_loss", "grad_norm"))  # other metrics are float32 sums
            limit = close if exact else max(close, 1e-5)
            # The policy's loss is a small difference of terms near one.
            assert abs(ours[name] - number) <= limit * max(abs(number), 0.1), (name, ours[name], number)
    assert found["columns"].keys() == expected["columns"].keys()
    for name, column in expected["columns"].items():
        ours = found["columns"][name]
        torch.testing.assert_close(ours, column, rtol=close, atol=close, msg=lambda m, n=name: f"{n}: {m}")
    assert found["weights"].keys() == expected["weights"].keys()
    largest = max(float(gradient.norm()) for gradient in expected["gradient"].values())
    assert largest > 1e-3, "all gradients are nearly zero: the comparison would show nothing"
    for name, gradient in found["gradient"].items():
        theirs = expected["gradient"].get(name)
        assert theirs is not None or name == "lm_head.weight"
        theirs = expected["gradient"]["model.embed_tokens.weight"] if theirs is None else theirs
        assert float((gradient - theirs).norm()) <= close * largest, name
    for name, weight in expected["weights"].items():
        assert float((found["weights"][name] - weight).norm()) <= close * float(weight.norm()), name


# What moves between layouts

CONTENTS = ("model", "optimizer", "extra")
KEY = "actor_rollout_ref.actor.checkpoint.load_contents"


def first_step(
    parallel: ParallelContext,
    batch: Batch,
    case: Case,
    folder: Path,
    make: Callable[[Case, ParallelContext], Policy] = policy_of,
) -> None:
    """One step, then everything into a checkpoint."""
    policy = make(case, parallel)
    policy.update(batch, 1)
    if parallel.is_main:
        folder.mkdir()
    if parallel.is_distributed:
        dist.barrier()
    policy.writer((*CONTENTS, "hf_model"), copy=True)(folder)
    if parallel.is_distributed:
        dist.barrier()


def second_step(
    parallel: ParallelContext,
    batch: Batch,
    case: Case,
    folder: Path,
    *contents: str,
    make: Callable[[Case, ParallelContext], Policy] = policy_of,
) -> dict[str, Tensor]:
    """One more step from a checkpoint; all weights."""
    policy = make(case, parallel)
    with torch.no_grad():
        for parameter in policy.backend.model.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    policy.load(folder, contents or CONTENTS, key=KEY)
    policy.update(batch, 2)
    return {name: tensor.clone() for name, tensor in policy.weights()}


def same_weights(found: dict[str, Tensor], expected: dict[str, Tensor], close: float) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert float((found[name] - weight).norm()) <= close * float(weight.norm()), name
