"""Modules that compute the same bits in the engine and in the trainer (`rollout.invariant=true` on a GPU)."""
