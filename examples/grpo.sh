#!/usr/bin/env bash
# GRPO on GSM8K with a small instruct model: 8 responses per question, correct ones score 1. One GPU; slow on a CPU.
#
# Create the data once (needs pip install -e ".[datasets]"):
#   burnish data gsm8k openai/gsm8k data/gsm8k/train.parquet --split train
#   burnish data gsm8k openai/gsm8k data/gsm8k/test.parquet --split test
#
# Append further overrides to the command: examples/grpo.sh trainer.total_training_steps=20
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    data.train_files=data/gsm8k/train.parquet \
    data.val_files=data/gsm8k/test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=true \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    trainer.project_name=gsm8k \
    trainer.experiment_name=grpo \
    trainer.total_epochs=1 \
    trainer.test_freq=10 \
    trainer.save_freq=20 \
    "$@"
