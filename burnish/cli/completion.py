"""burnish completion: scripts with which shells complete commands, flags, config keys and their values."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field

from burnish.config.jobs import JOBS
from burnish.config.tree import Leaf, kinds, tree
from burnish.registry import Registry

SHELLS = Registry("shell", key="SHELL")
ROOT_FLAGS = ("--help", "--version", "--traceback")


@dataclass
class Completions:
    """What may follow a command. `name` is the command, or "data check" for a command of a command."""

    name: str
    summary: str = ""
    flags: dict[str, list[str]] = field(default_factory=dict)  # flag -> its values, if they are known
    words: list[str] = field(default_factory=list)
    job: str | None = None  # the job whose keys follow, each with a value unless it is `explain`


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Prints a script with which the shell completes commands, flags, config keys and their values."
        " Repeat it after an upgrade.",
    )
    parser.add_argument("shell", choices=list(SHELLS.entries), metavar="SHELL", help=", ".join(SHELLS.entries))


def run(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell].load()(all_completions()), end="")
    return 0


def all_completions() -> list[Completions]:
    """The completions of every command, from its parser."""
    from burnish.cli.main import COMMANDS, command_parser, command_summaries

    summaries = command_summaries()
    found = [Completions("", flags={flag: [] for flag in ROOT_FLAGS}, words=list(COMMANDS))]
    for command in COMMANDS:
        found += _of_parser(command, summaries[command], command_parser(command))
    return found


def _of_parser(name: str, summary: str, parser: argparse.ArgumentParser) -> list[Completions]:
    result, below = Completions(name, summary, job=name if name in JOBS else _EXPLAINED.get(name)), []
    for action in parser._actions:
        choices = [str(choice) for choice in action.choices or ()]
        if isinstance(action, argparse._SubParsersAction):
            for inner, inner_parser in action.choices.items():
                below += _of_parser(f"{name} {inner}", "", inner_parser)
        if action.help == argparse.SUPPRESS:
            continue
        result.flags |= {flag: choices for flag in action.option_strings if flag.startswith("--")}
        if not action.option_strings:
            result.words += choices
    if name == "help":
        from burnish.cli.main import COMMANDS

        result.words += COMMANDS
    return [result, *below]


_EXPLAINED = {"explain": "train"}  # commands that take keys without values


def values_of(leaf: Leaf) -> list[str]:
    """The values of a key that a shell can offer."""
    if leaf.facts.allowed is not None:
        return [str(value) for value in leaf.facts.allowed if str(value)]
    return ["true", "false"] if bool in kinds(leaf.hint) else []


def _nested(completions: list[Completions]) -> dict[str, None]:
    """The commands that have commands of their own."""
    return dict.fromkeys(entry.name.partition(" ")[0] for entry in completions if " " in entry.name)


def _values_by_key(job: str) -> dict[str, list[str]]:
    return {leaf.key: values for leaf in tree(job).leaves.values() if (values := values_of(leaf))}


@SHELLS.register("bash")
def bash(completions: list[Completions]) -> str:
    """Words are taken from the line itself, since bash splits at `=`; sections are offered one level at a time."""
    cases = []
    for entry in completions:
        lines = [f"flags={shlex.quote(' '.join(entry.flags))}", f"words={shlex.quote(' '.join(entry.words))}"]
        lines += [f"keys=$_burnish_keys_{entry.job} job={entry.job}"] if entry.job else []
        lines += ["end="] if entry.name in _EXPLAINED else []
        cases.append(f"        {shlex.quote(entry.name)}) {'; '.join(lines)} ;;")
    flag_values = [
        f"        {shlex.quote(f'{entry.name} {flag}')}) words={shlex.quote(' '.join(values))}; flags=; keys= ;;"
        for entry in completions
        for flag, values in entry.flags.items()
        if values
    ]
    nested = "|".join(_nested(completions))
    keys = "\n".join(f"_burnish_keys_{job}={shlex.quote(' '.join(tree(job).leaves))}" for job in JOBS)
    values = [
        f"        {job}:{key}) words={shlex.quote(' '.join(names))} ;;"
        for job in JOBS
        for key, names in _values_by_key(job).items()
    ]
    return _BASH.format(
        keys=keys,
        cases="\n".join(cases),
        flag_values="\n".join(flag_values),
        values="\n".join(values),
        nested=nested,
    )


_BASH = """# bash completion of burnish
{keys}

_burnish() {{
    local line=${{COMP_LINE:0:COMP_POINT}} command= flags= words= keys= job= end== previous= i key rest option
    local word=${{line##*[[:space:]]}}
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
            -* | =) ;;
            *)
                [[ -z $command ]] && {{ command=${{COMP_WORDS[i]}}; continue; }}
                case $command in {nested}) command="$command ${{COMP_WORDS[i]}}" ;; esac
                break ;;
        esac
    done
    COMPREPLY=()
    case $command in
{cases}
    esac
    previous=${{COMP_WORDS[COMP_CWORD - 1]}}
    case "$command $previous" in
{flag_values}
    esac
    if [[ $word == *=* && -n $job ]]; then
        key=${{word%%=*}}
        words=
        case $job:${{key##*[+~]}} in
{values}
        esac
        COMPREPLY=($(compgen -W "$words" -- "${{word#*=}}"))
        [[ -z $words ]] && COMPREPLY=($(compgen -f -- "${{word#*=}}"))
        return
    fi
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$word"))
        return
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    local prefix=${{word%%[^+~]*}}
    word=${{word#"$prefix"}}
    for key in $keys; do
        [[ $key == "$word"* ]] || continue
        rest=${{key#"$word"}}
        option=$prefix$key$end
        [[ $rest == *.* ]] && option=$prefix$word${{rest%%.*}}.
        [[ " ${{COMPREPLY[*]}} " == *" $option "* ]] || COMPREPLY+=("$option")
    done
    if [[ -n $keys ]]; then compopt -o nospace 2>/dev/null || true; fi
}}
complete -o default -F _burnish burnish
"""


@SHELLS.register("zsh")
def zsh(completions: list[Completions]) -> str:
    """One function with a case per command; a key's values follow its `=`."""
    cases = []
    for entry in completions:
        lines = [f"flags=({_listed(entry.flags)})", f"names=({_listed(entry.words)})"]
        lines += [f"keys=({_listed(tree(entry.job).leaves)}) job={entry.job}"] if entry.job else []
        lines += ["end=' '"] if entry.name in _EXPLAINED else []
        cases.append(f"        {shlex.quote(entry.name)}) {'; '.join(lines)} ;;")
    flag_values = [
        f"        {shlex.quote(f'{entry.name} {flag}')}) compadd -- {_listed(values)}; return ;;"
        for entry in completions
        for flag, values in entry.flags.items()
        if values
    ]
    values = [
        f"            {job}:{key}) compadd -- {_listed(names)}; return ;;"
        for job in JOBS
        for key, names in _values_by_key(job).items()
    ]
    nested = "|".join(_nested(completions))
    return _ZSH.format(
        cases="\n".join(cases), flag_values="\n".join(flag_values), values="\n".join(values), nested=nested
    )


def _listed(words: list[str] | dict[str, list[str]] | dict[str, Leaf]) -> str:
    return " ".join(map(shlex.quote, words))


_ZSH = """#compdef burnish
_burnish() {{
    local word=$words[CURRENT] command='' job='' end='=' i key
    local -a flags names keys
    for ((i = 2; i < CURRENT; i++)); do
        [[ $words[i] == -* ]] && continue
        if [[ -z $command ]]; then
            command=$words[i]
        else
            case $command in {nested}) command="$command $words[i]" ;; esac
            break
        fi
    done
    case $command in
{cases}
    esac
    case "$command $words[CURRENT-1]" in
{flag_values}
    esac
    if [[ $word == *=* && -n $job ]]; then
        key=${{${{word%%=*}}##[+~]#}}
        compset -P '*='
        case $job:$key in
{values}
        esac
        _files
        return
    fi
    if [[ $word == -* ]]; then
        compadd -- $flags
        return
    fi
    compset -P '[+~]#'
    (( $#names )) && compadd -- $names
    (( $#keys )) && compadd -q -S "$end" -- $keys
    (( $#names + $#keys )) || _files
}}
if [[ $funcstack[1] == _burnish ]]; then _burnish "$@"; else compdef _burnish burnish; fi
"""


@SHELLS.register("fish")
def fish(completions: list[Completions]) -> str:
    """One line per command, flag and key."""
    lines = ["# fish completion of burnish"]
    summaries = {entry.name: entry.summary for entry in completions}
    for entry in completions:
        seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in entry.name.split())
        condition = f"complete -c burnish -n {shlex.quote(seen or '__fish_use_subcommand')}"
        for flag, values in entry.flags.items():
            known = f" -x -a {shlex.quote(' '.join(values))}" if values else ""
            lines.append(f"{condition} -l {flag.removeprefix('--')}{known}")
        for word in entry.words:
            about = f" -d {shlex.quote(summaries[word])}" if not entry.name else ""
            lines.append(f"{condition} -f -a {word}{about}")
        if entry.job:
            end = "" if entry.name in _EXPLAINED else "="
            keys = [f"{key}{end}" for key in tree(entry.job).leaves]
            pairs = [f"{key}={name}" for key, names in _values_by_key(entry.job).items() for name in names]
            lines.append(f"{condition} -a {shlex.quote(' '.join([*keys, *(pairs if end else [])]))}")
    return "\n".join(lines) + "\n"
