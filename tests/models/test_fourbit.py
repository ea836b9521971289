"""4-bit weights on a CPU: loaded, read back, and trained beside."""

import sys

import pytest
import torch

from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.fourbit import disable_inference_kernels, four_bits, is_packed, unpacked
from burnish.models.load import ModelSource, load_causal_lm

INPUTS = {"input_ids": torch.arange(3, 9)[None], "segments": [6], "use_cache": False}


@pytest.fixture
def packed(tiny_folder):
    how = {"quantization_config": four_bits(torch.float32, ("lm_head",), "m"), "device_map": {"": "cpu"}}
    return disable_inference_kernels(load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32, **how))


def test_unpacked_weights_are_those_the_model_computes_with(packed, tiny_folder):
    plain = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    whole = {name: unpacked(parameter) for name, parameter in packed.named_parameters(remove_duplicate=False)}
    own = dict(plain.named_parameters(remove_duplicate=False))
    assert whole.keys() == own.keys()
    changed = [name for name in own if not torch.equal(whole[name], own[name])]
    assert len(changed) == 14 and all((whole[name] - own[name]).abs().mean() < 0.1 for name in changed)
    plain.load_state_dict(whole)
    torch.testing.assert_close(plain(**INPUTS).logits, packed(**INPUTS).logits, rtol=0, atol=1e-4)


def test_inference_and_training_have_the_same_products(packed):
    with torch.no_grad():
        read = packed.eval()(**INPUTS).logits
    assert torch.equal(read, packed.train()(**INPUTS).logits)


def test_only_linear_weights_are_packed(packed):
    names = {name for name, parameter in packed.named_parameters() if is_packed(parameter)}
    assert names and all("proj" in name for name in names)


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[bitsandbytes\]"'):
        four_bits(torch.float32, (), "actor_rollout_ref.model")
