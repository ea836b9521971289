import dataclasses

import pytest
import torch

from burnish.config.model import FusedKernelConfig
from burnish.errors import UserError
from burnish.models.head_kernels import HEAD_KERNELS, NEEDS_TRITON, check_head_kernel
from burnish.models.kernels import lazy_triton
from burnish.models.kernels.head import TritonKernel
from burnish.models.logits import TorchKernel

KEY = "actor_rollout_ref.model.fused_kernel_options.impl_backend"


def test_every_name_of_the_key_has_a_kernel():
    (field,) = dataclasses.fields(FusedKernelConfig)
    allowed = field.metadata["facts"].allowed
    assert set(HEAD_KERNELS) == set(allowed) >= NEEDS_TRITON
    assert HEAD_KERNELS["torch"](True) == TorchKernel(compiled=True)
    assert isinstance(HEAD_KERNELS["triton"](False), TritonKernel)


def test_without_triton_a_gpu_run_is_refused_and_says_what_to_type(monkeypatch):
    monkeypatch.setattr(lazy_triton, "available", lambda: False)
    check_head_kernel("torch", torch.device("cuda"), KEY)
    check_head_kernel("triton", torch.device("cpu"), KEY)
    with pytest.raises(UserError, match=f"pip install triton.*{KEY}=torch"):
        check_head_kernel("triton", torch.device("cuda"), KEY)
