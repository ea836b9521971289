"""The recorder's bash code: it replaces programs that a script starts by functions that record the command.

Inside the sandbox PATH has one folder. It contains text tools (links to the real ones, which only reach a temporary
root) and, for every program that scripts commonly launch, a link to `shim`. Before each command, a DEBUG trap inspects
its first word: a program given by path becomes a function that records, `exec` runs its command and exits, `source` of
a missing file adds a note and sources an empty one. All other programs reach command_not_found_handle, which records.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from burnish.isolation.rootfs import SYSTEM

# Real tools inside the sandbox: they process text, or access files of the temporary root.
TEXT_TOOLS = (
    "awk basename bash bc cat comm cut date dirname egrep expand expr false fgrep find fold getopt grep gzip head id jq"
    " join ls md5sum mktemp nl nproc od paste printenv readlink realpath rev sed seq sha256sum sort split stat tac tail"
    " tee test tr true tty uname uniq wc whoami xargs"
)
FILE_TOOLS = "chmod cp ln mkdir mv rm rmdir touch"  # real as well, but recorded
# Also on PATH, for `exec`, `xargs`, `find -exec` and others that start programs without the shell.
RECORDED_PROGRAMS = (
    "accelerate apt apt-get aws conda curl deepspeed docker fuser git gsutil hdfs hostname huggingface-cli ifconfig ip"
    " kill killall lsof mamba mpirun nc netstat nvidia-smi npu-smi pip pip3 pkill poetry ps python python2 python3 ray"
    " rocm-smi rsync scontrol scp sleep squeue ssh tar top torchrun uv uvx wandb wget which zsh"
)
NUM_DEVICES = 8  # the number of accelerators per node that scripts see

FUNCTIONS = r"""
__burnish_send() {
  local LC_ALL=C IFS=' ' __text='' __word __id
  for __word in "$@"; do
    __word=${__word//\\/\\\\}; __word=${__word//$'\n'/\\n}; __word=${__word//$'\t'/\\t}
    __text+=$__word$'\t'
  done
  __id=$BASHPID.${EPOCHREALTIME-0}.$RANDOM
  # Short writes to a pipe are atomic, also when several processes write at once.
  while [[ -n $__text ]]; do
    printf '%s+%s\n' "$__id" "${__text:0:500}" >&"$BURNISH_RECORDS"
    __text=${__text:500}
  done
  printf '%s.\n' "$__id" >&"$BURNISH_RECORDS"
}

__burnish_note() { __burnish_send note "$@"; }

__burnish_record() {
  local __variables
  mapfile -d '' -t __variables < <("$BURNISH_RECORDER/env" -0)
  __burnish_send command "$PWD" "$#" "$@" "${__variables[@]}"
  __burnish_answer "$@"
}

# Output of programs that do not run.
__burnish_answer() {
  local __name=${1##*/} __i
  shift
  case $__name in
    nvidia-smi | npu-smi | rocm-smi)
      case " $* " in
        *count*) printf '%s\n' "$BURNISH_DEVICES" ;;
        *query-gpu=mem*) for ((__i = 0; __i < BURNISH_DEVICES; __i++)); do echo 81559; done ;;
        *query-gpu=index*) for ((__i = 0; __i < BURNISH_DEVICES; __i++)); do echo "$__i"; done ;;
        *) for ((__i = 0; __i < BURNISH_DEVICES; __i++)); do echo "GPU $__i: NVIDIA H100 80GB HBM3"; done ;;
      esac ;;
    ray) case ${1-} in status) __burnish_ray_status ;; esac ;;
    hostname) case " $* " in *-[iI]*) echo "$BURNISH_ADDRESS" ;; *) echo localhost ;; esac ;;
    ifconfig) printf 'eth0: flags=4163<UP>\n        inet %s  netmask 255.255.255.0\n' "$BURNISH_ADDRESS" ;;
    ip) case " $* " in
        *' route '*) printf '1.1.1.1 via 10.0.0.254 dev eth0 src %s uid 0\n' "$BURNISH_ADDRESS" ;;
        *) printf '2: eth0: <UP>\n    inet %s/24 scope global eth0\n' "$BURNISH_ADDRESS" ;;
      esac ;;
    scontrol) case " $* " in *' hostname'*) printf '%s\n' "${!#}" | "$BURNISH_RECORDER/bin/tr" , '\n' ;; esac ;;
    which) echo "/usr/bin/${!#}" ;;
    python*) __burnish_python "$@" ;;
  esac
  return 0
}

# A cluster that one node joins before every call, so that scripts stop waiting for theirs.
__burnish_ray_status() {
  local __file=$TMPDIR/.burnish-nodes __nodes=0 __i
  if [[ -f $__file ]]; then read -r __nodes <"$__file"; fi
  __nodes=$((__nodes + 1))
  echo "$__nodes" >"$__file"
  echo Active:
  for ((__i = 0; __i < __nodes; __i++)); do echo " 1 node_$__i"; done
  echo Resources:
  for __i in GPU NPU; do echo " 0.0/$((__nodes * BURNISH_DEVICES)).0 $__i"; done
}

# Inline Python runs, as part of the script; Python programs do not.
__burnish_python() {
  case ${1-} in
    -c) case ${2-} in
        *device_count*) printf '%s\n' "$BURNISH_DEVICES" ;;
        *) "$BURNISH_PYTHON" -I -S -B "$@" || __burnish_note "python $1: failed, its output is empty" ;;
      esac ;;
    - | '') if [[ ! -t 0 ]]; then "$BURNISH_PYTHON" -I -S -B - || true; fi ;;
  esac
}

# A program given by path: shell scripts and text tools run, everything else is recorded.
__burnish_run() {
  local __path=$1 __first=''
  shift
  case " $BURNISH_TOOLS sh env " in
    *" ${__path##*/} "*) "${__path##*/}" "$@"; return ;;
  esac
  if [[ -f $__path ]]; then
    IFS= read -r __first <"$__path" 2>/dev/null || true
    case $__first/$__path in
      '#!'*python*) ;;
      '#!'*sh[\ /]* | *.sh) bash "$__path" "$@"; return ;;
    esac
  fi
  __burnish_record "$__path" "$@"
}

# sbatch: runs its script, its --wrap or its standard input as part of this script.
__burnish_sbatch() {
  __burnish_record sbatch "$@"
  while (($#)); do
    case $1 in
      --wrap=*) bash -c "${1#--wrap=}"; return ;;
      --wrap) bash -c "$2"; return ;;
      --*=* | -[!-]?* | -[HkKOQsvVWXu]) shift ;;
      --parsable | --hold | --requeue | --no-requeue | --exclusive | --over* | --quiet | --verbose | --wait) shift ;;
      --test-only | --contiguous | --reboot | --spread-job | --use-min-nodes | --ignore-pbs) shift ;;
      -*) shift; (($#)) && shift ;;
      *) break ;;
    esac
  done
  if (($#)); then __burnish_call bash "$@"; elif [[ ! -t 0 ]]; then bash -s; fi
}

__burnish_call() {
  case ${1-} in
    '') ;;
    */*) __burnish_run "$@" ;;
    *) "$@" ;;
  esac
}

# nohup, timeout and other wrappers: run their command directly.
__burnish_unwrap() {
  local __wrapper=$1 __takes=$2
  shift 2
  while (($#)); do
    case $1 in
      --) shift; break ;;
      -*) if [[ " $__takes " == *" $1 "* ]]; then shift; fi; shift ;;
      *) break ;;
    esac
  done
  if [[ $__wrapper == timeout ]]; then shift; fi
  __burnish_call "$@"
}

__burnish_env() (
  while (($#)); do
    case $1 in
      -u) unset "$2"; shift 2 ;;
      --) shift ;;
      -*) "$BURNISH_RECORDER/env" "$@"; exit ;;
      [A-Za-z_]*=*) export "$1"; shift ;;
      *) break ;;
    esac
  done
  if (($#)); then __burnish_call "$@"; else "$BURNISH_RECORDER/env"; fi
)
"""

PRELUDE = r"""
exec {BASH_XTRACEFD}>/dev/null
. "$BURNISH_RECORDER/functions"
PATH=$BURNISH_RECORDER/bin

# Functions take precedence over PATH, also for commands that set their own PATH.
for __burnish_name in $BURNISH_NAMES; do
  eval "function $__burnish_name { __burnish_record $__burnish_name \"\$@\"; }"
done
for __burnish_name in $BURNISH_FILE_TOOLS; do
  eval "function $__burnish_name { __burnish_record $__burnish_name \"\$@\"; command $__burnish_name \"\$@\"; }"
done
unset __burnish_name
command_not_found_handle() { __burnish_record "$@"; }
env() { __burnish_env "$@"; }
nohup() { __burnish_unwrap nohup '' "$@"; }
setsid() { __burnish_unwrap setsid '' "$@"; }
stdbuf() { __burnish_unwrap stdbuf '-i -o -e' "$@"; }
nice() { __burnish_unwrap nice '-n' "$@"; }
timeout() { __burnish_unwrap timeout '-k -s' "$@"; }
sbatch() { __burnish_sbatch "$@"; }
sudo() { __burnish_unwrap sudo '-u -g' "$@"; }
ulimit() { return 0; }

__burnish_first() {
  local __found
  __found=$(set +u; eval "printf '%s\n' $1" 2>/dev/null) || true
  printf '%s' "${__found%%$'\n'*}"
}

__burnish_assignments=$'^[[:space:]]*([A-Za-z_][A-Za-z0-9_]*[+]?=("([^"\\\\]|\\\\.)*"|\'[^\']*\'|[^[:space:]"\'])*[[:space:]]+)*'
__burnish_plain=$'^[]A-Za-z0-9_./~${}"\'@%:+,=[-]+$'
__burnish_beside=$'^"?[$][(](pwd|dirname [^()]*|realpath [^()]*)[)][]A-Za-z0-9_./${}[-]*"?'
__burnish_name=$'^[A-Za-z0-9_./@%:+,=-]+$'

__burnish_by_path() {
  if [[ $1 == */* && $1 =~ $__burnish_name ]]; then eval "function $1 { __burnish_run $1 \"\$@\"; }"; fi
}

# Runs before every command.
__burnish_before() {
  local __rest=$1 __word __second __file
  if [[ $PATH != "$BURNISH_RECORDER/bin" ]]; then PATH=$BURNISH_RECORDER/bin; fi
  if [[ $__rest =~ $__burnish_assignments ]]; then __rest=${__rest:${#BASH_REMATCH[0]}}; fi
  if [[ $__rest =~ $__burnish_beside ]]; then
    __file=$(__burnish_first "${BASH_REMATCH[0]}")
    __burnish_by_path "$__file"
    return 0
  fi
  __word=${__rest%%[[:space:]]*}
  __second=${__rest#"$__word"}
  __second=${__second#"${__second%%[![:space:]]*}"}
  __second=${__second%%[[:space:]]*}
  case $__word in
    exec)
      case $__second in
        '' | [0-9]*'>'* | [0-9]*'<'* | '>'* | '<'* | '&'* | '{'*) unset -f exec ;;
        *) eval 'function exec { __burnish_call "$@"; exit; }' ;;
      esac ;;
    source | .)
      if [[ $__second =~ $__burnish_plain ]]; then
        __file=$(__burnish_first "$__second")
        if [[ -n $__file && ! -r $__file ]]; then
          __burnish_note "source $__file: not found or not visible here, nothing was read"
          "$BURNISH_RECORDER/bin/mkdir" -p -- "$(dirname -- "$__file")" && : >"$__file"
        fi
      fi ;;
    */* | *\$* | *~*)
      if [[ $__word =~ $__burnish_plain ]]; then
        __file=$(__burnish_first "$__word")
        __burnish_by_path "$__file"
      fi ;;
  esac
  return 0
}

set -T
trap 'case ${FUNCNAME[0]-} in
  __burnish* | command_not_found_handle) ;;
  *) __burnish_before "$BASH_COMMAND" ;;
esac' DEBUG
"""

SHIM = r"""#!{bash} -p
. "$BURNISH_RECORDER/functions"
case ${{0##*/}} in
  sh) exec {bash} "$@" ;;
  *) __burnish_record "${{0##*/}}" "$@" ;;
esac
"""


def write_recorder(folder: Path, bash: str, python: str, address: str) -> dict[str, str]:
    """Write the recorder to an empty folder; returns the environment variables that activate it in bash.

    `address` is the IP address that the script finds for its machine.
    """
    programs = folder / "bin"
    programs.mkdir()
    (folder / "functions").write_text(FUNCTIONS)
    (folder / "prelude").write_text(PRELUDE)
    shim = folder / "shim"
    shim.write_text(SHIM.format(bash=bash))
    tools = {name: shutil.which(name) for name in f"{TEXT_TOOLS} {FILE_TOOLS} env".split()}
    for name, path in tools.items():
        if path is not None:
            target = path if path.startswith(SYSTEM) else os.path.realpath(path)  # the sandbox mounts SYSTEM only
            (folder if name == "env" else programs).joinpath(name).symlink_to(target)
    for name in f"{RECORDED_PROGRAMS} sh".split():
        (programs / name).symlink_to("../shim")
    for path in (folder, programs, shim):
        path.chmod(0o755)
    for name in ("functions", "prelude"):
        (folder / name).chmod(0o644)
    return {
        "PATH": str(programs),
        "BASH_ENV": str(folder / "prelude"),
        "BURNISH_RECORDER": str(folder),
        "BURNISH_NAMES": RECORDED_PROGRAMS,
        "BURNISH_FILE_TOOLS": FILE_TOOLS,
        "BURNISH_TOOLS": f"{TEXT_TOOLS} {FILE_TOOLS}",
        "BURNISH_ADDRESS": address,
        "BURNISH_DEVICES": str(NUM_DEVICES),
        "BURNISH_PYTHON": python,
    }
