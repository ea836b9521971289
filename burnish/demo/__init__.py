"""The demo: data, tokenizer and model made from nothing, warmed up, then improved by reinforcement."""
