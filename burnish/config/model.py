"""actor_rollout_ref.model.*: the policy's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import TrainedModelConfig
from burnish.config.fields import one_of, section, setting
from burnish.config.names import DTYPES


@dataclass
class FusedKernelConfig:
    """Implementation of the fused head."""

    impl_backend: str = one_of("triton", ("torch", "triton"), verl="torch")
    """Kernel of the fused log-prob head on a GPU: chunked torch, or Triton."""


@dataclass
class ModelConfig(TrainedModelConfig):
    """The policy's model, which engine and reference also start from."""

    path: str | None = setting(None, verl="~/models/deepseek-llm-7b-chat")
    """Folder or Hugging Face name of the model. The policy, the reference and the engine all start from it."""

    hf_config_path: str | None = None
    """Folder or name of the model's config, if it differs from path."""

    tokenizer_path: str | None = None
    """Folder or name of the tokenizer; null means path."""

    trust_remote_code: bool = False
    """Allow the model's repository to run its own Python code."""

    custom_chat_template: str | None = None
    """Chat template (Jinja text, or a file with it) that replaces the tokenizer's own."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the model is built, for instance to register a model class."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the model's Hugging Face config, for instance attn_implementation or a dropout."""

    torch_dtype: str | None = one_of(None, DTYPES)
    """dtype in which the weights are loaded and stored; null uses fsdp_config.model_dtype of each role."""

    use_remove_padding: bool = setting(True, verl=False)
    """Train on packed tokens without padding."""

    use_liger: bool = False
    """Replace the policy's norms, rotary embedding and MLPs by Liger's kernels: on GPUs, and not in models with images.
    Its layers are then not compiled (use_torch_compile)."""

    use_fused_kernels: bool = False
    """Use the fused head, which computes log-probs and entropy without materializing all logits."""

    fused_kernel_options: FusedKernelConfig = section(FusedKernelConfig)
    """Implementation of the fused head."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""
