"""Models, configs and tokenizers from a folder, and what is said when they cannot be loaded."""

from __future__ import annotations

import json
import shutil
import sys

import fsspec
import pytest
import torch
from transformers import AutoModelForSequenceClassification, Gemma2Config, Gemma2PreTrainedModel

from burnish.demo.tiny import make_model, make_tokenizer
from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, first_line, load_causal_lm, load_config, load_tokenizer, load_value_model

TINY = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A copy of the tiny model to change."""
    return shutil.copytree(tiny_folder, tmp_path / "model")


def rewrite_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("overrides", [{"attention_dropout": 0.25}, {"model_config": {"attention_dropout": 0.25}}])
def test_overrides_flat_and_nested(tiny_folder, overrides):
    assert load_config(ModelSource(tiny_folder)).attention_dropout == 0.0
    assert load_config(ModelSource(tiny_folder, override_config=overrides)).attention_dropout == 0.25


def test_overrides_reach_the_model(tiny_folder):
    source = ModelSource(tiny_folder, override_config={"num_hidden_layers": 1, "attn_implementation": "eager"})
    model = load_causal_lm(source, PACKED, torch.float32, empty=True)
    assert len(model.model.layers) == 1
    assert model.config._attn_implementation == PACKED


def test_random_weights_depend_on_the_seed_and_not_on_the_dtype(tiny_folder):
    def weights(seed, dtype=torch.float32):
        model = load_causal_lm(ModelSource(tiny_folder, random_seed=seed), PACKED, dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        return {name: tensor.float() for name, tensor in model.state_dict().items()}

    state = torch.random.get_rng_state()
    first, second, other, coarse = weights(1), weights(1), weights(2), weights(1, torch.bfloat16)
    assert torch.equal(state, torch.random.get_rng_state())
    saved = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]) and torch.equal(tensor.bfloat16().float(), coarse[name])
    name = "model.embed_tokens.weight"
    assert not torch.equal(first[name], other[name]) and not torch.equal(first[name], saved.state_dict()[name])
    random = load_causal_lm(ModelSource(tiny_folder, random_seed=1), PACKED, torch.float32)
    assert random.generation_config.eos_token_id == saved.generation_config.eos_token_id


def test_a_cap_of_attention_is_never_left_out(tmp_path, monkeypatch):
    """Versions of transformers that say they can take torch's product, which knows no cap."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    source = ModelSource(str(tmp_path))
    for cap, product in ((2.0, "eager"), (None, "sdpa")):
        config = Gemma2Config(**TINY, attn_logit_softcapping=cap)
        config.save_pretrained(tmp_path)
        model = load_causal_lm(source, None, torch.float32, empty=True)
        assert model.config._attn_implementation == product
        values = load_value_model(source, torch.float32, None, empty=True)
        assert values.config._attn_implementation == product


@pytest.mark.parametrize("overrides", [{"atention_dropout": 0.1}, {"model_config": {"atention_dropout": 0.1}}])
def test_unknown_override(tiny_folder, overrides):
    with pytest.raises(UserError) as caught:
        load_config(ModelSource(tiny_folder, override_config=overrides))
    assert caught.value.key == "actor_rollout_ref.model.override_config.atention_dropout"
    assert caught.value.value == 0.1
    assert {"attention_dropout", "hidden_size"} <= set(caught.value.allowed)


def test_missing_folder_names_the_key(tmp_path):
    with pytest.raises(UserError, match="no such folder") as caught:
        load_config(ModelSource(str(tmp_path / "nothing"), key="critic.model.path"))
    assert caught.value.key == "critic.model.path"
    assert caught.value.value == str(tmp_path / "nothing")


def test_folder_without_config(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json found"):
        load_causal_lm(ModelSource(str(tmp_path)), PACKED, torch.float32)


def test_relative_name_that_is_no_folder_is_a_hub_name():
    """It may be one; without a network the error is still ours."""
    with pytest.raises(
        UserError, match="no such folder here, and as a hub model: cannot load the model's config"
    ) as caught:
        load_config(ModelSource("nobody/no-such-model"))
    assert (caught.value.hint or "").startswith("actor_rollout_ref.model.path=/path/to/a/hugging-face/model")


def test_damaged_config(folder):
    rewrite_config(folder, model_type="no_such_architecture")
    with pytest.raises(UserError, match="cannot load the model's config"):
        load_config(ModelSource(str(folder)))


def test_config_without_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot load the model"):
        load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32)
    load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32, empty=True)  # the engine needs no weights


def test_external_library_is_imported(tiny_folder, tmp_path, monkeypatch):
    (tmp_path / "burnish_test_side_effect.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_config(ModelSource(tiny_folder, external_lib=("burnish_test_side_effect",)))
    assert sys.modules.pop("burnish_test_side_effect").loaded


def test_missing_external_library(tiny_folder):
    with pytest.raises(UserError, match="no_such_library") as caught:
        load_config(ModelSource(tiny_folder, external_lib=("no_such_library",)))
    assert caught.value.key == "actor_rollout_ref.model.external_lib"


def test_dtype_and_empty(tiny_folder):
    source = ModelSource(tiny_folder)
    assert load_causal_lm(source, PACKED, torch.bfloat16).dtype == torch.bfloat16
    full, empty = (load_causal_lm(source, PACKED, torch.float32, empty=e) for e in (False, True))
    assert not torch.equal(full.lm_head.weight, empty.lm_head.weight)
    assert [n for n, _ in full.named_parameters()] == [n for n, _ in empty.named_parameters()]


@pytest.mark.parametrize("nested", [False, True])
def test_rope_that_looks_at_the_whole_batch_is_refused(folder, nested):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    if nested:  # one entry per kind of layer, as Gemma 3 has
        sizes = json.loads((folder / "config.json").read_text())
        parameters = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        (folder / "config.json").write_text(
            json.dumps({**sizes, "model_type": "gemma3_text", "rope_parameters": parameters, "head_dim": 8})
        )
    else:
        rewrite_config(folder, rope_parameters=rope)
    with pytest.raises(UserError, match="'dynamic' depends on the longest sequence"):
        load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32, empty=True)


def test_tokenizer(tiny_folder):
    tokenizer = load_tokenizer(tiny_folder, key="actor_rollout_ref.model.tokenizer_path")
    ids = tokenizer("12+3=")["input_ids"]
    assert len(ids) == 5 and tokenizer.decode(ids) == "12+3="
    assert tokenizer.pad_token_id == 0 and tokenizer.eos_token_id == 2


def test_missing_pad_token_becomes_eos(tiny_folder, tmp_path):
    tokenizer = load_tokenizer(tiny_folder, key="k")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path), key="k").pad_token_id == 2


def test_missing_tokenizer(tmp_path):
    with pytest.raises(UserError, match="cannot load the tokenizer") as caught:
        load_tokenizer(str(tmp_path), key="actor_rollout_ref.model.tokenizer_path")
    assert caught.value.key == "actor_rollout_ref.model.tokenizer_path"


def values_of(model):
    ids = torch.arange(3, 10)[None]
    return model(input_ids=ids, position_ids=torch.arange(7)[None], use_cache=False, segments=[7]).logits


def test_a_new_critic_predicts_zero(tiny_folder):
    model = load_value_model(ModelSource(tiny_folder, override_config={"attention_dropout": 0.0}), torch.float32)
    assert model.score.weight.shape == (1, 32)
    assert torch.equal(values_of(model), torch.zeros(1, 7, 1))
    assert model.dropout.p == 0.0


def test_a_saved_critic_keeps_its_head(tiny_folder, tmp_path):
    model = load_value_model(ModelSource(tiny_folder), torch.float32)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path)
    again = load_value_model(ModelSource(str(tmp_path)), torch.float32)
    assert torch.equal(again.score.weight, model.score.weight)
    assert torch.equal(values_of(again), values_of(model)) and values_of(again).abs().max() > 0


def test_a_critic_from_a_reward_model_keeps_its_head(tiny_folder, tmp_path):
    reward_model = AutoModelForSequenceClassification.from_pretrained(tiny_folder, num_labels=1)
    torch.nn.init.normal_(reward_model.score.weight)
    reward_model.save_pretrained(tmp_path)
    critic = load_value_model(ModelSource(str(tmp_path)), torch.float32)
    assert torch.equal(critic.score.weight, reward_model.score.weight)
    assert torch.equal(critic.score.bias, torch.zeros(1))


def test_first_line():
    assert first_line(ValueError("what went wrong\nand much advice")) == "what went wrong"
    assert first_line(OSError()) == "OSError"


def test_a_remote_model_and_tokenizer(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").put(str(tiny_folder), "/test_models/tiny", recursive=True)
    source = ModelSource(path="memory://test_models/tiny")
    here, there = (load_causal_lm(one, "sdpa", torch.float32) for one in (ModelSource(path=str(tiny_folder)), source))
    assert all(torch.equal(a, b) for a, b in zip(here.parameters(), there.parameters(), strict=True))
    tokenizer = load_tokenizer("memory://test_models/tiny", key="data.tokenizer")
    assert tokenizer("1+1") == load_tokenizer(str(tiny_folder), key="data.tokenizer")("1+1")


def test_a_remote_folder_that_is_no_model_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    fsspec.filesystem("memory").pipe_file("/test_models/empty/readme", b"-")
    with pytest.raises(UserError, match=r"model\.path='memory://test_models/empty'.*no config\.json"):
        ModelSource(path="memory://test_models/empty").checked_path()


def test_a_model_in_shared_memory(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.storage.SHARED_MEMORY", tmp_path)
    where = ModelSource(path=str(tiny_folder), use_shm=True).checked_path()
    assert where.startswith(str(tmp_path / "burnish-cache"))
    assert load_causal_lm(ModelSource(path=str(tiny_folder), use_shm=True), "sdpa", torch.float32).num_parameters() > 0


def test_a_model_of_the_hub_is_fetched_before_it_goes_to_shared_memory(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.storage.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("burnish.models.load.snapshot_download", lambda name: str(tiny_folder))
    assert ModelSource(path="someone/tiny", use_shm=True).checked_path().startswith(str(tmp_path))

    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr("burnish.models.load.snapshot_download", offline)
    with pytest.raises(UserError, match=r"model\.path='someone/tiny': cannot download the model: no network"):
        ModelSource(path="someone/tiny", use_shm=True).checked_path()


@pytest.mark.parametrize("as_file", [False, True])
def test_a_chat_template_of_ones_own(tiny_folder, tmp_path, as_file):
    text = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    (tmp_path / "mine.jinja").write_text(text)
    given = str(tmp_path / "mine.jinja") if as_file else text
    tokenizer = load_tokenizer(str(tiny_folder), key="data.tokenizer", chat_template=given)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False) == "<1>"


def test_a_chat_template_that_is_nothing_is_named(tiny_folder):
    with pytest.raises(
        UserError, match=r"model\.custom_chat_template='mine\.jinja': neither Jinja text nor an existing file"
    ):
        load_tokenizer(str(tiny_folder), key="data.tokenizer", chat_template="mine.jinja")


def test_an_override_of_the_wrong_kind_is_named(tmp_path):
    make_model(tmp_path, make_tokenizer("01"), hidden=16, layers=1, seed=0)
    assert load_config(ModelSource(str(tmp_path), override_config={"rms_norm_eps": 1})).rms_norm_eps == 1.0
    with pytest.raises(UserError, match="invalid value for the model's config") as caught:
        load_config(ModelSource(str(tmp_path), override_config={"num_hidden_layers": "many"}))
    assert caught.value.key == "actor_rollout_ref.model.override_config.num_hidden_layers"


def test_a_megatron_checkpoint_is_named_and_the_weights_beside_the_tokenizer_are_offered(tmp_path):
    (tmp_path / "release" / "mp_rank_00").mkdir(parents=True)
    with pytest.raises(UserError, match="a Megatron checkpoint") as caught:
        ModelSource(path=str(tmp_path), tokenizer_path="base").checked_path()
    assert "actor_rollout_ref.model.path=base" in str(caught.value.hint)
