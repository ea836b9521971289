"""Launchers: commands that start another command, and the options each of them takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

CONTAINER, MACHINE = "in a container", "on another machine"


@dataclass(frozen=True)
class Launcher:
    """All options take a value except `switches`; if `values` is set, only those do."""

    verbs: tuple[str, ...] = ()  # subcommand: `job submit` of `ray job submit`; a word may be one of several: run|exec
    switches: frozenset[str] = frozenset()
    values: frozenset[str] | None = None
    pairs: frozenset[str] = frozenset()  # options with two values: -mca NAME VALUE
    variables: frozenset[str] = frozenset()  # options whose value is NAME=VALUE for the environment
    letters: str = ""  # switches of one letter that may be combined: -it
    long_dash: bool = False  # names of one dash may be long: -np 2; else -N2 is -N with its value
    positional: int = 0  # arguments before the started command: the 10h of `timeout 10h`
    starts_python: bool = False  # starts a Python file, or a module with -m or --module
    counts_processes: bool = False  # its options say how many processes it starts
    starts_line: bool = False  # starts a shell line: the rest of the words, joined
    place: str = ""  # CONTAINER or MACHINE, if the command does not run on this one

    def num_values(self, option: str) -> int:
        if option in self.pairs:
            return 2
        if self.values is not None:
            return int(option in self.values)
        combined = bool(self.letters) and re.fullmatch(f"-[{self.letters}]+", option) is not None
        with_value = not self.long_dash and re.fullmatch(r"-\w.+", option) is not None
        return int(option not in self.switches and not combined and not with_value)

    def has_verbs(self, words: list[str]) -> bool:
        """Whether the words begin with the subcommand."""
        pairs = zip(self.verbs, words, strict=False)
        return len(words) >= len(self.verbs) and all(word in verb.split("|") for verb, word in pairs)


def _wrapper(*values: str, positional: int = 0, verbs: tuple[str, ...] = ()) -> Launcher:
    """A launcher that runs a command unchanged."""
    return Launcher(verbs, values=frozenset(values), positional=positional)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TORCHRUN = Launcher(
    switches=frozenset(("--standalone", "--no-python", "--run-path")), starts_python=True, counts_processes=True
)
_DEEPSPEED = Launcher(
    switches=frozenset(
        (
            *("--no_python", "--no_local_rank", "--no_ssh", "--no_ssh_check"),
            *("--force_multi", "--save_pid", "--elastic_training"),
        )
    ),
    starts_python=True,
    counts_processes=True,
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
    counts_processes=True,
)
_SLURM = Launcher(
    switches=_names(
        "--overlap --exclusive --unbuffered -u --label -l --pty --kill-on-bad-exit --verbose -v --quiet -Q -X -k -s -E"
        " --disable-status --no-kill --oversubscribe --immediate --preserve-env --overcommit -O --contiguous --hold -H"
        " --spread-job --multi-prog --exact --no-allocate -Z --reboot --interactive --use-min-nodes"
        " --container-writable --container-readonly --container-mount-home --no-container-mount-home"
        " --container-remap-root --no-container-remap-root --container-entrypoint --no-container-entrypoint"
    )
)
_MPI = Launcher(
    switches=_names(
        "--allow-run-as-root -allow-run-as-root --oversubscribe -oversubscribe --tag-output -tag-output --verbose -v"
        " --display-map --report-bindings -report-bindings --nolocal --quiet -q --debug-devel -prepend-rank -l"
    ),
    pairs=_names("--mca -mca --gmca -gmca -genv -env --prtemca"),
    variables=_names("-x"),
    long_dash=True,
)
_DOCKER = Launcher(
    ("run|exec",),
    switches=_names(
        "--detach --interactive --tty --rm --init --privileged --read-only --no-healthcheck --sig-proxy --publish-all"
        " --oom-kill-disable --quiet --no-hosts --systemd --tls-verify --replace"
    ),
    letters="ditPq",
    variables=_names("-e --env"),
    positional=1,
    place=CONTAINER,
)
_APPTAINER = Launcher(
    ("run|exec",),
    switches=_names(
        "--nv --rocm --nvccli --cleanenv --containall --contain --no-home --writable --writable-tmpfs --fakeroot --ipc"
        " --pid --net --uts --userns --no-init --no-eval --no-umask --no-privs --keep-privs --compat --disable-cache"
        " --unsquash --sharens --quiet --silent --debug --verbose"
    ),
    letters="eciCfpuwqdsv",
    variables=_names("--env"),
    positional=1,
    place=CONTAINER,
)
_KUBECTL = Launcher(("exec",), switches=_names("--stdin --tty --quiet"), letters="itq", positional=1, place=CONTAINER)
_SSH = Launcher(
    switches=_names("-A -a -f -G -g -K -k -M -N -n -q -s -T -t -tt -V -v -X -x -Y -y -4 -6 -C"),
    positional=1,
    starts_line=True,
    place=MACHINE,
)
_UV = Launcher(
    ("run",),
    values=_names(
        "-p --python --with --with-editable --with-requirements --project --directory --extra --no-extra --group"
        " --no-group --only-group --package --env-file --index --default-index --index-url --extra-index-url -i"
        " --find-links -f --cache-dir --config-file --index-strategy --prerelease --resolution --link-mode"
    ),
    starts_python=True,
)
_PROFILER = Launcher(starts_python=True)

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate": _ACCELERATE,
    "accelerate-launch": replace(_ACCELERATE, verbs=()),
    "ray": Launcher(verbs=("job", "submit"), switches=frozenset(("--no-wait", "--verbose", "-v"))),
    "srun": _SLURM,
    "salloc": _SLURM,
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "nohup": _wrapper(),
    "exec": _wrapper("-a"),
    "time": _wrapper("-f", "-o"),
    "sudo": _wrapper("-u", "-g"),
    "env": _wrapper("-u", "-C"),
    "nice": _wrapper("-n"),
    "ionice": _wrapper("-c", "-n"),
    "taskset": _wrapper(positional=1),
    "chrt": _wrapper(positional=1),
    "numactl": _wrapper("-N", "-m", "-C"),
    "stdbuf": _wrapper("-i", "-o", "-e"),
    "unbuffer": _wrapper(),
    "setsid": _wrapper(),
    "xvfb-run": _wrapper("-e", "-f", "-n", "-s", "-w"),
    "timeout": _wrapper("-s", "-k", positional=1),
    "eval": Launcher(starts_line=True),
    "uv": _UV,
    "poetry": _wrapper(verbs=("run",)),
    "pipenv": _wrapper(verbs=("run",)),
    "pdm": _wrapper(verbs=("run",)),
    "pixi": _wrapper("-e", "--environment", "--manifest-path", verbs=("run",)),
    **{
        name: _wrapper("-n", "-p", "--name", "--prefix", "--cwd", verbs=("run",))
        for name in ("conda", "mamba", "micromamba")
    },
    "nsys": Launcher(("profile",)),
    "py-spy": Launcher(("record|top",), values=_names("-o -r -f -d --output --rate --format --duration")),
    "coverage": replace(_PROFILER, verbs=("run",), switches=_names("-p -a --parallel-mode --append --branch")),
    "cProfile": _PROFILER,
    "debugpy": replace(_PROFILER, switches=_names("--wait-for-client")),
    "docker": _DOCKER,
    "podman": _DOCKER,
    "nerdctl": _DOCKER,
    "apptainer": _APPTAINER,
    "singularity": _APPTAINER,
    "enroot": Launcher(
        ("start|exec",),
        switches=_names("--root --rw -r -w"),
        variables=_names("-e --env"),
        positional=1,
        place=CONTAINER,
    ),
    "kubectl": _KUBECTL,
    "oc": _KUBECTL,
    "ssh": _SSH,
    "pdsh": replace(_SSH, switches=_names("-b -S -N -q -V -a"), positional=0),
    "tmux": Launcher(("new-session|new",), letters="dADEPX", starts_line=True),
    "screen": Launcher(values=_names("-S -dmS -c -t -T -L"), starts_line=True),
}

# Launchers that run as Python modules (python -m NAME).
LAUNCHER_MODULES: dict[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate-launch",
    "burnish": "burnish",
    "coverage": "coverage",
    "cProfile": "cProfile",
    "debugpy": "debugpy",
    "pdb": "cProfile",
}
