"""Two ways to send weights."""

import dataclasses
import os

import pytest
import torch

from burnish.errors import UserError
from burnish.rollout.engines.sglang.weights import WEIGHT_SYNCS, buckets, weight_sync_method

from .kit import CPU, SECTION


def test_how_weights_travel():
    gpu = torch.device("cuda", 0)
    assert weight_sync_method({}, CPU, SECTION) == "disk"
    assert weight_sync_method({}, gpu, SECTION) == "disk"
    assert weight_sync_method({"weight_sync": "tensor"}, gpu, SECTION) == "tensor"
    for extra, device in (({}, CPU), ({"base_url": "http://h:1"}, gpu)):
        with pytest.raises(UserError, match="weight_sync"):
            weight_sync_method({"weight_sync": "tensor", **extra}, device, SECTION)
    with pytest.raises(UserError, match="Did you mean 'disk'"):
        weight_sync_method({"weight_sync": "disc"}, CPU, SECTION)


def test_buckets():
    stream = [(name, torch.zeros(size, dtype=torch.uint8)) for name, size in zip("abcde", (3, 3, 9, 1, 4), strict=True)]
    assert [[name for name, _ in piece] for piece in buckets(stream, 6)] == [["a", "b"], ["c"], ["d", "e"]]
    assert list(buckets([], 6)) == []


def test_memory_handed_to_the_server(make_engine, their_model, tiny_folder):
    """By handle and in pieces. Here it is shared memory of the CPU: the calls and the payload are those of a GPU's."""
    engine, model = make_engine(tiny_folder, "sglang"), their_model(tiny_folder)
    other = {name: tensor.flip(0) for name, tensor in model.named_parameters()}
    posts = []

    def post(path, body):
        posts.append(path)
        return engine._post_weights(path, body)

    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        options = dataclasses.replace(engine.options, bucket_megabytes=0)  # a piece for each tensor
        WEIGHT_SYNCS["tensor"].load()(engine._weights.stream(other.items()), options, post)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert posts == ["/update_weights_from_tensor"] * (len(other) + 1)  # a tied head comes under its own name too
    row = [5, 6, 7, 8]
    expected = torch.log_softmax(torch.func.functional_call(model, other, (torch.tensor([row]),)).logits[0], -1)
    assert engine.score([row])[0][1:] == pytest.approx(expected[range(3), row[1:]].tolist(), abs=1e-4)


def test_the_bucket_is_the_size_of_a_file(make_engine, their_model, tiny_folder):
    engine, model = make_engine(tiny_folder, "sglang"), their_model(tiny_folder)
    counts = []

    def post(path, body):
        counts.append(len(os.listdir(body["model_path"])))
        return {"success": True}

    for size in (0, 512):
        options = dataclasses.replace(engine.options, bucket_megabytes=size)
        WEIGHT_SYNCS["disk"].load()(engine._weights.stream(model.named_parameters()), options, post)
    assert counts == [len(list(model.parameters())) + 1, 1]  # a tied head comes under its own name too
    with pytest.raises(RuntimeError, match="rejected the weights"):
        WEIGHT_SYNCS["disk"].load()(
            engine._weights.stream(model.named_parameters()), engine.options, lambda path, body: None
        )
