"""Help under headings: what typer prints as one list of options, by the panel that each option names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer.core import TyperCommand

SEVERAL_WORDS: Final = ("--zip",)  # flags that take every word with a = behind them


class Grouped(TyperCommand):
    """A command whose help stands under the headings of the tables, worked examples at its end."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; of two values for what has one, neither is dropped."""
        args = list(_in_one(args))
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.get_params(ctx):
            if order.count(parameter) > 1 and not parameter.multiple and parameter.param_type_name == "option":
                from mla_cost.errors import InputError

                aliases = [name for name in parameter.opts if any(each.partition("=")[0] == name for each in args)]
                raise InputError("is given twice and has one value", field=" or ".join(aliases) or parameter.opts[0])
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples: each a command to copy, and what it answers."""
        from mla_cost.cli.options import EXAMPLES

        with formatter.section("Examples"):
            for line, answers in EXAMPLES.get(self.name or "", ()):
                formatter.write(f"  mla-cost {line}\n      {answers}\n")
        super().format_epilog(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of each heading below it."""
        found: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                found.setdefault(_heading(parameter), []).append(record)
        for heading, records in found.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def _in_one(arguments: list[str]) -> Iterator[str]:
    """The arguments, with the words that belong to one flag as one: `--zip sp=1,2 dp=2,1` is one text."""
    words = iter(arguments)
    taken: str | None = None
    for word in words:
        if taken is not None and "=" in word and not word.startswith("-"):
            taken = f"{taken} {word}"
            continue
        if taken is not None:
            yield taken
            taken = None
        yield word
        if word in SEVERAL_WORDS:
            taken = next(words, None)
    if taken is not None:
        yield taken


def _heading(parameter: Any) -> str:
    panel: str | None = getattr(parameter, "rich_help_panel", None)
    return panel or ("Options" if parameter.param_type_name == "option" else "Arguments")
