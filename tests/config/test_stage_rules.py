"""Pipeline stages and expert parallelism: which sizes fit, what they do not combine with, and when they do nothing."""

import pytest

from burnish.config import load
from burnish.config.ranks import data_parallel_size, expert_parallel_size, virtual_pipeline_size
from burnish.config.stage_rules import counted_parts, layers_per_stage

from .test_megatron import ACTOR, FOUR, loaded, refused

KEY = f"{ACTOR}.megatron"
FIELDS = f"{KEY}.override_transformer_config"
STAGED = (*FOUR, f"{KEY}.pipeline_model_parallel_size=2")
FIRST, EACH = "num_layers_in_first_pipeline_stage", "num_layer_list"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


def test_stages_divide_the_ranks():
    cfg = loaded(*STAGED).cfg
    assert data_parallel_size(cfg, cfg.actor_rollout_ref.actor) == 2
    error = refused(*FOUR, f"{KEY}.pipeline_model_parallel_size=3")[f"{KEY}.pipeline_model_parallel_size"]
    assert (error.allowed, error.hint) == ([1, 2, 4], f"{KEY}.pipeline_model_parallel_size=2")
    error = refused(*STAGED, f"{KEY}.tensor_model_parallel_size=4")[f"{KEY}.tensor_model_parallel_size"]
    assert "tensor x context x pipeline = 4 x 1 x 2" in error.problem and error.allowed == [1, 2]


@pytest.mark.parametrize(
    ("given", "key", "problem"),
    [
        (f"+{FIELDS}.{FIRST}=0", f"{FIELDS}.{FIRST}", "not a number of layers"),
        (f"+{FIELDS}.{FIRST}=many", f"{FIELDS}.{FIRST}", "not a number of layers"),
        (f"+{FIELDS}.{EACH}='3,x'", f"{FIELDS}.{EACH}", "not a list of numbers"),
        (f"+{FIELDS}.{EACH}=[2,0]", f"{FIELDS}.{EACH}", "not a list of numbers"),
        (
            f"+{FIELDS}.pipeline_model_parallel_layout=Et*2",
            f"{FIELDS}.pipeline_model_parallel_layout",
            "layouts as text",
        ),
        (f"+{FIELDS}.noop_layers=[2]", f"{FIELDS}.noop_layers", "no layers without effect"),
        (f"+{FIELDS}.{EMBEDDING}=maybe", f"{FIELDS}.{EMBEDDING}", "not true or false"),
        (f"{KEY}.pipeline_schedule=zero_bubble", f"{KEY}.pipeline_schedule", ""),
        (
            "actor_rollout_ref.actor.kl_loss_type=full",
            "actor_rollout_ref.ref.megatron.pipeline_model_parallel_size",
            "the exact KL needs equal parallel sizes",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given, key, problem):
    assert problem in refused(*STAGED, "actor_rollout_ref.actor.use_kl_loss=true", given)[key].problem


def test_contradictions_are_refused():
    errors = refused(*STAGED, f"+{FIELDS}.{FIRST}=1", f"+{FIELDS}.{EACH}=[1,3]")
    assert "conflicts with num_layer_list" in errors[f"{FIELDS}.{FIRST}"].problem
    errors = refused(*STAGED, f"+{FIELDS}.{FIRST}=1", f"+{FIELDS}.{EMBEDDING}=true")
    assert "conflicts with num_layers_in_first" in errors[f"{FIELDS}.{EMBEDDING}"].problem
    chunks = f"{KEY}.virtual_pipeline_model_parallel_size=2"
    assert (
        "not interleaved"
        in refused(*STAGED, chunks, f"{KEY}.pipeline_schedule=gpipe")[f"{KEY}.pipeline_schedule"].problem
    )


def test_numbers_of_layers_are_read():
    for written in ("'3,5'", "[3,5]"):
        role = loaded(*STAGED, f"+{FIELDS}.{EACH}={written}").cfg.actor_rollout_ref.actor
        assert layers_per_stage(role) == (None, None, (3, 5))
    role = loaded(*STAGED, f"+{FIELDS}.{FIRST}=3").cfg.actor_rollout_ref.actor
    assert layers_per_stage(role) == (3, None, None)
    role = loaded(*STAGED, f"+{FIELDS}.{LOSS}=true").cfg.actor_rollout_ref.actor
    assert counted_parts(role) == (False, True)


def test_one_stage_has_no_use_for_its_keys():
    made = loaded(*FOUR, f"{KEY}.virtual_pipeline_model_parallel_size=2", f"+{FIELDS}.{FIRST}=3")
    assert virtual_pipeline_size(made.cfg.actor_rollout_ref.actor) == 1
    lines = [line for line in made.notices if "there is only one pipeline stage" in line]
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("more", "allowed"),
    [
        ((), [1, 2, 4]),
        ((f"{KEY}.pipeline_model_parallel_size=2",), [1, 2]),
        (("actor_rollout_ref.actor.fsdp_config.fsdp_size=2",), [1, 2]),
    ],
)
def test_experts_divide_the_ranks_that_share_weights(more, allowed):
    key = f"{KEY}.expert_model_parallel_size"
    error = refused(*FOUR, *more, f"{key}=8")[key]
    assert (error.allowed, error.hint) == (allowed, f"{key}={allowed[-1]}")
    assert loaded(*FOUR, *more, f"{key}=2").cfg.actor_rollout_ref.actor.megatron.expert_model_parallel_size == 2


def test_experts_combine_with_tensor_ranks():
    key, both = f"{KEY}.expert_model_parallel_size", f"{KEY}.tensor_model_parallel_size=2"
    assert loaded(*FOUR, both, f"{key}=2").cfg.actor_rollout_ref.actor.megatron.expert_model_parallel_size == 2
    error = refused(*FOUR, both, f"{key}=4")[key]
    assert (error.allowed, error.hint) == ([1, 2], f"{key}=2")
    whole = f"{KEY}.expert_tensor_parallel_size"
    actor = loaded(*FOUR, both, f"{key}=4", f"{whole}=1").cfg.actor_rollout_ref.actor
    assert expert_parallel_size(actor) == 2  # tensor ranks are among the four that hold different experts
    assert expert_parallel_size(loaded(*FOUR, both, f"{key}=1", f"{whole}=1").cfg.actor_rollout_ref.actor) == 1
    four = (*FOUR, f"{KEY}.tensor_model_parallel_size=4")
    assert "cannot be divided into groups of the 4" in refused(*four, f"{key}=3", f"{whole}=1")[whole].problem


def test_without_megatron_the_sizes_do_nothing():
    made = load([f"{KEY}.pipeline_model_parallel_size=2", "data.train_files=x", "actor_rollout_ref.model.path=x"])
    assert any("pipeline_model_parallel_size=2 has no effect here" in line for line in made.notices)


def test_ranks_recompute_layers_one_by_one():
    grouped = ("actor_rollout_ref.model.recompute.method=uniform", "actor_rollout_ref.model.recompute.num_layers=2")
    key = "actor_rollout_ref.model.recompute.num_layers"
    assert "layer by layer" in refused(*FOUR, *grouped)[key].problem
    assert loaded(*grouped).cfg.actor_rollout_ref.model.recompute.num_layers == 2
