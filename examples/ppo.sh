#!/usr/bin/env bash
# PPO with a critic on GSM8K: generalized advantage estimation, KL penalty in the reward.
# Create the data as in grpo.sh. Append further overrides to the command.
set -eu

burnish train \
    algorithm.adv_estimator=gae \
    algorithm.gamma=1.0 \
    algorithm.lam=0.95 \
    algorithm.use_kl_in_reward=true \
    algorithm.kl_ctrl.kl_coef=0.001 \
    data.train_files=data/gsm8k/train.parquet \
    data.val_files=data/gsm8k/test.parquet \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=512 \
    data.filter_overlong_prompts=true \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    critic.optim.lr=1e-5 \
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    trainer.critic_warmup=5 \
    trainer.project_name=gsm8k \
    trainer.experiment_name=ppo \
    trainer.total_epochs=15 \
    trainer.test_freq=10 \
    trainer.save_freq=20 \
    "$@"
