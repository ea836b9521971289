"""verl's versions: which one a command was written for, and the defaults that changed between them.

verl's config is strict: a key that a version does not have stops the run. So a key that only newer versions have shows
that the command was written for one of them, and its defaults are those of that version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from burnish.errors import UserError

VERSIONS = ("0.2", "0.3", "0.4.1", "0.5", "0.6", "0.7", "0.8", "0.9")
OLDEST_BASE = "0.4.1"  # whose defaults burnish.config has
ASSUMED = "0.5"  # of commands that fit every version
NUM_NAMED = 3  # keys that the note names
_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"

# Keys and programs by the first version that has them; those of 0.6 are listed under 0.7, whose defaults are nearly the
# same. * matches any text.
SINCE: dict[str, tuple[str, ...]] = {
    "0.5": (
        f"{_ACTOR}.policy_loss.*",
        f"{_ROLLOUT}.agent.*",
        f"{_ROLLOUT}.cudagraph_capture_sizes",
        f"{_ROLLOUT}.trace.*",
        f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode",
        f"{_ROLLOUT}.multi_turn.max_parallel_calls",
        f"{_ROLLOUT}.multi_turn.max_tool_response_length",
        f"{_ROLLOUT}.multi_turn.tool_response_truncate_side",
        "*.megatron.use_mbridge",
        "data.apply_chat_template_kwargs.*",
        "data.datagen.*",
        "trainer.esi_redundant_time",
        "trainer.npu_profile.*",
        "recipe.one_step_off_policy.main_ppo",
    ),
    "0.7": (
        "global_profiler.*",
        "ray_kwargs.*",
        "critic.enable",
        f"{_ROLLOUT}.over_sample_rate",
        f"{_ROLLOUT}.multi_stage_wake_up",
        f"{_ROLLOUT}.skip_rollout",
        f"{_ROLLOUT}.agent.default_agent_loop",
        "*.profiler.tool_config.*",
        "*.profiler.enable",
        "*.checkpoint.async_save",
        "algorithm.rollout_is*",
        "trainer.use_legacy_worker_impl",
        "*.optim.lr_scheduler_type",
        "*.optim.optimizer_impl",
        "*.optim.betas",
        "*.optim.override_optimizer_config*",
        "*.fsdp_config.model_dtype",
        "*.fsdp_config.dtype",
        "*.fsdp_config.strategy",
        "*.fsdp_config.ulysses_sequence_parallel_size",
        "*.fsdp_config.entropy_*",
        "*.fsdp_config.use_torch_compile",
        "*.fsdp_config.use_orig_params",
        "*.fsdp_config.forward_only",
        "*.fsdp_config.seed",
        "*.fsdp_config.full_determinism",
        "*.megatron.vanilla_mbridge",
        "*model.lora.*",
        "*model.lora_adapter_path",
        "*model.tiled_mlp.*",
        f"{_ACTOR}.freeze_vision_tower",
        f"{_ACTOR}.tau_*",
        f"{_ACTOR}.loss_scale_factor",
        f"{_ACTOR}.calculate_entropy",
        f"{_ACTOR}.router_replay.*",
        f"{_ACTOR}.use_prefix_grouper",
        f"{_ROLLOUT}.data_parallel_size",
        f"{_ROLLOUT}.expert_parallel_size",
        f"{_ROLLOUT}.pipeline_model_parallel_size",
        f"{_ROLLOUT}.enable_prefix_caching",
        f"{_ROLLOUT}.enable_rollout_routing_replay",
        f"{_ROLLOUT}.logprobs_mode",
        f"{_ROLLOUT}.scheduling_policy",
        f"{_ROLLOUT}.skip_tokenizer_init",
        f"{_ROLLOUT}.prometheus.*",
        f"{_ROLLOUT}.quantization",
        "algorithm.rollout_correction.*",
        "data.image_patch_size",
        "data.train_max_samples",
        "data.val_max_samples",
        "reward_manager.*",
        "reward_model.enable_resource_pool",
        "reward_model.num_workers",
        "reward_model.rollout.*",
        "reward_model.use_reward_loop",
        "transfer_queue.*",
        "async_training.*",
        *(f"{_ACTOR}.policy_loss.loss_mode={name}" for name in ("gspo", "geo_mean", "gmpo", "cispo", "sapo")),
        "model_engine",
        "verl.experimental.*",
        "verl.trainer.main_generation_server",
        "verl.trainer.sft_trainer",
    ),
    "0.8": (
        f"{_ROLLOUT}.checkpoint_engine.*",
        "reward.*",
        "*.mtp.*",
        "*.qat.*",
        "algorithm.adv_estimator=*optimal_token_baseline",
        *(f"{_ACTOR}.policy_loss.loss_mode={name}" for name in ("dppo_tv", "dppo_kl")),
        f"{_ACTOR}.calculate_sum_pi_squared",
        f"{_ACTOR}.sum_pi_squared_checkpointing",
        "*.optim.zero_indexed_step",
        f"{_ROLLOUT}.nnodes",
        f"{_ROLLOUT}.n_gpus_per_node",
        f"{_ROLLOUT}.skip.*",
        f"{_ROLLOUT}.trace.max_samples_per_step_per_worker",
        "*.tool_config.torch.contents",
        "verl.trainer.sft_trainer_ray",
    ),
    "0.9": (
        "trainer.use_v1",
        "trainer.v1.*",
        "skip.*",
        "distillation.*",
        "critic.fsdp.*",
        "*function_tool_path",
        "*.disaggregation.*",
        "*.turbo_config.*",
        "*.pad_to_length*",
        "*.entropy_from_logits_chunk_size",
        "*.finish_hook_*",
        f"{_ROLLOUT}.full_determinism",
        f"{_ROLLOUT}.moe_load_balance_metrics_interval",
        f"{_ACTOR}.policy_loss.loss_mode=dro",
        f"{_ACTOR}.policy_loss.dro_beta",
        "algorithm.adv_estimator=gdpo",
        "algorithm.filter_groups.max_inflight_gen_batches",
        "data.audio_key",
        "data.mm_processor_kwargs*",
        "*.megatron.offload.*",
        "*.optim.muon_*",
        "verl.trainer.main_ppo_sync",
    ),
}

# Keys, programs and values by the last version that has them.
UNTIL: dict[str, tuple[str, ...]] = {
    "0.2": ("*.fsdp_config.grad_offload", f"{_ROLLOUT}.micro_batch_size"),
    "0.4.1": (
        "*.gradient_checkpointing_kwargs.*",
        f"{_ROLLOUT}.chat_scheduler",
        f"{_ROLLOUT}.use_fire_sampling",
        f"{_ROLLOUT}.multi_turn.completion_callback",
        f"{_ROLLOUT}.multi_turn.max_turns",
        f"{_ROLLOUT}.multi_turn.enable_tokenization_sanity_check",
        f"{_ROLLOUT}.name=sglang_async",
        "*.checkpoint.contents",
        "trainer.val_generations_to_log_to_wandb",
        "trainer.remove_previous_ckpt_in_save",
    ),
    "0.5": (
        "ray_init.*",
        "trainer.profile_steps",
        "trainer.controller_nsight_options.*",
        "trainer.worker_nsight_options.*",
        "trainer.npu_profile.*",
    ),
    "0.6": (f"{_ROLLOUT}.mode=sync", f"{_ROLLOUT}.load_format=dummy_*"),
    "0.7": ("verl.trainer.fsdp_sft_trainer",),
}

# Keys that the config of this version lacks, so that a command adds them with +. Newer versions refuse the +.
ADDED_UNTIL: dict[str, tuple[str, ...]] = {"0.2": ("trainer.val_before_train",)}

# Defaults that older versions had, by the last version that has them.
OLDER_DEFAULTS: dict[str, dict[str, Any]] = {
    "0.3": {f"{_ACTOR}.entropy_coeff": 0.001},
    "0.2": {
        f"{_ACTOR}.clip_ratio_c": None,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "critic.model.enable_gradient_checkpointing": False,
    },
}
# Until this version, the reward contains the KL unless the loss does; then use_kl_in_reward decides.
KL_IN_REWARD_UNTIL = "0.2"

# Defaults that changed, by the first version that has them. The defaults in burnish.config are those of 0.4.1.
DEFAULTS: dict[str, dict[str, Any]] = {
    "0.6": {f"{_ROLLOUT}.mode": "async", f"{_ROLLOUT}.enforce_eager": False, "rollout.enforce_eager": False},
    "0.7": {
        "data.return_raw_chat": True,
        "actor_rollout_ref.model.use_remove_padding": True,
        f"{_ACTOR}.data_loader_seed": 42,
        "critic.data_loader_seed": 42,
    },
    "0.8": {f"{_ROLLOUT}.update_weights_bucket_megabytes": 2048},
    "0.9": {f"{_ROLLOUT}.max_num_seqs": 256, f"{_ROLLOUT}.calculate_log_probs": True},
}

# Values that meant something else before this version, what they are written as here, and why.
MEANINGS: dict[str, dict[str, tuple[dict[str, str], str]]] = {
    "0.8": {
        f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": (
            {"left": "right", "right": "left"},
            "names the side that is kept; here, and in verl since 0.8, the one that is removed",
        )
    },
}
# Limits of conversations that this version introduced: before, there were none.
TOOL_LIMITS_SINCE = "0.5"
TOOL_LIMITS = (f"{_ROLLOUT}.multi_turn.max_parallel_calls", f"{_ROLLOUT}.multi_turn.max_tool_response_length")

# Conversations of the request loop of 0.4 and 0.5, which later versions run with rollout.mode=sync until this one.
REQUEST_LOOP_UNTIL = "0.6"

# Lines of verl's ppo_megatron_trainer.yaml that changed, by the first version that has them.
MEGATRON_DEFAULTS: dict[str, dict[str, Any]] = {
    "0.4.1": {f"{_ACTOR}.optim.lr_decay_style": "linear", "critic.optim.lr_decay_style": "linear"},
    "0.5": {f"{_ACTOR}.optim.lr_decay_style": "constant", "critic.optim.lr_decay_style": "constant"},
    "0.6": {
        f"{_ROLLOUT}.load_format": "dummy",
        f"{_ROLLOUT}.tensor_model_parallel_size": 2,
        f"{_ROLLOUT}.enable_chunked_prefill": True,
        "critic.optim.lr": 1e-5,
    },
    "0.7": {
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "critic.model.enable_gradient_checkpointing": True,
    },
}

# Megatron keys of the reference that follow the policy's from this version on.
REFERENCE_FOLLOWS_SINCE = "0.7"
REFERENCE_FOLLOWS = (
    *("param_offload", "tensor_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size"),
)


@dataclass
class Assumption:
    """The version whose defaults apply, and why."""

    version: str
    why: str = ""
    older: list[str] = field(default_factory=list)  # keys that this version no longer has

    def note(self) -> str:
        """One sentence or two, for the report."""
        text = f"verl {self.version} is assumed: {self.why}."
        if self.older:
            text += f" Only older versions have {_named(self.older)}: the newer of both is assumed."
        return f"{text} Its defaults apply to keys that are not set; --as verl==VERSION overrides."


@dataclass
class GivenVersion(Assumption):
    """The version of --as."""

    def note(self) -> str:
        return f"verl {self.version} is assumed, as given with --as: its defaults apply to keys that are not set."


def parse_version(text: str) -> str:
    """The entry of VERSIONS that `0.7`, `0.7.1` or `v0.7.0` belongs to."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\w+)*", text.strip())
    minor = f"{match[1]}.{match[2]}" if match else ""
    version = next((version for version in VERSIONS if version == minor or version.startswith(f"{minor}.")), None)
    if version is None or not minor:
        raise UserError(
            "no such version of verl is known",
            key="--as",
            value=f"verl=={text}",
            allowed=VERSIONS,
            hint="--as verl==0.7",
        )
    return version


def given_version(version: str) -> Assumption:
    return GivenVersion(version)


def assume_version(names: Iterable[str], added: Iterable[str] = ()) -> Assumption:
    """The version that keys, `key=value` pairs and program names imply: the oldest that has all of them.

    If no version has all, the newest one that some name requires. `added` are keys that the command adds with +.
    """
    names = list(dict.fromkeys(names))
    since = {shown: version for name in names for shown, version in _bounds(SINCE, name)}
    until = {shown: version for name in names for shown, version in _bounds(UNTIL, name)}
    until |= {f"+{key}": version for key in added for _, version in _bounds(ADDED_UNTIL, key)}
    if since:
        version = max(since.values(), key=VERSIONS.index)
        before = list(SINCE)[list(SINCE).index(version) - 1] if version != next(iter(SINCE)) else OLDEST_BASE
        why = f"{before} does not have {_named([name for name in since if since[name] == version])}"
        older = [name for name in until if VERSIONS.index(until[name]) < VERSIONS.index(version)]
        return Assumption(version, why, older)
    last = min(until.values(), key=VERSIONS.index, default=ASSUMED)
    if VERSIONS.index(last) < VERSIONS.index(ASSUMED):
        return Assumption(
            last, f"newer versions do not accept {_named([name for name in until if until[name] == last])}"
        )
    return Assumption(ASSUMED, "no setting is specific to another version")


def defaults_of(version: str) -> dict[str, Any]:
    """The defaults of a version that differ from 0.4.1's."""
    older = [changes for last, changes in OLDER_DEFAULTS.items() if is_at_least(last, version)]
    return {key: value for changes in older for key, value in changes.items()} | _up_to(version, DEFAULTS)


def megatron_defaults_of(version: str) -> dict[str, Any]:
    """What a version's ppo_megatron_trainer.yaml sets, of the keys that changed between versions."""
    return _up_to(version, MEGATRON_DEFAULTS)


def older_meanings(version: str) -> dict[str, tuple[dict[str, str], str]]:
    """Keys whose values have another meaning in this version: what they are written as here, and why."""
    return {
        key: meaning
        for first, keys in MEANINGS.items()
        if not is_at_least(version, first)
        for key, meaning in keys.items()
    }


def runs_request_loop(version: str, mode: str) -> bool:
    """Whether conversations run in verl's older loop; others in agent loops, one per row of the data."""
    if not is_at_least(version, "0.5"):
        return True
    return mode == "sync" and is_at_least(REQUEST_LOOP_UNTIL, version)


def _up_to(version: str, table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for first, changes in table.items():
        if VERSIONS.index(first) <= VERSIONS.index(version):
            values |= changes
    return values


def is_at_least(version: str, other: str) -> bool:
    return VERSIONS.index(version) >= VERSIONS.index(other)


def _bounds(table: dict[str, tuple[str, ...]], name: str) -> Iterator[tuple[str, str]]:
    """(`key` or `key=value`, version) of every row that matches `key=value`; a later row of a key replaces others."""
    key = name.partition("=")[0]
    for version, patterns in table.items():
        for pattern in patterns:
            shown = name if "=" in pattern else key
            if _pattern(pattern).fullmatch(shown):
                yield shown, version


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))


def _named(names: Sequence[str]) -> str:
    more = f" (and {len(names) - NUM_NAMED} more)" if len(names) > NUM_NAMED else ""
    return f"{' or '.join(names[:NUM_NAMED])}{more}"
