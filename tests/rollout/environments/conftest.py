from ..agents.conftest import chat_tokenizer

__all__ = ["chat_tokenizer"]
