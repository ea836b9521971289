#!/usr/bin/env bash
# GRPO on Geometry3K with Qwen2.5-VL, as verl's examples: questions about drawings, rewarded by the right answer. One GPU.
#
# Create the data once (needs pip install -e ".[datasets]"):
#   burnish data geo3k hiyouga/geometry3k data/geo3k/train.parquet --split train
#   burnish data geo3k hiyouga/geometry3k data/geo3k/test.parquet --split test
#
# Append further overrides to the command: examples/vision_geo3k.sh actor_rollout_ref.actor.freeze_vision_tower=true
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    data.train_files=data/geo3k/train.parquet \
    data.val_files=data/geo3k/test.parquet \
    data.train_batch_size=64 \
    data.max_prompt_length=1024 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=true \
    data.image_key=images \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-3B-Instruct \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=true \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.kl_loss_coef=0.01 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    trainer.project_name=geo3k \
    trainer.experiment_name=grpo \
    trainer.total_epochs=15 \
    trainer.test_freq=10 \
    trainer.save_freq=20 \
    "$@"
