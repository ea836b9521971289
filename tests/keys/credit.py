"""Rows of credit, rollout correction and what the policy's loss has beyond tests/keys/actor.py."""

from . import crediting, teaching
from . import observe as see
from .row import Row

ACTOR = "actor_rollout_ref.actor"
CORRECTION = "algorithm.rollout_correction"

GAE = ("algorithm.adv_estimator=gae",)
IN_REWARD = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.5")
PF_PPO = (*GAE, "algorithm.use_pf_ppo=true")
WEIGHTS = (f"{CORRECTION}.rollout_is=token",)
DISTANCE = (f"{CORRECTION}.rollout_rs=token_k2", f"{CORRECTION}.rollout_rs_threshold=0.1")
RATIO = (f"{CORRECTION}.rollout_rs=token", f"{CORRECTION}.rollout_rs_threshold=1.5")
BYPASS = (f"{CORRECTION}.bypass_mode=true",)
WITH_KL = (f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=2")

ROWS = [
    Row("algorithm.kl_clamp", "0.1", see.credited, IN_REWARD),
    Row("algorithm.kl_order", "after", see.credited, IN_REWARD),
    Row("algorithm.reward_clip_range", "[-0.1,0.1]", see.credited),
    Row("algorithm.whitening", "biased", see.credited, GAE),
    Row("algorithm.group_std_epsilon", "0.5", see.credited),
    Row("algorithm.gae_observations", "walk", crediting.credited_past_observations, (*GAE, "algorithm.lam=0.5")),
    Row("algorithm.use_pf_ppo", "true", crediting.drawn, GAE),
    Row("algorithm.pf_ppo.reweight_method", "max_min", crediting.drawn, PF_PPO),
    Row("algorithm.pf_ppo.weight_pow", "40", crediting.drawn, PF_PPO),
    Row(f"{CORRECTION}.rollout_is", "token", crediting.corrected),
    Row(f"{CORRECTION}.rollout_is_threshold", "0.5_1.5", crediting.corrected, WEIGHTS),
    Row(f"{CORRECTION}.rollout_is_threshold_lower", "0.9", crediting.corrected, WEIGHTS),
    Row(f"{CORRECTION}.rollout_is_batch_normalize", "true", crediting.corrected, WEIGHTS),
    Row(f"{CORRECTION}.rollout_rs", "seq_max_k3", crediting.corrected, DISTANCE),
    Row(f"{CORRECTION}.rollout_rs_threshold", "0.5", crediting.corrected, DISTANCE),
    Row(f"{CORRECTION}.rollout_rs_threshold_lower", "0.1", crediting.corrected, RATIO),
    Row(f"{CORRECTION}.rollout_token_veto_threshold", "0.6", crediting.corrected),
    Row(f"{CORRECTION}.bypass_mode", "true", crediting.bypassed_loss),
    Row(f"{CORRECTION}.use_policy_gradient", "true", crediting.bypassed_loss, BYPASS),
    Row(f"{CORRECTION}.loss_type", "reinforce", crediting.bypassed_loss, BYPASS),
    Row(f"{ACTOR}.tis_imp_ratio_cap", "1.2", crediting.corrected),
    Row(f"{ACTOR}.kl_loss_clamp", "0.1", teaching.numbers("policy", "actor/kl_loss"), WITH_KL),
    Row(f"{ACTOR}.ema_beta", "0.9", crediting.averaged_weights),
]
