"""Weights broadcast over a process group of their own."""

from __future__ import annotations

import torch

from burnish.distributed.weights import Endpoint, _buckets, receive, send
from tests.ranks import run_ranks

CPU = torch.device("cpu")
WEIGHTS = {
    "a": torch.linspace(-3, 5, 2100).view(300, 7),
    "tied": torch.linspace(0, 1, 11).to(torch.bfloat16),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "b": torch.arange(1000).view(10, 100),
}


def transfer(rank: int, address: str):
    endpoint = Endpoint(address, rank, 3, "gloo", bucket_bytes=5000, key=b"k")
    if rank == 0:
        return send(WEIGHTS.items(), endpoint, CPU)
    return list(receive(endpoint, CPU))


def test_every_party_gets_every_tensor_bit_for_bit(tmp_path):
    sent, *received = run_ranks(3, transfer, f"file:{tmp_path}/store")
    assert sent == sum(tensor.numel() * tensor.element_size() for tensor in WEIGHTS.values())
    for found in received:
        assert [name for name, _ in found] == list(WEIGHTS)
        for name, tensor in found:
            assert tensor.dtype == WEIGHTS[name].dtype
            assert torch.equal(tensor, WEIGHTS[name])


def test_buckets_are_filled_in_order_up_to_their_size():
    stream = [(str(number), torch.zeros(size, dtype=torch.uint8)) for number, size in enumerate((60, 60, 200, 10, 10))]
    names = [[name for name, _ in bucket] for bucket in _buckets(stream, 100)]
    assert names == [["0"], ["1"], ["2"], ["3", "4"]]
