"""Rows of adapters, number formats, recomputing, offloading and kernels, of the policy and the critic alike."""

from . import judging, memory
from . import observe as see
from .row import Row, Text

POLICY, CRITIC, REF, JUDGE = (
    "actor_rollout_ref.model",
    "critic.model",
    "actor_rollout_ref.ref",
    "reward_model.model",
)
GAE: tuple[Text, ...] = ("algorithm.adv_estimator=gae",)
KL: tuple[Text, ...] = ("actor_rollout_ref.actor.use_kl_loss=true",)
JUDGED: tuple[Text, ...] = ("reward_model.enable=true", lambda kit: f"{JUDGE}.path={judging.scorer(kit)}")
SIXTEEN = "torch.bfloat16"


def adapter_rows(model: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    """The flat form and the section."""
    lora, section = (*given, f"{model}.lora_rank=4"), (*given, f"{model}.lora.rank=4")
    see_adapter = memory.adapter

    def path(kit):
        return str(memory.saved_adapter(kit, role))

    return [
        Row(f"{model}.lora_rank", "2", see_adapter(role, "rank"), given, expected={"rank": 2}),
        Row(f"{model}.lora_alpha", "8", see_adapter(role, "scaling"), lora, expected={"scaling": 2.0}),
        Row(f"{model}.lora_dropout", "0.5", see_adapter(role, "dropout"), lora, expected={"dropout": 0.5}),
        Row(f"{model}.target_modules", "q_proj", see_adapter(role, "modules"), lora, expected={"modules": ["q_proj"]}),
        Row(f"{model}.exclude_modules", "[q_proj]", see_adapter(role, "modules"), lora),
        Row(f"{model}.lora_adapter_path", path, see_adapter(role, "rank"), given, expected={"rank": 3}),
        Row(f"{model}.lora.rank", "2", see_adapter(role, "rank"), given, expected={"rank": 2}),
        Row(f"{model}.lora.alpha", "8", see_adapter(role, "scaling"), section, expected={"scaling": 2.0}),
        Row(f"{model}.lora.dropout", "0.5", see_adapter(role, "dropout"), section, expected={"dropout": 0.5}),
        Row(
            f"{model}.lora.target_modules",
            "[linear_qkv]",
            see_adapter(role, "modules"),
            section,
            expected={"modules": ["k_proj", "q_proj", "v_proj"]},
        ),
        Row(f"{model}.lora.exclude_modules", "[q_proj]", see_adapter(role, "modules"), section),
        Row(f"{model}.lora.type", "dora", see_adapter(role, "dora"), section, expected={"dora": True}),
        Row(f"{model}.lora.dtype", "bf16", see_adapter(role, "dtype"), section, expected={"dtype": SIXTEEN}),
        Row(f"{model}.lora.lora_A_init_method", "normal", see_adapter(role, "A"), section),
        Row(f"{model}.lora.lora_B_init_method", "normal", see_adapter(role, "B"), section),
        Row(f"{model}.lora.adapter_path", path, see_adapter(role, "rank"), given, expected={"rank": 3}),
        Row(f"{model}.load_in_4bit", "true", memory.num_packed(role), lora, expected=14),
    ]


def memory_rows(model: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    uniform = (*given, f"{model}.recompute.method=uniform")
    return [
        Row(f"{model}.recompute.method", "auto", memory.passes_by_memory(role), given, expected=[2, 1]),
        Row(f"{model}.recompute.num_layers", "2", memory.kept_tensors(role), uniform),
        Row(f"{model}.enable_activation_offload", "true", memory.offloaded_passes(role), given, expected=1),
        Row(f"{model}.attn_implementation", "eager", memory.fused_products(role), given, expected=0),
    ]


def format_rows(fsdp: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    mixed = f"{fsdp}.mixed_precision"
    return [
        Row(f"{fsdp}.model_dtype", "bf16", memory.kept_dtype(role), given, expected=SIXTEEN),
        Row(f"{mixed}.param_dtype", "bf16", memory.compute_dtype(role), given, expected=SIXTEEN),
        Row(f"{mixed}.buffer_dtype", "bf16", memory.buffer_dtype(role), given, expected=SIXTEEN),
    ]


def moved(weights: int = 0, state: int = 0, updates: int = 0) -> dict[str, int]:
    return {"weights": weights, "state": state, "updates on the CPU": updates}


def offload_rows(fsdp: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    """Of a role that is taught."""
    see_moves = memory.moves(role)
    return [
        Row(f"{fsdp}.param_offload", "true", see_moves, given, expected=moved(weights=2)),
        Row(f"{fsdp}.optimizer_offload", "true", see_moves, given, expected=moved(state=1)),
        Row(f"{fsdp}.offload_policy", "true", see_moves, given, expected=moved(weights=2, updates=1)),
    ]


def frozen_offload_rows(fsdp: str, role: str, given: tuple[Text, ...]) -> list[Row]:
    names = ("param_offload", "offload_policy")
    return [Row(f"{fsdp}.{name}", "true", memory.moves(role), given, expected=moved(weights=1)) for name in names]


ROWS = [
    *adapter_rows(POLICY, "policy", ()),
    *adapter_rows(CRITIC, "critic", GAE),
    *memory_rows(POLICY, "policy", ()),
    *memory_rows(CRITIC, "critic", GAE),
    *format_rows("actor_rollout_ref.actor.fsdp_config", "policy", ()),
    *format_rows(f"{CRITIC}.fsdp_config", "critic", GAE),
    *format_rows(f"{REF}.fsdp_config", "reference", KL),
    *offload_rows("actor_rollout_ref.actor.fsdp_config", "policy", ()),
    *offload_rows(f"{CRITIC}.fsdp_config", "critic", GAE),
    *frozen_offload_rows(f"{REF}.fsdp_config", "reference", KL),
    *frozen_offload_rows(f"{JUDGE}.fsdp_config", "judge", JUDGED),
    Row(
        f"{JUDGE}.fsdp_config.mixed_precision.param_dtype",
        "bf16",
        memory.compute_dtype("judge"),
        JUDGED,
        expected=SIXTEEN,
    ),
    Row(f"{POLICY}.torch_dtype", "bf16", memory.kept_dtype("policy"), expected=SIXTEEN),
    Row(f"{POLICY}.hf_config_path", lambda kit: str(memory.other_config(kit)), see.responses),
    Row(
        f"{POLICY}.use_liger",
        "true",
        see.policy_class,
        expected="Liger kernels run on GPUs only",
        refused=True,
    ),
    Row(
        "actor_rollout_ref.actor.use_torch_compile",
        "false",
        memory.compiled_functions("policy"),
        (f"{POLICY}.fused_kernel_options.impl_backend=torch",),
        expected=[],
    ),
    Row(f"{REF}.use_torch_compile", "false", memory.compiled_functions("reference"), KL, expected=["forward"] * 2),
    Row("critic.use_torch_compile", "false", memory.compiled_functions("critic"), GAE, expected=["forward"] * 2),
    Row(
        "reward_model.use_torch_compile", "false", memory.compiled_functions("policy"), JUDGED, expected=["forward"] * 2
    ),
    Row(f"{POLICY}.fused_kernel_options.impl_backend", "torch", memory.triton_chunks("policy"), expected=0, long=True),
    Row("actor_rollout_ref.actor.load_weight", "false", see.policy_weights),
    Row(f"{REF}.load_weight", "false", memory.reference_log_probs, KL),
    Row("critic.load_weight", "false", see.critic_weights, GAE),
    Row(f"{REF}.model.path", lambda kit: str(kit.other_model), memory.reference_log_probs, KL),
    Row(f"{REF}.model.override_config", "{rms_norm_eps:0.5}", memory.reference_log_probs, KL),
    Row(f"{REF}.model.external_lib", "keys_external_lib", see.imports_external_lib, KL, expected=True),
    Row(
        f"{REF}.model.trust_remote_code",
        "true",
        memory.reference_class,
        (*KL, lambda kit: f"{REF}.model.path={kit.remote_model}"),
        expected="RemoteLM",
        refused_without=True,
    ),
]
