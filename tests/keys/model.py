"""Rows of actor_rollout_ref.model.*"""

from . import observe as see
from . import teaching
from .row import Row

MODEL = "actor_rollout_ref.model"

ROWS = [
    Row(f"{MODEL}.path", lambda kit: str(kit.other_model), see.policy_weights),
    Row(f"{MODEL}.tokenizer_path", lambda kit: str(kit.other_tokenizer), see.prompt_ids),
    Row(
        f"{MODEL}.trust_remote_code",
        "true",
        see.policy_class,
        (lambda kit: f"{MODEL}.path={kit.remote_model}",),
        expected="RemoteLM",
        refused_without=True,
    ),
    Row(f"{MODEL}.external_lib", "keys_external_lib", see.imports_external_lib, expected=True),
    Row(f"{MODEL}.override_config", "{rms_norm_eps:0.5}", see.responses),
    Row(f"{MODEL}.enable_gradient_checkpointing", "false", teaching.layer_passes("policy"), expected=1),
]
