"""What is saved, what is kept, where a run goes on, when it is evaluated."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import ACTOR, has_critic
from burnish.dialects.openrlhf.writing import Writing

STATE = ["model", "optimizer", "extra"]
BEST = "trainer.best_metric_key"
NO_LIMIT = 1e6  # gigabytes: nobody's disk


def write(w: Writing) -> None:
    w.put("save_path", "trainer.export_dir", why="the final model, for Hugging Face")
    w.put("ckpt_path", "trainer.default_local_dir", why="the run folder, with its checkpoints")
    w.put("save_steps", "trainer.save_freq")
    going_on = w.get("load_checkpoint")
    why = "goes on if there is a checkpoint" if going_on else "starts anew without the flag"
    w.put("load_checkpoint", "trainer.resume_mode", "auto" if going_on else "disable", why)
    kept = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
    w.put("max_ckpt_num", kept if has_critic(w) else kept[:1])
    contents(w, f"{ACTOR}.checkpoint.save_contents")
    size_limit(w)
    _value_network(w)
    _evaluation(w)


def contents(w: Writing, ours: str) -> None:
    whole, exported = not w.get("disable_ds_ckpt"), w.get("save_hf_ckpt")
    saved = [*(STATE if whole else []), *(["hf_model"] if exported else [])]
    if not saved:
        w.put("disable_ds_ckpt", "trainer.save_freq", -1, f"without {w.name('save_hf_ckpt')} nothing would be saved")
        return
    w.put("save_hf_ckpt", ours, saved, "a Hugging Face folder in every checkpoint" if exported else "")
    if not whole:
        w.put("disable_ds_ckpt", ours, saved, "no state to go on from")


def size_limit(w: Writing) -> None:
    w.inert("use_ds_universal_ckpt", "checkpoints can always be read by any number of ranks")
    if w.get("max_ckpt_mem") >= NO_LIMIT:
        w.inert("max_ckpt_mem", "no limit")
    else:
        w.refuse("max_ckpt_mem", f"checkpoints are limited by number, not by size: {w.name('max_ckpt_num')} N")


def _value_network(w: Writing) -> None:
    if not has_critic(w):
        w.inert("save_value_network", "there is no critic in this run")
    elif w.get("save_value_network") and w.get("save_steps") <= 0:
        why = f"the critic is exported with checkpoints: add {w.name('save_steps')} N"
        w.refuse("save_value_network", why)
    elif w.get("save_value_network"):
        why = "a Hugging Face folder of the critic in every checkpoint, also in the last"
        w.put("save_value_network", "critic.checkpoint.save_contents", [*STATE, "hf_model"], why)


def _evaluation(w: Writing) -> None:
    key, best = "trainer.test_freq", w.get("best_metric_key")
    if w.get("eval_dataset") is None or w.get("async_train"):
        w.inert("eval_steps", "nothing is evaluated in this run")
        w.inert("best_metric_key", "nothing is evaluated in this run")
        return
    w.put("eval_steps", key, -1 if w.get("eval_steps") == 0 else w.get("eval_steps"))
    w.itself("trainer.val_before_train", False, "the first evaluation comes with its step")
    if best == "none":
        w.inert("best_metric_key", "none is off")
    elif w.given("best_metric_key") and (w.get("eval_steps") or -1) <= 0:
        w.inert("best_metric_key", "nothing is evaluated in this run")
    elif best == "":
        if w.given("best_metric_key"):
            w.put("best_metric_key", BEST, "auto", "the mean score over all data sources decides")
    elif best.startswith("val-"):
        w.put("best_metric_key", BEST)
    else:
        why = "metrics have other names here: val-core/DATA_SOURCE/reward/mean@N"
        w.refuse("best_metric_key", f"{why}, or '' for the mean over all data sources")
