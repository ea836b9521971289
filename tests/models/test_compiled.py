import torch

from burnish.models.attention import PACKED
from burnish.models.compiled import compile_layers
from burnish.models.load import ModelSource, load_causal_lm

INPUTS = {"input_ids": torch.arange(3, 12)[None], "segments": [4, 5], "use_cache": False}
INPUTS["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])


def test_norms_and_feed_forward_parts_are_compiled_and_nothing_changes(tiny_folder, monkeypatch):
    compiled = []
    real = torch.compile

    def trace(function, dynamic):
        compiled.append(type(function.__self__).__name__)
        return real(function, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", trace)
    found = []
    for use in (False, True):
        model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32).train()
        if use:
            assert compile_layers(model, "key") == 3 * len(model.model.layers)
        logits = model(**INPUTS).logits
        logits.square().mean().backward()
        found.append((logits, [parameter.grad for parameter in model.parameters()]))
    assert sorted(set(compiled)) == ["Qwen2MLP", "Qwen2RMSNorm"]
    torch.testing.assert_close(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)
