"""The program that typer runs: built for the arguments at hand, so that a command costs its own imports only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, Final, cast

import typer

from mla_cost.cli import COMMANDS
from mla_cost.cli.grouped import Grouped

# UsageError of typer itself, or of click where an older typer hands out click's
USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__mro__[1])
ABORT: Final = cast("type[Exception]", typer.Abort)  # what it makes of Ctrl-C


def build(arguments: Sequence[str]) -> typer.Typer:
    """The program for these arguments: the command that they name, or the list of all.

    Raises:
        InputError: a word that is no command, with the nearest ones.

    """
    called = next((word for word in arguments if not word.startswith("-")), None)
    if called is not None and called not in COMMANDS:
        from mla_cost.errors import InputError, nearest, shown

        raise InputError(
            f"unknown command {shown(called)}", allowed=", ".join(COMMANDS), nearest=nearest(called, COMMANDS)
        )
    app = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_group)
    if called is not None:
        app.command(called, cls=Grouped, context_settings={"help_option_names": ["-h", "--help"]})(_command(called))
        return app
    for name, line in COMMANDS.items():
        app.command(name, help=line, short_help=line)(_listed)  # a short help is not cut
    return app


def _command(name: str) -> Callable[..., Any]:
    own = f"{name}_" if iskeyword(name) else name
    function: Callable[..., Any] = getattr(import_module(f"mla_cost.cli.{own}"), own)
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
