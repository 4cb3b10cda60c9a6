"""docs/cli.md: every command, flag and setting, made from the tables of settings and of options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import typer

from mla_cost.cli import COMMANDS
from mla_cost.cli.flags import names_of
from mla_cost.cli.options import OWN, Option, default_of, metavar_of, offered
from mla_cost.cli.program import build
from mla_cost.inputs.table import GROUPS, TABLE, Setting
from mla_cost.results.markdown import table as markdown_table

_OPENING: Final = """<!-- made by docs/build.py -->
# The command line

`mla-cost COMMAND --help` says the same. A setting has one name everywhere: `--seq-len 128k` is `seq_len: 128k` in a
plan file, `--set seq_len=128k` on any command, `seq_len="128k"` or `seq_len=131072` in Python and `--over seq_len=...`
in a sweep. The command line is stronger than a plan file, and states each setting
once. Counts of tokens are written `16384`, `16_384`,
`16k` (k is 1,024), `1M` (1,048,576) or `1e4`; memory is bytes, or text with a unit such as `2GiB`.
"""
_NOTE: Final = """Scope: `attention` prices blocks alone, `model` a rank of the whole model. Sweep: the scopes in which
`sweep --over` goes over the setting; of `dims`, `reserve` and, at scope model, `facts` it goes over one key, as
`--over dims.heads=64,128`. Search: how `search` takes it.
"""
_SEARCHED: Final = {
    "fixed": "one value",
    "degree": "goes over it: `1,2,4` or `1..8*2`",
    "choice": "goes over it: names by commas",
    "follows": "follows from the rest",
    "none": "none",
}


def page() -> str:
    """The whole page."""
    parts = [_OPENING, "## Commands\n", *(_command(name) for name in COMMANDS), "## Settings\n", _NOTE]
    return "\n".join([*parts, *(part for group in GROUPS for part in _group(group))])


def _command(name: str) -> str:
    found = [f"### mla-cost {name}\n", f"{COMMANDS[name]}\n"]
    rows = [_own(option) for option in OWN[name]] if name in OWN else [*_others(name)]
    found += [markdown_table(("option", "takes", "what it does", "example"), rows) + "\n"] if rows else []
    return "\n".join([*found, *_settings_of(name)])


def _settings_of(name: str) -> Iterator[str]:
    """In a sentence, the settings of which a command has flags."""
    if name not in OWN:
        return
    has = [row.name for row in offered(name)]
    without = [f"`{row.name}`" for row in TABLE.values() if row.flag and row.name not in has]
    if name == "explain":
        yield f"Flags of settings: {', '.join(f'`{each}`' for each in has)}.\n"
    else:
        but = f", but for {', '.join(without)}" if without else ""
        yield f"Every setting below has a flag here{but}.\n"


def _own(option: Option) -> tuple[str, ...]:
    if option.kind in {"plan", "form"}:
        name = "[PLAN]" if option.kind == "plan" else "FORM"
        return f"`{name}`", "", option.help, ""
    flags = names_of(option)
    example = f"`{flags[0]} {option.example}`" if option.example else f"`{flags[0]}`"
    return _code(*flags), _code(option.metavar), _cell(option.help), example


def _others(name: str) -> Iterator[tuple[str, ...]]:
    """The options of a command that has no settings, as typer knows them."""
    for parameter in _parameters(name):
        option = parameter.param_type_name == "option"
        flags = parameter.opts if option else [parameter.name.upper()]
        example = f"`{flags[0]}`" if option and parameter.is_flag else ""
        yield _code(*flags), _code(parameter.metavar or ""), _cell(parameter.help or ""), example


def _parameters(name: str) -> list[Any]:
    group: Any = typer.main.get_command(build([name]))
    return [each for each in group.commands[name].params if each.name != "help" and not getattr(each, "hidden", False)]


def _group(group: str) -> Iterator[str]:
    heads = ("setting and flag", "takes", "unit", "default", "scope", "sweep", "search", "example", "meaning")
    rows = [_setting(row) for row in TABLE.values() if row.group == group]
    yield f"### {group}\n"
    yield markdown_table(heads, rows) + "\n"


def _setting(row: Setting) -> tuple[str, ...]:
    flags = _code(row.name, *row.flags) if row.flag else f"`{row.name}`, by `--set`"
    flag = row.flags[0] if row.flag else "--set"
    example = f"`--no-{row.name}`" if row.kind == "switch" else f"`{flag} {_cell(row.example)}`"
    default = default_of(row).replace(" by default", "")
    return (
        flags,
        _code(metavar_of(row)),
        row.unit,
        _cell(default),
        ", ".join(row.scopes),
        ", ".join(row.swept),
        _SEARCHED[row.search],
        example,
        _cell(row.help),
    )


def _code(*texts: str) -> str:
    return ", ".join(f"`{_cell(text)}`" for text in texts if text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
