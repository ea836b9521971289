"""How ranks will share sequences is said, or refused, from the models' configs alone."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.config.ranks import engine_size
from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError
from burnish.loop.build_vision import engines_for_pictures
from burnish.loop.roles import policy_source
from burnish.loop.sharing import check_sharing, engine_notices
from burnish.models.load import load_tokenizer

from ..reward_models import make_reward_model

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
SIZE = "ulysses_sequence_parallel_size"


@pytest.fixture
def said(tiny_folder):
    """said(*overrides): what is said of a run of twelve ranks whose models have four heads."""

    def check(*overrides):
        models = [f"{section}.path={tiny_folder}" for section in ("actor_rollout_ref.model", "critic.model")]
        cfg = load([*models, "trainer.n_gpus_per_node=12", *overrides], check=False).cfg
        return check_sharing(cfg, policy_source(cfg))

    return check


def test_one_rank_for_a_sequence_needs_no_words(said):
    assert said() == []


def test_every_role_says_its_own(said, tmp_path, tiny_folder):
    judge = make_reward_model(
        tmp_path / "judge", load_tokenizer(tiny_folder, key="actor_rollout_ref.model.path")
    )  # of two heads
    lines = said(
        f"{ACTOR}.{SIZE}=2",
        f"{ACTOR}.use_kl_loss=true",
        f"{REF}.{SIZE}=4",
        f"critic.{SIZE}=3",
        "reward_model.enable=true",
        f"reward_model.model.path={judge}",
        f"reward_model.{SIZE}=2",
    )
    assert lines == [
        f"{ACTOR}.{SIZE}=2: Ulysses, 2 of 4 heads on each rank.",
        f"{REF}.{SIZE}=4: Ulysses, 1 of 4 heads on each rank, the 2 KV heads repeated 2 times.",
        f"critic.{SIZE}=3: ring attention, because 4 heads are not divisible by 3 ranks.",
        f"reward_model.{SIZE}=2: Ulysses, 1 of 2 heads on each rank.",
    ]


def test_what_neither_way_serves_is_refused(said):
    dropout = "actor_rollout_ref.model.override_config={attention_dropout:0.1}"
    assert len(said(dropout, f"{ACTOR}.{SIZE}=4")) == 1
    with pytest.raises(UserError, match=f"{ACTOR}.{SIZE}=3: 4 heads") as refused:
        said(dropout, f"{ACTOR}.{SIZE}=3")
    assert (refused.value.allowed, refused.value.hint) == ([1, 2, 4], f"{ACTOR}.{SIZE}=2")


def test_megatrons_name_is_named(said):
    (line,) = said(f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.context_parallel_size=2", "critic.enable=false")
    assert line.startswith(f"{ACTOR}.megatron.context_parallel_size=2: Ulysses")


TENSOR, NAME = "actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.name"


def test_how_ranks_share_engines(said):
    def notices(*overrides):
        return engine_notices(load(["trainer.n_gpus_per_node=12", *overrides], check=False).cfg)

    assert notices() == notices(f"{NAME}=hf", f"{TENSOR}=2") == []
    assert notices(f"{TENSOR}=2") == ["each builtin engine uses 2 devices"]
    assert notices(f"{TENSOR}=3", f"{NAME}=vllm") == ["each vllm engine uses 3 devices, and runs as a server"]
    with pytest.raises(UserError, match=f"{TENSOR}=3: the model's 4 attention heads"):
        said(f"{TENSOR}=3")


def test_vllm_is_no_server_for_rows_with_images(tmp_path, monkeypatch):
    """Every device has an engine."""
    monkeypatch.setattr("burnish.loop.build_vision.check_engine_of", lambda *given: None)  # vLLM is not installed
    make_vision_model(tmp_path, "qwen2_vl")
    words = [f"actor_rollout_ref.model.path={tmp_path}", f"{NAME}=vllm", "trainer.n_gpus_per_node=4"]
    for sizes in ([f"{TENSOR}=2"], ["actor_rollout_ref.rollout.mode=async"]):
        cfg = load([*words, *sizes], check=False).cfg
        changed, (notice,) = engines_for_pictures(cfg, policy_source(cfg), torch.device("cpu"))
        assert engine_size(changed) == 1 and changed.actor_rollout_ref.rollout.mode == "sync"
        assert "a vLLM server takes no images" in notice and engine_notices(changed) == []
        assert engines_for_pictures(changed, policy_source(changed), torch.device("cpu")) == (changed, [])
    cfg = load([*words, "actor_rollout_ref.rollout.engine_kwargs.vllm.base_url=http://localhost:1"], check=False).cfg
    with pytest.raises(UserError, match="vLLM takes images in this process only"):
        engines_for_pictures(cfg, policy_source(cfg), torch.device("cpu"))
