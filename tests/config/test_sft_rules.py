"""Rules of `burnish sft`: every broken one is told, with its key."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.errors import UserError

GOOD = ("model.partial_pretrain=m", "data.train_files=t.parquet")


def test_a_good_config_is_accepted():
    loaded = load([*GOOD, "trainer.save_freq=after_each_epoch", "trainer.test_freq=5"], job="sft")
    assert (loaded.cfg.trainer.save_freq, loaded.cfg.trainer.test_freq) == ("after_each_epoch", 5)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (GOOD[:1], "data.train_files"),
        (GOOD[1:], "model.partial_pretrain"),
        ((*GOOD, "trainer.save_freq=often"), "trainer.save_freq"),
        ((*GOOD, "trainer.test_freq=often"), "trainer.test_freq"),
        ((*GOOD, "optim.betas=[0.9]"), "optim.betas"),
        ((*GOOD, "trainer.resume_mode=resume_path"), "trainer.resume_from_path"),
        ((*GOOD, "trainer.n_gpus_per_node=3"), "data.train_batch_size"),
        ((*GOOD, "trainer.n_gpus_per_node=2", "data.micro_batch_size=3"), "data.micro_batch_size"),
        ((*GOOD, "ulysses_sequence_parallel_size=2"), "ulysses_sequence_parallel_size"),
        ((*GOOD, "trainer.n_gpus_per_node=3", "model.fsdp_config.fsdp_size=2"), "model.fsdp_config.fsdp_size"),
        ((*GOOD, "trainer.nnodes=2", "trainer.launcher=processes"), "trainer.launcher"),
        (
            (*GOOD, "trainer.n_gpus_per_node=2", "model.lora_rank=4", "model.load_in_4bit=true"),
            "model.load_in_4bit",
        ),
    ],
)
def test_violated_rules_are_reported(overrides, key):
    with pytest.raises(UserError) as caught:
        load(overrides, job="sft")
    assert key in caught.value.text()


def test_rows_may_take_the_place_of_files():
    assert load(GOOD[:1], job="sft", given=["data.train_files"]).cfg.data.train_files == []
