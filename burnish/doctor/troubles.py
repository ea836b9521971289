"""The rows of the seeds' troubleshooting table, as rules: symptom and cause become a condition that can be seen."""

from __future__ import annotations

from pathlib import Path

from burnish.config.adapters import wants_adapter
from burnish.doctor.engine import FOREIGN, mem_share
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, Judgement, Rule

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
VLLM_MOST, SGLANG_MOST, LEAST = 0.8, 0.9, 0.3  # shares of the GPU's memory that work
LR_MOST, LORA_LR_MOST = 5e-6, 1e-4
FEWEST_PROMPTS = 32  # per update, below which a gradient is mostly noise
KL_COEF = (1e-4, 1e-2)
MULTI_TURN_ENGINES = ("sglang", "builtin")


def vllm_share_too_high(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "vllm" or rollout.gpu_memory_utilization <= VLLM_MOST:
        return None
    text = (
        f"vLLM would reserve {rollout.gpu_memory_utilization:.0%} of each GPU, and training shares it:"
        " sampling or the step after it runs out of memory"
    )
    return (
        text,
        f"{ROLLOUT}.gpu_memory_utilization=0.6, and fewer max_num_seqs or max_num_batched_tokens if that is not enough",
    )


def sglang_share_too_high(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "sglang" or mem_share(rollout) <= SGLANG_MOST:
        return None
    return (
        f"SGLang's static pool would take {mem_share(rollout):.0%} of each GPU",
        f"{ROLLOUT}.engine_kwargs.sglang.mem_fraction_static=0.8",
    )


def engine_starves(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if mem_share(rollout) >= LEAST:
        return None
    return (
        f"the engine gets {mem_share(rollout):.0%} of the memory: a small cache, few responses at once, an idle GPU",
        f"{ROLLOUT}.gpu_memory_utilization=0.5",
    )


def few_sequences(case: Case) -> Judgement:
    rollout, data = case.cfg.actor_rollout_ref.rollout, case.cfg.data
    ranks = case.cfg.trainer.nnodes * case.cfg.trainer.n_gpus_per_node
    responses = data.train_batch_size * rollout.n // ranks
    if rollout.max_num_seqs * 16 > responses:
        return None
    return (
        f"an engine answers {responses} prompts a step but runs only {rollout.max_num_seqs} at once",
        f"{ROLLOUT}.max_num_seqs={min(1024, responses)} {ROLLOUT}.max_num_batched_tokens=16384",
    )


def small_forward_micro_batches(case: Case) -> Judgement:
    """Reading needs no gradients: its micro-batch may be larger than that of the update."""
    whole = case.cfg.actor_rollout_ref
    update = whole.actor.ppo_micro_batch_size_per_gpu
    if update is None or whole.actor.use_dynamic_bsz:
        return None
    uses_ref = whole.actor.use_kl_loss or case.cfg.algorithm.use_kl_in_reward
    slow = [
        f"{section}.log_prob_micro_batch_size_per_gpu"
        for section, role, used in ((ROLLOUT, whole.rollout, True), (REF, whole.ref, uses_ref))
        if used and role.log_prob_micro_batch_size_per_gpu and role.log_prob_micro_batch_size_per_gpu < update
    ]
    if not slow:
        return None
    return (
        f"passes without gradients are cut smaller than the update's {update} responses: {' and '.join(slow)}",
        " ".join(f"{key}={4 * update}" for key in slow),
    )


def high_learning_rate(case: Case) -> Judgement:
    whole = case.cfg.actor_rollout_ref
    most = LORA_LR_MOST if wants_adapter(whole.model) else LR_MOST
    if whole.actor.optim.lr <= most:
        return None
    return (
        f"the policy's learning rate {whole.actor.optim.lr:g} is above {most:g}: rewards jump or collapse",
        f"{ACTOR}.optim.lr={most / 5:g}",
    )


def small_mini_batch(case: Case) -> Judgement:
    mini, n = case.cfg.actor_rollout_ref.actor.ppo_mini_batch_size, case.cfg.actor_rollout_ref.rollout.n
    if mini * n >= FEWEST_PROMPTS or case.cfg.data.train_batch_size <= mini:
        return None
    return (
        f"an update sees {mini} prompts x {n} responses: its gradient is mostly noise",
        f"{ACTOR}.ppo_mini_batch_size={min(case.cfg.data.train_batch_size, 64)}",
    )


def double_kl(case: Case) -> Judgement:
    if not (case.cfg.actor_rollout_ref.actor.use_kl_loss and case.cfg.algorithm.use_kl_in_reward):
        return None
    return (
        "the KL to the reference counts twice, in the loss and in the reward: responses collapse",
        f"algorithm.use_kl_in_reward=false (GRPO), or {ACTOR}.use_kl_loss=false (PPO)",
    )


def kl_weight(case: Case) -> Judgement:
    actor, algorithm = case.cfg.actor_rollout_ref.actor, case.cfg.algorithm
    used = [(f"{ACTOR}.kl_loss_coef", actor.kl_loss_coef)] if actor.use_kl_loss else []
    used += [("algorithm.kl_ctrl.kl_coef", algorithm.kl_ctrl.kl_coef)] if algorithm.use_kl_in_reward else []
    low, high = KL_COEF
    odd = [(key, value) for key, value in used if value and not low <= value <= high]
    if not odd:
        return None
    key, value = odd[0]
    what = "so strong that the policy hardly moves" if value > high else "too weak to hold the policy"
    return f"{key}={value:g} is {what} (usual: {low:g} to {high:g})", f"{key}=0.001"


def turns_not_on(case: Case) -> Judgement:
    turns = case.cfg.actor_rollout_ref.rollout.multi_turn
    asked = turns.tool_config_path or turns.interaction_config_path
    if turns.enable or not asked:
        return None
    return (
        f"tools or an interaction are configured ({asked}), but conversations have one turn: history is never joined",
        f"{ROLLOUT}.multi_turn.enable=true",
    )


def turns_with_one_turn_engine(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if not rollout.multi_turn.enable or rollout.name in MULTI_TURN_ENGINES or rollout.mode == "async":
        return None
    return (
        f"{rollout.name} in sync mode answers once: turns after the first would be lost",
        f"{ROLLOUT}.name=sglang",
    )


def async_with_filter(case: Case) -> Judgement:
    rollout, cfg = case.cfg.actor_rollout_ref.rollout, case.cfg
    dapo = cfg.algorithm.filter_groups.enable or cfg.reward_model.reward_manager == "dapo"
    if rollout.mode != "async" or rollout.name != "vllm" or not dapo:
        return None
    return "vLLM's async mode and DAPO's dynamic sampling are an unsteady pair", f"{ROLLOUT}.mode=sync"


def model_hides_function(case: Case) -> Judgement:
    cfg = case.cfg
    if not cfg.reward_model.enable or not (cfg.custom_reward_function.path or cfg.reward.verifiers):
        return None
    if cfg.reward.model_weight is not None or cfg.reward.function_weight is not None:
        return None
    return (
        "the reward model's score replaces that of the reward function, which counts for nothing",
        "reward.model_weight=1 reward.function_weight=1 to add them, or reward_model.enable=false",
    )


def other_template(case: Case) -> Judgement:
    """The reward model reads the policy's tokens as they are, though it is another model."""
    cfg = case.cfg
    judge, policy = cfg.reward_model.model, cfg.actor_rollout_ref.model
    if not cfg.reward_model.enable or judge.custom_cls.path or judge.input_tokenizer is not None:
        return None
    families = [case.families.get(name) for name in ("policy", "reward model")]
    if None not in families:
        differ = families[0] != families[1]
    else:
        differ = bool(judge.path) and _family(judge.path) != _family(policy.path or "")
    if not differ:
        return None
    return (
        f"{judge.path} is another family than the policy, and would read the policy's token ids and template:"
        " its scores mean nothing",
        f"reward_model.model.input_tokenizer={policy.path}: responses are decoded and written in the reward model's"
        " own template",
    )


def _family(path: str) -> str:
    """The letters that a model's name begins with: qwen, llama, gemma."""
    name = Path(path).name.lower().removeprefix("meta-")
    return name[: next((place for place, letter in enumerate(name) if not letter.isalpha()), len(name))]


def sampled_validation(case: Case) -> Judgement:
    val = case.cfg.actor_rollout_ref.rollout.val_kwargs
    if not (val.do_sample and val.temperature > 0) or val.n > 1 or not case.cfg.data.val_files:
        return None
    return (
        f"validation samples one response at temperature {val.temperature:g}: its numbers jump by chance",
        f"{ROLLOUT}.val_kwargs.do_sample=false {ROLLOUT}.val_kwargs.temperature=0,"
        f" or {ROLLOUT}.val_kwargs.n=8 for a mean",
    )


def cache_not_freed(case: Case) -> Judgement:
    """Memory that the engine keeps during training is missing in the second step."""
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.free_cache_engine or rollout.name not in (*FOREIGN, "builtin"):
        return None
    return (
        "the engine keeps its cache while the policy trains: the update runs out of memory",
        f"{ROLLOUT}.free_cache_engine=true",
    )


SHARE = f"{ROLLOUT}.gpu_memory_utilization"
KL_KEYS = (f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
TROUBLES: tuple[Rule, ...] = (
    Rule("vllm_share_too_high", WARNING, "sampling runs out of memory (vLLM)", vllm_share_too_high, (SHARE,)),
    Rule("sglang_share_too_high", WARNING, "sampling runs out of memory (SGLang)", sglang_share_too_high, (SHARE,)),
    Rule("cache_not_freed", WARNING, "out of memory at the second step", cache_not_freed),
    Rule("engine_starves", NOTE, "low throughput, GPU not full", engine_starves, (SHARE,)),
    Rule("few_sequences", NOTE, "low throughput, GPU not full", few_sequences, (f"{ROLLOUT}.max_num_seqs",)),
    Rule("small_forward_micro_batches", NOTE, "low throughput of forward passes", small_forward_micro_batches),
    Rule("high_learning_rate", WARNING, "training is unsteady", high_learning_rate, (f"{ACTOR}.optim.lr",)),
    Rule("small_mini_batch", WARNING, "training is unsteady", small_mini_batch, (f"{ACTOR}.ppo_mini_batch_size",)),
    Rule("kl_weight", WARNING, "training is unsteady", kl_weight),
    Rule("double_kl", REFUSED, "the KL is too strong, responses collapse", double_kl, KL_KEYS),
    Rule("turns_not_on", WARNING, "several turns have no effect", turns_not_on),
    Rule("turns_with_one_turn_engine", WARNING, "several turns have no effect", turns_with_one_turn_engine),
    Rule("async_with_filter", WARNING, "async vLLM with DAPO", async_with_filter, (f"{ROLLOUT}.mode",)),
    Rule("model_hides_function", WARNING, "the reward function has no effect", model_hides_function),
    Rule("other_template", WARNING, "the reward model's scores look wrong", other_template),
    Rule("sampled_validation", WARNING, "validation is unsteady", sampled_validation),
)
