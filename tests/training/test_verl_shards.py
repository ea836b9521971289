"""verl's FSDP shards, written as verl writes them, put together again."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from transformers import AutoModelForCausalLM

from burnish.errors import UserError
from burnish.jobs.export import export
from burnish.training.external_checkpoints import join_verl_shards, verl_shard_files

# Two ranks shard a model by FSDP2 and save what each of them has, as verl's checkpoint manager does.
WRITE = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
dist.init_process_group("gloo")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
torch.save(model.state_dict(), f"{sys.argv[2]}/model_world_size_2_rank_{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


@pytest.fixture
def mesh(monkeypatch):
    """A mesh of this process alone: enough to make DTensors that say how they were cut."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


def write(folder, parts):
    for rank, part in enumerate(parts):
        torch.save(part, folder / f"model_world_size_{len(parts)}_rank_{rank}.pt")
    return verl_shard_files(folder)


def placed(mesh, part, whole, placement):
    part = part.clone()  # a view into the whole could not be pickled
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride())


def test_dtensors_are_joined_along_their_cut(tmp_path, mesh):
    rows, columns, same = torch.randn(5, 4), torch.randn(3, 6), torch.randn(2)
    parts = [
        {
            "rows": placed(mesh, rows.chunk(2)[rank], rows, Shard(0)),
            "columns": placed(mesh, columns.chunk(2, 1)[rank], columns, Shard(1)),
            "same": placed(mesh, same, same, Replicate()),
        }
        for rank in range(2)
    ]
    found = join_verl_shards(write(tmp_path, parts), {"rows": rows.shape})
    assert torch.equal(found["rows"], rows) and torch.equal(found["columns"], columns)
    assert torch.equal(found["same"], same)


def test_plain_parts_are_joined_along_the_first_dimension(tmp_path):
    rows, same = torch.randn(5, 4), torch.randn(2)
    files = write(tmp_path, [{"rows": part, "same": same} for part in rows.chunk(3)])
    found = join_verl_shards(files, {"rows": rows.shape, "same": same.shape})
    assert torch.equal(found["rows"], rows) and torch.equal(found["same"], same)
    with pytest.raises(UserError, match="the config asks for"):
        join_verl_shards(files, {"rows": torch.Size([6, 4])})


def test_what_cannot_be_joined_says_why(tmp_path):
    assert verl_shard_files(tmp_path) == []
    files = write(tmp_path, [{"a.lora_A.weight": torch.ones(1)}] * 2)
    with pytest.raises(UserError, match="LoRA"):
        join_verl_shards(files, {})
    files[1].unlink()
    with pytest.raises(UserError, match=r"ranks \[1\] are missing"):
        verl_shard_files(tmp_path)
    torch.save({"odd": os.system}, files[0])
    files[0].rename(tmp_path / "model_world_size_1_rank_0.pt")
    with pytest.raises(UserError, match="cannot be read as plain tensors"):
        join_verl_shards(verl_shard_files(tmp_path), {})


def test_a_folder_of_verl_is_exported(tmp_path, tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    actor = tmp_path / "global_step_7" / "actor"
    actor.mkdir(parents=True)
    state = model.state_dict()
    write(actor, [{name: tensor.chunk(2)[rank].clone() for name, tensor in state.items()} for rank in range(2)])
    model.config.save_pretrained(actor / "huggingface")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    export(tmp_path, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in state.items())


@pytest.mark.long
def test_two_ranks_of_fsdp2(tmp_path, tiny_folder):
    (tmp_path / "write.py").write_text(WRITE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*command, "write.py", tiny_folder, "."], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = join_verl_shards(verl_shard_files(tmp_path), shapes)
    assert all(torch.equal(tensor, found[name]) for name, tensor in model.state_dict().items())
