"""megatron_training: batches, data, lengths, model, run length, precision, dropout, micro-batches."""

from __future__ import annotations

from typing import Any

from burnish.dialects.mindspeed.roles import (
    ACTOR,
    MODEL,
    REF,
    ROLLOUT,
    initial_weights,
    prompts_per_step,
    prompts_per_update,
    trained_roles,
    uses_reference,
)
from burnish.dialects.mindspeed.translator import Translator

_TOKENIZERS = (None, "PretrainedFromHF", "HuggingFaceTokenizer")


def translate_training(t: Translator) -> None:
    for translate_keys in (_batches, _data, _lengths, _model, _run, _precision, _dropouts, _micro_batches):
        translate_keys(t)


def _batches(t: Translator) -> None:
    gbs, mini, epochs = t.actor["global_batch_size"], t.rl["mini_batch_size"], t.rl["epochs"]
    if gbs.value is None:
        t.refuse(gbs, "required: write megatron_training.global_batch_size, the number of prompts per iteration")
        return
    if t.stage.filters and t.rl.value("filter_groups_enable"):
        train_batch_size = t.rl["filter_groups_train_batch_size"]
        t.set(gbs, "data.gen_batch_size", why="prompts per generation batch, before filtering")
        t.set(train_batch_size, "data.train_batch_size", why="prompts per step, after filtering")
    else:
        t.set(gbs, "data.train_batch_size", why="counts prompts, not samples; each has n_samples_per_prompt responses")
    prompts, update = prompts_per_step(t), prompts_per_update(t)
    t.set(mini, f"{ACTOR}.ppo_mini_batch_size", update, f"prompts per update: min({mini.value}, {prompts})")
    t.set(epochs, f"{ACTOR}.ppo_epochs")


def _data(t: Translator) -> None:
    actor = t.actor
    path, keys, split = actor["data_path"], actor["dataset_additional_keys"], actor["split"]
    if path.value is None:
        t.refuse(path, "required: write megatron_training.data_path, the prefix of packed .bin and .idx files")
    else:
        t.set(path, "data.train_files", [str(path.value)], "prefix of <prefix>_packed_<field>_document.bin/.idx")
    t.set(keys, "data.additional_keys")
    if split.explicit:
        shares = [part.strip() for part in str(split.value).replace("/", ",").split(",")]
        if any(_number(part) != 0 for part in shares[1:]):
            why = "would reserve rows for validation and test, which RL stages do not use: write 100,0,0"
            t.refuse(split, why)
        else:
            t.inert(split, "all rows are used for training; MindSpeed RL never validates in RL stages")
    no_shuffle = actor["no_shuffle"]
    t.set(no_shuffle, "data.shuffle", not no_shuffle.value, "the negation")
    t.set(actor["seed"], "trainer.seed", why="one seed for data order, sampling and training")
    t.set(actor["num_workers"], "data.dataloader_num_workers") if actor["num_workers"].explicit else None
    pairs = actor["is_pairwise_dataset"]
    if pairs.value:
        t.refuse(pairs, "preference pairs are DPO data; RL stages use prompts")
    else:
        t.inert(pairs, "RL stages use prompts")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _lengths(t: Translator) -> None:
    prompt, seq = t.rl["max_prompt_length"], t.actor["seq_length"]
    max_tokens, max_model_len = t.sampling["max_tokens"], t.generate["max_model_len"]
    t.set(prompt, "data.max_prompt_length")
    t.set(prompt, "data.filter_overlong_prompts", True, "longer prompts are dropped, as in MindSpeed RL")
    if seq.value is not None and seq.value < prompt.value:
        why = f"MindSpeed RL truncates prompts of {seq.value + 1} to {prompt.value} tokens and drops longer ones"
        t.refuse(seq, f"{why}; Burnish does one or the other: write rl_config.max_prompt_length: {seq.value}")
    else:
        t.inert(seq, f"truncates prompts; those longer than max_prompt_length={prompt.value} are already dropped")
    if t.rl.value("multi_turn_enable"):
        _multi_turn_lengths(t)
    else:
        t.set(max_tokens, "data.max_response_length")
    longest = t.rl["max_total_response_length"] if t.rl.value("multi_turn_enable") else max_tokens
    total = prompt.value + longest.value
    if seq.value is not None and max_model_len.value < seq.value:
        t.refuse(max_model_len, f"must be at least megatron_training.seq_length={seq.value}, also in MindSpeed RL")
    elif max_model_len.value <= prompt.value:
        t.refuse(max_model_len, f"leaves no tokens for a response: write generate_config.max_model_len: {total}")
    else:
        why = f"less than {prompt.value} + {longest.value} = {total}: responses to long prompts are truncated"
        t.set(max_model_len, f"{ROLLOUT}.max_model_len", why=why if max_model_len.value < total else "")


def _multi_turn_lengths(t: Translator) -> None:
    """Multi-turn runs have one response budget for all turns, and one for each."""
    max_tokens, total = t.sampling["max_tokens"], t.rl["max_total_response_length"]
    t.set(total, "data.max_response_length", why="token budget of all turns")
    if max_tokens.value < total.value:
        t.set(max_tokens, f"{ROLLOUT}.multi_turn.max_turn_length", why="token budget of one turn")
    else:
        if total.value < max_tokens.value:
            why = f"must be at least sampling_config.max_tokens={max_tokens.value}, also in MindSpeed RL"
            t.refuse(total, why)
        t.inert(max_tokens, f"max_total_response_length={total.value} limits all turns together")


def _model(t: Translator) -> None:
    path, tokenizer_type = t.actor["tokenizer_name_or_path"], t.actor["tokenizer_type"]
    trust = t.generate["trust_remote_code"]
    if path.value is None:
        t.refuse(path, "required: write megatron_training.tokenizer_name_or_path, a Hugging Face model folder")
    elif initial_weights(t) is path:
        t.set(path, f"{MODEL}.path", why="tokenizer, config and weights in Hugging Face format are loaded from there")
    else:
        t.set(path, f"{MODEL}.tokenizer_path", why="the weights come from load")
        t.set(path, f"{MODEL}.hf_config_path")
    if tokenizer_type.value in _TOKENIZERS:
        t.inert(tokenizer_type, "Burnish always uses Hugging Face tokenizers")
    else:
        t.refuse(tokenizer_type, "only Hugging Face tokenizers are supported: write PretrainedFromHF")
    t.set(trust, f"{MODEL}.trust_remote_code")
    t.set(trust, "data.trust_remote_code", why="applies to the tokenizer too")


def _run(t: Translator) -> None:
    iterations, interval = t.actor["train_iters"], t.actor["save_interval"]
    if iterations.value is None:
        t.refuse(iterations, "required: write megatron_training.train_iters")
    else:
        t.set(iterations, "trainer.total_training_steps", why="iterations; the data is repeated as needed")
    t.set(interval, "trainer.save_freq", -1 if interval.value is None else interval.value)
    t.set(t.actor["save"], "trainer.default_local_dir") if t.actor.value("save") else None


def _precision(t: Translator) -> None:
    bf16, dtype = t.actor["bf16"], t.generate["dtype"]
    if not bf16.value:
        t.refuse(bf16, "MindSpeed RL supports bfloat16 only: write bf16: true")
    else:
        for role in trained_roles(t):
            key = f"{role.fsdp}.mixed_precision.param_dtype"
            t.set(role.section["bf16"], key, "bf16", "computation in bfloat16, master weights and optimizer in float32")
    if dtype.value != "bfloat16":
        t.refuse(dtype, "MindSpeed RL's engine supports bfloat16 only: write dtype: bfloat16")
    else:
        t.set(dtype, f"{ROLLOUT}.dtype")
    framework = t.actor["ai_framework"]
    if framework.value is not None:
        t.refuse(framework, "only PyTorch is supported: remove this key")


def _dropouts(t: Translator) -> None:
    """MindSpeed RL defaults to dropout 0.1; Hugging Face decoders have attention dropout only."""
    for role in trained_roles(t):
        attention, hidden = role.section["attention_dropout"], role.section["hidden_dropout"]
        why = "" if attention.explicit else "default of MindSpeed RL"
        t.set(attention, f"{role.model}.override_config.attention_dropout", float(attention.value), why)
        if hidden.value:
            default = "" if hidden.explicit else " (0.1 is MindSpeed RL's default)"
            t.refuse(hidden, f"Hugging Face models have no hidden dropout{default}: write hidden_dropout: 0.0")
        else:
            t.inert(hidden, "Hugging Face models have no hidden dropout")


def _micro_batches(t: Translator) -> None:
    why = "MindSpeed RL averages micro-batch means; Burnish averages over all tokens of the mini-batch"
    for role in trained_roles(t):
        micro = role.section["micro_batch_size"]
        if micro.value is not None:
            t.set(micro, f"{role.key}.ppo_micro_batch_size_per_gpu", why=why)
    rl, actor = t.rl, t.actor["micro_batch_size"]
    for name, ours in (("actor", ROLLOUT), ("ref", REF)):
        forward = rl[f"{name}_forward_micro_batch_size"]
        if ours == REF and not uses_reference(t):
            t.inert(forward, "this run has no reference model")
            continue
        value: Any = forward.value if forward.value is not None else actor.value
        if value is not None:
            why = "" if forward.value is not None else "defaults to micro_batch_size"
            t.set(forward, f"{ours}.log_prob_micro_batch_size_per_gpu", value, why)
    _packing(t)


def _packing(t: Translator) -> None:
    """Dynamic micro-batches and their token budgets."""
    rl, dynamic = t.rl, t.rl["use_dynamic_bsz"]
    t.set(dynamic, f"{ACTOR}.use_dynamic_bsz")
    t.set(rl["use_remove_padding"], f"{MODEL}.use_remove_padding") if rl["use_remove_padding"].explicit else None
    t.set(rl["use_dp_batch_balance"], "trainer.balance_batch") if rl["use_dp_batch_balance"].explicit else None
    budgets = {
        "update_max_packing_token_size": f"{ACTOR}.ppo_max_token_len_per_gpu",
        "actor_max_packing_token_size": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "ref_max_packing_token_size": f"{REF}.log_prob_max_token_len_per_gpu",
    }
    for name, ours in budgets.items():
        if ours.startswith(REF) and not uses_reference(t):
            t.inert(rl[name], "this run has no reference model")
        elif dynamic.value:
            t.set(rl[name], ours, why="tokens per micro-batch")
        else:
            t.inert(rl[name], "use_dynamic_bsz is off: micro-batches have a fixed number of responses")
    if dynamic.value and t.stage.critic:
        t.set(rl["update_max_packing_token_size"], "critic.ppo_max_token_len_per_gpu")
