"""Vision-language models: what differs between families, pictures to model inputs, and model inputs to embeddings."""
