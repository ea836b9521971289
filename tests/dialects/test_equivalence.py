"""One GRPO run, asked for in three dialects: the same tree, and the same bits in the first step.

The rows are the same in three formats. The noise of a response is addressed by the fingerprint of its file, so that the packed
file of MindSpeed RL is given the fingerprint of the others here.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from burnish.config import load
from burnish.config.tree import to_plain
from burnish.data.files import ArrowRows, LineRows
from burnish.data.indexed import IndexedRows
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.dialects.read import translate_command, translate_yaml
from burnish.dialects.report import Translation
from burnish.loop.api import train_loaded
from tests.data.packed import write_field

PROMPTS = [f"{n}1" for n in range(8)]

# A weight so large that the epsilon under the group's deviation, 1e-6 or 1e-9, is lost in its float32.
REWARD = """
from burnish.reward.verifiers import VERIFIERS

def reward_func(queries, prompts, labels):
    texts = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    scores = [1000.0 * (text.count("1") % 2) for text in texts]
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
"""
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1000.0 * (solution_str.count("1") % 2)
"""

# What the three systems do by nature, written out in verl's command by our keys of those names.
BY_NATURE = (
    "algorithm.kl_order=after algorithm.reward_clip_range=[-10.0,10.0] algorithm.group_std_epsilon=1e-9"
    " actor_rollout_ref.actor.optim.lr_step_unit=update reward.timeout=180 reward.on_error=stop"
)
# Where runs are kept and shown, which rows and which reward they read.
NAMES = ("trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.default_local_dir")
PLACES = (*NAMES, "trainer.export_dir", "data.train_files", "custom_reward_function.path", "reward.remote_url")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("equivalence")
    tokenizer = make_tokenizer("01.")
    make_model(folder / "model", tokenizer, hidden=16, layers=2, seed=0)
    rows = [{"input": [{"role": "user", "content": text}], "label": text, "data_source": "d"} for text in PROMPTS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verl = [
        {"prompt": row["input"], "data_source": "d", "reward_model": {"style": "rule", "ground_truth": row["label"]}}
        for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(verl), folder / "rows.parquet")
    (folder / "reward.py").write_text(REWARD)
    (folder / "score.py").write_text(SCORE)
    return folder


def verl(place: Path) -> Translation:
    return translate_command(
        shlex.split(
            "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=1 trainer.seed=42"
            f" data.train_files={place}/rows.parquet data.val_files=[] data.train_batch_size=4"
            " data.max_prompt_length=32 data.max_response_length=8 data.truncation=left data.return_raw_chat=True"
            " data.trust_remote_code=True data.seed=42"
            f" actor_rollout_ref.model.path={place}/model actor_rollout_ref.model.trust_remote_code=True"
            " actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.rollout.n=2"
            " actor_rollout_ref.rollout.name=builtin actor_rollout_ref.rollout.tensor_model_parallel_size=1"
            " actor_rollout_ref.rollout.enable_prefix_caching=False"
            " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
            " actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
            " actor_rollout_ref.actor.clip_ratio_low=null actor_rollout_ref.actor.clip_ratio_high=null"
            " actor_rollout_ref.actor.clip_ratio_c=null actor_rollout_ref.actor.use_torch_compile=False"
            " actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.optim.weight_decay=0"
            " actor_rollout_ref.actor.optim.betas=[0.9,0.95]"
            f" custom_reward_function.path={place}/score.py trainer.total_epochs=1 trainer.logger=[console]"
            " trainer.resume_mode=disable trainer.max_actor_ckpt_to_keep=3 trainer.device=auto"
            f" {BY_NATURE}"
        )
    )


def openrlhf(place: Path) -> Translation:
    return translate_command(
        shlex.split(
            f"python3 -m openrlhf.cli.train_ppo_ray --pretrain {place}/model --prompt_data {place}/rows.jsonl"
            " --input_key input --label_key label --apply_chat_template --advantage_estimator group_norm"
            " --n_samples_per_prompt 2 --rollout_batch_size 4 --train_batch_size 8 --micro_train_batch_size 8"
            " --prompt_max_len 32 --generate_max_len 8 --init_kl_coef 0 --actor_learning_rate 1e-3"
            f" --lr_scheduler constant --lr_warmup_ratio 0 --remote_rm_url {place}/reward.py"
            " --actor_num_gpus_per_node 1 --ref_num_gpus_per_node 1 --seed 42"
        )
    )


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def resolved(translation: Translation) -> dict[str, Any]:
    return flat(to_plain(load(translation.overrides(), job=translation.job).cfg))


def differing(one: Translation, other: Translation) -> dict[str, tuple[Any, Any]]:
    a, b = resolved(one), resolved(other)
    return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


def first_step(translation: Translation, folder: Path) -> dict[str, float]:
    more = [f"trainer.default_local_dir={folder}", "trainer.logger=[file]", "trainer.export_dir=null", "reward.num_workers=0"]
    result = train_loaded(load([*translation.overrides(), "trainer.total_training_steps=1", *more]))
    unequal = ("timing_", "perf/")
    return {name: value for name, value in result.metrics.items() if not name.startswith(unequal)}


def test_verl_and_openrlhf_give_one_tree(place):
    left = {key: values for key, values in differing(verl(place), openrlhf(place)).items() if key not in PLACES}
    assert left == {}
