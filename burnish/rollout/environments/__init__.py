"""Environments: worlds that answer the model's turns and reward them. One protocol, and adapters to libraries."""
