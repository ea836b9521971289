"""Rows of algorithm.*"""

from . import observe as see
from .row import Row

GAE = ("algorithm.adv_estimator=gae",)
IN_REWARD = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.1")
ADAPTIVE = (*IN_REWARD, "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=10")

ROWS = [
    Row("algorithm.adv_estimator", "rloo", see.credited, GAE),
    Row("algorithm.gamma", "0.5", see.credited, GAE),
    Row("algorithm.lam", "0.5", see.credited, GAE),
    Row("algorithm.norm_adv_by_std_in_grpo", "false", see.credited),
    Row("algorithm.use_kl_in_reward", "true", see.credited),
    Row("algorithm.kl_penalty", "abs", see.credited, IN_REWARD),
    Row("algorithm.kl_ctrl.type", "adaptive", see.credited, (*IN_REWARD, "algorithm.kl_ctrl.horizon=10")),
    Row("algorithm.kl_ctrl.kl_coef", "0.5", see.credited, IN_REWARD),
    Row("algorithm.kl_ctrl.horizon", "20", see.credited, ADAPTIVE),
    Row("algorithm.kl_ctrl.target_kl", "2", see.credited, ADAPTIVE),
]
