"""Rows of data that lies elsewhere or has another form, of shared memory, and of copies of checkpoints."""

from . import elsewhere as other
from . import observe as see
from .kit import USER
from .reward_model import ENABLED
from .row import Row

MODEL = "actor_rollout_ref.model"
ORDERS = USER / "orders.py"
ALPACA = "AlpacaStyleInstructionHandler"


def files(make):
    return lambda kit: f"data.train_files={make(kit)}"


def validating(kit):
    return f"data.val_files={other.splits(kit)}"


def handled(kit):
    return f"data.handler.name={ALPACA}"


TWO_FILES = (lambda kit: f"data.train_files=[{kit.train_file},{kit.other_file}]",)
PLAIN = (files(other.texts), "data.apply_chat_template=false")
COPYING = ("trainer.experiment_name=copied", "trainer.save_freq=2", f"trainer.default_hdfs_dir={other.HDFS}")

ROWS = [
    Row("data.train_split", "more", see.num_train, (files(other.splits),), expected=4),
    Row("data.val_split", "more", see.num_val, (validating,), expected=4),
    Row("data.train_probs", "[1,3]", see.num_train, TWO_FILES),
    Row("data.apply_chat_template", "false", other.prompt_texts, (files(other.texts),)),
    Row("data.input_template", "'={}?'", other.prompt_texts, PLAIN, expected=["=0+0?", "=1+1?", "=2+2?", "=3+3?"]),
    Row("data.label_key", "label", other.ground_truth, (files(other.texts),), expected=["0", "1", "2", "3"]),
    Row("data.additional_keys", "[labels]", other.ground_truth, (files(other.packed),)),
    Row("data.handler.name", ALPACA, other.chats, (files(other.alpaca),)),
    Row("data.handler.map_keys", "{query:''}", other.chats, (files(other.alpaca), handled)),
    Row("data.handler.prompt_type", "qwen_r1", other.chats, (files(other.alpaca), handled, "data.truncation=left")),
    Row("data.use_shm", "true", other.data_in_shm, expected=True),
    Row(f"{MODEL}.use_shm", "true", other.model_in_shm, expected=True),
    Row("critic.model.use_shm", "true", other.model_in_shm, ("algorithm.adv_estimator=gae",), expected=True),
    Row("reward_model.model.use_shm", "true", other.model_in_shm, ENABLED, expected=True),
    Row("data.sampler.class_path", str(ORDERS), see.first_batch, ("data.sampler.class_name=Last",)),
    Row(
        "data.sampler.class_name",
        "Last",
        see.first_batch,
        (f"data.sampler.class_path={ORDERS}", "data.sampler.class_name=First"),
        expected=[11, 10, 9, 8],
    ),
    Row("data.datagen.path", str(ORDERS), other.num_after_training, ("data.datagen.name=More",), expected=14),
    Row(
        "data.datagen.name",
        "Most",
        other.num_after_training,
        (f"data.datagen.path={ORDERS}", "data.datagen.name=More"),
        expected=16,
    ),
    Row(f"{MODEL}.custom_chat_template", other.template, other.prompt_texts),
    Row("trainer.default_hdfs_dir", other.HDFS, other.copied_steps, ("trainer.save_freq=2",)),
    Row("trainer.del_local_ckpt_after_load", "true", other.local_after_loading, COPYING, expected=False),
]
