"""`strategy: megatron` from the command line: ranks change no number, and their checkpoint suits one process."""

import json

import pytest

STAGES = "megatron.pipeline_model_parallel_size=2"
LAYOUTS = {
    "tensor": ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",),
    "stages": (f"actor_rollout_ref.actor.{STAGES}", f"actor_rollout_ref.ref.{STAGES}"),
}
MEGATRON = (
    "actor_rollout_ref.actor.strategy=megatron",
    "actor_rollout_ref.actor.optim.lr_decay_style=linear",
    "actor_rollout_ref.actor.optim.lr_decay_steps=8",
    "trainer.device=cpu",
    "trainer.save_freq=2",
)


def numbers(folder):
    """Of each step, but for what takes time and what compares roundings."""
    noise = ("timing", "perf", "engine", "training/rollout_probs", "rollout_corr")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line["data"].items() if not name.startswith(noise) and value is not None}
        for line in lines
    ]


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_then_one_process(spawn, verl_command, tmp_path, layout):
    def run(folder, *more):
        process = spawn(verl_command(folder, *MEGATRON, *more))
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed
        return printed

    run(tmp_path / "alone", "trainer.total_training_steps=4")
    spread = tmp_path / "spread"
    ranks = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes", *LAYOUTS[layout])
    assert "2 x cpu for policy, reference, engine" in run(spread, *ranks, "trainer.total_training_steps=2")
    run(spread, "trainer.total_training_steps=4")
    expected, found = numbers(tmp_path / "alone"), numbers(spread)
    assert len(expected) == 5
    final = {line["training/global_step"]: line for line in found if "training/global_step" in line}
    for line in expected:
        if "training/global_step" in line:
            other = final[line["training/global_step"]]
            shared = line.keys() & other.keys()
            assert "actor/grad_norm" in shared
            assert {name: other[name] for name in shared} == pytest.approx(
                {name: line[name] for name in shared}, rel=1e-3, abs=1e-5
            )
