"""Help under headings: what typer prints as one list of options, by the panel that each option names."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Grouped(TyperCommand):
    """A command whose help stands under the headings of the tables."""

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


def _heading(parameter: Any) -> str:
    panel: str | None = getattr(parameter, "rich_help_panel", None)
    return panel or ("Options" if parameter.param_type_name == "option" else "Arguments")
