"""A valid command passes and reports its changes; every mistake is found and named."""

from __future__ import annotations

import json

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse
from burnish.rehearsal.report import BROKEN, PASSED, REFUSED, UNSUPPORTED


def breaking(report):
    return [finding.text for finding in report.findings if finding.breaks]


def test_a_valid_command_passes_and_reports_its_changes(rehearsed):
    report = rehearsed()
    assert report.exit_status == PASSED, breaking(report)
    assert any("tiny qwen2" in line for line in report.stand_ins)
    assert any("synthetic rows (data source openai/gsm8k)" in line for line in report.stand_ins)
    assert "data.train_batch_size: 64 -> 4 (divided by 16)" in report.scaled
    assert "actor_rollout_ref.actor.ppo_mini_batch_size: 16 -> 1 (divided by 16)" in report.scaled
    assert any("one process instead of all ranks" in line and "n_gpus_per_node=8" in line for line in report.folded)
    assert any("built-in engine (actor_rollout_ref.rollout.name=vllm)" in line for line in report.folded)
    assert any("nothing leaves this machine" in line for line in report.folded)
    assert "the configured engine" in report.not_tested
    assert json.loads(json.dumps(report.to_json()))["passed"] is True


def test_separate_resource_pools_and_a_missing_reward_file(rehearsed):
    engines = {"actor_rollout_ref__hybrid_engine": "false", "rollout__nnodes": 2, "rollout__n_gpus_per_node": 8}
    transport = {"actor_rollout_ref__rollout__checkpoint_engine__backend": "nccl"}
    reward = {"custom_reward_function__path": "/elsewhere/reward.py"}
    report = rehearsed(trainer__nnodes=2, **engines, **transport, **reward)
    assert report.passed, breaking(report)
    (line,) = [line for line in report.folded if "one process instead of all ranks" in line]
    assert "actor_rollout_ref.hybrid_engine=false" in line and "rollout.n_gpus_per_node=8" in line
    assert any("/elsewhere/reward.py is not on this machine" in line for line in report.stand_ins)
    assert "the reward function" in report.not_tested


def test_a_function_of_trl_needs_the_columns_of_the_data(rehearsed, gsm8k, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(completions, solution, **kwargs):\n    return [1.0 for _ in completions]\n")
    synthetic = rehearsed(custom_reward_function__path=reward)
    assert synthetic.passed, breaking(synthetic)
    assert any("reads columns of the data, and the rows are synthetic" in line for line in synthetic.stand_ins)
    (text,) = breaking(rehearsed(data__train_files=gsm8k(), custom_reward_function__path=reward))
    assert "requires 'solution', which is no column of the data" in text


def test_a_missing_column_is_named(rehearsed, gsm8k):
    report = rehearsed(data__train_files=gsm8k(), data__prompt_key="question")
    assert report.exit_status == BROKEN
    assert any("question" in text and "prompt" in text for text in breaking(report))


def test_several_mistakes_are_reported_together(rehearsed, gsm8k):
    report = rehearsed(data__train_files=gsm8k(count=20), actor_rollout_ref__actor__ppo_mini_batch_size=128)
    assert any("the files have 20 rows" in text for text in breaking(report))
    assert any("ppo_mini_batch_size=128" in text and "more than the 64 prompts" in text for text in report.refused)


def test_a_reward_that_raises_on_every_sample(rehearsed, gsm8k, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return answer\n")
    report = rehearsed(data__train_files=gsm8k(), custom_reward_function__path=reward)
    assert report.exit_status == BROKEN
    (text,) = breaking(report)
    assert "on every response" in text and "name 'answer' is not defined" in text and "reward.py" in text


def test_real_rows_and_a_reward_that_fails_on_some_of_them(rehearsed, gsm8k, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return 1.0 / (extra_info['index'] % 2)\n"
    )
    path = gsm8k()
    report = rehearsed(data__train_files=path, data__shuffle=False, custom_reward_function__path=reward)
    assert report.passed, breaking(report)
    assert f"data.train_files {path}: the first 32 of many rows" in report.stand_ins
    (finding,) = report.findings
    assert finding.where == "reward" and "4 responses, not on all" in finding.text and "ZeroDivision" in finding.text


def test_a_template_that_fails(rehearsed, gsm8k, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ raise_exception('only two roles') }}")
    report = rehearsed(data__train_files=gsm8k(), **{"++actor_rollout_ref__model__custom_chat_template": template})
    assert report.exit_status == BROKEN
    assert any("chat template failed" in text and "only two roles" in text for text in breaking(report))


def test_batch_arithmetic_is_checked_before_scaling(rehearsed):
    report = rehearsed(actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=5)
    (text,) = report.refused
    assert report.exit_status == REFUSED and not breaking(report)
    assert "ppo_micro_batch_size_per_gpu=5" in text and "on 8 rank(s) are 16 responses" in text


def test_an_unknown_estimator(rehearsed):
    report = rehearsed(algorithm__adv_estimator="gpro")
    assert not report.passed
    assert any("grpo" in text and "gpro" in text for text in [*report.refused, *breaking(report)])


def test_an_unreadable_file_is_named(rehearsed, tmp_path):
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"no parquet")
    report = rehearsed(data__train_files=path)
    assert any("cannot read the file" in text and "broken.parquet" in text for text in breaking(report))


def test_group_filters_get_a_stand_in_score(rehearsed):
    keys = {"+algorithm__filter_groups__enable": True, "+algorithm__filter_groups__metric": "acc"}
    report = rehearsed(**keys, reward_model__reward_manager="dapo")
    assert report.passed, breaking(report)
    assert any("groups of equal scores" in line for line in report.stand_ins)


def test_errors_use_the_users_names():
    from burnish.dialects.report import CONVERTED, Item, Translation

    translation = Translation("openrlhf", "train")
    settings = {
        "actor_rollout_ref.model.path": ("--pretrain", "Qwen/Qwen2.5-7B"),
        "data.train_files": ("--prompt_data", ["dapo-math-17k"]),
        "data.train_batch_size": ("--rollout_batch_size", 16),
        "actor_rollout_ref.actor.ppo_mini_batch_size": ("--train_batch_size", 32),
    }
    for ours, (theirs, value) in settings.items():
        translation.add(Item(theirs, value, CONVERTED, ours, value))
    report = rehearse(translation)
    (text,) = breaking(report)
    assert text.startswith("--train_batch_size 32: more than the 16 prompts of a step (--rollout_batch_size)")


def test_two_steps_without_an_unsupported_key(rehearsed, tmp_path, pending_key):
    report = rehearsed(steps=2, folder=tmp_path, **{pending_key.replace(".", "__"): 5})
    assert report.exit_status == UNSUPPORTED and not breaking(report)
    assert any(f"{pending_key}=5" in line for line in report.unsupported)
    assert any(pending_key in line for line in report.dropped)
    assert any("MoE options" in line and "its keys were dropped" in line for line in report.not_tested)
    dumps = sorted(path.name for path in (tmp_path / "run" / "default_local_dir" / "rollouts").glob("*.jsonl"))
    assert dumps == ["1.jsonl", "2.jsonl"]


def test_supervised_training_is_rehearsed():
    command = (
        "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer data.train_files=/x/gsm8k/train.parquet"
        " data.val_files=/x/gsm8k/test.parquet data.prompt_key=extra_info data.response_key=extra_info"
        " data.prompt_dict_keys=[question] data.response_dict_keys=[answer] data.micro_batch_size_per_gpu=4"
        " model.partial_pretrain=google/gemma-2b-it trainer.logger=[console]"
    )
    report = rehearse(translate_command(command.split()))
    assert report.exit_status == PASSED and not breaking(report), [report.refused, report.findings]
    assert not report.unsupported
    assert any("tiny gemma" in line for line in report.stand_ins)
