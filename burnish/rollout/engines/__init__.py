"""Inference engines: built-in, transformers, vLLM, SGLang."""
