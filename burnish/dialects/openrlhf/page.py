"""Writes docs/dialects_openrlhf.md, by translating every flag: `python -m burnish.dialects.openrlhf.page [FOLDER]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import ppo, sft
from burnish.dialects.openrlhf.flags import SUBJECTS, Flag
from burnish.dialects.openrlhf.renames import DOTTED, EARLIER, LATER
from burnish.dialects.openrlhf.sft_flags import OWN
from burnish.dialects.openrlhf.writing import AGAIN
from burnish.dialects.report import INERT, REFUSED, Item, Translation

NAME = "dialects_openrlhf.md"
_HEAD = """# OpenRLHF's flags

Made by `python -m burnish.dialects.openrlhf.page` from what the translator does; do not edit.

`openrlhf.cli.train_ppo_ray` (and the older `train_ppo`) is read as `burnish train`, `openrlhf.cli.train_sft` as
`burnish sft`. The flags are those of v0.9.2, with unique beginnings as argparse takes them (`--colocate_all`); earlier
names, later ones and the dotted ones since v0.10.2 mean the same. A command with a dotted name has the defaults of that
version. Defaults of theirs that differ from ours are written out, so that the run is the one that was meant.

What cannot be the same is refused with what to type: a batch that is no whole number of prompts, a weight decay (theirs
spares biases and norms), an adaptive KL in the loss, other schedules than its three. What is known to differ a little:

- The first update of a warm-up is at 1/warm-up of the peak, not at 0, and warm-ups are not rounded up.
- Losses are means over the whole mini-batch, however it is cut; theirs are means over micro-batches until v0.10.4.
- A prompt without chat template gets the tokenizer's own leading token, if it has one; theirs adds none.
- With shuffling, a limit of rows draws them by the seed; theirs takes the first.
- In SFT, a response is followed by the end token itself; theirs puts a space between.

The tables show each flag with an example in a small GRPO run. Pending means: understood, and refused by `burnish train`
until that work is done.
"""
_COLUMNS = "| flag | default | example | becomes | how |\n|---|---|---|---|---|\n"
_PPO = "--pretrain m --prompt_data d --remote_rm_url r.py --advantage_estimator group_norm --n_samples_per_prompt 8"
_PPO += " --actor_num_gpus_per_node 1 --vllm_num_engines 1 --colocate_all_models"
_SFT = "--pretrain m --dataset d"
# Values to show, where the type alone gives no good one.
_EXAMPLES = {
    "actor_learning_rate": "5e-7",
    "adam_betas": "0.9 0.999",
    "advantage_estimator": "rloo",
    "agent_func_path": "agent.py",
    "critic_learning_rate": "5e-6",
    "attn_implementation": "sdpa",
    "dual_clip": "3",
    "eps_clip_low_high": "0.2 0.28",
    "eval_steps": "10",
    "freezing_actor_steps": "4",
    "init_kl_coef": "0.001",
    "input_template": "Q: {}",
    "kl_estimator": "k3",
    "kl_horizon": "5000",
    "kl_target": "0.1",
    "lambd": "0.95",
    "lora_alpha": "32",
    "lora_dropout": "0.1",
    "lora_rank": "16",
    "lr_scheduler": "constant_with_warmup",
    "max_epochs": "2",
    "max_len": "4096",
    "max_new_tokens": "3072",
    "overlong_buffer_len": "64",
    "param_dtype": "fp16",
    "policy_loss_type": "gspo",
    "generate_max_len": "2048",
    "lr_warmup_ratio": "0.1",
    "max_samples": "5000",
    "prompt_max_len": "512",
    "prompt_data": "a.jsonl,b.jsonl",
    "prompt_data_probs": "1.0",
    "remote_rm_url": "http://one,http://two",
    "reward_clip_range": "-5 5",
    "ref_num_gpus_per_node": "1",
    "ref_num_nodes": "1",
    "rollout_batch_size": "256",
    "rollout_max_tokens_per_gpu": "32768",
    "train_max_tokens_per_gpu": "32768",
    "save_steps": "10",
    "seed": "7",
    "stop_properly_penalty_coef": "0.5",
    "target_modules": "q_proj v_proj",
    "temperature": "0.8",
    "top_k": "50",
    "top_p": "0.9",
    "train_batch_size": "1024",
    "vllm_is_correction_type": "icepop",
    "vllm_num_engines": "1",
    "vllm_is_truncated_threshold": "0.5 2.0",
    "vllm_sync_backend": "gloo",
    "zero_stage": "3",
    "zpg": "8",
}
# Other flags without which a flag says nothing.
_BESIDE = {
    "async_queue_size": "--async_train",
    "critic_learning_rate": "--advantage_estimator gae",
    "critic_pretrain": "--advantage_estimator gae",
    "dynamic_filtering_reward_range": "--dynamic_filtering",
    "ema_beta": "--enable_ema",
    "eval_n_samples_per_prompt": "--eval_dataset d",
    "eval_split": "--eval_dataset d",
    "eval_steps": "--eval_dataset d",
    "eval_temperature": "--eval_dataset d",
    "freezing_actor_steps": "--advantage_estimator gae",
    "gamma": "--advantage_estimator gae",
    "kl_horizon": "--kl_target 0.1",
    "lambd": "--advantage_estimator gae",
    "load_in_4bit": "--lora_rank 16",
    "lora_alpha": "--lora_rank 16",
    "lora_dropout": "--lora_rank 16",
    "max_len": "--prompt_max_len 1024",
    "max_new_tokens": "--max_len 4096",
    "no_advantage_std_norm": "--advantage_estimator reinforce",
    "normalize_reward": "--reward_pretrain rm --remote_rm_url=",
    "overlong_penalty_factor": "--overlong_buffer_len 64",
    "partial_rollout": "--async_train",
    "reward_pretrain": "--remote_rm_url=",
    "rollout_max_tokens_per_gpu": "--use_dynamic_batch",
    "save_value_network": "--advantage_estimator gae --save_steps 10",
    "target_modules": "--lora_rank 16",
    "train_max_tokens_per_gpu": "--use_dynamic_batch",
    "use_icepop": "--enable_vllm_is_correction",
    "value_clip": "--advantage_estimator gae",
    "vllm_is_correction_type": "--enable_vllm_is_correction",
    "vllm_is_truncated_threshold": "--enable_vllm_is_correction",
    "vllm_sync_backend": "--async_train",
    "wandb_group": "--use_wandb true",
    "wandb_org": "--use_wandb true",
    "wandb_project": "--use_wandb true",
    "wandb_run_name": "--use_wandb true",
    "zpg": "--zero_stage 3",
}
_BY_KIND = {int: "2", float: "0.5", str: "NAME", bool: ""}
_SFT_EXAMPLES = {
    "input_template": "Q: {}",
    "learning_rate": "1e-5",
    "max_len": "4096",
    "max_samples": "5000",
    "micro_train_batch_size": "4",
}
_SFT_BESIDE = {
    **{flag.name: "--output_key answer" for flag in OWN},
    "multiturn": "--apply_chat_template",
    "wandb_project": "--use_wandb true",
    "wandb_run_name": "--use_wandb true",
}


@dataclass(frozen=True)
class Shown:
    """How one program's flags are shown: a base command, values, and flags beside."""

    translate: Callable[[Invocation], Translation]
    base: str
    values: dict[str, str]
    beside: dict[str, str]


PPO = Shown(ppo.translate, _PPO, _EXAMPLES, _BESIDE)
SFT = Shown(sft.translate, _SFT, _SFT_EXAMPLES, _SFT_BESIDE)


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, flags in SUBJECTS.items():
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n\n{_COLUMNS}{_rows(flags, PPO)}")
    others = [*(LATER[name] for name in ppo.LATER_FLAT), *EARLIER.values()]
    parts.append(f"\n## Later and earlier flags\n\n{_COLUMNS}{_rows(others, PPO)}")
    parts.append(f"\n## SFT\n\nThe other flags mean what they mean above.\n\n{_COLUMNS}{_rows(OWN, SFT)}")
    parts.append("\n## Dotted names\n\n| dotted | flat |\n|---|---|\n")
    parts += [f"| `--{dotted}` | `--{flat}` |\n" for dotted, flat in DOTTED.items() if dotted != flat]
    return "".join(parts)


def _rows(flags: Iterable[Flag], shown: Shown) -> str:
    return "".join(_row(flag, *_translated(flag, shown)) for flag in flags)


def example_of(flag: Flag, examples: dict[str, str]) -> list[str]:
    """A value to show it with, as words."""
    if flag.name in examples:
        words = examples[flag.name]
        return [words] if " " in words and flag.nargs == 1 else words.split()
    if flag.nargs == 2:
        return ["0.5", "2.0"]
    if flag.choices:
        return [flag.choices[-1]]
    return _BY_KIND[flag.kind].split()


def _translated(flag: Flag, shown: Shown) -> tuple[str, list[Item]]:
    """The value that is shown, and what became of it."""
    words = example_of(flag, shown.values)
    argv = (*shown.base.split(), *shown.beside.get(flag.name, "").split(), f"--{flag.name}", *words)
    items = [item for item in shown.translate(Invocation("openrlhf", argv)).items if item.theirs == f"--{flag.name}"]
    return " ".join(words), [item for item in items if item.given and item.why != AGAIN]


def _row(flag: Flag, words: str, items: list[Item]) -> str:
    default = "" if flag.default in (None, False, "") else f"`{_shown(flag.default)}`"
    targets = _lines(f"`{item.ours}` {_shown(item.ours_value)}" for item in items if item.ours)
    plain = {INERT: "no effect", REFUSED: "refused"}
    targets = targets or _lines({plain.get(item.status, "see there") for item in items})
    how = _lines(dict.fromkeys(item.why for item in items if item.why))
    cells = (f"`--{flag.name}`", default, words, targets, how)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |\n"


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_shown, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _lines(parts: Iterable[str]) -> str:
    return "<br>".join(parts)


def write(folder: Path) -> Path:
    path = folder / NAME
    path.write_text(render(), encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{write(Path(sys.argv[1] if len(sys.argv) > 1 else 'docs'))}\n")
