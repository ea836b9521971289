#!/usr/bin/env bash
# GRPO on LoRA adapters over 4-bit weights: a small GPU is enough. The reference is the same model with its adapters off.
# Needs pip install "burnish[peft,bitsandbytes]". Further overrides go behind the script's name.
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    data.train_files=data/math/train.parquet \
    data.train_batch_size=32 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.model.lora_rank=32 \
    actor_rollout_ref.model.lora_alpha=64 \
    actor_rollout_ref.model.load_in_4bit=true \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.optim.lr=3e-5 \
    trainer.save_freq=20 \
    "$@"
