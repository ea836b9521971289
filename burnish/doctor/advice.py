"""Rules beyond the troubleshooting table: the seeds' scenarios and ranges, and common costly mistakes."""

from __future__ import annotations

from burnish.config.names import GROUPED_ADVANTAGES
from burnish.config.ranks import engine_size
from burnish.config.rules import has_critic
from burnish.doctor.arithmetic import max_sequence_length
from burnish.doctor.engine import EXTERNAL_ENGINES
from burnish.doctor.roles import itemsize_of
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, Rule, RuleResult

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
LONG_RESPONSE = 512  # tokens; beyond it one score at the end gives each token little signal
LARGE_MODEL = 7e9  # parameters; a larger reference is better offloaded
MIN_TEST_FREQ = 10  # steps between validations


def group_of_one(case: Case) -> RuleResult:
    algorithm, rollout = case.cfg.algorithm, case.cfg.actor_rollout_ref.rollout
    if rollout.n > 1 or algorithm.adv_estimator not in GROUPED_ADVANTAGES:
        return None
    return (
        f"{algorithm.adv_estimator} compares the responses of a prompt, but rollout.n=1: the advantage is the score",
        f"{ROLLOUT}.n=8",
    )


def same_responses(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.n == 1 or (rollout.do_sample and rollout.temperature > 0 and rollout.top_k != 1):
        return None
    return (
        f"without sampling the {rollout.n} responses of a prompt are identical: every advantage is 0",
        f"{ROLLOUT}.do_sample=true {ROLLOUT}.temperature=1.0 {ROLLOUT}.top_k=-1",
    )


def restricted_sampling(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.top_p == 1 and rollout.top_k == -1 and rollout.min_p == 0:
        return None
    return (
        "top_k, top_p or min_p in training: the update assumes that all tokens could be sampled",
        f"{ROLLOUT}.top_p=1.0 {ROLLOUT}.top_k=-1 {ROLLOUT}.min_p=0",
    )


def thin_reward(case: Case) -> RuleResult:
    """A discount so small that the score at the end of a long response does not reach its start."""
    algorithm, length = case.cfg.algorithm, case.cfg.data.max_response_length
    if algorithm.adv_estimator in GROUPED_ADVANTAGES or algorithm.gamma * algorithm.lam >= 1:
        return None
    reach = algorithm.gamma if algorithm.adv_estimator != "gae" else algorithm.gamma * algorithm.lam
    left = reach**length
    if left > 0.1:
        return None
    return (
        f"gamma and lam are too small for {length} response tokens: {left:.0e} of the final score reaches the first",
        "algorithm.gamma=1.0 algorithm.lam=1.0",
    )


def long_responses(case: Case) -> RuleResult:
    cfg = case.cfg
    if cfg.data.max_response_length <= LONG_RESPONSE or cfg.reward_model.overlong_buffer.enable:
        return None
    if cfg.reward.stop_properly_penalty is not None:
        return None
    return (
        f"responses of up to {cfg.data.max_response_length} tokens get one score each, without a penalty for"
        " truncated ones",
        f"data.max_response_length={LONG_RESPONSE} if answers are short, or reward_model.overlong_buffer.enable=true"
        f" reward_model.overlong_buffer.len={max(1, cfg.data.max_response_length // 4)}",
    )


def sampled_turns(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if not rollout.multi_turn.enable or not (rollout.val_kwargs.do_sample and rollout.val_kwargs.temperature > 0):
        return None
    return (
        "multi-turn validation with sampling is noisy: conversations diverge",
        f"{ROLLOUT}.val_kwargs.do_sample=false {ROLLOUT}.val_kwargs.temperature=0 {ROLLOUT}.val_kwargs.top_p=1.0",
    )


def tools_without_reward(case: Case) -> RuleResult:
    cfg = case.cfg
    turns = cfg.actor_rollout_ref.rollout.multi_turn
    if not (turns.enable and turns.tool_config_path) or cfg.custom_reward_function.path or cfg.reward_model.enable:
        return None
    return (
        "the built-in rewards score only the final answer, not how tools are used",
        "custom_reward_function.path=my_reward.py custom_reward_function.reward_kwargs.tool_bonus=0.05",
    )


def budget_below_row(case: Case) -> RuleResult:
    rollout, actor = case.cfg.actor_rollout_ref.rollout, case.cfg.actor_rollout_ref.actor
    max_length = max_sequence_length(rollout)
    by_tokens = actor.use_dynamic_bsz or actor.ppo_micro_batch_size_per_gpu is None
    if not by_tokens or actor.ppo_max_token_len_per_gpu >= max_length:
        return None
    return (
        f"the token budget {actor.ppo_max_token_len_per_gpu} is smaller than one sequence of {max_length} tokens:"
        " long sequences exceed it",
        f"{ACTOR}.ppo_max_token_len_per_gpu={2 * max_length}",
    )


def rows_not_read(case: Case) -> RuleResult:
    actor = case.cfg.actor_rollout_ref.actor
    if not actor.use_dynamic_bsz or actor.ppo_micro_batch_size_per_gpu is None:
        return None
    return (
        f"ppo_micro_batch_size_per_gpu={actor.ppo_micro_batch_size_per_gpu} has no effect:"
        " use_dynamic_bsz forms micro-batches by tokens",
        f"{ACTOR}.use_dynamic_bsz=false, or change {ACTOR}.ppo_max_token_len_per_gpu",
    )


def tensor_parallel(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    size = rollout.tensor_model_parallel_size
    if rollout.name not in EXTERNAL_ENGINES and engine_size(case.cfg) == 1:
        return None
    shape = case.shapes.policy if case.shapes is not None else None
    if shape is not None and shape.heads % size:
        return (
            f"{shape.heads} attention heads are not divisible by tensor_model_parallel_size={size}",
            f"{ROLLOUT}.tensor_model_parallel_size={next(n for n in (8, 4, 2, 1) if shape.heads % n == 0)}",
        )
    return None


def overlong_prompts_stop(case: Case) -> RuleResult:
    data = case.cfg.data
    if data.truncation != "error" or data.filter_overlong_prompts or not data.train_files:
        return None
    return (
        f"a prompt of more than {data.max_prompt_length} tokens stops the run",
        "data.filter_overlong_prompts=true, or data.truncation=left",
    )


def nothing_saved(case: Case) -> RuleResult:
    trainer = case.cfg.trainer
    if trainer.save_freq > 0 or trainer.export_dir or trainer.val_only:
        return None
    return "no checkpoint is ever saved", "trainer.save_freq=20"


def frequent_validation(case: Case) -> RuleResult:
    trainer = case.cfg.trainer
    if not 0 < trainer.test_freq < MIN_TEST_FREQ or not case.cfg.data.val_files:
        return None
    return f"validation every {trainer.test_freq} steps costs throughput", f"trainer.test_freq={2 * MIN_TEST_FREQ}"


def other_number_format(case: Case) -> RuleResult:
    whole = case.cfg.actor_rollout_ref
    mixed = whole.actor.fsdp_config.mixed_precision.param_dtype
    if whole.rollout.dtype is None or mixed is None or whole.rollout.quantization:
        return None
    if itemsize_of(whole.rollout.dtype, 0) == itemsize_of(mixed, 0):
        return None
    return (
        f"the engine computes in {whole.rollout.dtype} and training in {mixed}: their log-probs differ",
        f"{ROLLOUT}.dtype={mixed}",
    )


def reference_on_gpu(case: Case) -> RuleResult:
    cfg = case.cfg
    uses = cfg.actor_rollout_ref.actor.use_kl_loss or cfg.algorithm.use_kl_in_reward
    shape = case.shapes.policy if case.shapes is not None else None
    if (
        not uses
        or shape is None
        or shape.parameters < LARGE_MODEL
        or cfg.actor_rollout_ref.ref.fsdp_config.param_offload
    ):
        return None
    return (
        f"the reference ({shape.parameters / 1e9:.1f} B) stays on the GPU in every phase but is used in one",
        f"{REF}.fsdp_config.param_offload=true",
    )


def engine_keeps_graphs(case: Case) -> RuleResult:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "vllm" or rollout.enforce_eager or not rollout.free_cache_engine:
        return None
    return (
        "vLLM before 0.8 cannot free its KV cache with CUDA graphs enabled",
        f"{ROLLOUT}.enforce_eager=true with those versions",
    )


def short_batch(case: Case) -> RuleResult:
    prompts, mini = case.cfg.data.train_batch_size, case.cfg.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % mini == 0 or mini > prompts:
        return None
    return (
        f"{prompts} prompts are not a multiple of the mini-batch of {mini}: the last update has only {prompts % mini}",
        f"{ACTOR}.ppo_mini_batch_size={next(n for n in range(mini, 0, -1) if prompts % n == 0)}",
    )


def slow_critic(case: Case) -> RuleResult:
    cfg = case.cfg
    if not has_critic(cfg) or cfg.critic.optim.lr >= cfg.actor_rollout_ref.actor.optim.lr:
        return None
    return (
        f"the critic's learning rate {cfg.critic.optim.lr:g} is below the policy's"
        f" {cfg.actor_rollout_ref.actor.optim.lr:g}: its values lag behind",
        "critic.optim.lr=1e-5",
    )


def unused_critic(case: Case) -> RuleResult:
    """Critic keys without a critic."""
    if has_critic(case.cfg) or not case.was_set("critic.optim"):
        return None
    name = case.cfg.algorithm.adv_estimator
    return f"critic.* has no effect: {name} uses no critic", "algorithm.adv_estimator=gae, or remove critic.*"


ADVICE: tuple[Rule, ...] = (
    Rule("group_of_one", WARNING, "training is unstable", group_of_one, (f"{ROLLOUT}.n",)),
    Rule("same_responses", WARNING, "rewards do not rise", same_responses),
    Rule("restricted_sampling", NOTE, "training is unstable", restricted_sampling),
    Rule("thin_reward", WARNING, "rewards do not rise", thin_reward, ("algorithm.gamma", "algorithm.lam")),
    Rule("long_responses", NOTE, "rewards do not rise", long_responses, ("data.max_response_length",)),
    Rule("sampled_turns", WARNING, "multi-turn validation is noisy", sampled_turns),
    Rule("tools_without_reward", NOTE, "tools are used too much or too little", tools_without_reward),
    Rule("budget_below_row", WARNING, "out of memory in updates", budget_below_row),
    Rule("rows_not_read", NOTE, "out of memory in updates", rows_not_read),
    Rule("tensor_parallel", REFUSED, "the engine does not start", tensor_parallel),
    Rule("overlong_prompts_stop", NOTE, "the run stops at a long prompt", overlong_prompts_stop),
    Rule("nothing_saved", WARNING, "no checkpoint after a run", nothing_saved, ("trainer.save_freq",)),
    Rule("frequent_validation", NOTE, "low throughput", frequent_validation, ("trainer.test_freq",)),
    Rule("other_number_format", NOTE, "training is unstable", other_number_format),
    Rule("reference_on_gpu", NOTE, "out of memory", reference_on_gpu),
    Rule("engine_keeps_graphs", NOTE, "the engine does not start", engine_keeps_graphs),
    Rule("short_batch", NOTE, "training is unstable", short_batch),
    Rule("slow_critic", WARNING, "training is unstable", slow_critic),
    Rule("unused_critic", NOTE, "a key has no effect", unused_critic),
)
