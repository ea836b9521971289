"""Rows of actor_rollout_ref.actor.* and .ref.*"""

from . import teaching
from .roles import role_rows
from .row import Row

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"

LOSS = teaching.numbers("policy", "actor/pg_loss")
DESCENT = teaching.numbers("policy", "actor/pg_loss", "actor/grad_norm")
SAPO = (f"{ACTOR}.policy_loss.loss_mode=sapo",)
CLIP_COV = (f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_lb=-100")
MANY_CLIPPED = (*CLIP_COV, f"{ACTOR}.policy_loss.clip_cov_ratio=0.9")
KL_COV = (f"{ACTOR}.policy_loss.loss_mode=kl_cov",)
WITH_KL = (f"{ACTOR}.use_kl_loss=true",)
ONE_BY_ONE = (*WITH_KL, f"{REF}.log_prob_micro_batch_size_per_gpu=1")

ROWS = [
    *role_rows(ACTOR, "policy", "actor/pg_loss"),
    Row(f"{ACTOR}.clip_ratio", "0.01", LOSS),
    Row(f"{ACTOR}.clip_ratio_low", "0.01", LOSS),
    Row(f"{ACTOR}.clip_ratio_high", "0.01", LOSS),
    Row(f"{ACTOR}.clip_ratio_c", "1.1", LOSS),
    Row(f"{ACTOR}.policy_loss.loss_mode", "gpg", LOSS),
    Row(f"{ACTOR}.policy_loss.clip_cov_ratio", "0.9", LOSS, CLIP_COV),
    Row(f"{ACTOR}.policy_loss.clip_cov_lb", "0.5", LOSS, MANY_CLIPPED),
    Row(f"{ACTOR}.policy_loss.clip_cov_ub", "-0.5", LOSS, MANY_CLIPPED),
    Row(f"{ACTOR}.policy_loss.kl_cov_ratio", "0.5", LOSS, KL_COV),
    Row(f"{ACTOR}.policy_loss.ppo_kl_coef", "5", LOSS, KL_COV),
    Row(f"{ACTOR}.tau_pos", "3", LOSS, SAPO),
    Row(f"{ACTOR}.tau_neg", "3", LOSS, SAPO),
    Row(f"{ACTOR}.loss_scale_factor", "100", LOSS, (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",)),
    Row(f"{ACTOR}.entropy_coeff", "0.5", DESCENT),
    Row(f"{ACTOR}.use_kl_loss", "true", DESCENT),
    Row(f"{ACTOR}.kl_loss_coef", "2", DESCENT, WITH_KL),
    Row(f"{ACTOR}.kl_loss_type", "abs", teaching.numbers("policy", "actor/kl_loss"), WITH_KL),
    Row(f"{REF}.use_prefix_grouper", "true", teaching.inference_tokens("reference"), WITH_KL),
    Row(f"{REF}.log_prob_micro_batch_size", "4", teaching.num_read("reference"), WITH_KL, expected=2),
    Row(f"{REF}.log_prob_micro_batch_size_per_gpu", "2", teaching.num_read("reference"), WITH_KL, expected=4),
    Row(f"{REF}.log_prob_use_dynamic_bsz", "true", teaching.num_read("reference"), ONE_BY_ONE, expected=1),
    Row(f"{REF}.log_prob_max_token_len_per_gpu", "1", teaching.num_read("reference"), WITH_KL, expected=8),
]
