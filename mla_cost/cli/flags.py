"""The flags of a command as typer reads them: a signature made from the tables of settings and of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from mla_cost.cli.options import HEADINGS, OWN, SEQUENCE_PARALLEL, Option, offered, said
from mla_cost.inputs.table import TABLE

if TYPE_CHECKING:
    from mla_cost.inputs.settings import PlanSettings

_TYPES: Final[dict[str, Any]] = {
    "plan": Path | None,
    "form": str,
    "file": Path,
    "count": int | None,
    "names": list[str] | None,
    "switch": bool,
    "either": bool | None,
    "path": Path | None,
}
_NOT_SP: Final = Option("sequence_parallel", "", "", "switch", hidden=True)


class Given:
    """What a command line gave a command: `values` by the names of its options and settings, None where absent."""

    def __init__(self, command: str, values: dict[str, Any]) -> None:
        self.command = command
        self.values = values

    def __getitem__(self, name: str) -> Any:
        """The value of one option."""
        return self.values[name]

    def flags(self) -> dict[str, Any]:
        """The settings that have flags, with names apart; those of `reserve` are assignments."""
        from mla_cost.inputs import plan_files

        offers = (row.name for row in offered(self.command) if row.kind != "entries")
        return {name: plan_files.read_flag(name, self.values[name]) for name in offers}

    def assigned(self) -> dict[str, Any]:
        """What --set says, by field."""
        from mla_cost.inputs import plan_files

        found = plan_files.assignments(self["assign"])
        for name in found:
            self._require_once(name)
        return found

    def stated(self, name: str) -> bool:
        """Whether the command line states an option or a setting by its flag."""
        return self.values.get(name) not in (None, [], False)

    def _require_once(self, name: str) -> None:
        """Refuse a setting that a flag states beside --set."""
        if self.stated(name) or (name in TABLE and TABLE[name].kind == "switch" and self.values.get(name) is False):
            from mla_cost.errors import InputError

            raise InputError(f"is stated by --set and by {TABLE[name].flags[0]}; leave one of the two out", field=name)

    def settings(self, flags: dict[str, Any] | None = None, assigned: dict[str, Any] | None = None) -> PlanSettings:
        """The plan file with flags and --set over it. flags, assigned: in place of those that were given."""
        from mla_cost.inputs import plan_files

        reserved = plan_files.assignments(self["reserve"], "reserve")
        flags, assigned = flags or self.flags(), self.assigned() if assigned is None else assigned
        if self["source"] is None:
            return plan_files.settings(self["file"], flags, assigned, reserved)
        from mla_cost.cli import launched

        base = launched.settings(self, flags, assigned)
        return plan_files.settings(None, flags, assigned, reserved, base, str(self["source"]))


def require_effect(flag: str, given: bool, beside: str) -> None:
    """Refuse a flag that would be dropped.

    Raises:
        InputError: it was given, and has no effect beside `beside`.

    """
    if given:
        from mla_cost.errors import InputError

        raise InputError(f"has no effect with {beside}; leave one of the two out", field=flag)


def options_of(command: str) -> Iterator[Option]:
    """Every flag of a command, by heading."""
    found = [*OWN[command], *(said(command, row) for row in offered(command))]
    yield from sorted(found, key=lambda option: HEADINGS.index(option.group))


def command(function: Callable[[Given], None]) -> Callable[..., None]:
    """Give a command the signature that typer reads; it is called with what was given."""
    name = function.__name__.rstrip("_")  # a command that is a word of Python's
    options = [*options_of(name), _NOT_SP]

    def run(**values: Any) -> None:
        if values.pop("sequence_parallel"):
            from mla_cost.errors import InputError

            raise InputError(SEQUENCE_PARALLEL)
        _require_words(options[:-1], values)
        _require_effect(options[:-1], values)
        function(Given(name, {option.name: _read(option, values[option.name]) for option in options[:-1]}))

    run.__name__, run.__doc__ = name, function.__doc__
    parameters = [
        Parameter(it.name, Parameter.KEYWORD_ONLY, default=_default(it), annotation=_hint(it)) for it in options
    ]
    run.__annotations__ = {it.name: it.annotation for it in parameters}
    cast("Any", run).__signature__ = Signature(parameters)
    return run


def _require_words(options: list[Option], values: dict[str, Any]) -> None:
    for option in options:
        if option.values and values[option.name] not in {None, *option.values}:
            from mla_cost.errors import InputError

            allowed, value = ", ".join(option.values), values[option.name]
            raise InputError(f"unknown {option.flags[0][2:]}", field=option.flags[0], value=value, allowed=allowed)


def _require_effect(options: list[Option], values: dict[str, Any]) -> None:
    """Refuse what would be dropped beside something else that was given."""
    flags = {option.name: names_of(option)[0] for option in options}
    for option in options:
        if values[option.name] in (None, False, option.default):
            continue
        for other in option.idle:
            name, _, words = other.partition("=")
            beside, given = values[name], f"{flags[name]}{f' {values[name]}' if words else ''}"
            require_effect(flags[option.name], str(beside) in words.split("|") if words else bool(beside), given)


def _read(option: Option, value: Any) -> Any:
    if option.kind != "tokens" or value is None:
        return value
    from mla_cost.errors import InputError
    from mla_cost.inputs.counts import SHOULD_BE, counted

    found = counted(value)
    if found is None:
        raise InputError(SHOULD_BE, field=names_of(option)[0], value=value)
    return found


def names_of(option: Option) -> list[str]:
    """The flag and its aliases."""
    return list(option.flags or (f"--{option.name.replace('_', '-')}",))


def _default(option: Option) -> Any:
    if option.kind in {"form", "file"}:
        return Parameter.empty
    return False if option.kind == "switch" else option.default


def _hint(option: Option) -> Any:
    kind = _TYPES.get(option.kind, str | None)
    if option.kind == "plan":
        return Annotated[kind, typer.Argument(metavar="[PLAN]", help=option.help)]
    if option.kind in {"form", "file"}:
        metavar = None if option.kind == "form" else "FILE"
        return Annotated[kind, typer.Argument(metavar=metavar, help=option.help)]
    names = names_of(option)
    if option.kind == "either":
        names = [f"{names[0]}/--no-{names[0][2:]}"]
    details: dict[str, Any] = {"help": option.help, "hidden": option.hidden, "rich_help_panel": option.group}
    mixed = option.kind == "count" and option.name in TABLE and TABLE[option.name].values
    found = typer.Option(*names, metavar=option.metavar or None, show_default=False, **details)
    return Annotated[str | None if mixed else kind, found]
