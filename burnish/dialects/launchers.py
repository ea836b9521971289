"""Launchers: commands that start another command, and the options each of them takes."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Launcher:
    """All options take a value except `switches`; if `values` is set, only those do."""

    verbs: tuple[str, ...] = ()  # subcommand: `job submit` of `ray job submit`
    switches: frozenset[str] = frozenset()
    values: frozenset[str] | None = None
    positional: int = 0  # arguments before the started command: the 10h of `timeout 10h`
    starts_python: bool = False  # starts a Python file, or a module with -m or --module

    def takes_value(self, option: str) -> bool:
        return option in self.values if self.values is not None else option not in self.switches


def _wrapper(*values: str, positional: int = 0, verbs: tuple[str, ...] = ()) -> Launcher:
    """A launcher that runs a command unchanged."""
    return Launcher(verbs, values=frozenset(values), positional=positional)


_TORCHRUN = Launcher(switches=frozenset(("--standalone", "--no-python", "--run-path")), starts_python=True)
_DEEPSPEED = Launcher(
    switches=frozenset(
        (
            *("--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check"),
            *("--force_multi", "--save_pid", "--elastic_training"),
        )
    ),
    starts_python=True,
)
_ACCELERATE = Launcher(
    verbs=("launch",),
    switches=frozenset(
        (
            *("--cpu", "--multi_gpu", "--tpu", "--ipex", "--use_xpu"),
            *("--use_deepspeed", "--use_fsdp", "--use_megatron_lm"),
            *("--quiet", "-q", "--debug", "--no_python", "--same_network", "--dynamo_use_dynamic"),
            *("--dynamo_use_fullgraph", "--enable_cpu_affinity", "--tpu_use_cluster", "--downcast_bf16"),
        )
    ),
    starts_python=True,
)

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate": _ACCELERATE,
    "accelerate-launch": replace(_ACCELERATE, verbs=()),
    "ray": Launcher(verbs=("job", "submit"), switches=frozenset(("--no-wait", "--verbose", "-v"))),
    "srun": _wrapper("-N", "-n", "-c", "-p", "-J", "-t", "-w", "-o", "-e", "-A"),
    "mpirun": _wrapper("-n", "-np", "-H", "-x", "--host", "--hostfile", "--map-by"),
    "nohup": _wrapper(),
    "exec": _wrapper("-a"),
    "time": _wrapper("-f", "-o"),
    "sudo": _wrapper("-u", "-g"),
    "env": _wrapper("-u", "-C"),
    "nice": _wrapper("-n"),
    "numactl": _wrapper("-N", "-m", "-C"),
    "stdbuf": _wrapper("-i", "-o", "-e"),
    "setsid": _wrapper(),
    "timeout": _wrapper("-s", "-k", positional=1),
    "uv": _wrapper("-p", "--python", "--with", "--project", verbs=("run",)),
    "poetry": _wrapper(verbs=("run",)),
    "conda": _wrapper("-n", "-p", "--name", "--prefix", verbs=("run",)),
}

# Launchers that run as Python modules (python -m NAME).
LAUNCHER_MODULES: dict[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate-launch",
    "burnish": "burnish",
}
