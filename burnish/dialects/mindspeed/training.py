"""megatron_training: which prompts, which model, how long; and what a model's dropout would mean."""

from __future__ import annotations

from typing import Any

from burnish.dialects.mindspeed.models import read_hf_config
from burnish.dialects.mindspeed.reading import Reading
from burnish.dialects.mindspeed.roles import (
    ACTOR,
    MODEL,
    REF,
    ROLLOUT,
    prompts_per_step,
    prompts_per_update,
    reads_reference,
    trained,
)

_TOKENIZERS = (None, "PretrainedFromHF", "HuggingFaceTokenizer")


def read_training(reading: Reading) -> None:
    for read in (_batches, _data, _lengths, _model, _run, _precision, _dropouts, _micro_batches):
        read(reading)


def _batches(reading: Reading) -> None:
    gbs, mini, epochs = reading.actor["global_batch_size"], reading.rl["mini_batch_size"], reading.rl["epochs"]
    if gbs.value is None:
        reading.refuse(gbs, "how many prompts make an iteration is not said: write megatron_training.global_batch_size")
        return
    if reading.stage.filters and reading.rl.value("filter_groups_enable"):
        kept = reading.rl["filter_groups_train_batch_size"]
        reading.put(gbs, "data.gen_batch_size", why="prompts generated at once; what is trained on is filtered")
        reading.put(kept, "data.train_batch_size", why="prompts of a step after filtering")
    else:
        reading.put(
            gbs, "data.train_batch_size", why="prompts, not samples; each brings n_samples_per_prompt responses"
        )
    prompts, update = prompts_per_step(reading), prompts_per_update(reading)
    reading.put(mini, f"{ACTOR}.ppo_mini_batch_size", update, f"prompts per update: min({mini.value}, {prompts})")
    reading.put(epochs, f"{ACTOR}.ppo_epochs")


def _data(reading: Reading) -> None:
    actor = reading.actor
    path, keys, split = actor["data_path"], actor["dataset_additional_keys"], actor["split"]
    if path.value is None:
        reading.refuse(path, "no data: write megatron_training.data_path, the prefix of packed .bin and .idx files")
    else:
        reading.put(path, "data.train_files", [str(path.value)], "prefix of <prefix>_packed_<field>_document.bin/.idx")
    reading.put(keys, "data.additional_keys")
    if split.given:
        shares = [part.strip() for part in str(split.value).replace("/", ",").split(",")]
        if any(_number(part) != 0 for part in shares[1:]):
            why = "rows for validation and test would be taken off the data, but no RL stage reads them: write 100,0,0"
            reading.refuse(split, why)
        else:
            reading.inert(split, "all rows train; no RL stage of MindSpeed RL validates")
    no_shuffle = actor["no_shuffle"]
    reading.put(no_shuffle, "data.shuffle", not no_shuffle.value, "its opposite")
    reading.put(actor["seed"], "trainer.seed", why="one seed for order, sampling and training")
    reading.put(actor["num_workers"], "data.dataloader_num_workers") if actor["num_workers"].given else None
    pairs = actor["is_pairwise_dataset"]
    if pairs.value:
        reading.refuse(pairs, "pairs of answers are DPO's data; an RL stage reads prompts")
    else:
        reading.inert(pairs, "an RL stage reads prompts")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _lengths(reading: Reading) -> None:
    prompt, seq = reading.rl["max_prompt_length"], reading.actor["seq_length"]
    most, room = reading.sampling["max_tokens"], reading.generate["max_model_len"]
    reading.put(prompt, "data.max_prompt_length")
    reading.put(prompt, "data.filter_overlong_prompts", True, "longer prompts are dropped, as there")
    if seq.value is not None and seq.value < prompt.value:
        why = f"prompts of {seq.value + 1} to {prompt.value} tokens would be cut on the right, longer ones dropped"
        reading.refuse(seq, f"{why}: both cannot be said; write rl_config.max_prompt_length: {seq.value}")
    else:
        reading.inert(seq, f"cuts prompts beyond it; those above max_prompt_length={prompt.value} are dropped before")
    if reading.rl.value("multi_turn_enable"):
        _turn_lengths(reading)
    else:
        reading.put(most, "data.max_response_length")
    total = prompt.value + most.value
    if seq.value is not None and room.value < seq.value:
        reading.refuse(room, f"is below megatron_training.seq_length={seq.value}, as MindSpeed RL says too")
    elif room.value <= prompt.value:
        reading.refuse(room, f"leaves no room for a response: write generate_config.max_model_len: {total}")
    else:
        ends = f"less than {prompt.value} + {most.value} = {total}: responses to long prompts end early, as there"
        reading.put(room, f"{ROLLOUT}.max_model_len", why=ends if room.value < total else "")


def _turn_lengths(reading: Reading) -> None:
    """With tools, one budget holds for the whole conversation."""
    most, total = reading.sampling["max_tokens"], reading.rl["max_total_response_length"]
    reading.put(total, "data.max_response_length", why="the budget of all turns together")
    if most.value < total.value:
        why = f"a limit of one turn below that of all ({total.value}) has no key here"
        reading.refuse(most, f"{why}; write max_tokens: {total.value}")
    else:
        reading.inert(most, f"max_total_response_length={total.value} holds for all turns together")


def _model(reading: Reading) -> None:
    path, kind = reading.actor["tokenizer_name_or_path"], reading.actor["tokenizer_type"]
    trust = reading.generate["trust_remote_code"]
    if path.value is None:
        reading.refuse(path, "no model: write megatron_training.tokenizer_name_or_path, a Hugging Face folder")
    else:
        reading.put(path, f"{MODEL}.path", why="tokenizer, config and weights are read there, as Hugging Face has them")
    if kind.value in _TOKENIZERS:
        reading.inert(kind, "the tokenizer is always Hugging Face's")
    else:
        reading.refuse(kind, "only tokenizers of Hugging Face are read: write PretrainedFromHF")
    reading.put(trust, f"{MODEL}.trust_remote_code")
    reading.put(trust, "data.trust_remote_code", why="the tokenizer's too")


def _run(reading: Reading) -> None:
    iterations, interval = reading.actor["train_iters"], reading.actor["save_interval"]
    if iterations.value is None:
        reading.refuse(iterations, "how long to train is not said: write megatron_training.train_iters")
    else:
        reading.put(
            iterations, "trainer.total_training_steps", why="iterations; the data is repeated as often as needed"
        )
    reading.put(interval, "trainer.save_freq", -1 if interval.value is None else interval.value)
    reading.put(reading.actor["save"], "trainer.default_local_dir") if reading.actor.value("save") else None


def _precision(reading: Reading) -> None:
    bf16, dtype = reading.actor["bf16"], reading.generate["dtype"]
    if not bf16.value:
        reading.refuse(bf16, "MindSpeed RL trains in bfloat16 only: write bf16: true")
    else:
        for role in trained(reading):
            key = f"{role.fsdp}.mixed_precision.param_dtype"
            reading.put(
                role.section["bf16"], key, "bf16", "products in bfloat16, weights and optimizer kept in float32"
            )
    if dtype.value != "bfloat16":
        reading.refuse(dtype, "MindSpeed RL's engine computes in bfloat16 only: write dtype: bfloat16")
    else:
        reading.put(dtype, f"{ROLLOUT}.dtype")
    framework = reading.actor["ai_framework"]
    if framework.value is not None:
        reading.refuse(framework, "PyTorch trains here: leave it out")


def _dropouts(reading: Reading) -> None:
    """MindSpeed RL drops 0.1 where nothing is said; Hugging Face's decoders can drop in the attention only."""
    path = reading.actor.value("tokenizer_name_or_path")
    hf = read_hf_config(path, reading.folder) if path else None
    for role in trained(reading):
        attention, hidden = role.section["attention_dropout"], role.section["hidden_dropout"]
        own = (hf or {}).get("attention_dropout") or 0.0
        unsaid = "" if attention.given else "what MindSpeed RL takes where the key is missing"
        if float(attention.value) == float(own):
            reading.inert(attention, "the model's own config says the same")
        else:
            reading.put(attention, f"{role.model}.override_config.attention_dropout", float(attention.value), unsaid)
        if hidden.value:
            unsaid = "" if hidden.given else " (MindSpeed RL's own default, where the key is missing)"
            why = f"models of Hugging Face have no dropout between layers{unsaid}: write hidden_dropout: 0.0"
            reading.refuse(hidden, why)
        else:
            reading.inert(hidden, "no dropout between layers, as Hugging Face's models have none")


def _micro_batches(reading: Reading) -> None:
    mean = "MindSpeed RL averages the means of micro-batches; here the mean is over all tokens of the mini-batch"
    for role in trained(reading):
        micro = role.section["micro_batch_size"]
        if micro.value is not None:
            reading.put(micro, f"{role.key}.ppo_micro_batch_size_per_gpu", why=mean)
    rl, actor = reading.rl, reading.actor["micro_batch_size"]
    for name, ours in (("actor", ROLLOUT), ("ref", REF)):
        own = rl[f"{name}_forward_micro_batch_size"]
        if ours == REF and not reads_reference(reading):
            reading.inert(own, "no reference is read")
            continue
        value: Any = own.value if own.value is not None else actor.value
        if value is not None:
            why = "" if own.value is not None else "that of the update, where none is given"
            reading.put(own, f"{ours}.log_prob_micro_batch_size_per_gpu", value, why)
    _packing(reading)


def _packing(reading: Reading) -> None:
    """Micro-batches by tokens. The budgets matter only then."""
    rl, dynamic = reading.rl, reading.rl["use_dynamic_bsz"]
    reading.put(dynamic, f"{ACTOR}.use_dynamic_bsz")
    reading.put(rl["use_remove_padding"], f"{MODEL}.use_remove_padding") if rl["use_remove_padding"].given else None
    reading.put(rl["use_dp_batch_balance"], "trainer.balance_batch") if rl["use_dp_batch_balance"].given else None
    budgets = {
        "update_max_packing_token_size": f"{ACTOR}.ppo_max_token_len_per_gpu",
        "actor_max_packing_token_size": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
        "ref_max_packing_token_size": f"{REF}.log_prob_max_token_len_per_gpu",
    }
    for name, ours in budgets.items():
        if ours.startswith(REF) and not reads_reference(reading):
            reading.inert(rl[name], "no reference is read")
        elif dynamic.value:
            reading.put(rl[name], ours, why="tokens of one micro-batch")
        else:
            reading.inert(rl[name], "micro-batches are cut by responses: use_dynamic_bsz is off")
    if dynamic.value and reading.stage.critic:
        reading.put(rl["update_max_packing_token_size"], "critic.ppo_max_token_len_per_gpu")
