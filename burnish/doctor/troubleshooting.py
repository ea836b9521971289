"""The seeds' troubleshooting table as rules: each symptom and cause is a condition on the config."""

from __future__ import annotations

from pathlib import Path

from burnish.config.adapters import wants_adapter
from burnish.config.conditions import engines_share_devices
from burnish.doctor.engine import EXTERNAL_ENGINES, memory_share
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, Rule, RuleResult

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MAX_VLLM_SHARE, MAX_SGLANG_SHARE, MIN_SHARE = 0.8, 0.9, 0.3  # of the GPU's memory
MAX_LR, MAX_LORA_LR = 5e-6, 1e-4
MIN_RESPONSES = 32  # per update; with fewer the gradient is mostly noise
KL_COEF_RANGE = (1e-4, 1e-2)


def _shares_gpus(case: Case) -> bool:
    return engines_share_devices(case.cfg)


def vllm_share_too_high(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "vllm" or rollout.gpu_memory_utilization <= MAX_VLLM_SHARE or not _shares_gpus(case):
        return None
    text = (
        f"vLLM reserves {rollout.gpu_memory_utilization:.0%} of each GPU, which training shares:"
        " the rollout or the following update runs out of memory"
    )
    return (
        text,
        f"{ROLLOUT}.gpu_memory_utilization=0.6, then lower max_num_seqs or max_num_batched_tokens",
    )


def sglang_share_too_high(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "sglang" or memory_share(rollout) <= MAX_SGLANG_SHARE:
        return None
    return (
        f"SGLang's static memory pool takes {memory_share(rollout):.0%} of each GPU",
        f"{ROLLOUT}.engine_kwargs.sglang.mem_fraction_static=0.8",
    )


def engine_starves(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if memory_share(rollout) >= MIN_SHARE:
        return None
    return (
        f"the engine gets only {memory_share(rollout):.0%} of the memory: its KV cache holds few sequences",
        f"{ROLLOUT}.gpu_memory_utilization=0.5",
    )


def few_sequences(case: Case) -> RuleResult:
    rollout, data = case.cfg.actor_rollout_ref.rollout, case.cfg.data
    ranks = case.cfg.trainer.nnodes * case.cfg.trainer.n_gpus_per_node
    responses = data.train_batch_size * rollout.n // ranks
    if rollout.max_num_seqs * 16 > responses:
        return None
    return (
        f"each engine generates {responses} responses per step, but only {rollout.max_num_seqs} at a time",
        f"{ROLLOUT}.max_num_seqs={min(1024, responses)} {ROLLOUT}.max_num_batched_tokens=16384",
    )


def small_forward_micro_batches(case: Case) -> RuleResult:
    """A forward pass without gradients fits a larger micro-batch than the update."""
    whole = case.cfg.actor_rollout_ref
    update = whole.actor.ppo_micro_batch_size_per_gpu
    if update is None or whole.actor.use_dynamic_bsz:
        return None
    uses_ref = whole.actor.use_kl_loss or case.cfg.algorithm.use_kl_in_reward
    small = [
        f"{section}.log_prob_micro_batch_size_per_gpu"
        for section, role, used in ((ROLLOUT, whole.rollout, True), (REF, whole.ref, uses_ref))
        if used and role.log_prob_micro_batch_size_per_gpu and role.log_prob_micro_batch_size_per_gpu < update
    ]
    if not small:
        return None
    return (
        f"forward-only micro-batches are smaller than the update's {update} responses: {' and '.join(small)}",
        " ".join(f"{key}={4 * update}" for key in small),
    )


def high_learning_rate(case: Case) -> RuleResult:
    whole = case.cfg.actor_rollout_ref
    limit = MAX_LORA_LR if wants_adapter(whole.model) else MAX_LR
    if whole.actor.optim.lr <= limit:
        return None
    return (
        f"the policy's learning rate {whole.actor.optim.lr:g} is above {limit:g}: rewards oscillate or collapse",
        f"{ACTOR}.optim.lr={limit / 5:g}",
    )


def small_mini_batch(case: Case) -> RuleResult:
    mini, n = case.cfg.actor_rollout_ref.actor.ppo_mini_batch_size, case.cfg.actor_rollout_ref.rollout.n
    if mini * n >= MIN_RESPONSES or case.cfg.data.train_batch_size <= mini:
        return None
    return (
        f"an update has only {mini} prompts x {n} responses: its gradient is mostly noise",
        f"{ACTOR}.ppo_mini_batch_size={min(case.cfg.data.train_batch_size, 64)}",
    )


def double_kl(case: Case) -> RuleResult:
    if not (case.cfg.actor_rollout_ref.actor.use_kl_loss and case.cfg.algorithm.use_kl_in_reward):
        return None
    return (
        "the KL to the reference is in both the loss and the reward: responses collapse",
        f"algorithm.use_kl_in_reward=false (GRPO), or {ACTOR}.use_kl_loss=false (PPO)",
    )


def kl_weight(case: Case) -> RuleResult:
    actor, algorithm = case.cfg.actor_rollout_ref.actor, case.cfg.algorithm
    used = [(f"{ACTOR}.kl_loss_coef", actor.kl_loss_coef)] if actor.use_kl_loss else []
    used += [("algorithm.kl_ctrl.kl_coef", algorithm.kl_ctrl.kl_coef)] if algorithm.use_kl_in_reward else []
    low, high = KL_COEF_RANGE
    unusual = [(key, value) for key, value in used if value and not low <= value <= high]
    if not unusual:
        return None
    key, value = unusual[0]
    effect = "too large: the policy hardly changes" if value > high else "too small to constrain the policy"
    return f"{key}={value:g} is {effect} (usual: {low:g} to {high:g})", f"{key}=0.001"


def async_with_filter(case: Case) -> RuleResult:
    rollout, cfg = case.cfg.actor_rollout_ref.rollout, case.cfg
    dapo = cfg.algorithm.filter_groups.enable or cfg.reward_model.reward_manager == "dapo"
    if rollout.mode != "async" or rollout.name != "vllm" or not dapo:
        return None
    return "vLLM's async mode with DAPO's dynamic sampling is unstable", f"{ROLLOUT}.mode=sync"


def model_hides_function(case: Case) -> RuleResult:
    cfg = case.cfg
    if not cfg.reward_model.enable or not (cfg.custom_reward_function.path or cfg.reward.verifiers):
        return None
    if cfg.reward.model_weight is not None or cfg.reward.function_weight is not None:
        return None
    return (
        "the reward model's score replaces the reward function's, which has no effect",
        "reward.model_weight=1 reward.function_weight=1 to add them, or reward_model.enable=false",
    )


def other_template(case: Case) -> RuleResult:
    """The reward model gets the policy's token ids, but has another tokenizer."""
    cfg = case.cfg
    reward_model, policy = cfg.reward_model.model, cfg.actor_rollout_ref.model
    if not cfg.reward_model.enable or reward_model.custom_cls.path or reward_model.input_tokenizer is not None:
        return None
    families = [case.families.get(name) for name in ("policy", "reward model")]
    if None not in families:
        differ = families[0] != families[1]
    else:
        differ = bool(reward_model.path) and _family(reward_model.path) != _family(policy.path or "")
    if not differ:
        return None
    return (
        f"{reward_model.path} is of another family than the policy, but gets the policy's token ids and chat template:"
        " its scores are meaningless",
        f"reward_model.model.input_tokenizer={policy.path} (decodes responses and applies the reward model's template)",
    )


def _family(path: str) -> str:
    """The leading letters of a model's name: qwen, llama, gemma."""
    name = Path(path).name.lower().removeprefix("meta-")
    return name[: next((index for index, letter in enumerate(name) if not letter.isalpha()), len(name))]


def sampled_validation(case: Case) -> RuleResult:
    val = case.cfg.actor_rollout_ref.rollout.val_kwargs
    if not (val.do_sample and val.temperature > 0) or val.n > 1 or not case.cfg.data.val_files:
        return None
    return (
        f"validation samples one response at temperature {val.temperature:g}: its metrics are noisy",
        f"{ROLLOUT}.val_kwargs.do_sample=false {ROLLOUT}.val_kwargs.temperature=0,"
        f" or {ROLLOUT}.val_kwargs.n=8 for a mean",
    )


def cache_not_freed(case: Case) -> RuleResult:
    """The engine's cache stays allocated during training, so the second step runs out of memory."""
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.free_cache_engine or rollout.name not in (*EXTERNAL_ENGINES, "builtin") or not _shares_gpus(case):
        return None
    return (
        "the engine keeps its KV cache during training: the update runs out of memory",
        f"{ROLLOUT}.free_cache_engine=true",
    )


SHARE = f"{ROLLOUT}.gpu_memory_utilization"
KL_KEYS = (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
TROUBLESHOOTING: tuple[Rule, ...] = (
    Rule("vllm_share_too_high", WARNING, "sampling runs out of memory (vLLM)", vllm_share_too_high, (SHARE,)),
    Rule("sglang_share_too_high", WARNING, "sampling runs out of memory (SGLang)", sglang_share_too_high, (SHARE,)),
    Rule("cache_not_freed", WARNING, "out of memory at the second step", cache_not_freed),
    Rule("engine_starves", NOTE, "low throughput, GPU not full", engine_starves, (SHARE,)),
    Rule("few_sequences", NOTE, "low throughput, GPU not full", few_sequences, (f"{ROLLOUT}.max_num_seqs",)),
    Rule("small_forward_micro_batches", NOTE, "low throughput of forward passes", small_forward_micro_batches),
    Rule("high_learning_rate", WARNING, "training is unstable", high_learning_rate, (f"{ACTOR}.optim.lr",)),
    Rule("small_mini_batch", WARNING, "training is unstable", small_mini_batch, (f"{ACTOR}.ppo_mini_batch_size",)),
    Rule("kl_weight", WARNING, "training is unstable", kl_weight),
    Rule("double_kl", REFUSED, "the KL is too strong, responses collapse", double_kl, KL_KEYS),
    Rule("async_with_filter", WARNING, "async vLLM with DAPO", async_with_filter, (f"{ROLLOUT}.mode",)),
    Rule("model_hides_function", WARNING, "the reward function has no effect", model_hides_function),
    Rule("other_template", WARNING, "the reward model's scores look wrong", other_template),
    Rule("sampled_validation", WARNING, "validation metrics are noisy", sampled_validation),
)
