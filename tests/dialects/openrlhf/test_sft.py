"""Translation of train_sft to burnish sft."""

import pytest

from burnish.config import load

from .commands import items, refused, translate

GOOD = "--pretrain m --dataset d.jsonl --input_key q --output_key a"


def sft(*flags):
    return translate(GOOD, *flags, program="train_sft")


def value_of(cfg, key):
    for name in key.split("."):
        cfg = getattr(cfg, name)
    return cfg


@pytest.mark.parametrize(
    ("flags", "ours"),
    [
        (
            "",
            {
                "model.partial_pretrain": "m",
                "model.trust_remote_code": True,
                "model.enable_gradient_checkpointing": False,
                "data.train_files": ["d.jsonl"],
                "data.prompt_key": "q",
                "data.response_key": "a",
                "data.max_length": 2048,
                "data.truncation": "right",
                "data.train_batch_size": 128,
                "data.micro_batch_size_per_gpu": 8,
                "data.apply_chat_template": False,
                "data.input_template": "User: {}\nAssistant: ",
                "optim.lr": 5e-6,
                "optim.weight_decay": 0.0,
                "optim.lr_scheduler": "cosine",
                "optim.min_lr_ratio": 0.1,
                "optim.warmup_steps_ratio": 0.03,
                "trainer.total_epochs": 2,
                "trainer.seed": 42,
                "trainer.resume_mode": "disable",
                "trainer.export_dir": "./ckpt",
                "trainer.default_local_dir": "./ckpt/checkpoints_sft",
            },
        ),
        ("--apply_chat_template", {"data.apply_chat_template": True, "data.input_template": None}),
        (
            "--train_batch_size 64 --micro_train_batch_size 2",
            {"data.train_batch_size": 64, "data.micro_batch_size_per_gpu": 2},
        ),
        (
            "--learning_rate 1e-5 --lr_scheduler constant",
            {"optim.lr": 1e-5, "optim.lr_scheduler": "constant", "optim.warmup_steps_ratio": 0.0},
        ),
        ("--lora_rank 8 --lora_alpha 32", {"model.lora_rank": 8, "model.lora_alpha": 32.0}),
        (
            "--eval_dataset e",
            {"data.val_files": ["e"], "trainer.test_freq": "after_each_epoch", "data.val_split": "train"},
        ),
        ("--eval_dataset e --eval_steps 10 --eval_split test", {"trainer.test_freq": 10, "data.val_split": "test"}),
        ("--max_samples 100 --train_split part", {"data.train_max_samples": 100, "data.train_split": "part"}),
        (
            "--save_steps 5 --save_hf_ckpt --max_ckpt_num 1",
            {
                "trainer.save_freq": 5,
                "trainer.max_ckpt_to_keep": 1,
                "trainer.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
            },
        ),
        ("--logging_steps 3 --load_checkpoint", {"trainer.log_freq": 3, "trainer.resume_mode": "auto"}),
        ("--ring_attn_size 2", {"ulysses_sequence_parallel_size": 2}),
        ("--aux_loss_coef 0.01", {"model.aux_loss_coef": 0.01}),
        ("--tokenizer_chat_template t", {"data.chat_template": "t"}),
    ],
)
def test_flags_set_keys(flags, ours):
    translation = sft(flags)
    assert refused(translation) == {}
    cfg = load(translation.overrides(), job="sft", check=False).cfg
    assert {key: value_of(cfg, key) for key in ours} == ours


def test_single_process_run_has_nothing_pending():
    loaded = load(sft("--param_dtype bf16 --packing_samples").overrides(), job="sft")
    assert loaded.cfg.model.partial_pretrain == "m"


def test_conversations():
    words = "--pretrain m --dataset d --input_key messages --apply_chat_template"
    settings = translate(words, "--multiturn", program="train_sft").settings
    assert settings["data.multiturn.enable"] is True
    assert settings["data.multiturn.messages_key"] == "messages"
    assert "--multiturn" in refused(translate(words, program="train_sft"))["--output_key"]


@pytest.mark.parametrize(
    ("flags", "theirs"),
    [
        ("--multiturn", "--multiturn"),
        ("--pretrain_mode", "--pretrain_mode"),
        ("--dataset a,b --dataset_probs 0.5,0.5", "--dataset_probs"),
        ("--n_samples_per_prompt 4", "--n_samples_per_prompt"),
    ],
)
def test_unsupported_flags_are_refused(flags, theirs):
    assert theirs in refused(sft(flags))


def test_flat_and_dotted_commands_give_the_same_settings():
    flat = sft("--learning_rate 1e-5 --l2 0 --max_len 512 --lora_rank 4 --gradient_checkpointing --save_steps 3")
    later = translate(
        "--model.model_name_or_path m --data.dataset d.jsonl --data.input_key q --data.output_key a --adam.lr 1e-5",
        "--adam.weight_decay 0 --data.max_len 512 --ds.lora.rank 4 --model.gradient_checkpointing_enable",
        "--ckpt.save_steps 3",
        program="train_sft",
    )
    assert refused(flat) == refused(later) == {}
    assert flat.settings == later.settings


def test_launcher_sets_the_number_of_ranks():
    translation = translate(GOOD, program="train_sft", processes={"num_gpus": "4"})
    assert translation.settings["trainer.n_gpus_per_node"] == 4
    assert [item.status for item in translation.items if item.ours == "trainer.n_gpus_per_node"] == ["converted"]
    ring = translate(GOOD, "--ring_attn_size 2", program="train_sft")
    assert ring.settings["trainer.n_gpus_per_node"] == ring.settings["ulysses_sequence_parallel_size"] == 2
    assert "2 ranks; `deepspeed --num_gpus N` sets more" in " ".join(ring.notes) and not translation.notes


def test_template_without_placeholder_is_inert():
    (item,) = items(sft(["--input_template", '""']), "--input_template")
    assert item.status == "inert"


def test_floor_of_the_learning_rate_as_a_flat_flag():
    settings = sft("--min_lr_ratio 0.2").settings
    assert settings["optim.min_lr_ratio"] == 0.2
