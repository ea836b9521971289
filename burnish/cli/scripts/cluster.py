"""What a script that is only looked at sees of a cluster: its own first node, with what its #SBATCH lines ask for."""

from __future__ import annotations

import re

ADDRESS = "10.0.0.1"
MAX_NODES = 1000
_DIRECTIVE = re.compile(r"^#SBATCH\s+(--?[A-Za-z-]+)(?:\s*=\s*|\s+|(?<=-\w))(\S+)", re.MULTILINE)
# The address of the node that starts training, where the script has it as text.
_HEAD_ADDRESS = re.compile(r"\b\w*(?:MASTER|HEAD)\w*=[\"']?(\d{1,3}(?:\.\d{1,3}){3})\b", re.IGNORECASE)
# A variable for that node with another text: a placeholder, or a name.
_HEAD_NAME = re.compile(
    r"^(?P<start>[ \t]*(?:export[ \t]+)?(?P<name>\w*(?:MASTER|HEAD)\w*)=)"
    r"""(?P<quote>["']?)(?P<text>[^"'$`\n]+?)(?P=quote)(?P<rest>[ \t]*(?:\#.*)?)$""",
    re.MULTILINE | re.IGNORECASE,
)
# Options of sbatch that set variables of the job.
_VARIABLES = {
    **dict.fromkeys(("--nodes", "-N"), ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")),
    **dict.fromkeys(("--gpus-per-node", "--gres"), ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")),
    **dict.fromkeys(("--cpus-per-task", "-c"), ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    **dict.fromkeys(("--ntasks", "-n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    **dict.fromkeys(("--job-name", "-J"), ("SLURM_JOB_NAME",)),
}


def head_address(text: str) -> str:
    """The IP address that the script's machine has: the one that it names for its head node."""
    match = _HEAD_ADDRESS.search(text)
    return match[1] if match else ADDRESS


def with_head_address(text: str) -> tuple[str, list[str]]:
    """The script with this machine's address where it names its head node by a placeholder, and a note on each.

    Scripts for clusters compare their head node with the address of their machine, and only start training there.
    """
    address, notes = head_address(text), []

    def replaced(match: re.Match[str]) -> str:
        variable = rf"[\"']?\$\{{?{match['name']}\}}?[\"']?"
        compares = re.search(rf"\[\s+(?:{variable}\s+==?\s+[\"']?\$|[^\n]*\$\S+\s+==?\s+{variable}\s)", text)
        if compares is None or re.fullmatch(r"[\d.]+", match["text"]):
            return match[0]
        notes.append(f"{match['name']}={match['text']}: taken as the address of the machine that starts the script")
        return f"{match['start']}{address}{match['rest']}"

    return _HEAD_NAME.sub(replaced, text), notes


def slurm_variables(text: str) -> dict[str, str]:
    """The variables of the first node of a Slurm job, by the script's #SBATCH lines; empty if it has none."""
    directives = _DIRECTIVE.findall(text)
    if not directives:
        return {}
    variables = dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0")
    variables |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_ID"), "1")
    for option, value in directives:
        if option == "--gres" and not value.startswith("gpu"):
            continue
        if option in ("--gres", "--gpus-per-node"):
            value = value.rpartition(":")[2]  # gpu:h100:8
        elif option in ("--nodes", "-N"):
            value = value.partition("-")[0]  # 2-4
        variables |= dict.fromkeys(_VARIABLES.get(option, ()), value)
    num_nodes = variables["SLURM_NNODES"]
    nodes = range(min(int(num_nodes), MAX_NODES) if num_nodes.isdigit() else 1)
    names = ",".join(f"node{index}" for index in nodes)
    return variables | dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), names) | {"SLURMD_NODENAME": "node0"}
