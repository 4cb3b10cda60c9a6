"""Where one form or scheme stops beating another: the points of a grid, and the inequality that they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import catalog
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import evaluate
from mla_cost.language.dims import OTHERS
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import Pair, Scheme
from mla_cost.pricing.block import BlockFigures
from mla_cost.studies.compare import priced
from mla_cost.studies.sweep.axes import axes_of, values_of

if TYPE_CHECKING:
    import sympy

QUANTITIES: Final = ("forward", "backward", "sent", "saved", "peak")
MOST: Final = 20_000  # points
_DEFAULT: Final = {"sp": "1..128*2"}
_GROWING: Final = ("S", "s", "b", "P", "l", "n", "A", "C", "l_in", "u", "t")  # what stays a symbol; widths are numbers


class Side(NamedTuple):
    """One of the two: a form under a scheme. name: as it was asked for."""

    name: str
    form: str
    scheme: Scheme


class GridPoint(NamedTuple):
    """A point of the grid. first, second: bytes, None where there is no program."""

    at: tuple[tuple[str, Any], ...]
    first: int | None
    second: int | None

    @property
    def winner(self) -> int | None:
        """0 where the first has less, 1 where the second has, 2 where both are alike; None without both."""
        if self.first is None or self.second is None:
            return None
        return 2 if self.first == self.second else int(self.second < self.first)


class AxisTurn(NamedTuple):
    """Along the first axis: the last value at which `before` wins, and the next one, at which `after` does."""

    along: str
    at: tuple[tuple[str, Any], ...]
    last: Any
    first: Any
    before: str
    after: str


class Crossover(NamedTuple):
    """What was asked and found. inequality: where the first has less, for programs of that structure; root: solved."""

    sides: tuple[str, str]
    quantity: str
    points: tuple[GridPoint, ...]
    turns: tuple[AxisTurn, ...]
    inequality: str
    root: str
    holds: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        points = [{**dict(point.at), "first": point.first, "second": point.second} for point in self.points]
        turns = [{**turn._asdict(), "at": dict(turn.at)} for turn in self.turns]
        return {"schema": "mla-cost/crossover/1", **self._asdict(), "points": points, "turns": turns}


def crossover(
    first: str, second: str, settings: PlanSettings, over: Mapping[str, Any], quantity: str = "forward"
) -> Crossover:
    """Compare two sides over a grid of one block, whose surroundings are plain torch whoever runs the scheme.

    first, second: a form, a scheme (of the explicit maths), or FORM/SCHEME.

    Raises:
        InputError: a name or value that is none, too many points, or no point at which both have a program.

    """
    settings = settings.model_copy(update={"scope": "attention", "profile": "reference"})
    if quantity not in QUANTITIES:
        raise InputError("unknown", field="quantity", value=quantity, allowed=", ".join(QUANTITIES))
    sides = _side(first), _side(second)
    axes = [(axis.name, values_of(axis.name, axis.values)) for axis in axes_of(settings, over or _DEFAULT)]
    model = catalog.changed(catalog.model(settings.model), settings.dims, settings.facts)
    device = catalog.device(settings.device[0]) if settings.device else None
    grid = _Grid(model, device, settings, sides, quantity)
    points = tuple(grid.points(axes))
    both = grid.typical([point for point in points if point.winner is not None])
    if both is None:
        raise InputError(f"{first} and {second} have no program at the same point", field="over")
    inequality, root, holds = grid.inequality(dict(both.at))
    turns = tuple(_turns(axes[0][0], points, (first, second)))
    return Crossover((first, second), quantity, points, turns, inequality, root, holds)


def _side(text: str) -> Side:
    form, slash, scheme = text.partition("/")
    if not slash and form in SCHEMES:
        form, scheme = defaults.BASELINE, form
    if form not in FORMS:
        known = (*FORMS, *SCHEMES)
        raise InputError(
            f"neither a form nor a scheme: {shown(text)}", allowed=f"{', '.join(known)}, or FORM/SCHEME",
            nearest=nearest(form, known),
        )  # fmt: skip
    declared = FORMS[form]
    name = scheme or declared.scheme
    if name not in SCHEMES:
        raise InputError(f"unknown scheme {shown(name)}", allowed=", ".join(SCHEMES), nearest=nearest(name, SCHEMES))
    if isinstance(declared, Pair) and name != declared.scheme:
        form = declared.form
    return Side(text, form, SCHEMES[name])


class _Grid:
    """The two sides at points."""

    def __init__(
        self,
        model: ModelConfig,
        device: DeviceConfig | None,
        settings: PlanSettings,
        sides: tuple[Side, Side],
        quantity: str,
    ) -> None:
        self.model, self.device, self.settings = model, device, settings
        self.sides, self.quantity = sides, quantity

    def points(self, axes: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[GridPoint]:
        count = 1
        for _, values in axes:
            count *= len(values)
        if count > MOST:
            raise InputError(f"{count:,} points", field="over", allowed=f"at most {MOST:,}")
        names = [name for name, _ in axes]
        for taken in product(*(values for _, values in axes)):
            at = tuple(zip(names, taken, strict=True))
            first, second = (self._amount(self._figures(dict(at), side)) for side in self.sides)
            yield GridPoint(at, first, second)

    def _figures(self, at: Mapping[str, Any], side: Side) -> BlockFigures | str:
        dims = {name.removeprefix("dims."): value for name, value in at.items() if name.startswith("dims.")}
        plain = {name: value for name, value in at.items() if not name.startswith("dims.")}
        model = catalog.changed(self.model, dims, {}) if dims else self.model
        return priced(model, self.device, self.settings.model_copy(update=plain), side.form, side.scheme)

    def _amount(self, it: BlockFigures | str) -> int | None:
        if isinstance(it, str):
            return None
        if self.quantity in {"saved", "peak"}:
            return it.saved_bytes if self.quantity == "saved" else it.peak_bytes
        return sum(it.at.sizes[wire] for wire in self._wires(it))

    def _wires(self, it: BlockFigures) -> Iterator[int]:
        account = it.at.account
        for called, (_, wire) in zip(account.timeline.collectives, account.payloads, strict=True):
            if self.quantity == "sent" or (called.phase == "forward") is (self.quantity == "forward"):
                yield wire

    def typical(self, points: Sequence[GridPoint]) -> GridPoint | None:
        """The last point at which a rank has more than one head and sends anything, else the last one."""
        found = points[-1] if points else None
        many = (point for point in reversed(points) if self._many_heads(point))
        return next(many, found)

    def _many_heads(self, point: GridPoint) -> bool:
        it = self._figures(dict(point.at), self.sides[0])
        return not isinstance(it, str) and it.point.key.predicates.heads not in it.point.key.predicates.ones

    def inequality(self, at: Mapping[str, Any]) -> tuple[str, str, str]:
        """Where the first side has less, what it is solved for, and the structure that it holds for."""
        ours, theirs = (self._figures(at, side) for side in self.sides)
        assert not isinstance(ours, str)
        assert not isinstance(theirs, str)
        difference = _expression(self._polynomial(theirs), theirs) - _expression(self._polynomial(ours), ours)
        holds = ours.point.key.predicates.words()
        return *_told(difference), holds

    def _polynomial(self, it: BlockFigures) -> Polynomial:
        account, run = it.at.account, it.at.account.timeline
        if self.quantity == "saved":
            return evaluate.saved(run)
        if self.quantity == "peak":
            found = evaluate.candidates(run)
            return max(found, key=lambda each: each.bytes.at(it.at.values)).bytes
        total = Polynomial({})
        for wire in self._wires(it):
            total = total + account.polynomials[wire]
        return total


def _expression(polynomial: Polynomial, it: BlockFigures) -> sympy.Expr:
    """The polynomial with its widths as numbers, ranks of others as differences, heads of a rank as they are."""
    import sympy

    found = evaluate.expression(polynomial)
    values: dict[Any, Any] = {}
    for symbol in found.free_symbols:
        name = str(symbol)
        if name in OTHERS:
            values[symbol] = sympy.Symbol(OTHERS[name], positive=True, integer=True) - 1
        elif name == "n" and not it.point.key.predicates.heads_divided:
            values[symbol] = sympy.Symbol("l", positive=True, integer=True) * sympy.Symbol(
                "P", positive=True, integer=True
            )
        elif name not in _GROWING:
            values[symbol] = it.at.values[name]
    return found.subs(values, simultaneous=True)


def _told(difference: sympy.Expr) -> tuple[str, str]:
    """The difference as `expression > 0` without factors that are always positive, and solved where it can be."""
    import sympy

    number, factors = sympy.factor_list(sympy.expand(difference))
    kept = number / 2 if number % 2 == 0 else number  # elements of 2 bytes
    for factor, power in factors:
        if not _positive(factor):
            kept *= factor**power
    if kept.is_number:
        return ("always" if kept > 0 else "never") if number else "alike everywhere", ""
    kept = sympy.expand(kept)
    root = ""
    for name in ("l", "l_in", "s", "P"):
        symbol = sympy.Symbol(name, positive=True, integer=True)
        if kept.is_polynomial(symbol) and sympy.degree(kept, symbol) == 1:
            slope = sympy.diff(kept, symbol)
            edge = None if slope.has(symbol) else sympy.factor(-kept.subs(symbol, 0) / slope)
            if edge is not None and slope.is_number:
                sign = ">" if slope > 0 else "<"
                root = f"{name} {sign} {edge}" + (f" = {float(edge):g}" if edge.is_number else "")
            break
    return f"{kept} > 0", root


def _positive(factor: sympy.Expr) -> bool:
    """Whether a factor is positive wherever more than one rank shares a sequence: a symbol, or ranks less one."""
    return bool(factor.is_Symbol or (factor.is_Add and len(factor.args) == 2 and -1 in factor.args and _ranks(factor)))


def _ranks(factor: sympy.Expr) -> bool:
    return {str(symbol) for symbol in factor.free_symbols} <= {"P", "A", "C"}


def _turns(along: str, points: Sequence[GridPoint], sides: tuple[str, str]) -> Iterator[AxisTurn]:
    """Where the winner changes along the first axis, for every value of the others."""
    rows: dict[tuple[tuple[str, Any], ...], list[GridPoint]] = {}
    for point in points:
        if point.winner in {0, 1}:
            rows.setdefault(point.at[1:], []).append(point)
    for rest, row in rows.items():
        for before, after in pairwise(row):
            assert before.winner is not None
            assert after.winner is not None
            if before.winner != after.winner:
                yield AxisTurn(along, rest, before.at[0][1], after.at[0][1], sides[before.winner], sides[after.winner])
