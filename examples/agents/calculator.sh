#!/usr/bin/env bash
# GRPO with a tool: the model may call `multiply` of calculator.py, three turns at most. Data as in ../grpo.sh.
#
# Append further overrides to the command: examples/agents/calculator.sh trainer.total_training_steps=20
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    data.train_files=data/gsm8k/train.parquet \
    data.val_files=data/gsm8k/test.parquet \
    data.train_batch_size=64 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    data.max_prompt_length=1024 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.multi_turn.enable=true \
    actor_rollout_ref.rollout.multi_turn.function_tool_path=examples/agents/calculator.py \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \
    trainer.total_epochs=1 \
    "$@"
