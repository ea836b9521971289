"""The demo: creates data, tokenizer and a tiny model, warms it up with SFT, then improves it with GRPO."""
