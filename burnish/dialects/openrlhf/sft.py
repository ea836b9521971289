"""train_sft: learning from examples."""

from __future__ import annotations

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import checkpoint, deepspeed, logging, optimisation
from burnish.dialects.openrlhf.command import Vocabulary, read
from burnish.dialects.openrlhf.renames import SAME_AS
from burnish.dialects.openrlhf.sft_flags import MUON, SFT, SFT_ALL, SFT_DOTTED, SFT_EARLIER
from burnish.dialects.openrlhf.writing import Row, Writing
from burnish.dialects.report import Translation

VOCABULARY = Vocabulary(
    flags=SFT_ALL,
    names=({name: name for name in SFT}, SFT_DOTTED, SFT_EARLIER),
    same_as={name: target for name, target in SAME_AS.items() if name in SFT_ALL},
)
FSDP = "model.fsdp_config"
ROWS = (
    Row("train_batch_size", "data.train_batch_size", "both count examples"),
    Row("micro_train_batch_size", "data.micro_batch_size_per_gpu"),
    Row("max_epochs", "trainer.total_epochs"),
    Row("max_len", "data.max_length"),
    Row("dataset_split", "data.train_split"),
    Row("tokenizer_chat_template", "data.chat_template"),
    Row("learning_rate", "optim.lr"),
    Row("max_norm", "optim.clip_grad"),
    Row("seed", "trainer.seed"),
    Row("aux_loss_coef", "model.aux_loss_coef"),
    Row("gradient_checkpointing", "model.enable_gradient_checkpointing"),
    Row("use_liger_kernel", "model.use_liger"),
    Row("adam_offload", f"{FSDP}.offload_policy"),
    Row("ring_attn_size", "ulysses_sequence_parallel_size"),
    Row("logging_steps", "trainer.log_freq"),
    Row("save_path", "trainer.export_dir", "the final model, for Hugging Face"),
    Row("ckpt_path", "trainer.default_local_dir", "the run folder, with its checkpoints"),
    Row("save_steps", "trainer.save_freq", "here the last update is saved, too"),
    Row("max_ckpt_num", "trainer.max_ckpt_to_keep"),
)
# What launchers call the number of processes on a machine, and of machines.
PROCESSES = {
    **dict.fromkeys(("num_gpus", "nproc_per_node"), "n_gpus_per_node"),
    **dict.fromkeys(("num_nodes", "nnodes"), "nnodes"),
}
EACH_EPOCH = "after_each_epoch"


def translate(invocation: Invocation) -> Translation:
    w = Writing(read(invocation.argv, VOCABULARY), Translation("openrlhf", "sft"))
    for option, ours in PROCESSES.items():
        if invocation.processes.get(option, "").isdigit():
            w.itself(f"trainer.{ours}", int(invocation.processes[option]), f"the launcher's --{option}")
    w.rows(ROWS)
    _model(w)
    _data(w)
    _examples(w)
    _learning(w)
    _sharding(w)
    _saving(w)
    logging.loggers(w)
    return w.finish()


def _model(w: Writing) -> None:
    if w.given("pretrain"):
        w.put("pretrain", "model.partial_pretrain")
        w.itself("model.trust_remote_code", True, "its models and tokenizers always may run their repository's code")
    deepspeed.attention(w, ("model",))
    deepspeed.adapters(w, ("model",))
    w.put("packing_samples", "use_remove_padding", True)
    for name in ("disable_fast_tokenizer", "dataloader_num_workers"):
        w.inert(name, "rows are read in the training process, with the model's one tokenizer")
    if w.given("use_ms"):
        w.refuse("use_ms", "download from ModelScope, and give folders")


def _data(w: Writing) -> None:
    data, probs, held_out = w.get("dataset"), w.get("dataset_probs"), w.get("eval_dataset")
    files = [part.strip() for part in (data or "").split(",") if part.strip()]
    if data is not None:
        w.put("dataset", "data.train_files", files)
    if probs is not None and len(files) > 1:
        w.refuse("dataset_probs", "datasets are read one after another: mix them into one before")
    else:
        w.inert("dataset_probs", "one dataset is all there is to draw from")
    w.put("max_samples", "data.train_max_samples", why="the first rows")
    if held_out is None:
        for name in ("eval_dataset", "eval_split", "eval_steps"):
            w.inert(name, "nothing is evaluated without an eval dataset")
        return
    w.put("eval_dataset", "data.val_files", [part.strip() for part in held_out.split(",")])
    w.put("eval_split", "data.val_split")
    every = w.get("eval_steps")
    w.put("eval_steps", "trainer.test_freq", EACH_EPOCH if every == -1 else every, "-1 is once per epoch")


def _examples(w: Writing) -> None:
    templated, answer, template = w.get("apply_chat_template"), w.get("output_key"), w.get("input_template")
    why = "" if templated else "without the flag the text is the prompt, as it is"
    w.put("apply_chat_template", "data.apply_chat_template", why=why)
    w.itself("data.truncation", "right", "a longer example loses its end")
    if w.get("pretrain_mode"):
        w.refuse("pretrain_mode", "learning whole texts is not there: examples have a prompt and a response")
    if w.get("multiturn"):
        _conversations(w, templated, answer)
    elif answer is not None:
        w.put("input_key", "data.prompt_key")
        w.put("output_key", "data.response_key")
    elif w.given("pretrain"):
        w.told.add("input_key")
        hint = f"or {w.name('multiturn')} to learn every answer of a conversation" if templated else "the response"
        has = "only the last message of a conversation is learned" if templated else "nothing is left to learn from"
        w.refuse("output_key", f"without it {has}: give its column, {hint}")
    if templated:
        w.inert("input_template", f"{w.name('apply_chat_template')} writes the prompts")
    elif "{}" not in template:
        w.inert("input_template", "has no {} for the prompt, so theirs drops it with a warning")
    else:
        w.put("input_template", "data.input_template")


def _conversations(w: Writing, templated: bool, answer: str | None) -> None:
    if not templated:
        w.refuse("multiturn", f"needs {w.name('apply_chat_template')}")
    elif answer is not None:
        w.refuse("output_key", f"with {w.name('multiturn')} the whole conversation is in {w.name('input_key')}")
    else:
        w.put("multiturn", "data.multiturn.enable")
        w.put("input_key", "data.multiturn.messages_key")


def _learning(w: Writing) -> None:
    optimisation.schedule(w, "optim", names=("lr_scheduler", "min_lr_ratio", "warmup_steps_ratio"))
    w.put("adam_betas", "optim.betas")
    optimisation.weight_decay(w, "l2", "optim")
    optimisation.plain_adam(w, "optim", "adam_eps", MUON)


def _sharding(w: Writing) -> None:
    for name, why in deepspeed.INERT.items():
        if name in SFT_ALL:
            w.inert(name, why)
    deepspeed.zero_stage(w, (FSDP,))
    w.put("param_dtype", f"{FSDP}.mixed_precision.param_dtype", w.get("param_dtype"), "products are computed in it")
    if w.get("ds_tensor_parallel_size") == 1:
        w.inert("ds_tensor_parallel_size", "1 is off")
    else:
        w.put("ds_tensor_parallel_size", "model.strategy", "megatron", "ranks that share one layer")


def _saving(w: Writing) -> None:
    going_on = w.get("load_checkpoint")
    why = "goes on if there is a checkpoint" if going_on else "starts anew without the flag"
    w.put("load_checkpoint", "trainer.resume_mode", "auto" if going_on else "disable", why)
    checkpoint.contents(w, "trainer.checkpoint.save_contents")
    checkpoint.size_limit(w)
