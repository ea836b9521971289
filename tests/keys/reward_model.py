"""Rows of reward_model.*, as far as a model scores, and of the weights that mix it with functions."""

from . import judging
from . import observe as see
from .kit import USER
from .row import Row

MODEL = "reward_model.model"
ENABLED = ("reward_model.enable=true", lambda kit: f"{MODEL}.path={judging.scorer(kit)}")
ONE_BY_ONE = (*ENABLED, "reward_model.micro_batch_size_per_gpu=1")
JUDGES = str(USER / "judges.py")
OWN_CLASS = (f"{MODEL}.custom_cls.path={JUDGES}", f"{MODEL}.custom_cls.name=Eager")

ROWS = [
    Row("reward_model.enable", "true", judging.scores, ENABLED[1:]),
    Row("reward_model.normalize", "true", judging.scores, ENABLED),
    Row("reward_model.micro_batch_size", "4", judging.num_passes, ENABLED, expected=2),
    Row("reward_model.micro_batch_size_per_gpu", "2", judging.num_passes, ENABLED, expected=4),
    Row("reward_model.use_dynamic_bsz", "true", judging.num_passes, ONE_BY_ONE, expected=1),
    Row("reward_model.forward_max_token_len_per_gpu", "1", judging.num_passes, ENABLED, expected=8),
    Row("reward_model.max_length", "6", judging.scores, ENABLED),
    Row(f"{MODEL}.path", lambda kit: str(judging.scorer(kit, "3")), judging.scores, ENABLED),
    Row(f"{MODEL}.custom_cls.path", JUDGES, judging.scores, (*ENABLED, OWN_CLASS[1])),
    Row(f"{MODEL}.custom_cls.name", "Terse", judging.scores, (ENABLED[0], *OWN_CLASS)),
    Row("reward_model.load_weight", "false", judging.scores, ENABLED),
    Row(f"{MODEL}.input_tokenizer", "null", judging.scores, ENABLED),
    Row(f"{MODEL}.external_lib", "keys_external_lib", see.imports_external_lib, ENABLED, expected=True),
    Row(
        f"{MODEL}.trust_remote_code",
        "true",
        judging.judge_class,
        (ENABLED[0], lambda kit: f"{MODEL}.path={judging.remote_scorer(kit)}", f"{MODEL}.input_tokenizer=null"),
        expected="RemoteValues",
        refused_without=True,
    ),
    Row("reward.model_weight", "2", judging.scores, ENABLED),
    Row("reward.function_weight", "0.5", judging.scores, ENABLED),
]
