"""Router replay needs choices that somebody records."""

import pytest
import torch

from burnish.errors import UserError
from burnish.loop.build_engine import check_engine_of

from .test_megatron import ACTOR, loaded, refused

MODE = f"{ACTOR}.router_replay.mode"
RECORD = "actor_rollout_ref.rollout.enable_rollout_routing_replay"


def test_the_engines_choices_have_to_be_recorded():
    assert refused(f"{MODE}=R3")[MODE].hint == f"{RECORD}=true"
    assert loaded(f"{MODE}=R3", f"{RECORD}=true").cfg.actor_rollout_ref.actor.router_replay.mode == "R3"
    assert loaded(f"{MODE}=R2").cfg.actor_rollout_ref.actor.router_replay.mode == "R2"


def test_the_trainers_choices_need_its_pass_over_old_log_probs():
    bypass = "algorithm.rollout_correction.bypass_mode=true"
    assert "old log-probs" in refused(f"{MODE}=R2", bypass)[MODE].problem
    assert loaded(f"{MODE}=R3", f"{RECORD}=true", bypass).cfg.algorithm.rollout_correction.bypass_mode


def test_verls_name_in_the_megatron_section_is_the_same_key():
    assert loaded(f"{ACTOR}.megatron.router_replay.mode=R2").cfg.actor_rollout_ref.actor.router_replay.mode == "R2"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_engines_whose_choices_are_not_read_are_refused_by_name(name):
    rollout = loaded(f"{RECORD}=true", f"actor_rollout_ref.rollout.name={name}").cfg.actor_rollout_ref.rollout
    with pytest.raises(UserError, match=f"rollout.name={name}") as error:
        check_engine_of(rollout, torch.device("cpu"))
    assert (error.value.key, error.value.hint) == (RECORD, "actor_rollout_ref.rollout.name=builtin")


def test_files_of_choices_have_no_effect():
    notices = loaded(f"{ACTOR}.router_replay.record_file=choices.pt").notices
    assert any("record_file" in line and "travel with the batch" in line for line in notices)
