"""Rules across keys: each is a function of the config; all violations are reported together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from burnish.config import credit_rules
from burnish.config.async_rules import async_remarks, async_training
from burnish.config.data_rules import data_remarks, prompt_form, user_classes
from burnish.config.expert_rules import EXPERT_RULES
from burnish.config.generate_rules import GENERATE_RULES
from burnish.config.idle_algorithm import has_critic
from burnish.config.megatron import MEGATRON_RULES
from burnish.config.megatron_fields import MEGATRON_FIELD_RULES
from burnish.config.model_rules import MODEL_RULES
from burnish.config.names import GROUPED_ADVANTAGES, PAIRED_ADVANTAGES, VALUE_ADVANTAGES
from burnish.config.pool_rules import POOL_RULES, node_workers
from burnish.config.ranks import data_parallel_size
from burnish.config.reward_rules import EVAL_RULES
from burnish.config.reward_rules import RULES as REWARD_RULES
from burnish.config.rollout_rules import check_rollout
from burnish.config.root import TrainConfig
from burnish.config.sequence_rules import SEQUENCE_RULES
from burnish.config.sft_rules import SFT_RULES
from burnish.config.stage_rules import STAGE_RULES
from burnish.errors import UserError

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"


def check_rules(cfg: Any, job: str = "train", given: Collection[str] = ()) -> tuple[list[UserError], list[str]]:
    """Errors of violated rules, and notices. Required keys in `given` may be unset."""
    if job != "train":
        rules = RULES_OF.get(job, ())
        return [error for rule in rules for error in rule(cfg) if error.key not in given], []
    errors = [error for rule in RULES for error in rule(cfg)]
    errors += [error for error in required_keys(cfg) if error.key not in given]
    remarks = [remark for remark in REMARKS if remark is not validation_remarks or "data.val_files" not in given]
    return errors, [line for remark in remarks for line in remark(cfg)]


def required_keys(cfg: TrainConfig) -> Iterator[UserError]:
    if not cfg.actor_rollout_ref.model.path:
        key = "actor_rollout_ref.model.path"
        yield UserError("no model is set", key=key, hint=f"{key}=/path/to/model")
    if not cfg.data.train_files and not cfg.trainer.val_only:
        yield UserError(
            "no training files are set", key="data.train_files", hint="data.train_files=/path/train.parquet"
        )
    for name, value in (("val_only", cfg.trainer.val_only), ("best_metric_key", cfg.trainer.best_metric_key)):
        if value and not cfg.data.val_files:
            hint = "data.val_files=/path/val.parquet"
            yield UserError(f"trainer.{name} needs validation files", key="data.val_files", hint=hint)


def batch_sizes(cfg: TrainConfig) -> Iterator[UserError]:
    """A step has at least one mini-batch, and its responses divide evenly over ranks."""
    prompts, n = cfg.data.train_batch_size, cfg.actor_rollout_ref.rollout.n
    if prompts == 0:
        yield UserError(
            "0 prompts per step; only async_training.mode=queue derives the number from require_batches",
            key="data.train_batch_size",
            value=0,
            allowed=">= 1",
        )
        return
    mini = cfg.actor_rollout_ref.actor.ppo_mini_batch_size
    if mini > prompts:
        yield _mini_too_large(f"{ACTOR}.ppo_mini_batch_size", mini, prompts)
    if has_critic(cfg) and cfg.critic.ppo_mini_batch_size > prompts and cfg.critic.ppo_mini_batch_size != mini:
        yield _mini_too_large("critic.ppo_mini_batch_size", cfg.critic.ppo_mini_batch_size, prompts)
    ranks = data_parallel_size(cfg, cfg.actor_rollout_ref.actor)
    if prompts * n % ranks:
        yield UserError(
            f"{prompts} prompts x {n} responses do not divide evenly over {ranks} data-parallel ranks",
            key="data.train_batch_size",
            value=prompts,
            allowed=f"a multiple of {ranks}",
        )


def _mini_too_large(key: str, mini: int, prompts: int) -> UserError:
    return UserError(
        f"more than the {prompts} prompts of a step (data.train_batch_size)",
        key=key,
        value=mini,
        allowed=f"1 to {prompts}",
        hint=f"{key}={prompts}",
    )


def micro_batches(cfg: TrainConfig) -> Iterator[UserError]:
    """A micro-batch size is set once, and divides its mini-batch unless it exceeds it."""
    actor, critic = cfg.actor_rollout_ref.actor, cfg.critic
    yield from _micro_set_twice(actor, f"{ACTOR}.ppo_micro_batch_size")
    yield from _micro_set_twice(cfg.actor_rollout_ref.rollout, f"{ROLLOUT}.log_prob_micro_batch_size")
    yield from _micro_set_twice(cfg.actor_rollout_ref.ref, f"{REF}.log_prob_micro_batch_size")
    yield from _micro_divides(cfg, actor, ACTOR)
    yield from _micro_set_twice(critic, "critic.ppo_micro_batch_size")
    yield from _micro_set_twice(cfg.reward_model, "reward_model.micro_batch_size")
    followed = critic.forward_micro_batch_size == critic.ppo_micro_batch_size
    if not followed and critic.forward_micro_batch_size_per_gpu != critic.ppo_micro_batch_size_per_gpu:
        yield from _micro_set_twice(critic, "critic.forward_micro_batch_size")
    if has_critic(cfg):
        yield from _micro_divides(cfg, critic, "critic")


def _micro_set_twice(role: Any, key: str) -> Iterator[UserError]:
    name = key.rpartition(".")[2]
    if getattr(role, name) is not None and getattr(role, f"{name}_per_gpu") is not None:
        yield UserError(
            f"{key} (over all ranks) and {key}_per_gpu (on one rank) are both set",
            key=key,
            value=getattr(role, name),
            hint=f"only {key}_per_gpu={getattr(role, f'{name}_per_gpu')}",
        )


def _micro_divides(cfg: TrainConfig, role: Any, section: str) -> Iterator[UserError]:
    if role.use_dynamic_bsz:
        return
    n = cfg.actor_rollout_ref.rollout.n
    name = "ppo_micro_batch_size_per_gpu" if role.ppo_micro_batch_size is None else "ppo_micro_batch_size"
    micro = getattr(role, name)
    ranks = data_parallel_size(cfg, role)
    num_responses = role.ppo_mini_batch_size * n // (ranks if name.endswith("per_gpu") else 1)
    if micro is not None and micro <= num_responses and num_responses % micro:
        yield UserError(
            f"does not divide a mini-batch: {role.ppo_mini_batch_size} prompts x {n} responses"
            f" on {ranks} rank(s) are {num_responses} responses",
            key=f"{section}.{name}",
            value=micro,
            allowed=f"a divisor of {num_responses}",
            hint=f"{section}.use_dynamic_bsz=true",
        )


def kl_once(cfg: TrainConfig) -> Iterator[UserError]:
    """The KL to the reference is part of the loss or of the reward, not of both."""
    if cfg.actor_rollout_ref.actor.use_kl_loss and cfg.algorithm.use_kl_in_reward:
        yield UserError(
            f"the KL would count twice: {ACTOR}.use_kl_loss puts it into the loss,"
            " algorithm.use_kl_in_reward into the reward",
            key=f"{ACTOR}.use_kl_loss",
            value=True,
            hint=f"algorithm.use_kl_in_reward=false (as in GRPO), or {ACTOR}.use_kl_loss=false (as in PPO)",
        )


def lengths(cfg: TrainConfig) -> Iterator[UserError]:
    """A prompt of maximum length leaves tokens for a response."""
    rollout = cfg.actor_rollout_ref.rollout
    if rollout.max_model_len is not None and rollout.prompt_length >= rollout.max_model_len:
        yield UserError(
            f"leaves no tokens for a response after a prompt of {rollout.prompt_length} tokens",
            key=f"{ROLLOUT}.max_model_len",
            value=rollout.max_model_len,
            allowed=f"> {rollout.prompt_length}",
            hint=f"{ROLLOUT}.max_model_len={rollout.prompt_length + rollout.response_length}",
        )
    if rollout.prompt_length < cfg.data.max_prompt_length:
        yield UserError(
            f"less than data.max_prompt_length={cfg.data.max_prompt_length}",
            key=f"{ROLLOUT}.prompt_length",
            value=rollout.prompt_length,
            hint="leave it out: it follows data.max_prompt_length",
        )


def sampling(cfg: TrainConfig) -> Iterator[UserError]:
    """Training divides logits by the temperature, so it must not be 0."""
    if cfg.actor_rollout_ref.rollout.temperature == 0:
        key = f"{ROLLOUT}.temperature"
        yield UserError(
            "training samples need a temperature above 0", key=key, value=0, allowed="> 0", hint=f"{key}=1.0"
        )
    yield from check_rollout(cfg.actor_rollout_ref.rollout, ROLLOUT)


def reward_source(cfg: TrainConfig) -> Iterator[UserError]:
    """Reward models and functions have the settings they require."""
    model = cfg.reward_model.model
    if cfg.reward_model.enable and not model.path and not model.custom_cls.path:
        key = "reward_model.model.path"
        yield UserError("reward_model.enable needs a reward model", key=key, hint=f"{key}=/path/to/model")
    if cfg.reward_model.enable and model.custom_cls.path and not model.custom_cls.name:
        key = "reward_model.model.custom_cls.name"
        yield UserError("the name of the class is missing", key=key, hint=f"{key}=MyRewardModel")
    if cfg.reward_model.enable and model.custom_cls.path and cfg.reward_model.normalize:
        problem = "not supported with reward_model.model.custom_cls: mean and std come from the model's config"
        key = "reward_model.normalize"
        yield UserError(problem, key=key, value=True, hint=f"{key}=false, and normalize in the class")


def optimizers(cfg: TrainConfig) -> Iterator[UserError]:
    for key, optim in ((f"{ACTOR}.optim", cfg.actor_rollout_ref.actor.optim), ("critic.optim", cfg.critic.optim)):
        if len(optim.betas) != 2:
            yield UserError(
                "AdamW has two betas", key=f"{key}.betas", value=optim.betas, hint=f"{key}.betas=[0.9,0.999]"
            )


def estimator_needs(cfg: TrainConfig) -> Iterator[UserError]:
    """gae requires a critic; grpo_passk requires at least two responses per prompt."""
    name = cfg.algorithm.adv_estimator
    if name in VALUE_ADVANTAGES and not has_critic(cfg):
        hint = "critic.enable=true, or algorithm.adv_estimator=grpo"
        yield UserError(f"algorithm.adv_estimator={name} needs a critic", key="critic.enable", value=False, hint=hint)
    if name in PAIRED_ADVANTAGES and cfg.actor_rollout_ref.rollout.n < 2:
        key = f"{ROLLOUT}.n"
        problem = f"algorithm.adv_estimator={name} compares the two best responses of a prompt"
        yield UserError(problem, key=key, value=cfg.actor_rollout_ref.rollout.n, allowed=">= 2", hint=f"{key}=8")


def resuming(cfg: TrainConfig) -> Iterator[UserError]:
    path = cfg.trainer.resume_from_path
    if cfg.trainer.resume_mode == "resume_path" and not path:
        key = "trainer.resume_from_path"
        yield UserError("trainer.resume_mode=resume_path needs a folder", key=key, hint=f"{key}=/path/global_step_10")


def best_checkpoint(cfg: TrainConfig) -> Iterator[UserError]:
    trainer = cfg.trainer
    if trainer.best_metric_key is not None and trainer.test_freq <= 0 and not trainer.val_only:
        key = "trainer.best_metric_key"
        problem = "requires validation during training (trainer.test_freq > 0)"
        yield UserError(problem, key=key, value=trainer.best_metric_key, hint="trainer.test_freq=10")


def loss_numbers(cfg: TrainConfig) -> Iterator[UserError]:
    loss = cfg.actor_rollout_ref.actor.policy_loss
    if loss.clip_cov_lb > loss.clip_cov_ub:
        key = f"{ACTOR}.policy_loss.clip_cov_lb"
        yield UserError("above clip_cov_ub", key=key, value=loss.clip_cov_lb, allowed=f"<= {loss.clip_cov_ub:g}")


def filtering(cfg: TrainConfig) -> Iterator[UserError]:
    """Valid metric and range of group filtering."""
    filter_groups = cfg.algorithm.filter_groups
    if not filter_groups.enable:
        return
    yield from _range("algorithm.filter_groups.reward_range", filter_groups.reward_range, "[0,1]")
    if filter_groups.metric == "seq_final_reward" and cfg.algorithm.use_kl_in_reward:
        problem = "with algorithm.use_kl_in_reward the final reward always differs, so no group would be filtered"
        key = "algorithm.filter_groups.metric"
        yield UserError(problem, key=key, value=filter_groups.metric, hint=f"{key}=seq_reward")


def shaping(cfg: TrainConfig) -> Iterator[UserError]:
    """The overlong range lies within the response; clip ranges are valid."""
    buffer = cfg.reward_model.overlong_buffer
    limit = buffer.max_resp_len or cfg.data.max_response_length
    if buffer.enable and not 1 <= buffer.len <= limit:
        key = "reward_model.overlong_buffer.len"
        problem = f"not within the response length of {limit} tokens"
        yield UserError(problem, key=key, value=buffer.len, allowed=f"1 to {limit}", hint=f"{key}={max(1, limit // 4)}")
    yield from _range("reward.clip_range", cfg.reward.clip_range, "[-10,10]")


def _range(key: str, value: list[float] | None, example: str) -> Iterator[UserError]:
    if value is not None and (len(value) != 2 or not value[0] < value[1]):
        yield UserError("must be two numbers, the smaller first", key=key, value=value, hint=f"{key}={example}")


def group_remarks(cfg: TrainConfig) -> Iterator[str]:
    if cfg.actor_rollout_ref.rollout.n == 1 and cfg.algorithm.adv_estimator in GROUPED_ADVANTAGES:
        yield (
            f"algorithm.adv_estimator={cfg.algorithm.adv_estimator} compares the responses of a prompt,"
            f" but {ROLLOUT}.n=1: the advantage is the score itself."
        )


def filter_remarks(cfg: TrainConfig) -> Iterator[str]:
    filter_groups = cfg.algorithm.filter_groups
    if filter_groups.enable and filter_groups.reward_range is None and cfg.actor_rollout_ref.rollout.n == 1:
        yield f"algorithm.filter_groups keeps every group, since {ROLLOUT}.n=1."


def micro_batch_remarks(cfg: TrainConfig) -> Iterator[str]:
    """A micro-batch larger than the mini-batch takes all of it."""
    n = cfg.actor_rollout_ref.rollout.n
    roles = [(cfg.actor_rollout_ref.actor, ACTOR), *([(cfg.critic, "critic")] if has_critic(cfg) else [])]
    for role, section in roles:
        micro, ranks = role.ppo_micro_batch_size_per_gpu, data_parallel_size(cfg, role)
        num_responses = role.ppo_mini_batch_size * n // ranks
        if not role.use_dynamic_bsz and micro is not None and micro > num_responses:
            yield (
                f"{section}.ppo_micro_batch_size_per_gpu={micro} is more than the {num_responses} responses of a"
                " mini-batch on one rank: a mini-batch is one micro-batch."
            )


def sampling_remarks(cfg: TrainConfig) -> Iterator[str]:
    rollout = cfg.actor_rollout_ref.rollout
    if not rollout.do_sample:
        yield f"{ROLLOUT}.do_sample=false: all responses of a prompt will be identical (greedy)."


def length_remarks(cfg: TrainConfig) -> Iterator[str]:
    rollout = cfg.actor_rollout_ref.rollout
    short = rollout.prompt_length + rollout.response_length - (rollout.max_model_len or 0)
    if rollout.max_model_len is not None and short > 0:
        yield (
            f"{ROLLOUT}.max_model_len={rollout.max_model_len} is {short} less than prompt_length + response_length:"
            " responses to long prompts will be truncated."
        )


def run_remarks(cfg: TrainConfig) -> Iterator[str]:
    trainer = cfg.trainer
    if trainer.resume_from_path and trainer.resume_mode != "resume_path":
        yield f"trainer.resume_from_path has no effect: trainer.resume_mode={trainer.resume_mode}, not resume_path."
    if cfg.algorithm.kl_ctrl.type == "adaptive" and not cfg.algorithm.use_kl_in_reward:
        yield "algorithm.kl_ctrl has no effect: algorithm.use_kl_in_reward=false."


def validation_remarks(cfg: TrainConfig) -> Iterator[str]:
    if cfg.trainer.test_freq > 0 and not cfg.data.val_files:
        yield "trainer.test_freq has no effect: data.val_files is empty."


RULES: tuple[Callable[[TrainConfig], Iterator[UserError]], ...] = (
    *POOL_RULES,
    prompt_form,
    user_classes,
    batch_sizes,
    micro_batches,
    kl_once,
    lengths,
    sampling,
    reward_source,
    optimizers,
    estimator_needs,
    resuming,
    best_checkpoint,
    loss_numbers,
    *credit_rules.RULES,
    *REWARD_RULES,
    *MODEL_RULES,
    *MEGATRON_RULES,
    *MEGATRON_FIELD_RULES,
    *STAGE_RULES,
    *EXPERT_RULES,
    *SEQUENCE_RULES,
    filtering,
    shaping,
    async_training,
)
REMARKS: tuple[Callable[[TrainConfig], Iterator[str]], ...] = (
    group_remarks,
    micro_batch_remarks,
    filter_remarks,
    sampling_remarks,
    length_remarks,
    run_remarks,
    credit_rules.correction_remarks,
    credit_rules.rounding_remarks,
    async_remarks,
    data_remarks,
    validation_remarks,
)

# Rules of the other jobs.
RULES_OF: dict[str, tuple[Callable[[Any], Iterator[UserError]], ...]] = {
    "sft": SFT_RULES,
    "generate": GENERATE_RULES,
    "eval": (*EVAL_RULES, node_workers),
}
