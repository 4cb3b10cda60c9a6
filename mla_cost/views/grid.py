"""A table that is never cut: where a terminal is too narrow for it, every row is reported in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Cell = str | Text
LEAST = 24  # columns of a cell that folds


class TextGrid:
    """Rows under names. left: columns of words, from which the last one may fold; the others are numbers, to the right.

    told: columns of words that say nothing without the column's name. A narrow terminal gets a paragraph per row: its
    words, then each number after the name of its column.
    """

    def __init__(self, names: Sequence[str], left: Iterable[str] = (), told: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        self.left = frozenset(left)
        self.plain = self.left - frozenset(told)
        self.rows: list[tuple[Cell, ...]] = []

    def add(self, *cells: Cell) -> None:
        """One row: a cell for every name."""
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = self._table()
        # all but what the last column may fold; the minimum of a column that rich knows is its longest word
        needed = Measurement.get(console, options.update(max_width=10_000), table).maximum - self._spare()
        if needed <= options.max_width:
            yield table
        elif len(self.rows) == 1:
            yield self._reported(self.rows[0])
        else:
            yield self._paragraphs()

    def _paragraphs(self) -> Table:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for number, row in enumerate(self.rows, 1):
            table.add_row(f"{number}.", self._reported(row))
        return table

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for name in self.names:
            folds = name in self.left and name == self.names[-1]
            justify = "left" if name in self.left else "right"
            table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold", min_width=self._least() * folds)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*row)
        return table

    def _least(self) -> int:
        """Columns that the last one keeps where it folds."""
        return max(len(self.names[-1]), min(LEAST, self._widest()))

    def _spare(self) -> int:
        """What the last column gives where it folds."""
        return max(0, self._widest() - self._least()) if self.names[-1] in self.left else 0

    def _widest(self) -> int:
        """Of the lines of the last column."""
        return max((len(line) for row in self.rows for line in str(row[-1]).splitlines()), default=0)

    def _reported(self, row: Sequence[Cell]) -> Text:
        """`laga, 41.10 states, ...`: words as they are, numbers with their column's name."""
        parts: list[Text] = []
        for name, cell in zip(self.names, row, strict=True):
            if not len(cell):
                continue
            own = cell if isinstance(cell, Text) else Text(cell)
            parts.append(own if name in self.plain else Text.assemble(f"{name} ", own))
        return Text(", ").join(parts)
