"""Roles and their updates: policy, critic, reference; optimizers, sharding, checkpoints."""
