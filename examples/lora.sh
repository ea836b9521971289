#!/usr/bin/env bash
# GRPO with LoRA adapters on 4-bit weights, for small GPUs. The reference is the same model with adapters disabled.
# Needs pip install -e ".[peft,bitsandbytes]". Append further overrides to the command.
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
