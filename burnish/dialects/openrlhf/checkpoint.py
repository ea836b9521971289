"""Checkpoints, resuming, evaluation interval."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import ACTOR, has_critic
from burnish.dialects.openrlhf.translator import Translator

STATE = ["model", "optimizer", "extra"]
BEST = "trainer.best_metric_key"
NO_LIMIT = 1e6  # gigabytes


def translate(t: Translator) -> None:
    t.set("save_path", "trainer.export_dir", why="the final model in Hugging Face format")
    t.set("ckpt_path", "trainer.default_local_dir", why="the run folder, which contains the checkpoints")
    t.set("save_steps", "trainer.save_freq")
    resume = t.get("load_checkpoint")
    why = "resumes if there is a checkpoint" if resume else "starts from scratch without the flag"
    t.set("load_checkpoint", "trainer.resume_mode", "auto" if resume else "disable", why)
    limits = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
    t.set("max_ckpt_num", limits if has_critic(t) else limits[:1])
    contents(t, f"{ACTOR}.checkpoint.save_contents")
    size_limit(t)
    _value_network(t)
    _evaluation(t)


def contents(t: Translator, ours: str) -> None:
    has_state, exported = not t.get("disable_ds_ckpt"), t.get("save_hf_ckpt")
    saved = [*(STATE if has_state else []), *(["hf_model"] if exported else [])]
    if not saved:
        t.set("disable_ds_ckpt", "trainer.save_freq", -1, f"without {t.spelling('save_hf_ckpt')} nothing is saved")
        return
    t.set("save_hf_ckpt", ours, saved, "every checkpoint has a Hugging Face export" if exported else "")
    if not has_state:
        t.set("disable_ds_ckpt", ours, saved, "no state to resume from")


def size_limit(t: Translator) -> None:
    t.inert("use_ds_universal_ckpt", "checkpoints can always be loaded with any number of ranks")
    if t.get("max_ckpt_mem") >= NO_LIMIT:
        t.inert("max_ckpt_mem", "no limit")
    else:
        t.refuse(
            "max_ckpt_mem", f"not supported; limit the number of checkpoints instead: {t.spelling('max_ckpt_num')} N"
        )


def _value_network(t: Translator) -> None:
    if not has_critic(t):
        t.inert("save_value_network", "this run has no critic")
    elif t.get("save_value_network") and t.get("save_steps") <= 0:
        why = f"the critic is exported with checkpoints: add {t.spelling('save_steps')} N"
        t.refuse("save_value_network", why)
    elif t.get("save_value_network"):
        why = "exports the critic in Hugging Face format with every checkpoint"
        t.set("save_value_network", "critic.checkpoint.save_contents", [*STATE, "hf_model"], why)


def _evaluation(t: Translator) -> None:
    key, best = "trainer.test_freq", t.get("best_metric_key")
    if t.get("eval_dataset") is None or t.get("async_train"):
        t.inert("eval_steps", "this run does not evaluate")
        t.inert("best_metric_key", "this run does not evaluate")
        return
    t.set("eval_steps", key, -1 if t.get("eval_steps") == 0 else t.get("eval_steps"))
    t.set_implicit("trainer.val_before_train", False, "OpenRLHF does not evaluate before training")
    if best == "none":
        t.inert("best_metric_key", "none means off")
    elif t.has("best_metric_key") and (t.get("eval_steps") or -1) <= 0:
        t.inert("best_metric_key", "this run does not evaluate")
    elif best == "":
        if t.has("best_metric_key"):
            t.set("best_metric_key", BEST, "auto", "selects by the mean score over all data sources")
    elif best.startswith("val-"):
        t.set("best_metric_key", BEST)
    else:
        why = "Burnish has other metric names: write val-core/DATA_SOURCE/reward/mean@N"
        t.refuse("best_metric_key", f"{why}, or '' for the mean over all data sources")
