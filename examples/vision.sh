#!/usr/bin/env bash
# GRPO with pictures on a CPU, without downloads: a tiny random Qwen2.5-VL and questions about drawn shapes. It shows that
# a run works, not that it learns: `burnish demo --task vision` does that, and examples/vision_geo3k.sh is a real task.
#
# Append further overrides to the command: examples/vision.sh actor_rollout_ref.actor.freeze_vision_tower=true
set -eu

folder=${FOLDER:-runs/vision}
mkdir -p "$folder/model"
make="from pathlib import Path; from burnish.demo.tiny_vision import make_vision_model"
python3 -c "$make; make_vision_model(Path('$folder/model'), 'qwen2_5_vl')"
burnish data vision-shapes "$folder/train.parquet" --task count --size 64
burnish data vision-shapes "$folder/val.parquet" --task count --size 16 --split test

burnish train \
    algorithm.adv_estimator=grpo \
    data.train_files="$folder/train.parquet" \
    data.val_files="$folder/val.parquet" \
    data.train_batch_size=8 \
    data.max_prompt_length=128 \
    data.max_response_length=8 \
    actor_rollout_ref.model.path="$folder/model" \
    actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 \
    actor_rollout_ref.actor.optim.lr=1e-3 \
    trainer.total_training_steps=2 \
    trainer.test_freq=2 \
    trainer.default_local_dir="$folder/run" \
    "$@"
