"""Rows of data.*"""

from . import observe as see
from .kit import USER
from .row import Row

LONG = ("data.max_prompt_length=11", "data.truncation=right")  # some of the prompts have 9 tokens, some 13, some 17
VALIDATING = (lambda kit: f"data.val_files={kit.val_file}", "trainer.val_only=true")

ROWS = [
    Row("data.train_files", lambda kit: str(kit.other_file), see.prompt_ids),
    Row("data.val_files", lambda kit: str(kit.val_file), see.num_val, expected=4),
    Row("data.train_max_samples", "7", see.num_train, expected=7),
    Row("data.val_max_samples", "3", see.num_val, VALIDATING, expected=3),
    Row("data.prompt_key", "question", see.prompt_ids),
    Row("data.reward_fn_key", "kind", see.data_sources, expected=["sums of 0", "sums of 1"] * 2),
    Row("data.max_prompt_length", "5", see.longest_prompt, ("data.truncation=right",), expected=5),
    Row("data.max_response_length", "2", see.longest_response, expected=2),
    Row("data.train_batch_size", "6", see.batch_size, expected=6),
    Row("data.val_batch_size", "3", see.validation_calls, VALIDATING),
    Row("data.return_raw_input_ids", "true", see.columns),
    Row("data.return_raw_chat", "false", see.columns),
    Row("data.return_full_prompt", "true", see.columns),
    Row("data.shuffle", "false", see.first_batch, expected=[0, 1, 2, 3]),
    Row("data.seed", "7", see.first_batch),
    Row("data.validation_shuffle", "true", see.validation_calls, VALIDATING),
    Row("data.filter_overlong_prompts", "true", see.num_train, LONG),
    Row(
        "data.filter_overlong_prompts_workers",
        "3",
        see.measuring_processes,
        ("data.filter_overlong_prompts=true",),
        expected=3,
    ),
    Row("data.truncation", "left", see.prompt_ids, ("data.max_prompt_length=5",), refused_without=True),
    Row("data.tokenizer", lambda kit: str(kit.other_tokenizer), see.prompt_ids),
    Row(
        "data.trust_remote_code",
        "true",
        see.tokenizer_class,
        (lambda kit: f"data.tokenizer={kit.remote_tokenizer}",),
        expected="RemoteTokenizer",
    ),
    Row("data.custom_cls.path", str(USER / "classes.py"), see.prompt_ids, ("data.custom_cls.name=Backwards",)),
    Row(
        "data.custom_cls.name",
        "Backwards",
        see.prompt_ids,
        (f"data.custom_cls.path={USER / 'classes.py'}",),
        refused_without=True,
    ),
    Row("data.apply_chat_template_kwargs", "{add_generation_prompt:false}", see.prompt_ids),
]
