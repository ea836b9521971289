#!/usr/bin/env bash
# DAPO: clip-higher, token mean, dynamic sampling, overlong penalty.
# data/math/train.parquet is any file in verl's schema. Append further overrides to the command.
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    algorithm.filter_groups.enable=true \
    algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    data.train_files=data/math/train.parquet \
    data.train_batch_size=64 \
    data.gen_batch_size=96 \
    data.max_prompt_length=1024 \
    data.max_response_length=4096 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=true \
    reward_model.overlong_buffer.len=1024 \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.save_freq=20 \
    "$@"
