"""A translated OpenRLHF command trains."""

import json

from burnish.demo.tiny import make_model, make_tokenizer
from burnish.dialects.translate import translate_command
from burnish.loop.api import train

REWARD = """
def reward_func(queries, prompts, labels, **kwargs):
    rewards = [float(query.startswith(prompt) and len(query) % 2) for query, prompt in zip(queries, prompts)]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"asked": [1.0] * len(queries)}}
"""


def test_grpo_command_trains_and_exports_its_model(tmp_path):
    make_model(tmp_path / "model", make_tokenizer("0123456789+="), hidden=16, layers=2, seed=0)
    rows = [{"q": f"{i}+{i}=", "a": str(2 * i)} for i in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.py").write_text(REWARD)
    command = (
        f"python3 -m openrlhf.cli.train_ppo_ray --pretrain {tmp_path}/model --prompt_data {tmp_path}/data.jsonl"
        f" --remote_rm_url {tmp_path}/reward.py --input_key q --label_key a --prompt_max_len 16 --generate_max_len 6"
        " --advantage_estimator group_norm --n_samples_per_prompt 4 --rollout_batch_size 4 --train_batch_size 16"
        " --use_kl_loss --kl_estimator k3 --actor_num_gpus_per_node 1 --ref_num_gpus_per_node 1"
        f" --save_path {tmp_path}/out --ckpt_path {tmp_path}/run"
    )
    translation = translate_command(command.split())
    assert translation.exit_status == 0
    result = train([*translation.overrides(), "trainer.device=cpu", "reward.num_workers=0"])
    assert result.step == 1
    assert result.metrics["actor/lr"] == 1e-6
    assert result.metrics["actor/kl_loss"] == 0
    assert (tmp_path / "out" / "model.safetensors").exists()
