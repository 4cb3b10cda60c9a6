"""Where one form is smaller than another: boundaries solved from the polynomials of both timelines, and checked.

The boundary in d_c is first found on exact figures (`BlockFigures`), then the two moments that hold there are
subtracted as polynomials and the difference is solved for d_c, so a formula says which moments it compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mla_cost import api
from mla_cost.checks.evidence.fused import questions
from mla_cost.inputs import catalog
from mla_cost.inputs.config import validated
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language import evaluate
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.resolve import Illegal, resolve

if TYPE_CHECKING:
    import sympy

Quantity = Literal["saved", "peak", "allocated peak"]
QUANTITIES: tuple[Quantity, ...] = ("saved", "peak", "allocated peak")
WIDEST = 1 << 14  # the widest latent that is looked at


class Boundary(NamedTuple):
    """The first form needs no more than the second up to this latent rank.

    largest: the largest d_c for which that holds at the model's other dims, 0 for none. formula: d_c at which both
    are equal, in the symbols of the dims, for the moments that hold there; None where a kernel's workspace rounds, or
    where nothing crosses.
    root: its value at the model's dims.
    """

    variant: str
    quantity: Quantity
    sp: int
    heads_per_rank: int
    largest: int
    formula: str | None
    root: float | None
    model_rank: int


class Smaller(NamedTuple):
    """A model of the catalogue for which the first form is smaller. ratio: first over second."""

    model: str
    variant: str
    quantity: Quantity
    sp: int
    ratio: float


class Gather(NamedTuple):
    """Where gathering sends less: heads per rank above the root of `formula`."""

    formula: str
    root: float
    extra_formula: str
    cells: tuple[tuple[int, int, int, int], ...]  # sp, heads per rank, bytes sent by the first, by the second


# ---- boundaries in the latent rank


def boundaries() -> Iterator[Boundary]:
    """Every variant, degree, head count and quantity that is asked for."""
    asked = questions()["regimes"]
    for variant in asked["variants"]:
        for sp in asked["sp"]:
            for heads in asked["heads_per_rank"]:
                for quantity in QUANTITIES:
                    yield boundary(variant["name"], variant["plan"], sp, heads, quantity)


def how_many() -> int:
    """How many boundaries are asked for."""
    asked = questions()["regimes"]
    return len(asked["variants"]) * len(asked["sp"]) * len(asked["heads_per_rank"]) * len(QUANTITIES)


def boundary(name: str, plan: Mapping[str, Any], sp: int, heads_per_rank: int, quantity: Quantity) -> Boundary:
    """The boundary of one variant at the model's other dims."""
    asked = questions()["regimes"]
    fields = {**plan, "model": asked["model"], "seq_len": asked["seq_len"], "sp": sp}
    heads = {"heads": heads_per_rank * sp}
    largest = _largest(fields, heads, quantity)
    formula, root = _formula(fields, heads, quantity, largest)
    rank = catalog.model(asked["model"]).dims.kv_lora_rank
    return Boundary(name, quantity, sp, heads_per_rank, largest, formula, root, rank)


def _formula(
    fields: Mapping[str, Any], heads: Mapping[str, Any], quantity: Quantity, largest: int
) -> tuple[str | None, float | None]:
    """From the moments on either side of the boundary, whichever pair crosses there."""
    for rank in (largest, largest + 1):
        ours, theirs = sides(fields, {**heads, "kv_lora_rank": max(rank, 1)})
        formula, root = _solved(ours, theirs, quantity)
        if root is not None and largest <= root < largest + 1:
            return formula, root
    return None, None


def sides(fields: Mapping[str, Any], dims: Mapping[str, Any]) -> tuple[BlockFigures, BlockFigures]:
    """The figures of both forms at these dims."""
    asked = questions()["regimes"]
    return _figures(asked["of"], fields, dims), _figures(asked["against"], fields, dims)


def _figures(form: str, fields: Mapping[str, Any], dims: Mapping[str, Any]) -> BlockFigures:
    return _once(form, tuple(fields.items()), tuple(dims.items()))


@lru_cache(maxsize=256)  # the bisections of three quantities begin at the same ranks
def _once(form: str, fields: tuple[tuple[str, Any], ...], dims: tuple[tuple[str, Any], ...]) -> BlockFigures:
    settings = validated(PlanSettings, {"scope": "attention", **dict(fields), "form": (form,), "dims": dict(dims)})
    family = catalog.device(questions()["regimes"]["device"]).family
    return figures(resolve(api.model_with_dims(settings), form, settings), family)


def read(it: BlockFigures, quantity: Quantity) -> int:
    """Bytes of a quantity."""
    by_name = {"saved": it.saved_bytes, "peak": it.peak_bytes, "allocated peak": it.allocated_peak_bytes}
    return by_name[quantity]


def _largest(fields: Mapping[str, Any], heads: Mapping[str, Any], quantity: Quantity) -> int:
    """By bisection: the difference rises with d_c. 0 where even a rank of one is too wide."""
    low, high = 0, WIDEST
    while high - low > 1:
        middle = (low + high) // 2
        ours, theirs = sides(fields, {**heads, "kv_lora_rank": middle})
        low, high = (middle, high) if read(ours, quantity) <= read(theirs, quantity) else (low, middle)
    return low


def _solved(ours: BlockFigures, theirs: BlockFigures, quantity: Quantity) -> tuple[str | None, float | None]:
    if quantity == "allocated peak" and ours.point.kernel.fused:
        return None, None  # workspace is one opaque symbol, of another size in each form
    difference = _polynomial(ours, quantity) - _polynomial(theirs, quantity)
    root = solve(difference, "d_c", ours)
    return (None, None) if root is None else (str(root), _value(root, ours.at.values))


def _polynomial(it: BlockFigures, quantity: Quantity) -> Polynomial:
    """The polynomial of the quantity, of the moment that holds at these values."""
    run = timeline(it.point.key)
    if quantity == "saved":
        return evaluate.saved(run)
    kinds = None if quantity == "peak" else it.kinds
    moment = max(evaluate.candidates(run, kinds), key=lambda candidate: candidate.bytes.at(it.at.values))
    return moment.bytes if kinds is None else moment.bytes + evaluate.parameters(run)


def solve(difference: Polynomial, symbol: str, it: BlockFigures) -> sympy.Expr | None:
    """The symbol's value at which a difference that is linear in it is zero; None where it does not appear."""
    return _root(_expression(difference, it), _symbol(symbol))


def _expression(difference: Polynomial, it: BlockFigures) -> sympy.Expr:
    """The difference under the facts of a program: symbols that are one are left out."""
    return evaluate.expression(difference).subs({_symbol(name): 1 for name in it.point.key.predicates.ones})


def _root(expression: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    import sympy

    expanded = sympy.expand(expression)
    slope = expanded.coeff(symbol, 1)
    if slope == 0 or sympy.degree(expanded, symbol) != 1:
        return None
    return sympy.factor_terms(sympy.cancel(-expanded.coeff(symbol, 0) / slope))


def _symbol(name: str) -> sympy.Symbol:
    import sympy

    return sympy.Symbol(name, positive=True, integer=True)


def _value(expression: sympy.Expr, values: Mapping[str, int]) -> float:
    return float(expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}))


class Sequence(NamedTuple):
    """Saved bytes of the first variant less those of the second form, and the S below which that is negative."""

    variant: str
    sp: int
    heads_per_rank: int
    difference: str
    formula: str
    root: float


def sequences() -> Iterator[Sequence]:
    """The boundary in S, for every degree and head count at which the difference has an S x S term."""
    import sympy

    asked = questions()["regimes"]
    variant = asked["variants"][0]
    for sp in asked["sp"]:
        for heads in asked["heads_per_rank"]:
            fields = {**variant["plan"], "model": asked["model"], "seq_len": asked["seq_len"], "sp": sp}
            ours, theirs = sides(fields, {"heads": heads * sp})
            difference = _expression(_polynomial(ours, "saved") - _polynomial(theirs, "saved"), ours)
            root = _root(difference / _symbol("s"), _symbol("s"))  # every term has a factor s
            if root is not None:
                length = sympy.factor_terms(root * (1 if sp == 1 else _symbol("P")))
                text = str(sympy.factor(difference))
                yield Sequence(variant["name"], sp, heads, text, str(length), _value(length, ours.at.values))


# ---- the catalogue


def smaller() -> Iterator[Smaller]:
    """Every model of the catalogue for which the first form is smaller, and where."""
    asked = questions()["regimes"]
    for model in catalog.model_names():
        for variant in asked["variants"]:
            for sp in asked["sp"]:
                fields = {**variant["plan"], "model": model, "seq_len": asked["seq_len"], "sp": sp}
                yield from _smaller(model, variant["name"], sp, fields)


def _smaller(model: str, variant: str, sp: int, fields: Mapping[str, Any]) -> Iterator[Smaller]:
    try:
        ours, theirs = sides(fields, {})
    except Illegal:
        return
    for quantity in QUANTITIES:
        ratio = read(ours, quantity) / read(theirs, quantity)
        if ratio < 1:
            yield Smaller(model, variant, quantity, sp, ratio)


# ---- where gathering the latent stops saving bytes


def gather() -> Gather:
    """Forward bytes on the wire, solved for heads per rank."""
    import sympy

    asked = questions()["gather"]
    pairs = [_gather_pair(asked, sp) for sp in asked["sp"]]
    many, one = pairs[0], pairs[-1]
    root = solve(_wire_difference(*many), "l", many[0])
    assert root is not None
    extra = sympy.factor(_expression(_wire_difference(*one), one[0]))
    cells = tuple(_gather_cell(*pair) for pair in pairs)
    return Gather(str(root), _value(root, many[0].at.values), str(extra), cells)


def _gather_pair(asked: Mapping[str, Any], sp: int) -> tuple[BlockFigures, BlockFigures]:
    fields = {"model": asked["model"], "seq_len": asked["seq_len"], "sp": sp}
    return _figures(asked["of"], fields, {}), _figures(asked["against"], fields, {})


def _wire(it: BlockFigures) -> Polynomial:
    return evaluate.wire(timeline(it.point.key), "forward")


def _wire_difference(ours: BlockFigures, theirs: BlockFigures) -> Polynomial:
    return _wire(ours) - _wire(theirs)


def _gather_cell(ours: BlockFigures, theirs: BlockFigures) -> tuple[int, int, int, int]:
    values = ours.at.values
    return values["P"], values["l"], _wire(ours).at(values), _wire(theirs).at(values)
