import json
import shlex
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from burnish.cli.main import main
from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.loop.state import RESUME_MODES, resume

GRPO = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=true")
PPO = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=50",
    "critic.optim.lr=1e-3",
    "trainer.critic_warmup=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.shuffle=true",
)
FOUR_STEPS = (
    "trainer.total_training_steps=4",
    "trainer.logger=[file]",
    "trainer.test_freq=2",
    "actor_rollout_ref.actor.optim.warmup_style=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
)


def optimizer_state(role):
    optimizer = role.optimizer
    moments = [state[name] for state in optimizer.inner.state.values() for name in ("step", "exp_avg", "exp_avg_sq")]
    return (optimizer.steps, optimizer.updates, optimizer.skipped, optimizer.lr), moments


def assert_same_role(one, other, weights, equal):
    assert equal(weights(one), weights(other))
    (counters, moments), (other_counters, other_moments) = optimizer_state(one), optimizer_state(other)
    assert counters == other_counters
    assert all(torch.equal(a, b) for a, b in zip(moments, other_moments, strict=True))


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_two_steps_and_two_more_are_four(
    make_run, rows, ctrl_c_at, weights, equal, metric_lines, rollouts, tmp_path, algorithm
):
    """Weights, optimizers, KL controller, numbers and responses, to the last bit."""
    whole = make_run(*algorithm, *FOUR_STEPS, out="whole", val_dataset=rows(3))
    fit(whole)
    first = make_run(*algorithm, *FOUR_STEPS, out="halves", val_dataset=rows(3), reward=ctrl_c_at(5 + 3 + 8))
    assert fit(first).interrupted and first.step == 2
    first.close()
    torch.manual_seed(99)  # a new process starts with other global random numbers
    second = make_run(*algorithm, *FOUR_STEPS, out="halves", val_dataset=rows(3))
    assert second.step == 2
    fit(second)

    assert_same_role(second.learner.policy, whole.learner.policy, weights, equal)
    assert (second.learner.critic is None) == (whole.learner.critic is None)
    if whole.learner.critic is not None:
        assert_same_role(second.learner.critic, whole.learner.critic, weights, equal)
    assert second.learner.kl.value == whole.learner.kl.value
    assert second.rollout.sampler.state_dict() == whole.rollout.sampler.state_dict()
    assert metric_lines(tmp_path / "halves") == metric_lines(tmp_path / "whole")
    assert [step for step, _ in metric_lines(tmp_path / "whole")] == [0, 1, 2, 3, 4]
    assert rollouts(tmp_path / "halves") == rollouts(tmp_path / "whole")


def test_the_adaptive_controller_moves_in_that_run(make_run):
    run = make_run(*PPO, "trainer.total_training_steps=2")
    fit(run)
    assert run.learner.kl.value != run.learner.algorithm.kl_ctrl.kl_coef


def test_saving_more_often_changes_no_weight(make_run, weights, equal):
    one, other = make_run(*PPO, out="one"), make_run(*PPO, "trainer.save_freq=1", out="other")
    fit(one)
    fit(other)
    assert equal(weights(one.learner.policy), weights(other.learner.policy)) and equal(
        weights(one.learner.critic), weights(other.learner.critic)
    )


def test_a_checkpoint_knows_where_the_run_stands(launch, tmp_path):
    launch("trainer.save_freq=2", "trainer.seed=5")
    state = json.loads((tmp_path / "run" / "global_step_2" / "trainer.json").read_text())
    assert state["step"] == 2 and state["seed"] == 5
    assert state["sampler"] == {"epoch": 0, "offset": 8, "num_rows": 12, "shuffle": True, "seed": 5}
    assert state["kl"] == {"value": 0.001}


def test_auto_resumes_from_the_newest(launch, make_run):
    launch("trainer.save_freq=1")
    run = make_run("trainer.save_freq=1")
    assert run.step == run.recorder.saved_step == 2
    assert run.recorder.notices == [f"resumed from {run.recorder.checkpoints.path(2)}"]


def test_auto_without_a_checkpoint_starts(make_run):
    run = make_run()
    assert run.step == 0 and run.recorder.notices == []


def test_auto_passes_over_a_damaged_checkpoint_and_names_it(launch, make_run, tmp_path):
    launch("trainer.save_freq=1")
    (tmp_path / "run" / "global_step_2" / "actor" / "extra.json").write_text("{}")
    run = make_run("trainer.save_freq=1")
    assert run.step == 1
    assert "global_step_2 is damaged (actor/extra.json has changed)" in run.recorder.notices[0]
    assert run.recorder.notices[1].endswith("global_step_1")


def test_disable_starts_anew(launch, make_run):
    launch("trainer.save_freq=1")
    assert make_run("trainer.resume_mode=disable").step == 0


def test_auto_resumes_from_the_newest_start_in_a_folder(launch, make_run):
    launch("trainer.save_freq=1", "trainer.total_training_steps=4")
    launch("trainer.save_freq=1", "trainer.total_training_steps=2", "trainer.resume_mode=disable")
    assert make_run().step == 2


def test_a_path_is_taken_as_named(launch, make_run, tmp_path):
    launch("trainer.save_freq=1")
    path = tmp_path / "run" / "global_step_1"
    run = make_run("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}", out="elsewhere")
    assert run.step == 1


def damage_it(folder):
    (folder / "trainer.json").write_text("{}")


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [("global_step_9", None, "no such folder"), ("global_step_1", damage_it, "trainer.json has changed")],
)
def test_a_path_that_is_no_good_stops_the_run(launch, make_run, tmp_path, name, harm, said):
    launch("trainer.save_freq=1")
    path = tmp_path / "run" / name
    if harm is not None:
        harm(path)
    with pytest.raises(UserError, match=said) as caught:
        make_run("trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}")
    assert caught.value.key == "trainer.resume_from_path" and caught.value.value == str(path)


def test_other_data_than_the_checkpoints_is_refused(launch, make_run, rows):
    launch("trainer.save_freq=1")
    with pytest.raises(UserError, match=r"data\.train_files: passed in Python"):
        make_run(dataset=rows(9))
    with pytest.raises(UserError, match="number of training prompts"):
        make_run("trainer.resume_changes=accept", dataset=rows(9))


def test_load_contents_of_each_role(launch, make_run):
    launch("trainer.save_freq=1", "algorithm.adv_estimator=gae", "critic.checkpoint.save_contents=[model]")
    with pytest.raises(UserError) as caught:
        make_run("algorithm.adv_estimator=gae")
    assert caught.value.key == "critic.checkpoint.load_contents"
    run = make_run(
        "algorithm.adv_estimator=gae",
        "critic.checkpoint.load_contents=[model]",
        "actor_rollout_ref.actor.checkpoint.load_contents=[model]",
    )
    assert run.step == 2 and run.learner.policy.optimizer.updates == run.learner.critic.optimizer.updates == 0


def test_a_critic_that_was_never_saved_is_missed(launch, make_run):
    launch("trainer.save_freq=1")
    with pytest.raises(UserError, match="has no critic"):
        make_run("algorithm.adv_estimator=gae", "trainer.resume_changes=accept")


def test_resuming_reads_the_mode_from_its_table(make_run):
    assert RESUME_MODES.names() == ["disable", "auto", "resume_path"]
    run = make_run()
    resume(run)
    assert run.step == 0


RESUME = "trainer.resume_mode=resume_path"
GAE = "algorithm.adv_estimator=gae"


@pytest.fixture
def verl_checkpoint(launch, tmp_path):
    """A checkpoint of a trained policy and critic as verl leaves one: Hugging Face folders, and none of our files."""
    hub = "checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    launch("trainer.save_freq=2", GAE, f"actor_rollout_ref.actor.{hub}", f"critic.{hub}", out="theirs")
    ours, theirs = tmp_path / "theirs" / "global_step_2", tmp_path / "verl" / "global_step_7"
    for role in ("actor", "critic"):
        shutil.copytree(ours / role / "huggingface", theirs / role / "huggingface")
    return theirs


def test_a_verl_checkpoint_gives_its_weights_and_no_more(make_run, verl_checkpoint, weights, equal, tmp_path):
    run = make_run(GAE, RESUME, f"trainer.resume_from_path={verl_checkpoint}")
    trained = make_run(GAE, out="theirs")
    assert trained.step == 2 and equal(weights(run.learner.policy), weights(trained.learner.policy))
    assert equal(weights(run.learner.critic), weights(trained.learner.critic))
    assert run.step == 0 and run.learner.policy.optimizer.updates == run.learner.critic.optimizer.updates == 0
    assert run.rollout.sampler.state_dict()["offset"] == 0
    assert "optimizer, schedule, data and step start anew" in run.recorder.notices[-1]
    assert fit(run).step == 2


def test_missing_critic_weights_are_reported(make_run, verl_checkpoint, weights, equal):
    shutil.rmtree(verl_checkpoint / "critic")
    fresh, run = make_run(GAE, out="fresh"), make_run(GAE, RESUME, f"trainer.resume_from_path={verl_checkpoint}")
    assert equal(weights(run.learner.critic), weights(fresh.learner.critic)) and not equal(
        weights(run.learner.policy), weights(fresh.learner.policy)
    )
    assert "it has no critic weights" in run.recorder.notices[-1]


def test_auto_takes_up_what_verl_left_in_the_run_folder(make_run, verl_checkpoint, weights, equal, tmp_path):
    (tmp_path / "verl" / "latest_checkpointed_iteration.txt").write_text("7")
    run = make_run("trainer.save_freq=1", out="verl")
    assert run.step == 0 and equal(weights(run.learner.policy), weights(make_run(GAE, out="theirs").learner.policy))
    fit(run)
    assert make_run(out="verl").step == 2, "from now on our own are the newest"


def test_an_openrlhf_folder_gives_its_weights(make_run, verl_checkpoint, weights, equal, tmp_path):
    folder = tmp_path / "ckpt" / "global_step7_hf"
    shutil.copytree(verl_checkpoint / "actor" / "huggingface", folder)
    run = make_run(RESUME, f"trainer.resume_from_path={folder}")
    assert equal(weights(run.learner.policy), weights(make_run(GAE, out="theirs").learner.policy)) and run.step == 0


def test_what_must_be_converted_says_how_and_the_conversion_works(make_run, verl_checkpoint, weights, equal, tmp_path):
    """verl's FSDP shards: refused with the command, which gives a folder that is then taken."""
    hub = verl_checkpoint / "actor" / "huggingface"
    whole = load_file(hub / "model.safetensors")
    torch.save(whole, verl_checkpoint / "actor" / "model_world_size_1_rank_0.pt")
    (hub / "model.safetensors").unlink()
    with pytest.raises(UserError, match="burnish export") as caught:
        make_run(RESUME, f"trainer.resume_from_path={verl_checkpoint}")
    words = shlex.split(caught.value.hint.partition(",")[0].replace("NEW_FOLDER", str(tmp_path / "new")))
    assert main(words[1:]) == 0
    run = make_run(RESUME, f"trainer.resume_from_path={tmp_path / 'new'}")
    assert equal(weights(run.learner.policy), weights(make_run(GAE, out="theirs").learner.policy))


def test_weights_of_another_model_are_refused(make_run, verl_checkpoint):
    hub = verl_checkpoint / "actor" / "huggingface"
    whole = load_file(hub / "model.safetensors")
    whole.pop("model.norm.weight")
    save_file(whole, hub / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"its weights are not those of this model .*model\.norm\.weight"):
        make_run(RESUME, f"trainer.resume_from_path={verl_checkpoint}")


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_off(file):
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.long
@pytest.mark.parametrize("harm", [flip_a_bit, cut_off])
def test_a_damaged_file_of_weights_is_named_and_the_checkpoint_before_is_used(launch, make_run, tmp_path, harm):
    launch("trainer.save_freq=1", "trainer.total_training_steps=3")
    shard = next((tmp_path / "run" / "global_step_3" / "actor").glob("*.safetensors"))
    harm(shard)
    run = make_run()
    assert run.step == 2
    assert f"global_step_3 is damaged (actor/{shard.name} has changed)" in run.recorder.notices[0]
    with pytest.raises(UserError, match=f"actor/{shard.name} has changed") as caught:
        make_run(RESUME, f"trainer.resume_from_path={tmp_path / 'run' / 'global_step_3'}")
    assert caught.value.hint == f"trainer.resume_from_path={tmp_path / 'run' / 'global_step_2'}"
