"""`mla-cost completion`: a script for a shell, every name written into it, so that completing starts no Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import typer

_PLANS: Final = frozenset({"plan", "sweep", "search", "fit", "compare", "export"})


class CommandWords(NamedTuple):
    """What completes a command: its flags, each with its values; what stands for itself in `first`."""

    flags: Mapping[str, tuple[str, ...]]
    first: tuple[str, ...]


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands, flags and names of models, devices, plans and settings."""
    words = {command: _words(command) for command in _commands()}
    lines = _fish(words) if shell == "fish" else _bash(words)
    if shell == "zsh":
        sys.stdout.write("autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _commands() -> tuple[str, ...]:
    from mla_cost.cli import COMMANDS

    return tuple(COMMANDS)


def _words(command: str) -> CommandWords:
    from mla_cost.cli.program import build
    from mla_cost.inputs import catalog

    program: Any = typer.main.get_command(build([command]))
    options = [
        each for each in program.commands[command].params if each.param_type_name == "option" and not each.hidden
    ]
    names = _names()
    flags = {flag: names.get(each.name, ()) for each in options for flag in (*each.opts, *each.secondary_opts)}
    first: tuple[str, ...] = catalog.plan_names() if command in _PLANS else ()
    if command == "show":
        first = (*catalog.model_names(), *catalog.device_names())
    return CommandWords(flags, names["form"] if command == "explain" else first)


def _names() -> dict[str, tuple[str, ...]]:
    """By option, what it may be."""
    from mla_cost.declared.forms import FORMS
    from mla_cost.declared.kernels import KERNELS
    from mla_cost.declared.schemes import SCHEMES
    from mla_cost.inputs import catalog
    from mla_cost.inputs.table import TABLE

    found = {name: row.values for name, row in TABLE.items()}
    found |= {"form": (*FORMS, "all"), "scheme": tuple(SCHEMES), "kernel": (*KERNELS, "auto")}
    found |= {"model": catalog.model_names(), "device": (*catalog.device_names(), "none")}
    settings = tuple(f"{name}=" for name in TABLE)
    return {**found, "assign": settings, "over": settings}


def _bash(words: Mapping[str, CommandWords]) -> Iterator[str]:
    """Of the word before the cursor, else of the command; what begins with no dash may be a file."""
    yield from ("_mla_cost() {", '  local cur="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}" found=""')
    yield f'  if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur")); return; fi'
    yield '  case "${COMP_WORDS[1]} $last" in'
    for command, each in words.items():
        for flag, values in each.flags.items():
            if values:
                yield f'    "{command} {flag}") found="{" ".join(values)}";;'
    yield from ("    *)", '      case "${COMP_WORDS[1]} $cur" in')
    for command, each in words.items():
        yield f'        "{command} -"*) found="{" ".join(each.flags)}";;'
        if each.first:
            yield f'        "{command} "*) found="{" ".join(each.first)}";;'
    yield from ("      esac;;", "  esac", '  COMPREPLY=($(compgen -W "$found" -- "$cur"))')
    yield '  case "${COMPREPLY[0]}" in *=) type compopt >/dev/null 2>&1 && compopt -o nospace;; esac'
    yield from ("}", "complete -o default -F _mla_cost mla-cost")


def _fish(words: Mapping[str, CommandWords]) -> Iterator[str]:
    from mla_cost.cli import COMMANDS

    for command, line in COMMANDS.items():
        yield f"complete -c mla-cost -n __fish_use_subcommand -xa {command} -d '{line.replace(chr(39), '')}'"
    for command, each in words.items():
        seen = f"complete -c mla-cost -n '__fish_seen_subcommand_from {command}'"
        if each.first:
            yield f"{seen} -a '{' '.join(each.first)}'"
        for flag, values in each.flags.items():
            kind = "-l" if flag.startswith("--") else "-s"
            yield f"{seen} {kind} {flag.lstrip('-')}" + (f" -xa '{' '.join(values)}'" if values else "")
