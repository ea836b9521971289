"""Rows of critic.*"""

from . import observe as see
from . import teaching
from .roles import role_rows
from .row import Row

GAE = ("algorithm.adv_estimator=gae",)
LOSS = teaching.numbers("critic", "critic/vf_loss")

ROWS = [
    *role_rows("critic", "critic", "critic/vf_loss", GAE),
    Row("critic.enable", "true", see.has_critic, expected=True),
    Row("critic.forward_micro_batch_size", "4", teaching.num_read("critic"), GAE, expected=2),
    Row("critic.forward_micro_batch_size_per_gpu", "2", teaching.num_read("critic"), GAE, expected=4),
    Row("critic.forward_max_token_len_per_gpu", "1", teaching.num_read("critic"), GAE, expected=8),
    Row("critic.cliprange_value", "0.01", LOSS, GAE),
    Row("critic.model.path", lambda kit: str(kit.other_model), see.critic_weights, GAE),
    Row("critic.model.override_config", "{rms_norm_eps:0.5}", teaching.gradient_norm("critic"), GAE),
    Row("critic.model.external_lib", "keys_external_lib", see.imports_external_lib, GAE, expected=True),
    Row(
        "critic.model.trust_remote_code",
        "true",
        see.critic_class,
        (*GAE, lambda kit: f"critic.model.path={kit.remote_model}"),
        expected="RemoteValues",
        refused_without=True,
    ),
    Row("critic.model.enable_gradient_checkpointing", "false", teaching.layer_passes("critic"), GAE, expected=1),
]
