"""What a model's own repository brings: copied beside a model, and run only with trust_remote_code."""

from torch import nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Model, Qwen2PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput


class RemoteConfig(Qwen2Config):
    model_type = "keys_remote"


class RemoteLM(Qwen2ForCausalLM):
    config_class = RemoteConfig


class RemoteValues(Qwen2PreTrainedModel):
    config_class = RemoteConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, **inputs):
        return TokenClassifierOutput(logits=self.score(self.model(**inputs).last_hidden_state))


class RemoteTokenizer(PreTrainedTokenizerFast):
    pass
