"""The command line of a plan: `mla-cost plan` with the flags that make the same settings again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mla_cost.errors import InputError, shown
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE, Setting

# reported whatever they are: what a plan is about
ALWAYS: Final = frozenset({"model", "device", "seq_len", "form"})


def command_of(settings: PlanSettings) -> str:
    """The command that prints the plan of these settings; what is a default of the scope is left out.

    A fact that is a list or a mapping has no flag: such a plan is a file's, and the command names the rest of it.
    """
    given = PlanSettings(scope=settings.scope).by_scope().model_copy(update={"scope": PlanSettings().scope})
    reported = [
        row for row in TABLE.values() if row.name in ALWAYS or getattr(settings, row.name) != getattr(given, row.name)
    ]
    words = [word for row in reported for word in _words(row, getattr(settings, row.name))]
    return shlex.join(["mla-cost", "plan", *words])


def settings_of(command: str) -> PlanSettings:
    """The settings of a command that `command_of` has written: what `mla-cost plan` makes of it.

    >>> settings_of("mla-cost plan --model kimi-k2 --device none --seq-len 8k --form laga --no-causal").seq_len
    8192

    Raises:
        InputError: words that it does not write.

    """
    from mla_cost.inputs import plan_files

    flags: dict[str, Any] = {}
    assigned: list[str] = []
    reserved: list[str] = []
    words = iter(shlex.split(command)[2:])
    rows = {flag: row for row in TABLE.values() for flag in row.flags}
    for word in words:
        row = rows.get(word) or rows.get(f"--{word.removeprefix('--no-')}")
        if row is None and word != "--set":
            raise InputError(f"unknown option {shown(word)}", allowed="the flags of `mla-cost plan`")
        if row is not None and row.kind == "switch":
            flags[row.name] = word in row.flags
            continue
        value = next(words, "")
        if row is None:
            assigned.append(value)
        elif row.kind == "entries":
            reserved.append(value)
        else:
            flags[row.name] = _read(row, value)
    named = (plan_files.assignments(assigned), plan_files.assignments(reserved, "reserve"))
    return plan_files.settings(None, flags, *named).by_scope()


def _read(row: Setting, value: str) -> Any:
    from mla_cost.inputs import plan_files

    if row.kind == "names":
        return plan_files.names([value])
    return int(value) if row.kind == "count" and value.lstrip("-").isdigit() else value


# what a search goes over, or takes from it, but for what it holds unless asked otherwise
_SEARCHED: Final = frozenset(row.name for row in TABLE.values() if row.search != "fixed") - {"etp", "virtual_stages"}


def search_command(settings: PlanSettings, **own: Any) -> str:
    """The command that searches over all that these settings hold; own: its options beside them."""
    usual = PlanSettings(scope=settings.scope).by_scope()
    free = settings.model_copy(update={name: getattr(usual, name) for name in _SEARCHED - {"scope"}})
    words = [word for name, value in own.items() for word in (f"--{name.replace('_', '-')}", _text(value))]
    return shlex.join(["mla-cost", "search", *shlex.split(command_of(free))[2:], *words])


def _words(row: Setting, value: Any) -> Iterator[str]:
    if row.kind in {"mapping", "entries"}:
        yield from _entries(row, value)
    elif row.kind == "switch":
        yield row.flags[0] if value else f"--no-{row.flags[0][2:]}"
    elif not row.flag or value is None:
        yield from ("--set", f"{row.name}={_text(value)}")
    else:
        yield from (row.flags[0], _memory(value) if row.kind == "bytes" else _text(value))


def _entries(row: Setting, entries: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entries.items():
        if row.kind == "entries":
            yield from (row.flags[0], f"{key}={_memory(value)}")
        elif not isinstance(value, list | tuple | dict):
            yield from ("--set", f"{row.name}.{key}={_text(value)}")


def _memory(value: Any) -> str:
    """Bytes, with their unit where a bare number would be asked for one."""
    amount = int(value)
    return f"{amount}B" if 0 < amount < 2**20 else str(amount)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
