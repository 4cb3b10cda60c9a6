"""The symbolic formula of a quantity, term by term, each with the tensor that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.errors import InputError, nearest, shown
from mla_cost.language import evaluate
from mla_cost.language.dims import SYMBOLS, declared, predicates, product_text
from mla_cost.language.evaluate import PeakCandidate
from mla_cost.language.machine import DTYPE_BYTES, Allocation, Timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.program import ProgramError
from mla_cost.language.timeline import PASSED_ON
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key, form_of
from mla_cost.pricing.resolve import Illegal, Point, named, scheme_of
from mla_cost.results import Formula, FormulaSymbol, FormulaTerm

if TYPE_CHECKING:
    import sympy

QUANTITIES = {
    "saved": "bytes kept between forward and backward",
    "peak": "live bytes at the peak, as torch's dispatcher shows them",
    "payload": "bytes handed to collectives, forward and backward",
    "wire": "bytes sent, forward and backward",
    "flops": "multiply-adds counted as two, forward and backward, attention as a full square",
}
TIME = "time"  # a quantity of `explaining.times`, which asks a device
ONES = {"sp": "P", "heads": "l", "batch": "b", "positions": "s"}  # what --one can name, and its symbol
WITHOUT = {"query-latent": "d_q", "rope": "r"}  # what --without can name


class Summand(NamedTuple):
    """One summand. factors multiply to bytes (or flops): numbers, symbols, sums of symbols such as `k+r` or `P-1`."""

    tensor: str
    where: str
    factors: tuple[str, ...]
    polynomial: Polynomial

    @property
    def text(self) -> str:
        """The summand as text: 2*S*b*l*(k+r)."""
        return product_text(self.factors)

    def expression(self) -> sympy.Expr:
        """The summand in sympy, over positive integer symbols."""
        import sympy

        return sympy.Mul(*[_expression(factor) for factor in self.factors])


class Explanation(NamedTuple):
    """A formula: its terms, and for a peak the other moments that can win (each with its terms)."""

    form: str
    scheme: str
    kernel: str
    quantity: str
    key: str
    moment: str
    terms: tuple[Summand, ...]
    others: tuple[Explanation, ...] = ()
    values: Mapping[str, int] | None = None

    def expression(self) -> sympy.Expr:
        """The formula in sympy: the sum of the terms; for a peak of several moments, their maximum."""
        import sympy

        own = sympy.Add(*[term.expression() for term in self.terms])
        # not evaluated: no moment is at most another one everywhere, and sympy takes seconds to find no order
        return sympy.Max(own, *[it.expression() for it in self.others], evaluate=False) if self.others else own

    def value(self) -> int | None:
        """The exact value where the symbols have values."""
        if self.values is None:
            return None
        return max(sum(term.polynomial.at(self.values) for term in it.terms) for it in (self, *self.others))

    def latex(self) -> str:
        """The sum as LaTeX, on one line; of a peak the maximum over its moments."""
        import sympy

        return str(sympy.latex(self.expression(), order="none"))

    def mathml(self) -> str:
        """The sum as presentation MathML, with the element around it; of a peak the moment that wins."""
        from sympy import Add
        from sympy.printing.mathml import mathml

        own = Add(*[term.expression() for term in self.terms])
        text = mathml(own, printer="presentation", order="none", mul_symbol="&#x2062;")
        return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"><mrow>{text}</mrow></math>'

    def record(self) -> Formula:
        """The formula as a plain record, for views."""
        return Formula(
            form=self.form,
            scheme=self.scheme,
            kernel=self.kernel,
            quantity=self.quantity,
            meaning=QUANTITIES[self.quantity],
            holds_for=self.key,
            moment=self.moment or None,
            terms=tuple(self._term(term) for term in self.terms),
            total=self.value(),
            symbols=tuple(self._symbols()),
            others=tuple(other.record() for other in self.others),
        )

    def _term(self, term: Summand) -> FormulaTerm:
        value = None if self.values is None else term.polynomial.at(self.values)
        return FormulaTerm(term.tensor, term.where, term.text, value)

    def _symbols(self) -> Iterable[FormulaSymbol]:
        """Every symbol that appears, in declared order."""
        factors = [factor for it in (self, *self.others) for term in it.terms for factor in term.factors]
        used = {name for factor in factors for name in factor.replace("-", "+").split("+")}
        for name, (meaning, _) in SYMBOLS.items():
            if name in used:
                yield FormulaSymbol(name, meaning, self._symbol_value(name))

    def _symbol_value(self, name: str) -> int | None:
        if self.values is None:
            return None
        return self.values["s"] * self.values["P"] if name == "S" else self.values.get(name)


def explain(
    form: str,
    quantity: str = "saved",
    *,
    kernel: str = defaults.ATTENTION_KERNEL,
    scheme: str | None = None,
    one: Iterable[str] = (),
    without: Iterable[str] = (),
    dtype: str = "bf16",
    **settings: Any,
) -> Explanation:
    """The formula of a form for one structural key, without numbers.

    one: dims that have size one, of `sp`, `heads` (per rank), `batch`, `positions` (per rank). without: absent parts,
    of `query-latent` and `rope`. settings: v_layout, value_padding, attention_layout, softmax_dtype, mask,
    names.

    Raises:
        InputError: an unknown name, or a combination that makes no program.

    """
    key = variant_key(form, kernel=kernel, scheme=scheme, one=one, without=without, dtype=dtype, **settings)
    try:
        return _explain(form, key, quantity, None)
    except ProgramError as error:
        raise InputError(str(error)) from None


def variant_key(
    form: str,
    *,
    kernel: str = defaults.ATTENTION_KERNEL,
    scheme: str | None = None,
    one: Iterable[str] = (),
    without: Iterable[str] = (),
    dtype: str = "bf16",
    **settings: Any,
) -> Key:
    """The structural key of a form without numbers, as `explain` takes it.

    Raises:
        InputError: an unknown name, or a scheme that the form cannot have.

    """
    named("form", form, FORMS)
    named("kernel", kernel, KERNELS)
    try:
        chosen = scheme_of(form, scheme)
    except Illegal as error:
        raise InputError(str(error)) from None
    ones = {_known("one", name, ONES) for name in one}
    if not chosen.divides_heads:
        ones = {"n" if symbol == "l" else symbol for symbol in ones}
    elif chosen.inside:
        ones = {"l_in" if symbol == "l" else symbol for symbol in ones}
    absent = frozenset(_known("without", name, WITHOUT) for name in without)
    settings.setdefault("value_padding", _own_padding(form, kernel))
    known = predicates(frozenset(ones), absent, chosen.divides_heads, nested=bool(chosen.inside))
    return Key(form_of(form).name, chosen.name, kernel, known, dtype, **settings)


def _own_padding(form: str, kernel: str) -> str:
    """The padding that a kernel has where nothing is asked for, as a plan resolves it."""
    declared = KERNELS[kernel]
    return declared.value_padding if declared.pads(form_of(form).shared_key) else "none"


def explain_point(point: Point, values: Mapping[str, int], quantity: str) -> Explanation:
    """The formula that holds at a point, with the values of its symbols; of a peak, the moment that wins there."""
    return _explain(point.form, point.key, quantity, values)


def _known(kind: str, name: Any, names: Mapping[str, str]) -> str:
    if not isinstance(name, str) or name not in names:
        raise InputError(
            f"unknown name {shown(name)}", field=kind, allowed=", ".join(names), nearest=nearest(name, names)
        )
    return names[name]


def _explain(form: str, key: Key, quantity: Any, values: Mapping[str, int] | None) -> Explanation:
    if not isinstance(quantity, str) or quantity not in QUANTITIES:
        raise InputError(
            f"unknown quantity {shown(quantity)}",
            allowed=", ".join((*QUANTITIES, TIME)),
            nearest=nearest(quantity, (*QUANTITIES, TIME)),
        )
    run = timeline(key)
    made = [
        Explanation(form, key.scheme, key.kernel, quantity, key.predicates.words(), moment, terms, (), values)
        for moment, terms in _terms(run, quantity, values)
    ]
    return made[0]._replace(others=tuple(made[1:]))


def _terms(run: Timeline, quantity: str, values: Mapping[str, int] | None) -> list[tuple[str, tuple[Summand, ...]]]:
    if quantity == "saved":
        return [("", tuple(_allocation_term(a) for a in run.allocations if a.saved))]
    if quantity == "peak":
        return [_peak_event(run, candidate) for candidate in _winning(run, values)]
    if quantity == "flops":
        return [("", tuple(_flop_terms(run)))]
    return [("", tuple(_collective_term(run, at, quantity) for at in range(len(run.collectives))))]


def _allocation_term(allocation: Allocation) -> Summand:
    factors = (str(DTYPE_BYTES[allocation.dtype]), *declared(allocation.dims))
    return Summand(allocation.label, f"made in {allocation.phase}", factors, allocation.size)


def _winning(run: Timeline, values: Mapping[str, int] | None) -> tuple[PeakCandidate, ...]:
    found = evaluate.candidates(run)
    if values is None:
        return found
    return (max(found, key=lambda candidate: candidate.bytes.at(values)),)


def _peak_event(run: Timeline, candidate: PeakCandidate) -> tuple[str, tuple[Summand, ...]]:
    event = run.events[candidate.event]
    alive = [a for a in run.allocations if a.kind != "parameter_gradient" and a.alive_at(candidate.event)]
    return f"{event.phase} of {event.op}", tuple(_allocation_term(a) for a in alive)


def _collective_term(run: Timeline, at: int, quantity: str) -> Summand:
    called = run.collectives[at]
    where = f"{called.kind}, {called.phase}"
    width = str(DTYPE_BYTES[called.dtype])
    if quantity == "payload":
        return Summand(called.tensor, where, (width, *declared(called.handed)), called.payload)
    return Summand(called.tensor, where, collective_factors(run, at), called.wire)


def collective_factors(run: Timeline, at: int) -> tuple[str, ...]:
    """What multiplies to the bytes that a collective sends: of hops what is handed on, else a piece to each other."""
    called = run.collectives[at]
    width = str(DTYPE_BYTES[called.dtype])
    if called.handed == called.piece and called.kind in PASSED_ON:
        return width, *declared(dim for dim in called.handed if dim != "1")
    return width, f"{called.ranks}-1", *declared(called.piece)


def _flop_terms(run: Timeline) -> Iterable[Summand]:
    for counted in run.flops:
        for monomial, coefficient in (counted.needed + counted.recomputed).terms.items():
            factors = (str(coefficient), *declared(monomial))
            yield Summand(counted.op, counted.phase, factors, Polynomial({monomial: coefficient}))


def _expression(factor: str) -> sympy.Expr:
    import sympy

    if factor.isdigit():
        return sympy.Integer(factor)
    if factor.endswith("-1"):
        return sympy.Symbol(factor.removesuffix("-1"), positive=True, integer=True) - 1
    return sympy.Add(*[sympy.Symbol(name, positive=True, integer=True) for name in factor.split("+")])
