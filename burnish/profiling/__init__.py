"""Profiles of training steps: torch.profiler, torch's memory snapshots, Nsight Systems, Ascend's profiler."""
