#!/usr/bin/env bash
# GRPO in a game of TextArena (pip install -e ".[textarena]"); each turn's reward is credited to that turn.
#
# Create the prompts once:
#   burnish data env textarena data/game.parquet id=GuessTheNumber-v0 --size 1024
#
# Append further overrides to the command: examples/agents/game.sh trainer.total_training_steps=20
set -eu

burnish train \
    algorithm.adv_estimator=grpo \
    algorithm.turn_credit=return_to_go \
    data.train_files=data/game.parquet \
    data.train_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    data.return_raw_chat=true \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.agent.environment=textarena \
    actor_rollout_ref.rollout.agent.environment_kwargs.id=GuessTheNumber-v0 \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=8 \
    trainer.total_epochs=1 \
    trainer.test_freq=-1 \
    "$@"
