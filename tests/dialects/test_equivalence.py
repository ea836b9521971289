"""One GRPO run as a verl, OpenRLHF and MindSpeed RL command: the same config, and a bit-identical first step.

The data are the same in three formats. Random numbers are keyed by the fingerprint of the data file, so the tests give
the three files the same fingerprint.
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
from burnish.dialects.report import Translation
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.loop.api import train_loaded
from tests.data.packed import write_field

PROMPTS = [f"{n}1" for n in range(8)]

# Scores so large that the epsilon added to the group's std (1e-6 or 1e-9) vanishes in float32.
REWARD = """

def reward_func(queries, prompts, labels):
    texts = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    scores = [1000.0 * (text.count("1") % 2) for text in texts]
    return {"rewards": scores, "scores": scores, "extra_logs": {}}
"""
SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1000.0 * (solution_str.count("1") % 2)
"""

# Behavior of OpenRLHF without flags, as Burnish keys for verl's command.
IMPLICIT = (
    "algorithm.kl_order=after algorithm.reward_clip_range=[-10.0,10.0] algorithm.group_std_epsilon=1e-9"
    " actor_rollout_ref.actor.optim.lr_step_unit=update reward.timeout=180 reward.on_error=stop"
)
# Keys that differ by construction: folders and names, data, rewards.
NAMES = ("trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.default_local_dir")
COLUMNS = ("data.train_files", "data.prompt_key", "data.label_key", "data.additional_keys")
REWARDS = ("custom_reward_function.path", "reward.remote_url", "reward.verifiers", "reward.verifier_weights")
EXPECTED_KEYS = {*NAMES, *COLUMNS, *REWARDS, "trainer.export_dir"}


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
    texts = [tokenizer.apply_chat_template(row["input"], add_generation_prompt=True, tokenize=False) for row in rows]
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    write_field(folder / "data", "input_ids", encoded)
    write_field(folder / "data", "attention_mask", [[1] * len(ids) for ids in encoded])
    write_field(folder / "data", "labels", [tokenizer(text)["input_ids"] for text in PROMPTS])
    (folder / "reward.py").write_text(REWARD)
    (folder / "score.py").write_text(SCORE)
    return folder


def verl(place: Path) -> Translation:
    return translate_command(
        shlex.split(
            "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=1 trainer.seed=42"
            f" data.train_files={place}/rows.parquet data.val_files=[] data.train_batch_size=4"
            " data.max_prompt_length=32 data.max_response_length=8 data.truncation=left data.return_raw_chat=True"
            " data.trust_remote_code=True"
            f" actor_rollout_ref.model.path={place}/model actor_rollout_ref.model.trust_remote_code=True"
            " actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.rollout.n=2"
            " actor_rollout_ref.rollout.name=builtin actor_rollout_ref.rollout.tensor_model_parallel_size=1"
            " actor_rollout_ref.rollout.enable_prefix_caching=False actor_rollout_ref.rollout.enforce_eager=null"
            " actor_rollout_ref.model.fused_kernel_options.impl_backend=triton"
            " actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
            " actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
            " actor_rollout_ref.actor.clip_ratio_low=null actor_rollout_ref.actor.clip_ratio_high=null"
            " actor_rollout_ref.actor.clip_ratio_c=null"
            " actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.optim.weight_decay=0"
            " actor_rollout_ref.actor.optim.betas=[0.9,0.95]"
            " actor_rollout_ref.actor.data_loader_seed=null critic.data_loader_seed=null"
            " actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=null"
            f" custom_reward_function.path={place}/score.py trainer.total_epochs=1 trainer.logger=[console]"
            " trainer.resume_mode=disable trainer.max_actor_ckpt_to_keep=3 trainer.device=auto"
            f" {IMPLICIT}"
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


def mindspeed(place: Path) -> Translation:
    config = {
        "megatron_training": {
            "stage": "ray_grpo",
            "global_batch_size": 4,
            "train_iters": 2,
            "seq_length": 32,
            "data_path": f"{place}/data",
            "dataset_additional_keys": ["labels"],
            "tokenizer_name_or_path": f"{place}/model",
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "seed": 42,
        },
        "actor_config": {
            "micro_batch_size": 8,
            "lr": 1e-3,
            "lr_decay_style": "constant",
            "weight_decay": 0.0,
            "adam_beta2": 0.95,
            "finetune": True,
        },
        "rl_config": {
            "mini_batch_size": 4,
            "n_samples_per_prompt": 2,
            "max_prompt_length": 32,
            "init_kl_coef": 0.0,
            "verifier_function": ["format"],
            "verifier_weight": [1000.0],
            "actor_resource": {"num_npus": 1},
        },
        "generate_config": {
            "infer_tensor_parallel_size": 1,
            "max_model_len": 40,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 8192,
            "trust_remote_code": True,
            "sampling_config": {"max_tokens": 8, "temperature": 1.0, "top_k": -1},
        },
    }
    (place / "grpo.yaml").write_text(yaml.safe_dump(config))
    return translate_yaml(str(place / "grpo.yaml"))


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in tree.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values


def resolved(translation: Translation) -> dict[str, Any]:
    return flat(to_plain(load(translation.overrides(), job=translation.job).cfg))


def differences(first: Translation, second: Translation) -> dict[str, tuple[Any, Any]]:
    a, b = resolved(first), resolved(second)
    return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


def first_step(translation: Translation, folder: Path, *overrides: str) -> dict[str, float]:
    local = [
        f"trainer.default_local_dir={folder}",
        "trainer.logger=[file]",
        "trainer.export_dir=null",
        "reward.num_workers=0",
    ]
    result = train_loaded(load([*translation.overrides(), "trainer.total_training_steps=1", *local, *overrides]))
    not_compared = ("timing_", "perf/")
    return {name: value for name, value in result.metrics.items() if not name.startswith(not_compared)}


@pytest.fixture(scope="module")
def verl_metrics(place, tmp_path_factory) -> dict[str, float]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        same_fingerprints(monkeypatch)
        return first_step(verl(place), tmp_path_factory.mktemp("verl"))


def test_verl_and_openrlhf_give_the_same_config(place):
    remaining = {
        key: values for key, values in differences(verl(place), openrlhf(place)).items() if key not in EXPECTED_KEYS
    }
    assert remaining == {}


def test_verl_and_openrlhf_train_bit_identically(place, verl_metrics, tmp_path, monkeypatch):
    same_fingerprints(monkeypatch)
    assert first_step(openrlhf(place), tmp_path) == verl_metrics
    assert verl_metrics["actor/grad_norm"] > 0 and verl_metrics["critic/score/max"] == 1000.0


# (OpenRLHF, MindSpeed RL) where neither has a key.
EXPECTED_DIFFERENCES = {
    "algorithm.group_std_epsilon": (1e-9, 1e-6),
    "algorithm.kl_order": ("after", "before"),
    "algorithm.reward_clip_range": ([-10.0, 10.0], None),
    "data.filter_overlong_prompts": (False, True),
    "data.truncation": ("left", "error"),
    "reward.on_error": ("stop", "fallback"),
    "reward.timeout": (180.0, 10.0),
    "actor_rollout_ref.rollout.enforce_eager": (None, True),
    "actor_rollout_ref.rollout.max_model_len": (None, 40),  # null means the sum of both lengths
    "trainer.total_epochs": (1, 30),
    "trainer.total_training_steps": (None, 2),  # of one epoch of two steps
    "trainer.max_actor_ckpt_to_keep": (3, None),
}


def test_mindspeed_config_differs_only_as_expected(place):
    remaining = {
        key: values
        for key, values in differences(openrlhf(place), mindspeed(place)).items()
        if key not in EXPECTED_KEYS
    }
    assert remaining == EXPECTED_DIFFERENCES


def test_mindspeed_trains_bit_identically(place, verl_metrics, tmp_path, monkeypatch):
    same_fingerprints(monkeypatch)
    # MindSpeed RL's rewards are rules on text; use the function of the others instead.
    reward = ("reward.verifiers=[]", "reward.verifier_weights=[]", f"custom_reward_function.path={place}/score.py")
    metrics = first_step(mindspeed(place), tmp_path, *reward)
    clipped = {name for name in metrics if name.startswith("critic/rewards/")}  # by OpenRLHF's reward_clip_range
    assert {name for name in metrics if metrics[name] != verl_metrics[name]} <= clipped
    assert metrics.keys() == verl_metrics.keys() and metrics["actor/grad_norm"] > 0


def same_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the three data files the same fingerprint; their rows are the same."""
    for kind in (ArrowRows, LineRows, IndexedRows):
        monkeypatch.setattr(
            kind, "fingerprint", property(lambda rows: "the rows", lambda rows, value: None), raising=False
        )
