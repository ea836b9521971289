"""The roles of a run, each built from its section of the config: in this process, or in those of its pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from burnish.algos.advantages import ADVANTAGES
from burnish.config.conditions import reference_shares_policy
from burnish.config.expert_rules import MODE as REPLAY_KEY
from burnish.config.expert_rules import replays_routing
from burnish.config.megatron import frozen_routers
from burnish.errors import UserError
from burnish.log.gauges import MakeGauge
from burnish.log.timeline import Span
from burnish.loop.backends import (
    frozen_language_model,
    head_kernel,
    optimizer_options,
    trained_language_model,
    trained_value_model,
)
from burnish.loop.build_engine import engine_of
from burnish.loop.build_reward_model import build_reward_model_scorer
from burnish.loop.correct import Correction
from burnish.loop.invariant import trains_invariantly
from burnish.loop.launch import launch, train_worker
from burnish.loop.pools import Pool, describe_pools, pools, wants_critic, wants_reference
from burnish.models.load import ModelSource, load_tokenizer
from burnish.reward.model_scorer import RewardModelScorer
from burnish.rollout.engine import Engine
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, ExpertOptions
from burnish.training.critic import Critic
from burnish.training.export import loadable_path
from burnish.training.packing import MicroBatchSize
from burnish.training.parallel import SINGLE_PROCESS, ParallelContext
from burnish.training.policy import Policy
from burnish.training.protocols import CriticRole, PolicyRole, ReferenceRole
from burnish.training.reference import Reference

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.distributed.worker_group import WorkerGroup


@dataclasses.dataclass
class Roles:
    """Local roles, or handles to roles in worker processes. `close` ends those processes."""

    policy: PolicyRole
    engine: Engine
    critic: CriticRole | None
    reference: ReferenceRole | None
    reward_model: RewardModelScorer | None  # None where reward functions alone score
    notices: list[str] = dataclasses.field(default_factory=list)
    close: Callable[[], None] = lambda: None
    kill_hung: Callable[[str, float], str] | None = None  # None where there are no worker processes
    groups: Mapping[str, WorkerGroup] = dataclasses.field(default_factory=dict)  # the worker processes of each role
    take_spans: Callable[[], dict[str, list[Span]]] = dict  # when worker processes were busy
    take_transport: Callable[[], dict[str, float]] = dict  # metrics of what was sent to them
    make_gauge: MakeGauge | None = None  # of the metrics of the cluster that they run on

    def local(self) -> dict[str, Any]:
        """The roles of this process, by name."""
        if self.groups:
            return {}
        reward_model = None if self.reward_model is None else self.reward_model.model
        roles = {"policy": self.policy, "engine": self.engine, "critic": self.critic, "reference": self.reference}
        return {name: role for name, role in {**roles, "reward_model": reward_model}.items() if role is not None}


def build_roles(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    tokenizer: Any,
    reward: Callable[..., Any] | None,
    total_steps: int,
) -> Roles:
    """Build every role: in this process where the run has no pools, else in the pools' processes."""
    run_pools = pools(cfg)
    if run_pools:
        return _build_out_of_process(cfg, run_pools, device, tokenizer, reward, total_steps)
    reward_model = build_reward_model_scorer(cfg, device, tokenizer, reward)
    policy = build_policy(cfg, source, device, total_steps)
    return Roles(
        policy=policy,
        engine=build_engine(cfg, source, device, policy.backend, tokenizer),
        critic=build_critic(cfg, device, total_steps) if wants_critic(cfg) else None,
        reference=build_reference(cfg, source, device, policy) if wants_reference(cfg) else None,
        reward_model=reward_model,
        notices=[] if reward_model is None else list(reward_model.notices),
    )


def _build_out_of_process(
    cfg: TrainConfig,
    run_pools: list[Pool],
    device: torch.device,
    tokenizer: Any,
    reward: Callable[..., Any] | None,
    total_steps: int,
) -> Roles:
    launched = launch(cfg, run_pools, train_worker(cfg, total_steps))
    try:
        reward_model = build_reward_model_scorer(cfg, device, tokenizer, reward, launched.reward_model())
        return Roles(
            policy=launched.policy(),
            engine=launched.engine(cfg),
            critic=launched.critic(),
            reference=launched.reference(),
            reward_model=reward_model,
            notices=[
                describe_pools(run_pools, device),
                *launched.notices,
                *([] if reward_model is None else reward_model.notices),
            ],
            close=launched.close,
            kill_hung=launched.kill_hung,
            groups=launched.groups,
            take_spans=launched.take_spans,
            take_transport=launched.take_transport,
            make_gauge=launched.make_gauge,
        )
    except BaseException:
        launched.close()
        raise


def policy_source(cfg: TrainConfig) -> ModelSource:
    model = cfg.actor_rollout_ref.model
    if not model.path:
        raise UserError(
            "no model is set",
            key="actor_rollout_ref.model.path",
            hint="actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
        )
    return ModelSource(
        path=loadable_path(model.path, "actor_rollout_ref.model.path"),
        tokenizer_path=model.tokenizer_path,
        override_config=dict(model.override_config),
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
        config_path=model.hf_config_path,
        use_shm=model.use_shm,
        random_seed=None if cfg.actor_rollout_ref.actor.load_weight else random_seed(cfg, "policy"),
    )


def random_seed(cfg: TrainConfig, role: str) -> int:
    """Of a role's random weights (load_weight=false)."""
    return derive_seed(cfg.trainer.seed, "weights", role)


def reference_source(cfg: TrainConfig, source: ModelSource) -> ModelSource:
    """The policy's model with the changes of actor_rollout_ref.ref.model."""
    model = cfg.actor_rollout_ref.ref.model
    external_lib = (*source.external_lib, *model.external_lib)
    seed = None if cfg.actor_rollout_ref.ref.load_weight else random_seed(cfg, "policy")
    if not model.path:
        override_config = {**source.override_config, **model.override_config}
        return dataclasses.replace(source, override_config=override_config, external_lib=external_lib, random_seed=seed)
    return ModelSource(
        path=loadable_path(model.path, "actor_rollout_ref.ref.model.path"),
        key="actor_rollout_ref.ref.model.path",
        override_config=dict(model.override_config),
        external_lib=external_lib,
        trust_remote_code=model.trust_remote_code,
        random_seed=seed,
    )


def load_run_tokenizer(cfg: TrainConfig, source: ModelSource) -> Any:
    """data.tokenizer, or the policy's."""
    return load_tokenizer(
        cfg.data.tokenizer or source.tokenizer_path or source.checked_path(),
        trust_remote_code=cfg.data.trust_remote_code or source.trust_remote_code,
        key="data.tokenizer" if cfg.data.tokenizer else source.key,
        chat_template=cfg.actor_rollout_ref.model.custom_chat_template,
    )


def build_policy(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    total_steps: int,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Policy:
    actor, rollout = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    model = cfg.actor_rollout_ref.model
    backend = trained_language_model(
        source,
        model,
        actor.fsdp_config,
        "actor_rollout_ref.actor.fsdp_config",
        device,
        torch_dtype=model.torch_dtype,
        liger=model.use_liger,
        head=head_kernel(model.fused_kernel_options.impl_backend, actor.use_torch_compile, device),
        compiled=actor.use_torch_compile,
        share_prompts="actor_rollout_ref.actor.use_prefix_grouper" if actor.use_prefix_grouper else None,
        experts=ExpertOptions(actor.aux_loss_scope, REPLAY_KEY if replays_routing(actor) else None),
        invariant=trains_invariantly(cfg, source, device),
        freeze_tower="actor_rollout_ref.actor.freeze_vision_tower" if actor.freeze_vision_tower else None,
        freeze_router=frozen_routers("actor_rollout_ref.actor", actor),
        seed=cfg.trainer.seed,
        parallel=parallel,
    )
    updates = actor.ppo_epochs * -(-cfg.data.train_batch_size // actor.ppo_mini_batch_size)
    backend.create_optimizer(actor.optim, total_steps, updates, optimizer_options(actor.fsdp_config, backend))
    correction = Correction.of(cfg.algorithm.rollout_correction, actor.tis_imp_ratio_cap)
    return Policy(
        backend,
        actor,
        temperature=rollout.temperature,
        rows_per_prompt=rollout.n,
        max_response_length=rollout.response_length,
        inference_micro_batch=MicroBatchSize.of(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
            share_prompts=actor.use_prefix_grouper,
        ),
        seed=cfg.trainer.seed,
        loss=correction.loss,
        old_column=correction.old_column,
        sum_pi_squared="sum_pi_squared" in ADVANTAGES[cfg.algorithm.adv_estimator].needs,
    )


def critic_source(cfg: TrainConfig) -> ModelSource:
    model = cfg.critic.model
    return ModelSource(
        path=loadable_path(cast(str, model.path), "critic.model.path"),  # defaults to the policy's path
        key="critic.model.path",
        override_config=dict(model.override_config),
        external_lib=tuple(model.external_lib),
        trust_remote_code=model.trust_remote_code,
        use_shm=model.use_shm,
        random_seed=None if cfg.critic.load_weight else random_seed(cfg, "critic"),
    )


def build_critic(
    cfg: TrainConfig, device: torch.device, total_steps: int, parallel: ParallelContext = SINGLE_PROCESS
) -> Critic:
    critic, source = cfg.critic, critic_source(cfg)
    fsdp = critic.model.fsdp_config
    key = "critic.model.fsdp_config"
    backend = trained_value_model(
        source,
        critic.model,
        fsdp,
        key,
        device,
        compiled=critic.use_torch_compile,
        share_prompts="critic.use_prefix_grouper" if critic.use_prefix_grouper else None,
        freeze_router=frozen_routers("critic", critic),
        seed=cfg.trainer.seed,
        parallel=parallel,
    )
    updates = critic.ppo_epochs * -(-cfg.data.train_batch_size // critic.ppo_mini_batch_size)
    backend.create_optimizer(critic.optim, total_steps, updates, optimizer_options(fsdp, backend))
    return Critic(
        backend,
        critic,
        rows_per_prompt=cfg.actor_rollout_ref.rollout.n,
        max_response_length=cfg.actor_rollout_ref.rollout.response_length,
        seed=cfg.trainer.seed,
    )


def build_reference(
    cfg: TrainConfig,
    source: ModelSource,
    device: torch.device,
    policy: Policy,
    parallel: ParallelContext = SINGLE_PROCESS,
) -> Reference:
    """The policy gets it too: updates with the exact KL run it."""
    ref, model = cfg.actor_rollout_ref.ref, cfg.actor_rollout_ref.model
    shares_policy = reference_shares_policy(cfg)
    micro_batch = MicroBatchSize.of(
        ref.log_prob_micro_batch_size_per_gpu,
        ref.log_prob_use_dynamic_bsz,
        ref.log_prob_max_token_len_per_gpu,
        share_prompts=(cfg.actor_rollout_ref.actor if shares_policy else ref).use_prefix_grouper,
    )
    backend = policy.backend
    if not shares_policy:
        backend = frozen_language_model(
            reference_source(cfg, source),
            model,
            ref.fsdp_config,
            "actor_rollout_ref.ref.fsdp_config",
            device,
            torch_dtype=model.torch_dtype,
            head=head_kernel(model.fused_kernel_options.impl_backend, ref.use_torch_compile, device),
            compiled=ref.use_torch_compile,
            share_prompts="actor_rollout_ref.ref.use_prefix_grouper" if ref.use_prefix_grouper else None,
            parallel=parallel,
        )
    policy.reference = Reference(backend, cfg.actor_rollout_ref.rollout.temperature, micro_batch)
    return policy.reference


def build_engine(
    cfg: TrainConfig, source: ModelSource, device: torch.device, backend: Backend, tokenizer: Any
) -> Engine:
    rollout = cfg.actor_rollout_ref.rollout
    bucket = rollout.update_weights_bucket_megabytes
    generation = backend.model.generation_config
    return engine_of(
        rollout, source, device, generation, tokenizer, data=cfg.data, bucket_megabytes=bucket, beside=True
    )
