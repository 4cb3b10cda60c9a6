"""The command line: one command per file, imported only when it is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn, cast

import typer

# command: its line in the list of commands; its function has the same name in the file of that name
COMMANDS = {
    "plan": "Price the forms of a model on devices and say whether they fit.",
    "sweep": "Price every form at every setting of a grid.",
    "fit": "Find the longest sequence that fits, the least sp and the fewest devices.",
    "explain": "Show the symbolic formula of a form, term by term.",
    "evidence": "Replay published figures: what matches, what differs and why.",
    "models": "List the models of the catalogue.",
    "devices": "List the devices of the catalogue.",
    "plans": "List the ready plans, which `plan` takes by name.",
    "validate": "Run the forms in torch and compare, byte by byte, what the model says of them.",
    "show": "Show everything known of a model or a device, with sources.",
}

# UsageError of typer itself, or of click where an older typer hands out click's
_USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__mro__[1])


def build(arguments: Sequence[str]) -> typer.Typer:
    """The program for these arguments: the command that they name for real, the others as lines of the list."""
    called = next((word for word in arguments if not word.startswith("-")), None)
    if called is not None and called not in COMMANDS:
        from mla_cost.errors import InputError, nearest, shown

        raise InputError(
            f"unknown command {shown(called)}", allowed=", ".join(COMMANDS), nearest=nearest(called, COMMANDS)
        )
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.callback(invoke_without_command=True)(_group)
    for name, line in COMMANDS.items():
        app.command(name, help=None if name == called else line)(_command(name) if name == called else _listed)
    return app


def _command(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(f"mla_cost.cli.{name}"), name)
    return function


def _listed() -> None:
    """Stand for a command that is only listed."""


def _group(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False
) -> None:
    """Will it fit, what does it move, and what should I change? Costs of training Multi-head Latent Attention."""
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            typer.echo(f"mla-cost {installed('mla-cost')}")
        except PackageNotFoundError:
            typer.echo("mla-cost, from a checkout that is not installed")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input ends with one message and exit code 2, never with a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    from mla_cost.errors import InputError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? and no traceback
    gc.disable()  # a process of a fifth of a second has nothing to collect
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # looking for plugins reads every installed distribution
    try:
        code = build(given)(given, prog_name="mla-cost", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _refuse(error)
    except _USAGE_ERROR as error:
        from mla_cost.cli.usage import as_input_error

        _refuse(as_input_error(error, given))
    except BrokenPipeError:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115  (the reader of our pipe has gone)
        sys.exit(0)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _refuse(error: ValueError) -> NoReturn:
    sys.stderr.write(f"mla-cost: {error}\n")
    sys.exit(2)
