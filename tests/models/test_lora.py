"""Adapters in a model, merged, saved, and refused where they cannot be."""

import sys

import peft
import pytest
import torch

from burnish.config.adapters import AdapterSettings
from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm, load_value_model
from burnish.models.lora import adapter_dtype, add_adapters
from burnish.models.recompute import enable_recompute

CPU = torch.device("cpu")
INPUTS = {"input_ids": torch.arange(3, 12)[None], "segments": [4, 5], "use_cache": False}
INPUTS["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])


def settings(**changes):
    plain = {"key": "actor_rollout_ref.model", "rank": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
    plain |= dict.fromkeys(("exclude_modules", "adapter_path", "dtype", "init_a", "init_b"))
    return AdapterSettings(**{**plain, "dora": False, **changes})


@pytest.fixture
def model(tiny_folder):
    return load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)


def adapt(model, **changes):
    return add_adapters(model, settings(**changes), dtype=torch.float32)


def spread(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_a_model_starts_unchanged_and_its_merged_weights_answer_as_it_does(model, tiny_folder, dora):
    plain = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    before = plain(**INPUTS).logits
    adapters = adapt(model, dora=dora)
    torch.testing.assert_close(model(**INPUTS).logits, before, rtol=0, atol=0 if not dora else 1e-5)
    spread(model)
    after = model(**INPUTS).logits
    assert (after - before).abs().max() > 1e-2
    with adapters.off():
        assert torch.equal(model(**INPUTS).logits, before)
    assert torch.equal(model(**INPUTS).logits, after)
    merged = dict(adapters.merged(CPU))
    assert merged.keys() == dict(plain.named_parameters(remove_duplicate=False)).keys()
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(**INPUTS).logits, after, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "adapted"),
    [
        ({"target_modules": "q_proj"}, {"q_proj"}),
        ({"target_modules": "q_proj, v_proj"}, {"q_proj", "v_proj"}),
        ({"target_modules": ["o_proj"]}, {"o_proj"}),
        ({"target_modules": r".*\.mlp\.(up|down)_proj"}, {"up_proj", "down_proj"}),
        ({"exclude_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}, {"gate_proj", "up_proj", "down_proj"}),
        ({"exclude_modules": r".*self_attn.*"}, {"gate_proj", "up_proj", "down_proj"}),
    ],
)
def test_which_modules_get_an_adapter(model, changes, adapted):
    assert {name.rpartition(".")[2] for name in adapt(model, **changes).layers} == adapted


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_modules": ["q_proj", "qq_proj"]}, "no module 'qq_proj'"),
        ({"target_modules": ".*nothing"}, "not found in the base model"),
        ({"target_modules": ["lm_head"]}, "adapters on lm_head are not supported"),
        ({"target_modules": ["embed_tokens"]}, "adapters on model.embed_tokens are not supported"),
        ({"adapter_path": "nowhere/at/all"}, "no adapter_config.json found"),
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_what_cannot_be_adapted_is_refused(model, changes, words):
    with pytest.raises(UserError, match=words):
        adapt(model, **changes)


def test_how_the_matrices_start(model, tiny_folder):
    adapters = adapt(model, init_a="xavier", init_b="normal")
    layer = next(iter(adapters.layers.values()))
    assert 0.1 < layer.lora_B["default"].weight.std() < 0.3
    again = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    same = adapt(again, init_a="xavier", init_b="normal").state()
    assert all(torch.equal(tensor, same[name]) for name, tensor in adapters.state().items()), "one seed, one start"


def test_peft_loads_what_is_written(model, tiny_folder, tmp_path):
    adapters = adapt(model)
    spread(model)
    adapters.write(tmp_path, adapters.state())
    theirs = peft.PeftModel.from_pretrained(load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32), tmp_path)
    assert torch.equal(theirs(**INPUTS).logits, model(**INPUTS).logits)
    again = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    assert adapt(again, rank=0, adapter_path=str(tmp_path)).config.r == 4
    assert torch.equal(again(**INPUTS).logits, model(**INPUTS).logits)


def test_an_adapter_of_another_shape_is_refused(model, tiny_folder, tmp_path):
    adapters = adapt(model, target_modules=["q_proj"])
    adapters.write(tmp_path, adapters.state())
    other = adapt(load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32), target_modules=["v_proj"])
    with pytest.raises(UserError, match="does not match"):
        other.load(tmp_path, "key")


def test_a_value_head_is_trained_and_saved_whole(tiny_folder, tmp_path):
    model = load_value_model(ModelSource(tiny_folder), torch.float32)
    adapters = add_adapters(model, settings(), dtype=torch.float32, heads=("score",))
    spread(model)
    assert model.score.weight.requires_grad and model.score.weight.abs().max() > 0
    adapters.write(tmp_path, adapters.state())
    again = load_value_model(ModelSource(tiny_folder), torch.float32)
    add_adapters(again, settings(adapter_path=str(tmp_path)), dtype=torch.float32, heads=("score",))
    assert torch.equal(again(**INPUTS).logits, model(**INPUTS).logits)


def test_adapters_learn_under_gradient_checkpointing(tiny_folder):
    gradients = []
    for recompute in (False, True):
        model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
        adapt(model)
        spread(model)
        if recompute:
            enable_recompute(model, None, None, "key")
        model.train()(**INPUTS).logits.square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(g is not None and g.abs().max() > 0 for g in gradients[1])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_the_dtype_of_adapters(model):
    assert adapter_dtype(model, None) == torch.float32
    assert adapter_dtype(model.half(), None) == torch.float32
    assert adapter_dtype(model, torch.bfloat16) == torch.bfloat16
    add_adapters(model, settings(), dtype=torch.float32)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


def test_without_peft_it_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[peft\]"'):
        adapt(model)
