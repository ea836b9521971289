"""Liger's kernels: refused where they cannot run, applied to the instance where they can."""

import sys
import types

import pytest
import torch

from burnish.errors import UserError
from burnish.models.liger import apply_liger, check_liger

KEY = "actor_rollout_ref.model.use_liger"


def test_where_it_cannot_run_it_says_so(monkeypatch):
    with pytest.raises(UserError, match="GPUs only"):
        check_liger(torch.device("cpu"), KEY)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[liger\]"'):
        check_liger(torch.device("cuda"), KEY)


def test_the_instance_is_patched_without_its_head(monkeypatch):
    calls = []
    patch = types.SimpleNamespace(_apply_liger_kernel_to_instance=lambda **options: calls.append(options))
    monkeypatch.setitem(sys.modules, "liger_kernel", types.SimpleNamespace(transformers=patch))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", patch)
    check_liger(torch.device("cuda"), KEY)
    model = torch.nn.Identity()
    apply_liger(model)
    assert calls == [{"model": model, "fused_linear_cross_entropy": False, "cross_entropy": False}]
