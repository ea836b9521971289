"""Rules beyond the troubleshooting table: the seeds' scenarios and ranges, and mistakes that cost a run."""

from __future__ import annotations

from burnish.config.names import GROUPED_ADVANTAGES
from burnish.config.ranks import is_single_process
from burnish.config.rules import has_critic
from burnish.doctor.engine import FOREIGN
from burnish.doctor.roles import width_of
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, Judgement, Rule

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
LONG_RESPONSE = 512  # tokens, above which a single score at the end teaches each of them little
LARGE_MODEL = 7e9  # parameters, above which a reference is better offloaded
OFTEN = 10  # steps between validations, below which they cost more than they tell


def group_of_one(case: Case) -> Judgement:
    algorithm, rollout = case.cfg.algorithm, case.cfg.actor_rollout_ref.rollout
    if rollout.n > 1 or algorithm.adv_estimator not in GROUPED_ADVANTAGES:
        return None
    return (
        f"{algorithm.adv_estimator} compares the responses of a prompt, but there is one: the advantage is the score",
        f"{ROLLOUT}.n=8",
    )


def same_responses(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.n == 1 or (rollout.do_sample and rollout.temperature > 0 and rollout.top_k != 1):
        return None
    return (
        f"without sampling the {rollout.n} responses of a prompt are the same, and teach nothing",
        f"{ROLLOUT}.do_sample=true {ROLLOUT}.temperature=1.0 {ROLLOUT}.top_k=-1",
    )


def restricted_sampling(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.top_p == 1 and rollout.top_k == -1 and rollout.min_p == 0:
        return None
    return (
        "top_k, top_p or min_p in training: the policy learns as if it had sampled from all tokens",
        f"{ROLLOUT}.top_p=1.0 {ROLLOUT}.top_k=-1 {ROLLOUT}.min_p=0",
    )


def thin_reward(case: Case) -> Judgement:
    """One score at the end of a long response, and a discount that it does not survive."""
    algorithm, length = case.cfg.algorithm, case.cfg.data.max_response_length
    if algorithm.adv_estimator in GROUPED_ADVANTAGES or algorithm.gamma * algorithm.lam >= 1:
        return None
    reach = algorithm.gamma if algorithm.adv_estimator != "gae" else algorithm.gamma * algorithm.lam
    left = reach**length
    if left > 0.1:
        return None
    return (
        f"of a score at the end of {length} tokens, {left:.0e} reaches the first:"
        " gamma and lam are too small for this response length",
        "algorithm.gamma=1.0 algorithm.lam=1.0",
    )


def long_responses(case: Case) -> Judgement:
    cfg = case.cfg
    if cfg.data.max_response_length <= LONG_RESPONSE or cfg.reward_model.overlong_buffer.enable:
        return None
    if cfg.reward.stop_properly_penalty is not None:
        return None
    return (
        f"responses may have {cfg.data.max_response_length} tokens and get one score each; nothing is taken off for"
        " those that are cut off at the limit",
        f"data.max_response_length={LONG_RESPONSE} if answers are short, or reward_model.overlong_buffer.enable=true"
        f" reward_model.overlong_buffer.len={max(1, cfg.data.max_response_length // 4)}",
    )


def sampled_turns(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if not rollout.multi_turn.enable or not (rollout.val_kwargs.do_sample and rollout.val_kwargs.temperature > 0):
        return None
    return (
        "conversations of several turns drift apart when validation samples",
        f"{ROLLOUT}.val_kwargs.do_sample=false {ROLLOUT}.val_kwargs.temperature=0 {ROLLOUT}.val_kwargs.top_p=1.0",
    )


def tools_without_reward(case: Case) -> Judgement:
    cfg = case.cfg
    turns = cfg.actor_rollout_ref.rollout.multi_turn
    if not (turns.enable and turns.tool_config_path) or cfg.custom_reward_function.path or cfg.reward_model.enable:
        return None
    return (
        "the built-in rewards look at the answer only: nothing steers how often tools are used",
        "custom_reward_function.path=my_reward.py custom_reward_function.reward_kwargs.tool_bonus=0.05",
    )


def budget_below_row(case: Case) -> Judgement:
    rollout, actor = case.cfg.actor_rollout_ref.rollout, case.cfg.actor_rollout_ref.actor
    longest = rollout.prompt_length + rollout.response_length
    by_tokens = actor.use_dynamic_bsz or actor.ppo_micro_batch_size_per_gpu is None
    if not by_tokens or actor.ppo_max_token_len_per_gpu >= longest:
        return None
    return (
        f"the token budget {actor.ppo_max_token_len_per_gpu} is less than one response of {longest} tokens:"
        " such rows exceed it alone",
        f"{ACTOR}.ppo_max_token_len_per_gpu={2 * longest}",
    )


def rows_not_read(case: Case) -> Judgement:
    actor = case.cfg.actor_rollout_ref.actor
    if not actor.use_dynamic_bsz or actor.ppo_micro_batch_size_per_gpu is None:
        return None
    return (
        f"ppo_micro_batch_size_per_gpu={actor.ppo_micro_batch_size_per_gpu} is not read: rows are cut by tokens",
        f"{ACTOR}.ppo_max_token_len_per_gpu={actor.ppo_max_token_len_per_gpu} is what to change",
    )


def tensor_parallel(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    size = rollout.tensor_model_parallel_size
    if rollout.name not in FOREIGN or not is_single_process(case.cfg):
        return None  # every device has a whole engine
    shape = case.shapes.policy if case.shapes is not None else None
    if shape is not None and shape.heads % size:
        return (
            f"{shape.heads} attention heads cannot be divided by {size}",
            f"{ROLLOUT}.tensor_model_parallel_size={next(n for n in (8, 4, 2, 1) if shape.heads % n == 0)}",
        )
    return None


def overlong_prompts_stop(case: Case) -> Judgement:
    data = case.cfg.data
    if data.truncation != "error" or data.filter_overlong_prompts or not data.train_files:
        return None
    return (
        f"a prompt of more than {data.max_prompt_length} tokens stops the run",
        "data.filter_overlong_prompts=true, or data.truncation=left",
    )


def nothing_saved(case: Case) -> Judgement:
    trainer = case.cfg.trainer
    if trainer.save_freq > 0 or trainer.export_dir or trainer.val_only:
        return None
    return "no checkpoint is ever saved: what the run learned is lost", "trainer.save_freq=20"


def frequent_validation(case: Case) -> Judgement:
    trainer = case.cfg.trainer
    if not 0 < trainer.test_freq < OFTEN or not case.cfg.data.val_files:
        return None
    return f"validating every {trainer.test_freq} steps costs throughput", f"trainer.test_freq={2 * OFTEN}"


def other_number_format(case: Case) -> Judgement:
    whole = case.cfg.actor_rollout_ref
    mixed = whole.actor.fsdp_config.mixed_precision.param_dtype
    if whole.rollout.dtype is None or mixed is None or whole.rollout.quantization:
        return None
    if width_of(whole.rollout.dtype, 0) == width_of(mixed, 0):
        return None
    return (
        f"the engine computes in {whole.rollout.dtype}, training in {mixed}: their probabilities differ",
        f"{ROLLOUT}.dtype={mixed}",
    )


def reference_on_gpu(case: Case) -> Judgement:
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
        f"the reference ({shape.parameters / 1e9:.1f} B) lies on the GPU in every phase and works in one",
        f"{REF}.fsdp_config.param_offload=true",
    )


def engine_keeps_graphs(case: Case) -> Judgement:
    rollout = case.cfg.actor_rollout_ref.rollout
    if rollout.name != "vllm" or rollout.enforce_eager or not rollout.free_cache_engine:
        return None
    return (
        "older vLLM (before 0.8) cannot free its cache under CUDA graphs",
        f"{ROLLOUT}.enforce_eager=true there",
    )


def short_batch(case: Case) -> Judgement:
    prompts, mini = case.cfg.data.train_batch_size, case.cfg.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % mini == 0 or mini > prompts:
        return None
    return (
        f"{prompts} prompts are no multiple of the mini-batch of {mini}: the last update has {prompts % mini}",
        f"{ACTOR}.ppo_mini_batch_size={next(n for n in range(mini, 0, -1) if prompts % n == 0)}",
    )


def slow_critic(case: Case) -> Judgement:
    cfg = case.cfg
    if not has_critic(cfg) or cfg.critic.optim.lr >= cfg.actor_rollout_ref.actor.optim.lr:
        return None
    return (
        f"the critic learns slower ({cfg.critic.optim.lr:g}) than the policy ({cfg.actor_rollout_ref.actor.optim.lr:g})"
        " whose values it must follow",
        "critic.optim.lr=1e-5",
    )


def unused_critic(case: Case) -> Judgement:
    """Keys of a critic that nobody trains."""
    if has_critic(case.cfg) or not case.was_set("critic.optim"):
        return None
    name = case.cfg.algorithm.adv_estimator
    return f"critic.* has no effect: {name} needs no values", "leave critic.* out, or algorithm.adv_estimator=gae"


ADVICE: tuple[Rule, ...] = (
    Rule("group_of_one", WARNING, "training is unsteady", group_of_one, (f"{ROLLOUT}.n",)),
    Rule("same_responses", WARNING, "rewards do not rise", same_responses),
    Rule("restricted_sampling", NOTE, "training is unsteady", restricted_sampling),
    Rule("thin_reward", WARNING, "rewards do not rise", thin_reward, ("algorithm.gamma", "algorithm.lam")),
    Rule("long_responses", NOTE, "rewards do not rise", long_responses, ("data.max_response_length",)),
    Rule("sampled_turns", WARNING, "several turns go astray", sampled_turns),
    Rule("tools_without_reward", NOTE, "tools are used too much or too little", tools_without_reward),
    Rule("budget_below_row", WARNING, "out of memory in updates", budget_below_row),
    Rule("rows_not_read", NOTE, "out of memory in updates", rows_not_read),
    Rule("tensor_parallel", REFUSED, "the engine does not start", tensor_parallel),
    Rule("overlong_prompts_stop", NOTE, "the run stops at a long prompt", overlong_prompts_stop),
    Rule("nothing_saved", WARNING, "nothing is left of a run", nothing_saved, ("trainer.save_freq",)),
    Rule("frequent_validation", NOTE, "low throughput", frequent_validation, ("trainer.test_freq",)),
    Rule("other_number_format", NOTE, "training is unsteady", other_number_format),
    Rule("reference_on_gpu", NOTE, "out of memory", reference_on_gpu),
    Rule("engine_keeps_graphs", NOTE, "the engine does not start", engine_keeps_graphs),
    Rule("short_batch", NOTE, "training is unsteady", short_batch),
    Rule("slow_critic", WARNING, "training is unsteady", slow_critic),
    Rule("unused_critic", NOTE, "a key has no effect", unused_critic),
)
