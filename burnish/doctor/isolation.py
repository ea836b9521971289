"""What the isolation can promise on this machine, for the programs of a model and for reward workers."""

from __future__ import annotations


def promises() -> dict[str, str]:
    """Who is isolated -> how, or what remains open and why."""
    from burnish.isolation.probe import isolation

    found = isolation()
    return {
        "programs of the model": found.description,
        "reward workers": _reward_workers(),
        "still possible": "; ".join(found.still_possible),
    }


def _reward_workers() -> str:
    from burnish.isolation.probe import worker_mode

    mode, problem = worker_mode(network=True, read_only=True)
    if mode is None:
        return f"only limits of time and memory: they run as this user, with its files and the network ({problem})"
    return "namespaces of their own; reward.isolate=true and reward.network=false also take away files and network"
