"""Value and reward models of vision-language families, for which transformers has no class: a score for every token."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, MODEL_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import TokenClassifierOutput

if TYPE_CHECKING:
    import torch


def token_classifier(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class of a family's model with a linear head `score` in place of the language model head."""
    return _class_for(type(config))


@functools.cache
def _class_for(config_class: type[PretrainedConfig]) -> type[PreTrainedModel]:
    """Named like transformers' own, as its checkpoints say in `architectures`."""
    language_model: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[config_class]
    base: Any = MODEL_MAPPING[config_class]
    family = next(parent for parent in language_model.__bases__ if issubclass(parent, PreTrainedModel))

    def init(self: Any, config: PretrainedConfig) -> None:
        family.__init__(self, config)
        self.num_labels = config.num_labels or 1
        setattr(self, self.base_model_prefix, base(config))
        self.score = nn.Linear(config.get_text_config().hidden_size, self.num_labels, bias=False)
        self.post_init()

    def forward(self: Any, **inputs: Any) -> TokenClassifierOutput:
        hidden = getattr(self, self.base_model_prefix)(**inputs).last_hidden_state
        return TokenClassifierOutput(logits=cast("torch.FloatTensor", self.score(hidden)))

    @classmethod
    def from_config(cls: Any, config: PretrainedConfig, *, trust_remote_code: bool = False, **kwargs: Any) -> Any:
        return cls._from_config(config, **kwargs)

    name = f"{language_model.__name__.removesuffix('ForConditionalGeneration')}ForTokenClassification"
    # transformers finds the names of weights in files by the name of the class, else by the type of the model.
    renaming = get_checkpoint_conversion_mapping(language_model.__name__)
    renaming = get_checkpoint_conversion_mapping(config_class.model_type) if renaming is None else renaming
    if renaming is not None:
        register_checkpoint_conversion_mapping(name, renaming, overwrite=True)
    members = {"__init__": init, "forward": forward, "from_config": from_config, "__module__": __name__}
    return type(name, (family,), members)
