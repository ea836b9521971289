"""The two forms of the LoRA keys, read as one; and where the attention is asked for."""

import pytest

from burnish.config import load
from burnish.config.adapters import adapter_of, attention_of
from burnish.errors import UserError

MODEL = "actor_rollout_ref.model"


def model(*overrides):
    return load([f"{MODEL}.{text}" for text in overrides], check=False).cfg.actor_rollout_ref.model


def adapter(*overrides):
    return adapter_of(model(*overrides), MODEL)


def test_without_a_rank_there_is_none():
    assert adapter() is None
    assert adapter("lora_alpha=8", "lora.type=dora") is None


def test_both_forms_ask_for_the_same():
    flat = adapter("lora_rank=8", "lora_alpha=4", "lora_dropout=0.1", "target_modules=[q_proj]")
    assert flat == adapter("lora.rank=8", "lora.alpha=4", "lora.dropout=0.1", "lora.target_modules=[q_proj]")
    assert (flat.rank, flat.alpha, flat.dropout, flat.target_modules) == (8, 4, 0.1, ["q_proj"])


def test_each_form_has_its_own_default_alpha():
    assert adapter("lora_rank=8").alpha == 16
    assert adapter("lora.rank=8").alpha == 32
    assert adapter("lora.rank=8", "lora_alpha=4").alpha == 4
    assert adapter("lora_rank=8").target_modules == adapter("lora.rank=8").target_modules == "all-linear"


def test_an_adapter_to_start_from_is_enough():
    assert adapter("lora_adapter_path=folder").adapter_path == "folder"
    assert adapter("lora.adapter_path=folder").adapter_path == "folder"


def test_megatron_names_are_translated():
    found = adapter("lora.rank=4", "lora.target_modules=[linear_qkv,linear_fc2,gate_proj]").target_modules
    assert found == ["q_proj", "k_proj", "v_proj", "down_proj", "gate_proj"]
    assert adapter("lora_rank=4", "target_modules=linear_proj").target_modules == ["o_proj"]
    assert adapter("lora_rank=4", "exclude_modules=[linear_fc1]").exclude_modules == ["gate_proj", "up_proj"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("lora_rank=4", "lora.rank=8"), "the same setting"),
        (("lora_rank=4", "lora_alpha=8", "lora.alpha=9"), "the same setting"),
        (("lora.rank=4", "lora.target_modules=[linear_in_proj]"), "no counterpart"),
        (("lora.rank=4", "lora.lora_A_init_method=uniform"), "libraries disagree"),
        (("lora.rank=4", "lora.lora_A_init_method=zero"), "never get a gradient"),
    ],
)
def test_contradicting_lora_keys_are_refused(overrides, words):
    with pytest.raises(UserError, match=words) as caught:
        adapter(*overrides)
    assert caught.value.key.startswith(MODEL)
    given = [f"{MODEL}.path=m", "trainer.device=cpu", *(f"{MODEL}.{text}" for text in overrides)]
    with pytest.raises(UserError, match=words):
        load(given, given=["data.train_files"])


def test_which_key_sets_the_attention():
    assert attention_of(model(), MODEL)[0] is None
    assert attention_of(model("attn_implementation=eager"), MODEL)[0] == "eager"
    flat, nested = "+override_config.attn_implementation", "+override_config.model_config.attn_implementation"
    for key in (flat, nested):
        cfg = load([f"+{MODEL}.{key[1:]}=eager"], check=False).cfg.actor_rollout_ref.model
        assert attention_of(cfg, MODEL)[0] == "eager"
        cfg.attn_implementation = "sdpa"
        with pytest.raises(UserError, match="have different values"):
            attention_of(cfg, MODEL)


def test_only_a_critic_that_is_trained_is_checked():
    overrides = [f"{MODEL}.path=m", "trainer.device=cpu", "critic.model.load_in_4bit=true"]
    assert load([*overrides, "algorithm.adv_estimator=grpo"], given=["data.train_files"]).cfg
    with pytest.raises(UserError, match="without LoRA adapters"):
        load([*overrides, "algorithm.adv_estimator=gae"], given=["data.train_files"])


@pytest.mark.parametrize("modules", ["5", "true", "[q_proj,7]", "{a:b}"])
def test_names_of_modules_are_text(modules):
    with pytest.raises(UserError, match="not a module name"):
        load(
            [f"{MODEL}.path=m", f"{MODEL}.lora_rank=8", f"{MODEL}.exclude_modules={modules}"],
            given=["data.train_files"],
        )
