"""Our keys in vLLM's words. The real vLLM reads them in tests/vllm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from burnish.errors import UserError
from burnish.models.load import ModelSource, load_config
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.vllm.arguments import (
    FIXED,
    check_kwargs,
    engine_arguments,
    load_format,
    model_folder,
    refusals,
    sampling_fields,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")


@pytest.fixture
def options(tiny_folder):
    """options(**changes): of a tiny model, on a CPU unless a device is given."""

    def make(device=CPU, **changes):
        settings = {"eos_ids": (2,), "max_model_len": 320, **changes}
        return EngineOptions(ModelSource(tiny_folder), torch.float32, device, **settings)

    return make


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"max_num_seqs": 7}, {"max_num_seqs": 7}),
        ({"max_num_batched_tokens": 99}, {"max_num_batched_tokens": 99}),
        ({"max_model_len": 64}, {"max_model_len": 64}),
        ({"chunked_prefill": False}, {"enable_chunked_prefill": False}),
        ({"prefix_caching": True}, {"enable_prefix_caching": True}),
        ({"eager": False}, {"enforce_eager": False}),
        ({"tensor_parallel": 4}, {"tensor_parallel_size": 4}),
        ({"capture_sizes": [1, 8]}, {"cudagraph_capture_sizes": [1, 8]}),
        ({"load_format": "safetensors"}, {"load_format": "safetensors"}),
        ({"memory_share": 0.3, "device": GPU}, {"gpu_memory_utilization": 0.3}),
        ({"sleeps": False, "device": GPU}, {"enable_sleep_mode": False}),
        ({"quantization": "block"}, {"quantization": "fp8_per_block"}),
        ({"quantization": "tensor"}, {"quantization": "fp8_per_tensor"}),
        ({"quantization": "block", "extra": {"quantization": "fp8"}}, {"quantization": "fp8"}),
        ({"extra": {"block_size": 64}}, {"block_size": 64}),
        ({"extra": {"max_num_seqs": 5}, "max_num_seqs": 7}, {"max_num_seqs": 5}),
    ],
)
def test_an_option_reaches_its_argument(options, ours, theirs):
    plain = engine_arguments(options(**{"device": CPU, **{k: v for k, v in ours.items() if k == "device"}}))
    told = engine_arguments(options(**ours))
    assert {name: told[name] for name in theirs} == theirs
    assert all(plain.get(name) != value for name, value in theirs.items())


def test_what_is_not_asked_for_is_left_to_vllm(options):
    told = engine_arguments(options(extra={"swap_space": None}))
    assert "swap_space" not in told and "cudagraph_capture_sizes" not in told
    assert "gpu_memory_utilization" not in told and "enable_sleep_mode" not in told  # on a CPU it refuses to sleep


def test_a_cache_on_a_cpu_is_no_larger_than_it_can_be_filled(options):
    small, large = (engine_arguments(options(max_num_seqs=n))["kv_cache_memory_bytes"] for n in (1, 3))
    config = load_config(options().model)
    width = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    assert large - small == 2 * (320 + 128) * 2 * config.num_hidden_layers * width * 4
    assert engine_arguments(options(memory_share=0.0))["kv_cache_memory_bytes"] == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("dummy_dtensor", "dummy"),
        ("dummy", "dummy"),
        ("dtensor", "auto"),
        ("hf", "auto"),
        ("auto", "auto"),
        ("pt", "pt"),
    ],
)
def test_load_formats_of_verl(asked, told):
    assert load_format(asked) == told


def test_unknown_arguments_are_named():
    known = ["max_num_seqs", "block_size"]
    check_kwargs(["block_size", "base_url"], known, "rollout", "0.32.0")
    with pytest.raises(UserError) as caught:
        check_kwargs(["blok_size"], known, "rollout", "0.32.0")
    assert caught.value.text() == (
        "rollout.engine_kwargs.vllm.blok_size: vLLM 0.32.0 has no such argument. Did you mean 'block_size'? "
        "Type: rollout.engine_kwargs.vllm.block_size=..."
    )
    for name in (*FIXED, "model"):
        with pytest.raises(UserError, match="Burnish sets this argument itself"):
            check_kwargs([name], [*known, name], "rollout", "0.32.0")


def test_the_model_folder_is_the_model_s_own_unless_its_config_is_changed(tiny_folder, tmp_path):
    assert model_folder(ModelSource(tiny_folder), tmp_path) == tiny_folder
    folder = Path(model_folder(ModelSource(tiny_folder, override_config={"rms_norm_eps": 0.5}), tmp_path))
    assert json.loads((folder / "config.json").read_text())["rms_norm_eps"] == 0.5
    assert (folder / "model.safetensors").resolve() == Path(tiny_folder, "model.safetensors").resolve()


SAMPLED = Sampling(9, temperature=0.7, top_k=3, top_p=0.8, min_p=0.1, min_tokens=2, seed=4)


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        (SAMPLED, {"max_tokens": 9, "temperature": 0.7, "top_k": 3, "top_p": 0.8, "min_p": 0.1, "min_tokens": 2}),
        (Sampling(9, do_sample=False, temperature=0.7), {"temperature": 0.0}),
        (Sampling(9, top_k=-1), {"top_k": 0}),
        (Sampling(9, repetition_penalty=1.5), {"repetition_penalty": 1.5}),
        (Sampling(9, presence_penalty=0.5, frequency_penalty=1), {"presence_penalty": 0.5, "frequency_penalty": 1}),
        (Sampling(9), {"stop_token_ids": [2, 11], "logprobs": 0, "ignore_eos": True, "seed": 77}),
        (Sampling(9, stop_token_ids=(5,)), {"stop_token_ids": [2, 5, 11]}),
        (Sampling(9, stop_token_ids=(5,), ignore_eos=True), {"stop_token_ids": [5]}),
        (Sampling(9, logprobs=4), {"logprobs": 4}),
    ],
)
def test_sampling_in_vllm_s_words(sampling, fields):
    told = sampling_fields(Request(ModelInput((1,)), sampling, seed=77), eos_ids=(11, 2))
    assert {name: told[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("sampling", "key"),
    [
        (Sampling(9, fire=True), "rollout.use_fire_sampling"),
        (Sampling(9, temperature=0.005), "rollout.temperature"),
        (Sampling(9, presence_penalty=3.0), "rollout.presence_penalty"),
        (Sampling(9, frequency_penalty=-3.0), "rollout.frequency_penalty"),
    ],
)
def test_what_vllm_cannot_do(sampling, key):
    (refusal,) = refusals(sampling, "rollout")
    assert refusal.key == key
    assert list(refusals(SAMPLED, "rollout")) == []
