"""Every rule fires on its condition, and does not fire on a similar config."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.doctor.advice import ADVICE
from burnish.doctor.memory import Shapes
from burnish.doctor.rules import NOTE, REFUSED, WARNING, Case, find_all
from burnish.doctor.shapes import find_shape
from burnish.doctor.troubleshooting import TROUBLESHOOTING
from burnish.doctor.turns import TURN_RULES

ROLLOUT, ACTOR, REF = (f"actor_rollout_ref.{name}" for name in ("rollout", "actor", "ref"))
TURNS = f"{ROLLOUT}.multi_turn"
VAL = f"{ROLLOUT}.val_kwargs"
REWARD_MODEL = ["reward_model.enable=true", "reward_model.model.path=org/llama-3-rm"]
SMALL = ["data.train_batch_size=512", f"{ACTOR}.ppo_mini_batch_size=8"]
GRPO = "algorithm.adv_estimator=grpo"
APART = ["actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1"]
TOOLS = [f"{TURNS}.enable=true", f"{TURNS}.tool_config_path=tools.yaml"]

# rule: overrides on which it fires, and similar ones on which it does not.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "vllm_share_too_high": (
        [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.gpu_memory_utilization=0.9"],
        [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.gpu_memory_utilization=0.9", *APART],
    ),
    "sglang_share_too_high": (
        [f"{ROLLOUT}.name=sglang", f"{ROLLOUT}.engine_kwargs.sglang.mem_fraction_static=0.95"],
        [f"{ROLLOUT}.name=sglang", f"{ROLLOUT}.engine_kwargs.sglang.mem_fraction_static=0.85"],
    ),
    "cache_not_freed": ([f"{ROLLOUT}.free_cache_engine=false"], [f"{ROLLOUT}.free_cache_engine=false", *APART]),
    "engine_starves": ([f"{ROLLOUT}.gpu_memory_utilization=0.2"], [f"{ROLLOUT}.gpu_memory_utilization=0.3"]),
    "few_sequences": ([f"{ROLLOUT}.max_num_seqs=16"], [f"{ROLLOUT}.max_num_seqs=256"]),
    "small_forward_micro_batches": (
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2"],
        # without a KL term the reference is not used
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{REF}.log_prob_micro_batch_size_per_gpu=2"],
    ),
    "high_learning_rate": (
        [f"{ACTOR}.optim.lr=1e-5"],
        [f"{ACTOR}.optim.lr=1e-5", "actor_rollout_ref.model.lora_rank=8"],
    ),
    "small_mini_batch": ([*SMALL], [*SMALL, f"{ROLLOUT}.n=8"]),
    "kl_weight": (
        [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0.2"],
        [f"{ACTOR}.use_kl_loss=false", f"{ACTOR}.kl_loss_coef=0.2"],
    ),
    "double_kl": (
        [f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true"],
        [f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=false"],
    ),
    "async_with_filter": (
        [f"{ROLLOUT}.mode=async", f"{ROLLOUT}.name=vllm", "algorithm.filter_groups.enable=true"],
        [f"{ROLLOUT}.mode=sync", f"{ROLLOUT}.name=vllm", "algorithm.filter_groups.enable=true"],
    ),
    "model_hides_function": (
        [*REWARD_MODEL, "custom_reward_function.path=my.py"],
        [*REWARD_MODEL, "custom_reward_function.path=my.py", "reward.function_weight=0.5"],
    ),
    "other_template": (
        [*REWARD_MODEL, "reward_model.model.input_tokenizer=null"],
        [*REWARD_MODEL],  # the policy's tokenizer decodes
    ),
    "sampled_validation": (
        ["data.val_files=v.parquet", f"{VAL}.do_sample=true", f"{VAL}.temperature=1.0"],
        ["data.val_files=v.parquet", f"{VAL}.do_sample=true", f"{VAL}.temperature=1.0", f"{VAL}.n=8"],
    ),
    "group_of_one": ([GRPO], [GRPO, f"{ROLLOUT}.n=4"]),
    "same_responses": ([f"{ROLLOUT}.n=4", f"{ROLLOUT}.do_sample=false"], [f"{ROLLOUT}.n=4"]),
    "restricted_sampling": ([f"{ROLLOUT}.top_p=0.9"], [f"{ROLLOUT}.top_p=1.0"]),
    "thin_reward": (
        ["algorithm.lam=0.95", "data.max_response_length=512"],
        ["algorithm.lam=0.95", "data.max_response_length=32"],
    ),
    "long_responses": (
        ["data.max_response_length=8192"],
        ["data.max_response_length=8192", "reward_model.overlong_buffer.enable=true"],
    ),
    "sampled_turns": (
        [f"{TURNS}.enable=true", f"{VAL}.do_sample=true", f"{VAL}.temperature=0.7"],
        [f"{TURNS}.enable=true", f"{VAL}.temperature=0.7"],
    ),
    "tools_without_reward": (
        [f"{TURNS}.enable=true", f"{TURNS}.tool_config_path=tools.yaml"],
        [f"{TURNS}.enable=true", f"{TURNS}.tool_config_path=tools.yaml", "custom_reward_function.path=my.py"],
    ),
    "budget_below_row": (
        [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=512"],
        [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=1024"],
    ),
    "rows_not_read": (
        [f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
    ),
    "tensor_parallel": (
        [f"{ROLLOUT}.tensor_model_parallel_size=3", f"{ROLLOUT}.name=vllm"],
        [f"{ROLLOUT}.tensor_model_parallel_size=4", f"{ROLLOUT}.name=vllm"],
    ),
    "overlong_prompts_stop": ([], ["data.truncation=left"]),
    "nothing_saved": ([], ["trainer.save_freq=10"]),
    "frequent_validation": (
        ["trainer.test_freq=2", "data.val_files=v.parquet"],
        ["trainer.test_freq=20", "data.val_files=v.parquet"],
    ),
    "other_number_format": (
        [f"{ROLLOUT}.dtype=fp32", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"],
        [f"{ROLLOUT}.dtype=bfloat16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"],
    ),
    "reference_on_gpu": (
        [f"{ACTOR}.use_kl_loss=true"],
        [f"{ACTOR}.use_kl_loss=true", f"{REF}.fsdp_config.param_offload=true"],
    ),
    "engine_keeps_graphs": (
        [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.enforce_eager=false"],
        [f"{ROLLOUT}.name=builtin", f"{ROLLOUT}.enforce_eager=false"],
    ),
    "short_batch": (
        ["data.train_batch_size=100", f"{ACTOR}.ppo_mini_batch_size=64"],
        ["data.train_batch_size=128", f"{ACTOR}.ppo_mini_batch_size=64"],
    ),
    "slow_critic": (["critic.optim.lr=1e-7"], ["critic.optim.lr=1e-7", GRPO]),
    "unused_critic": ([GRPO, "critic.optim.lr=1e-6"], ["critic.optim.lr=1e-6"]),
    "nothing_to_talk_to": (
        [f"{TURNS}.enable=true"],
        [f"{TURNS}.enable=true", f"{ROLLOUT}.agent.environment=textarena"],
    ),
    "answers_fill_the_budget": (
        [*TOOLS, f"{TURNS}.max_assistant_turns=8"],
        [*TOOLS, f"{TURNS}.max_assistant_turns=8", f"{TURNS}.max_user_turns=3"],
    ),
    "turns_beyond_the_budget": (
        [*TOOLS, f"{TURNS}.max_assistant_turns=2", f"{TURNS}.max_turn_length=256"],
        [*TOOLS, f"{TURNS}.max_assistant_turns=2", f"{TURNS}.max_turn_length=224"],  # and 64 of the tool
    ),
    "unlimited_answers": ([*TOOLS, f"{TURNS}.max_parallel_calls=null"], [f"{TURNS}.max_parallel_calls=null"]),
    "unlimited_turns": (TOOLS, [*TOOLS, f"{TURNS}.max_user_turns=4"]),
}
RULES = {rule.name: rule for rule in (*TROUBLESHOOTING, *ADVICE, *TURN_RULES)}


def case_of(overrides: list[str], **fields) -> Case:
    settings = ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct", "data.train_files=t.parquet", *overrides]
    loaded = load(settings, check=False)
    return Case(loaded.cfg, Shapes(find_shape("qwen2.5-7b").shape), frozenset(loaded.settings), **fields)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_fires_on_its_condition_and_its_fix_silences_it(name):
    rule, (overrides, similar) = RULES[name], CASES[name]
    finding = rule.find(case_of(overrides))
    assert finding is not None and finding.severity in (REFUSED, WARNING, NOTE)
    assert finding.text and finding.type
    assert rule.find(case_of(similar)) is None
    fix = first_suggestion(finding.type)
    assert fix
    keys = {word.partition("=")[0] for word in fix}
    others = [override for override in overrides if override.partition("=")[0] not in keys]
    assert rule.find(case_of([*others, *fix])) is None


def first_suggestion(typed: str) -> list[str]:
    """The overrides up to the first "or"."""
    words = [word.rstrip(",:") for word in typed.split() if "=" in word]
    end = next((number for number, word in enumerate(words) if number and f" or {word}" in typed), len(words))
    return words[:end]


def test_every_rule_is_tested():
    assert RULES.keys() == CASES.keys()
    assert all(rule.symptom for rule in RULES.values())


def test_families_of_config_files_go_before_names():
    overrides = [*REWARD_MODEL, "reward_model.model.input_tokenizer=null"]
    same = {"policy": "qwen2", "reward model": "qwen2"}
    assert RULES["other_template"].find(case_of(overrides, families=same)) is None


def test_heads_limit_tensor_parallelism():
    eight = "trainer.n_gpus_per_node=8"
    overrides = [f"{ROLLOUT}.tensor_model_parallel_size=8", f"{ROLLOUT}.name=vllm"]
    assert "28 attention heads" in RULES["tensor_parallel"].find(case_of(overrides)).text
    assert "28 attention heads" in RULES["tensor_parallel"].find(case_of([*overrides, eight])).text
    builtin = [overrides[0], f"{ROLLOUT}.name=builtin"]
    assert RULES["tensor_parallel"].find(case_of(builtin)) is None  # one process has one device
    assert "28 attention heads" in RULES["tensor_parallel"].find(case_of([*builtin, eight])).text


def test_the_worst_comes_first():
    findings = find_all(
        case_of([f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true", f"{ROLLOUT}.top_p=0.9"])
    )
    severities = [finding.severity for finding in findings]
    assert severities[0] == REFUSED and severities[-1] == NOTE
    assert severities == sorted(severities, key=(REFUSED, WARNING, NOTE).index)
