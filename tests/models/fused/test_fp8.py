"""Weights of 8 bits: how far rounding moves them, their products in torch and in Triton, and the layers with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, MixtralConfig, PretrainedConfig

from burnish.errors import UserError
from burnish.models.fused import fp8
from burnish.models.fused.fp8 import (
    FP8,
    FP8_BLOCK,
    FP8_MAX,
    Fp8Linear,
    FusedFp8Linear,
    dequantize,
    fp8_layers,
    round_to_fp8,
    torch_product,
    triton_product,
    use_fp8_layers,
)
from burnish.models.fused.replace import replace_modules
from burnish.models.kernels.fp8_product import COLUMN_TILES, fp8_tiling
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.models.kernels.product_tiles import MULTIPROCESSORS, ROW_TILES, SHARED_BYTES
from burnish.rollout.engines.weights import copy_weights, release_weights
from tests.conftest import FAMILIES, SIZES

SHAPES = [(300, 200), (128, 256), (5, 7)]  # ragged, whole, smaller than a block
REFERENCE = torch_product(F.linear)


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def rounded(weight: torch.Tensor, by_block: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, scales, and the row of the scales for each row."""
    values, scales = round_to_fp8(weight, by_block)
    return values, scales, torch.arange(len(weight), dtype=torch.int32) // (FP8_BLOCK if by_block else len(weight))


class TestRounding:
    @pytest.mark.parametrize("by_block", [True, False])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_weights_move_by_half_of_their_last_digit(self, shape, by_block):
        """Three bits behind the leading one; below its smallest normal number, the format has equal steps of 2^-9."""
        weight = random(*shape)
        values, scales, rows = rounded(weight, by_block)
        moved = (dequantize(values, scales, rows) - weight).abs()
        step = scales[rows].repeat_interleave(FP8_BLOCK if scales.shape[1] > 1 else shape[1], 1)[:, : shape[1]]
        assert (moved <= torch.maximum(weight.abs() / 16, step / 1024) * (1 + 1e-6)).all()
        assert values.dtype == FP8 and moved.max() > 0

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_scale_belongs_to_each_block_or_to_the_matrix(self, shape):
        weight = random(*shape)
        _, one = round_to_fp8(weight, by_block=False)
        assert one.tolist() == [[pytest.approx(float(weight.abs().max()) / FP8_MAX)]]
        _, scales = round_to_fp8(weight, by_block=True)
        assert scales.shape == (-(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK))
        for row, column in ((0, 0), (len(scales) - 1, scales.shape[1] - 1)):
            block = weight[row * FP8_BLOCK :, column * FP8_BLOCK :][:FP8_BLOCK, :FP8_BLOCK]
            assert float(scales[row, column]) == pytest.approx(float(block.abs().max()) / FP8_MAX)

    def test_an_outlier_costs_only_its_block_its_digits(self):
        weight = random(256, 256) * 1e-3
        weight[0, 0] = 1e3
        errors = []
        for by_block in (True, False):
            errors.append((dequantize(*rounded(weight, by_block)) - weight)[FP8_BLOCK:, FP8_BLOCK:].abs().max())
        assert errors[0] < 1e-3 < errors[1] * 10

    def test_zeros_stay_and_what_is_not_finite_is_seen(self):
        weight = torch.zeros(130, 3)
        assert torch.equal(dequantize(*rounded(weight, True)), weight)
        for bad in (float("nan"), float("inf")):
            weight[129, 0] = bad
            found = dequantize(*rounded(weight, True))
            assert found[129, 0].isnan() and torch.equal(found[:FP8_BLOCK], weight[:FP8_BLOCK])

    def test_rounding_again_changes_nothing(self):
        weight = dequantize(*rounded(random(200, 140), True))
        assert torch.allclose(dequantize(*rounded(weight, True)), weight, rtol=1e-6)


class TestProducts:
    @pytest.mark.parametrize("by_block", [True, False])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("num_rows", [1, 3, 70])
    def test_triton_and_torch(self, num_rows, shape, by_block):
        weight, input, bias = rounded(random(*shape), by_block), random(num_rows, shape[1]), random(shape[0], seed=1)
        expected = F.linear(input.double(), dequantize(*weight).double(), bias.double())
        for product in (REFERENCE, triton_product):
            assert torch.allclose(product(input, *weight, bias).double(), expected, atol=1e-4)
            assert torch.allclose(product(input[None], *weight, None)[0].double(), expected - bias, atol=1e-4)

    def test_inputs_of_16_bits(self):
        weight, input, bias = rounded(random(40, 200), True), random(3, 200).bfloat16(), random(40).bfloat16()
        expected = F.linear(input.double(), dequantize(*weight).double(), bias.double())
        with ordered_products():
            found = triton_product(input, *weight, bias)
        for one in (found, REFERENCE(input, *weight, bias)):
            assert one.dtype == torch.bfloat16 and torch.allclose(
                one.double(), expected, rtol=2**-7
            )  # the interpreter cuts digits off

    def test_autocast_does_not_round_the_expanded_weights(self):
        weight, input = rounded(random(40, 200), True), random(3, 200)
        expected = F.linear(input, dequantize(*weight))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(REFERENCE(input, *weight, None), expected)

    @pytest.mark.parametrize("outputs", [64, 896, 4608, 37888])
    @pytest.mark.parametrize("num_rows", [1, 16, 65, 8192])
    def test_programs_fill_a_gpu_and_fit_into_it(self, num_rows, outputs):
        for itemsize, most in ((2, ROW_TILES[-1]), (4, 32)):
            rows, columns, stages, _ = fp8_tiling(num_rows, outputs, itemsize)
            assert rows in ROW_TILES and (rows >= num_rows or rows == most)
            programs = -(-num_rows // rows) * -(-outputs // columns)
            assert programs >= MULTIPROCESSORS or columns == COLUMN_TILES[-1]
            assert (rows * itemsize + columns) * 128 * stages <= SHARED_BYTES


def linear_layers(bias: bool = True) -> list[nn.Linear]:
    return [nn.Linear(200, width, bias).requires_grad_(False) for width in (140, 60, 60)]


def as_fp8(layers: list[nn.Linear], by_block: bool = True) -> list[Fp8Linear]:
    modules = [Fp8Linear.from_module(layer, by_block, REFERENCE) for layer in layers]
    for module, layer in zip(modules, layers, strict=True):
        module.load(layer.weight)
    return modules


class TestLayers:
    @pytest.mark.parametrize("by_block", [True, False])
    @pytest.mark.parametrize("bias", [True, False])
    def test_one_product_for_several_with_the_scales_of_each(self, bias, by_block):
        plain, input = linear_layers(bias), random(3, 200)
        plain[1].weight.data *= 100
        alone = as_fp8(plain, by_block)
        expected = [layer(input) for layer in alone]
        fused = fp8.fuse_fp8(layers := as_fp8(plain, by_block))
        assert isinstance(fused, FusedFp8Linear)
        for _ in range(2):
            for layer, source in zip(layers, plain, strict=True):
                layer.load(source.weight)  # through views of the product's tensors
            torch.testing.assert_close(list(fused(input)), expected)
            torch.testing.assert_close([layer(input) for layer in layers], expected)
            for layer in layers:
                layer.load(torch.zeros(layer.weight.shape))
            for part, layer in zip(fused(input), layers, strict=True):
                assert torch.equal(part, torch.zeros_like(part) if layer.bias is None else layer.bias.expand_as(part))

    def test_it_does_not_matter_in_which_format_a_weight_travels(self):
        plain = nn.Linear(200, 60, dtype=torch.bfloat16)
        layer, weight = Fp8Linear.from_module(plain, True, REFERENCE), random(60, 200)
        for sent in (weight, weight.bfloat16(), weight.bfloat16().double()):
            layer.load(sent)
            assert torch.equal(layer.checked_bytes(), layer.checked_bytes(weight))
        layer.scales *= 2
        assert not torch.equal(layer.checked_bytes(), layer.checked_bytes(weight))
        assert layer(random(3, 200)).dtype == torch.bfloat16

    def test_what_is_not_fused(self):
        layers = as_fp8(linear_layers())
        assert fp8.fuse_fp8(layers[:1]) is None
        assert fp8.fuse_fp8([layers[0], nn.Linear(200, 60)]) is None
        assert fp8.fuse_fp8([layers[0], *as_fp8([nn.Linear(100, 60)])]) is None

    @pytest.mark.parametrize("family", list(FAMILIES))
    def test_linear_layers_are_rounded_and_nothing_else(self, family):
        model = AutoModelForCausalLM.from_config(FAMILIES[family]()).eval().requires_grad_(False)
        others = [name for name, _ in model.named_parameters()]
        use_fp8_layers(model, True, REFERENCE, "k")
        replace_modules(model, None, F.linear)
        assert [name for name, _ in model.named_parameters()] == others and set(model.state_dict()) == set(others)
        matrices = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        wanted = {name for name in others if name.endswith(tuple(f"{matrix}.weight" for matrix in matrices))}
        assert wanted == set(fp8_layers(model)) and len(wanted) == 7 * SIZES["num_hidden_layers"]
        assert wanted == {name for name, parameter in model.named_parameters() if parameter.dtype == FP8}
        fused = [module for module in model.modules() if isinstance(module, FusedFp8Linear)]
        assert len(fused) == 2 * SIZES["num_hidden_layers"]

    def test_new_weights_are_rounded_anew_also_after_a_release(self):
        model = AutoModelForCausalLM.from_config(FAMILIES["qwen2"]()).eval().requires_grad_(False)
        sent = {name: random(*weight.shape, seed=n) for n, (name, weight) in enumerate(model.named_parameters())}
        use_fp8_layers(model, True, REFERENCE, "k")
        replace_modules(model, None, F.linear)
        fused = [module for module in model.modules() if isinstance(module, FusedFp8Linear)]
        for factor in (1, 3):
            stream = {name: weight * factor for name, weight in sent.items()}
            copy_weights(model, stream.items())
            layers = fp8_layers(model)
            for name, layer in layers.items():
                expected = dequantize(*rounded(stream[name], True))
                assert torch.equal(dequantize(layer.weight, layer.scales, layer.scale_rows), expected)
            ids = torch.arange(3, 9)[None]
            logits = model(ids, use_cache=False).logits
            reference = AutoModelForCausalLM.from_config(model.config).eval()
            for name, parameter in reference.named_parameters():
                parameter.data = dequantize(*rounded(stream[name], True)) if name in layers else stream[name]
            assert torch.allclose(logits, reference(ids, use_cache=False).logits, atol=1e-4)
            release_weights(model)
            for module in fused:
                module.release()
            held = [tensor for layer in layers.values() for tensor in (layer.weight, layer.bias) if tensor is not None]
            assert sum(tensor.untyped_storage().nbytes() for tensor in held) == 0
            for module in fused:
                module.allocate()

    @pytest.mark.parametrize("product", [REFERENCE, triton_product], ids=["torch", "triton"])
    def test_all_layers_are_one_program(self, product):
        model = AutoModelForCausalLM.from_config(FAMILIES["qwen2"]()).eval().requires_grad_(False)
        sent = {name: random(*weight.shape, seed=n) / 8 for n, (name, weight) in enumerate(model.named_parameters())}
        use_fp8_layers(model, True, product, "k")
        replace_modules(model, None, F.linear)
        copy_weights(model, sent.items())
        given = {"inputs_embeds": model.get_input_embeddings()(torch.arange(3, 9)[None]), "use_cache": False}
        expected = model.model(**given).last_hidden_state
        torch._dynamo.reset()
        counters.clear()
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(model.model(**given).last_hidden_state, expected)
        assert counters["stats"]["unique_graphs"] == 1
        torch._dynamo.reset()

    def test_experts_and_routers_stay_and_that_is_reported(self):
        config = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
        model = AutoModelForCausalLM.from_config(config).requires_grad_(False)
        assert "experts" in (use_fp8_layers(model, True, REFERENCE, "rollout.quantization") or "")
        assert {name.split(".")[-2] for name in fp8_layers(model)} == {"q_proj", "k_proj", "v_proj", "o_proj"}

    def test_a_model_without_linear_layers_is_refused(self):
        class Empty(nn.Module):
            base_model_prefix = "model"
            config = PretrainedConfig()

            def __init__(self):
                super().__init__()
                self.model = nn.Module()
                self.model.layers = nn.ModuleList([nn.LayerNorm(3)])

        with pytest.raises(UserError, match="no linear layers") as caught:
            use_fp8_layers(Empty(), True, REFERENCE, "rollout.quantization")
        assert caught.value.key == "rollout.quantization"


def test_older_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(UserError, match="8-bit") as caught:
        fp8.check_fp8(torch.device("cuda"), "rollout.quantization", "null")
    assert caught.value.hint == "rollout.quantization=null"
    assert fp8.check_fp8(torch.device("cpu"), "k", "null") is None
