"""Which devices roles may have, who can start them, and what cannot be spread over them."""

import pytest

from burnish.config import load
from burnish.config.ranks import engine_size
from burnish.errors import UserError

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
HYBRID, POOL = "actor_rollout_ref.hybrid_engine", "reward_model.enable_resource_pool"
TWO = "trainer.n_gpus_per_node=2"
APART = (f"{HYBRID}=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1")
JUDGE = ("reward_model.enable=true", "reward_model.model.path=judge")
OWN = (*JUDGE, f"{POOL}=true", "reward_model.nnodes=1", "reward_model.n_gpus_per_node=1")
TRANSPORT = "actor_rollout_ref.rollout.checkpoint_engine.backend"


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        load([*GIVEN, *overrides])
    return caught.value


def notice_text(*overrides):
    return " ".join(load([*GIVEN, *overrides]).notices)


@pytest.mark.parametrize("counted", [(), ("rollout.nnodes=1",), ("rollout.n_gpus_per_node=2",)])
def test_engines_apart_need_devices(counted):
    error = refusal(f"{HYBRID}=false", *counted)
    assert (error.key, error.value) == (HYBRID, False)
    assert "rollout.nnodes=1 rollout.n_gpus_per_node=1" in error.hint


def test_engines_apart_that_have_devices_are_let_through():
    assert "no effect" not in notice_text(*APART)
    assert "no effect" not in notice_text(TWO, *APART)


def test_side_by_side_in_one_process_they_need_none():
    assert f"{HYBRID}=false has no effect here" in notice_text(f"{HYBRID}=false", "async_training.mode=one_step_off")
    assert refusal(f"{HYBRID}=false", "async_training.mode=one_step_off", TWO).key == HYBRID


def test_unused_devices_give_a_notice():
    assert "the engines share the policy's devices" in notice_text("rollout.nnodes=1", "rollout.n_gpus_per_node=1")
    assert "the reward model shares the policy's devices" in notice_text(*JUDGE, "reward_model.n_gpus_per_node=4")


def test_a_reward_model_apart_needs_devices():
    error = refusal(*JUDGE, f"{POOL}=true")
    assert error.key == POOL
    assert load([*GIVEN, *OWN]).cfg.reward_model.enable_resource_pool
    assert "no reward model" in notice_text(f"{POOL}=true")


@pytest.mark.parametrize(
    "nodes", [("trainer.nnodes=2",), (*APART, "rollout.nnodes=2"), (*OWN, "reward_model.nnodes=2")]
)
def test_plain_processes_are_those_of_one_machine(nodes):
    error = refusal("trainer.launcher=processes", *nodes)
    assert (error.key, error.value, error.hint) == ("trainer.launcher", "processes", "trainer.launcher=ray")


def test_machines_of_engines_that_share_devices_do_not_count():
    assert load([*GIVEN, TWO, "trainer.launcher=processes", "rollout.nnodes=2"]).cfg.rollout.nnodes == 2


@pytest.mark.parametrize("apart", [APART, OWN])
def test_torchruns_processes_all_hold_the_same(apart):
    error = refusal("trainer.launcher=torchrun", TWO, *apart)
    assert (error.key, error.hint) == ("trainer.launcher", "trainer.launcher=ray")


@pytest.mark.parametrize("key", ["actor_rollout_ref.model", "critic.model"])
def test_four_bits_are_not_sharded(key):
    four = (f"{key}.load_in_4bit=true", f"{key}.lora_rank=8")
    gpu = "trainer.device=cuda"
    assert load([*GIVEN, gpu, *four])
    error = refusal(gpu, TWO, *four)
    assert error.key == f"{key}.load_in_4bit"
    assert "trainer.n_gpus_per_node=1" in error.hint


def test_transports_of_others_are_refused_and_where_nothing_is_sent_they_cannot_matter():
    assert "NCCL or gloo" in refusal(*APART, f"{TRANSPORT}=nixl").problem
    for name in ("nixl", "nccl"):
        assert "the engines share the policy's devices" in notice_text(f"{TRANSPORT}={name}")


def test_the_newer_name_of_the_bucket_is_an_alias():
    newer = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64"
    assert load([*GIVEN, *APART, newer]).cfg.actor_rollout_ref.rollout.update_weights_bucket_megabytes == 64


TENSOR = "actor_rollout_ref.rollout.tensor_model_parallel_size"
SGLANG = ("actor_rollout_ref.rollout.name=sglang",)
KWARGS = "actor_rollout_ref.rollout.engine_kwargs.sglang"
DP = f"{KWARGS}.enable_dp_attention=true"


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ((TWO, f"{TENSOR}=3"), f"{TENSOR}=2"),
        (("trainer.n_gpus_per_node=8", *APART[:2], "rollout.n_gpus_per_node=1", f"{TENSOR}=2"), f"{TENSOR}=1"),
        ((*SGLANG, TWO, f"{TENSOR}=2", "actor_rollout_ref.rollout.data_parallel_size=2"), f"{TENSOR}=1"),
        ((*SGLANG, TWO, "trainer.nnodes=2", f"{TENSOR}=4"), f"{TENSOR}=2"),  # a server may not
        (
            (*SGLANG, TWO, "actor_rollout_ref.rollout.pipeline_model_parallel_size=4"),
            "actor_rollout_ref.rollout.pipeline_model_parallel_size=1",
        ),
    ],
)
def test_engines_of_several_devices_leave_none_over(overrides, hint):
    error = refusal(*overrides)
    assert error.key == TENSOR and "devices do not divide the" in error.problem and hint in error.hint


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ((TWO, f"{TENSOR}=2"), 2),
        (("trainer.n_gpus_per_node=8", f"{TENSOR}=4"), 4),
        ((f"{TENSOR}=2",), 1),  # one process has one engine
        ((TWO, "trainer.nnodes=2", f"{TENSOR}=4"), 4),  # tensor ranks may be on several nodes
        ((TWO, "actor_rollout_ref.rollout.name=hf", f"{TENSOR}=4"), 1),
        ((*SGLANG, "trainer.n_gpus_per_node=8", f"{TENSOR}=2", "actor_rollout_ref.rollout.data_parallel_size=2"), 4),
        ((*SGLANG, TWO, f"{TENSOR}=4", f"{KWARGS}.base_url=http://127.0.0.1:1"), 1),  # it has devices of its own
        ((*SGLANG, TWO, *(f"actor_rollout_ref.rollout.{n}_parallel_size=2" for n in ("tensor_model", "data")), DP), 2),
    ],
)
def test_how_many_devices_share_an_engine(overrides, size):
    assert engine_size(load([*GIVEN, *overrides]).cfg) == size


def test_a_shared_server_gets_its_weights_as_files():
    key = "actor_rollout_ref.rollout.engine_kwargs.sglang.weight_sync"
    error = refusal(*SGLANG, TWO, f"{TENSOR}=2", f"{key}=tensor")
    assert (error.key, error.hint) == (key, f"{key}=disk")
    load([*GIVEN, *SGLANG, TWO, f"{key}=tensor"])


def test_engines_of_several_ranks_decode_without_graphs():
    assert "without CUDA graphs" in notice_text(
        TWO, f"{TENSOR}=2", "trainer.device=cuda", "actor_rollout_ref.rollout.enforce_eager=true"
    )
    vllm = "actor_rollout_ref.rollout.name=vllm"
    text = notice_text(TWO, vllm, f"{TENSOR}=2", "actor_rollout_ref.rollout.mode=async")
    assert "is a server in any mode" in text


def test_vllm_divides_experts_over_all_ranks_of_an_engine():
    given = ("actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8", f"{TENSOR}=2")
    key = "actor_rollout_ref.rollout.expert_parallel_size"
    load([*GIVEN, *given, f"{key}=2"])
    error = refusal(*given, f"{key}=4")
    assert (error.key, error.allowed, error.hint) == (key, [1, 2], f"{key}=2")


@pytest.mark.parametrize("nodes", ["ray_init.reward_nodes=1", "ray_init.tool_nodes=1"])
def test_nodes_beside_one_training_process_act(nodes):
    """Ray starts them, so the keys of Ray and the launcher act too."""
    settings = ("trainer.launcher=ray", "ray_init.num_cpus=3", "reward.num_workers=1")
    for key in ("trainer.launcher", "ray_init.num_cpus"):
        assert key in notice_text(*settings)
        assert key not in notice_text(*settings, nodes)
