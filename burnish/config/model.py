"""actor_rollout_ref.model.*: the policy's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, one_of, section, setting
from burnish.config.names import DTYPES


@dataclass
class FusedKernelConfig:
    """How the fused head is computed."""

    impl_backend: str = one_of("torch", ("torch", "triton"))
    """Kernel of the fused log-prob head: chunked torch, or Triton."""


@dataclass
class LoraConfig:
    """LoRA as newer verl writes it, and Megatron needs it."""

    type: str = one_of("lora", ("lora", "vlm_lora", "canonical_lora", "dora"))
    """Kind of adapter."""

    rank: int = at_least(0, 0)
    """Rank of the adapters; 0 is off."""

    alpha: float = at_least(32, 0)
    """Scale of the adapters: their output is multiplied by alpha / rank."""

    dropout: float = at_least(0.0, 0)
    """Dropout before the adapters."""

    merge: bool = False
    """Send merged weights to the engine instead of the adapter."""

    target_modules: Any = setting(["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"])
    """Modules that get an adapter."""

    exclude_modules: Any = None
    """Modules that get none."""

    lora_A_init_method: str = one_of("xavier", ("xavier", "kaiming", "uniform", "normal", "zero"))
    """How the first adapter matrix starts."""

    lora_B_init_method: str = one_of("zero", ("xavier", "kaiming", "uniform", "normal", "zero"))
    """How the second adapter matrix starts."""

    dtype: str | None = one_of(None, DTYPES)
    """dtype of the adapters; null means the model's."""

    adapter_path: str | None = None
    """Adapter to start from."""


@dataclass
class ModelConfig:
    """The policy's model; the engine and the reference start from it too."""

    path: str | None = setting(None, verl="~/models/deepseek-llm-7b-chat")
    """Folder or Hugging Face name of the model. The policy, the reference and the engine all start from it."""

    hf_config_path: str | None = None
    """Folder or name of the model's config, where it differs from path."""

    tokenizer_path: str | None = None
    """Folder or name of the tokenizer; null means path."""

    trust_remote_code: bool = False
    """Allow the model's repository to run its own Python code."""

    custom_chat_template: str | None = None
    """Chat template (Jinja text) that replaces the tokenizer's own."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the model is built, for instance to register a model class."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the model's Hugging Face config, for instance attn_implementation or a dropout."""

    torch_dtype: str | None = one_of(None, DTYPES)
    """dtype the weights are loaded in; null means float32 for what is trained."""

    enable_gradient_checkpointing: bool = True
    """Recompute activations in the backward pass instead of keeping them: less memory, more time."""

    enable_activation_offload: bool = False
    """Keep activations in CPU memory between forward and backward."""

    use_remove_padding: bool = setting(True, verl=False)
    """Train on packed tokens without padding."""

    lora_rank: int = at_least(0, 0)
    """Rank of LoRA adapters; 0 trains all weights."""

    lora_alpha: float = at_least(16, 0)
    """Scale of LoRA: the adapters' output is multiplied by lora_alpha / lora_rank."""

    target_modules: Any = "all-linear"
    """Modules that get a LoRA adapter: all-linear, a name, or a list of names."""

    exclude_modules: Any = None
    """Modules that get no LoRA adapter: a regular expression or a list of names."""

    lora_adapter_path: str | None = None
    """Folder of a LoRA adapter to start from."""

    lora: LoraConfig = section(LoraConfig)
    """LoRA settings of the Megatron backend."""

    use_liger: bool = False
    """Replace parts of the model by Liger's kernels."""

    use_fused_kernels: bool = False
    """Ask for the fused head that gives log-probs and entropy without building all logits."""

    fused_kernel_options: FusedKernelConfig = section(FusedKernelConfig)
    """How the fused head is computed."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""
