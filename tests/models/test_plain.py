"""A plain model from a trained one."""

import torch

from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.plain import plain_config, plain_model


def test_it_has_the_weights_it_is_given_and_ties_what_was_tied(tiny_folder, tmp_path):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    weights = {name: parameter + 1 for name, parameter in model.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    plain = plain_model(model, weights)
    assert type(plain) is type(model) and plain.lm_head.weight is plain.model.embed_tokens.weight
    plain.save_pretrained(tmp_path)
    again = load_causal_lm(ModelSource(str(tmp_path)), PACKED, torch.float32)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    assert again.generation_config.eos_token_id == model.generation_config.eos_token_id


def test_the_config_forgets_how_it_was_loaded(tiny_folder):
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    model.config.quantization_config = {"load_in_4bit": True}
    assert not hasattr(plain_config(model), "quantization_config")
    assert model.config.quantization_config == {"load_in_4bit": True}
