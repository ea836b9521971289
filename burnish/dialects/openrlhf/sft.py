"""train_sft: supervised fine-tuning."""

from __future__ import annotations

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import checkpoint, deepspeed, loggers, optimization
from burnish.dialects.openrlhf.flags import FLAG_ALIASES
from burnish.dialects.openrlhf.parser import FlagSet, parse
from burnish.dialects.openrlhf.sft_flags import MUON, SFT, SFT_ALL, SFT_DOTTED, SFT_EARLIER
from burnish.dialects.openrlhf.translator import KeyMapping, Translator
from burnish.dialects.report import Translation

FLAG_SET = FlagSet(
    flags=SFT_ALL,
    names=({name: name for name in SFT}, SFT_DOTTED, SFT_EARLIER),
    aliases={name: target for name, target in FLAG_ALIASES.items() if name in SFT_ALL},
)
FSDP = "model.fsdp_config"
MAPPINGS = (
    KeyMapping("train_batch_size", "data.train_batch_size", "both count examples"),
    KeyMapping("micro_train_batch_size", "data.micro_batch_size_per_gpu"),
    KeyMapping("max_epochs", "trainer.total_epochs"),
    KeyMapping("max_len", "data.max_length"),
    KeyMapping("dataset_split", "data.train_split"),
    KeyMapping("tokenizer_chat_template", "data.chat_template"),
    KeyMapping("learning_rate", "optim.lr"),
    KeyMapping("max_norm", "optim.clip_grad"),
    KeyMapping("seed", "trainer.seed"),
    KeyMapping("aux_loss_coef", "model.aux_loss_coef"),
    KeyMapping("gradient_checkpointing", "model.enable_gradient_checkpointing"),
    KeyMapping("use_liger_kernel", "model.use_liger"),
    KeyMapping("adam_offload", f"{FSDP}.offload_policy"),
    KeyMapping("ring_attn_size", "ulysses_sequence_parallel_size"),
    KeyMapping("logging_steps", "trainer.log_freq"),
    KeyMapping("save_path", "trainer.export_dir", "the final model in Hugging Face format"),
    KeyMapping("ckpt_path", "trainer.default_local_dir", "the run folder, which contains the checkpoints"),
    KeyMapping("save_steps", "trainer.save_freq", "Burnish also saves after the last update"),
    KeyMapping("max_ckpt_num", "trainer.max_ckpt_to_keep"),
)
# Launcher options for the number of processes per node, and of nodes.
PROCESS_OPTIONS = {
    **dict.fromkeys(("num_gpus", "nproc_per_node"), "n_gpus_per_node"),
    **dict.fromkeys(("num_nodes", "nnodes"), "nnodes"),
}
EACH_EPOCH = "after_each_epoch"


def translate(invocation: Invocation) -> Translation:
    t = Translator(parse(invocation.argv, FLAG_SET), Translation("openrlhf", "sft"))
    for option, ours in PROCESS_OPTIONS.items():
        if invocation.processes.get(option, "").isdigit():
            t.set_implicit(f"trainer.{ours}", int(invocation.processes[option]), f"the launcher's --{option}")
    if not invocation.processes:
        _without_counts(t)
    t.set_all(MAPPINGS)
    _model(t)
    _data(t)
    _examples(t)
    _optimizer(t)
    _sharding(t)
    _saving(t)
    loggers.translate_loggers(t)
    return t.finish()


def _without_counts(t: Translator) -> None:
    """deepspeed without counts starts a process on every GPU of the machine, which a translation cannot know."""
    ring = t.get("ring_attn_size")
    if ring > 1:
        why = "the launcher sets the number of processes; the ring needs these"
        t.set_implicit("trainer.n_gpus_per_node", ring, why)
    t.translation.notes.append(
        f"the launcher names no number of processes: {ring} rank{'s' * (ring > 1)}; `deepspeed --num_gpus N` sets more."
    )


def _model(t: Translator) -> None:
    if t.has("pretrain"):
        t.set("pretrain", "model.partial_pretrain")
        t.set_implicit("model.trust_remote_code", True, "OpenRLHF always allows models to run code of their repository")
    deepspeed.attention(t, ("model",))
    deepspeed.adapters(t, ("model",))
    t.set("packing_samples", "use_remove_padding", True)
    for name in ("disable_fast_tokenizer", "dataloader_num_workers"):
        t.inert(name, "rows are loaded in the training process with the model's tokenizer")
    if t.has("use_ms"):
        t.refuse("use_ms", "ModelScope is not supported: download models and data, and pass local folders")


def _data(t: Translator) -> None:
    data, probs, eval_data = t.get("dataset"), t.get("dataset_probs"), t.get("eval_dataset")
    files = [part.strip() for part in (data or "").split(",") if part.strip()]
    if data is not None:
        t.set("dataset", "data.train_files", files)
    if probs is not None and len(files) > 1:
        t.refuse("dataset_probs", "mixing datasets by probability is not supported: mix them into one file")
    else:
        t.inert("dataset_probs", "there is only one dataset")
    t.set("max_samples", "data.train_max_samples", why="takes the first rows")
    if eval_data is None:
        for name in ("eval_dataset", "eval_split", "eval_steps"):
            t.inert(name, "no evaluation without an eval dataset")
        return
    t.set("eval_dataset", "data.val_files", [part.strip() for part in eval_data.split(",")])
    t.set("eval_split", "data.val_split")
    interval = t.get("eval_steps")
    t.set("eval_steps", "trainer.test_freq", EACH_EPOCH if interval == -1 else interval, "-1 means once per epoch")


def _examples(t: Translator) -> None:
    templated, answer, template = t.get("apply_chat_template"), t.get("output_key"), t.get("input_template")
    why = "" if templated else "without the flag the text is used as the prompt"
    t.set("apply_chat_template", "data.apply_chat_template", why=why)
    t.set_implicit("data.truncation", "right", "OpenRLHF truncates examples on the right")
    if t.get("pretrain_mode"):
        t.refuse("pretrain_mode", "training on plain text is not supported: examples need a prompt and a response")
    if t.get("multiturn"):
        _conversations(t, templated, answer)
    elif answer is not None:
        t.set("input_key", "data.prompt_key")
        t.set("output_key", "data.response_key")
    elif t.has("pretrain"):
        t.handled.add("input_key")
        hint = f", or {t.spelling('multiturn')} to train on every reply of a conversation" if templated else ""
        trained = (
            "only the last message of a conversation is trained on" if templated else "there is nothing to train on"
        )
        t.refuse("output_key", f"without it {trained}: set the column of the response{hint}")
    if templated:
        t.inert("input_template", f"{t.spelling('apply_chat_template')} formats the prompts")
    elif "{}" not in template:
        t.inert("input_template", "has no {} for the prompt: OpenRLHF ignores it with a warning")
    else:
        t.set("input_template", "data.input_template")


def _conversations(t: Translator, templated: bool, answer: str | None) -> None:
    if not templated:
        t.refuse("multiturn", f"requires {t.spelling('apply_chat_template')}")
    elif answer is not None:
        t.refuse("output_key", f"with {t.spelling('multiturn')} the whole conversation is in {t.spelling('input_key')}")
    else:
        t.set("multiturn", "data.multiturn.enable")
        t.set("input_key", "data.multiturn.messages_key")


def _optimizer(t: Translator) -> None:
    optimization.schedule(t, "optim", names=("lr_scheduler", "min_lr_ratio", "warmup_steps_ratio"))
    t.set("adam_betas", "optim.betas")
    optimization.weight_decay(t, "l2", "optim")
    optimization.require_adamw(t, "optim", "adam_eps", MUON)


def _sharding(t: Translator) -> None:
    for name, why in deepspeed.INERT.items():
        if name in SFT_ALL:
            t.inert(name, why)
    deepspeed.zero_stage(t, (FSDP,))
    t.set("param_dtype", f"{FSDP}.mixed_precision.param_dtype", t.get("param_dtype"), "compute dtype")
    if t.get("ds_tensor_parallel_size") == 1:
        t.inert("ds_tensor_parallel_size", "1 is off")
    else:
        t.set("ds_tensor_parallel_size", "model.strategy", "megatron", "tensor parallelism requires strategy=megatron")


def _saving(t: Translator) -> None:
    resume = t.get("load_checkpoint")
    why = "resumes if there is a checkpoint" if resume else "starts from scratch without the flag"
    t.set("load_checkpoint", "trainer.resume_mode", "auto" if resume else "disable", why)
    checkpoint.contents(t, "trainer.checkpoint.save_contents")
    checkpoint.size_limit(t)
