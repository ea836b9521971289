"""Where the run computes, asked without torch."""

from burnish.config.device import computes_on_cpu


def test_named_devices():
    assert computes_on_cpu("cpu")
    assert not computes_on_cpu("cuda")
    assert not computes_on_cpu("npu")


def test_auto_agrees_with_torch():
    import torch

    assert computes_on_cpu("auto") == (not torch.cuda.is_available())
