"""What a block's time is made of, call by call: a formula by the rules of `timing`, and the limit of each term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mla_cost.errors import InputError
from mla_cost.explaining.explain import TIME
from mla_cost.inputs.config import DeviceConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import SYMBOLS
from mla_cost.language.evaluate import Evaluation, expression
from mla_cost.language.machine import Timeline
from mla_cost.language.polynomial import Polynomial
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key
from mla_cost.pricing.times import Pricing, pricing
from mla_cost.results import Formula, FormulaSymbol, FormulaTerm
from mla_cost.timing import rules
from mla_cost.timing.ceilings import RATES, Ceilings, has_ceilings
from mla_cost.timing.work import KernelCall, Sending, WorkAccount, limits, sending_seconds, work_of

if TYPE_CHECKING:
    import sympy

MEANING: Final = "seconds of every kernel and collective, forward and backward, one after another"
LINK: Final = "link"
# what divides in a term, of the device's file
OF_DEVICES: Final[Mapping[str, str]] = {
    "launch": "seconds that a kernel takes at least",
    "gemm": "flops a second of products: peak x ceiling",
    "grouped_gemm": "flops a second of products by groups: peak x ceiling",
    "attention": "flops a second of fused attention: peak x ceiling; backward at a ratio of it",
    "use": "the part of the device that the shape fills: output tiles, contracted width, rows of an expert, keys",
    "memory": "bytes a second: bandwidth x ceiling",
    "rope": "bytes a second of rotary kernels",
    "permutation": "bytes a second of kernels that permute rows",
    "loss": "bytes a second of the loss",
    "latency": "seconds of a collective before its bytes, by its rounds",
    "links": "bytes a second of the links that a collective crosses, inside a node and between nodes",
}


class PricedBlock(NamedTuple):
    """A block at the numbers of a plan, on a device."""

    at: Evaluation
    how: Pricing


class TimeFormula(NamedTuple):
    """The time of one structural key, and its figures where there are numbers. Answers as `Explanation` does."""

    form: str
    key: Key
    causal: bool
    priced: PricedBlock | None = None

    @property
    def _account(self) -> WorkAccount:
        return work_of(self._run)

    @property
    def _run(self) -> Timeline:
        return timeline(self.key) if self.priced is None else self.priced.at.account.timeline

    def expression(self) -> sympy.Expr:
        """The sum in sympy. Symbols: those of formulas, and the fields of `timing.ceilings.Ceilings`.

        How products fill a device is the function `use` of batch and output; a collective is one of its wire bytes.
        """
        import sympy

        calls = self._account.in_order()
        amounts = [expression(amount) for amount in self._account.polynomials]
        on, uses = _symbols(in_turn=self.priced is not None and self.priced.how.on.in_turn), _Opaque(amounts)
        found = []
        for call in calls:
            if isinstance(call, Sending):
                found.append(sympy.Function(call.called.kind)(amounts[call.wire]))
                continue
            needs = limits(call, amounts, on, self.causal, uses)
            shared = needs.memory if not needs.compute else sympy.Max(needs.compute, needs.memory, evaluate=False)
            found.append(needs.launch + shared)
        return sympy.Add(*found)

    def latex(self) -> str:
        """The sum as LaTeX, on one line."""
        import sympy

        return str(sympy.latex(self.expression(), order="none"))

    def record(self) -> Formula:
        """The formula as a plain record, for views."""
        terms = tuple(self._terms())
        return Formula(
            form=self.form,
            scheme=self.key.scheme,
            kernel=self.key.kernel,
            quantity=TIME,
            meaning=MEANING,
            holds_for=self.key.predicates.words(),
            moment=None,
            terms=terms,
            total=None,
            symbols=tuple(self._named(terms)),
            total_seconds=None if self.priced is None else sum(term.seconds or 0.0 for term in terms),
        )

    def _terms(self) -> Iterator[FormulaTerm]:
        account = self._account
        calls = account.in_order()
        sizes = [amount.at(self.priced.at.values) for amount in account.polynomials] if self.priced else []
        for call in calls:
            text = _text(call, account.polynomials)
            if isinstance(call, Sending):
                seconds, limit = (None, LINK) if self.priced is None else (self._link(call, sizes), LINK)
                yield FormulaTerm(call.called.tensor, f"{call.called.kind}, {call.phase}", text, None, seconds, limit)
                continue
            where = f"{call.work.replace('_', ' ')}, {call.phase}"
            if self.priced is None:
                yield FormulaTerm(call.op, where, text, None)
                continue
            needs = limits(call, sizes, self.priced.how.on, self.causal)
            yield FormulaTerm(call.op, where, text, None, needs.seconds, limit_of(needs))

    def _link(self, call: Sending, sizes: list[int]) -> float:
        assert self.priced is not None
        how = self.priced.how
        found: float = sending_seconds(call, sizes, how.on, self.priced.at.values, how.by)
        return found

    def _named(self, terms: tuple[FormulaTerm, ...]) -> Iterator[FormulaSymbol]:
        """Every symbol that appears: of sizes in declared order, then those of the device."""
        amounts = self._account.polynomials
        used = {symbol for amount in amounts for symbol in amount.symbols()}
        for name, (meaning, _) in SYMBOLS.items():
            if name in used:
                yield FormulaSymbol(name, meaning, self.priced.at.values.get(name) if self.priced else None)
        words = {word.strip("()*,") for term in terms for word in term.formula.split()}
        yield from (FormulaSymbol(name, meaning, None) for name, meaning in OF_DEVICES.items() if name in words)


def limit_of(needs: rules.Limits) -> str:
    """What sets the time of a kernel: launch, compute or memory."""
    largest = max(needs.compute, needs.memory)
    if needs.launch > largest:
        return "launch"
    return "compute" if needs.compute > needs.memory else "memory"


def of_plan(form: str, key: Key, at: Evaluation, device: DeviceConfig, settings: PlanSettings) -> TimeFormula:
    """The formula at the numbers of a plan.

    Raises:
        InputError: a device whose file has no figures of time.

    """
    if not has_ceilings(device):
        raise InputError("time needs a device whose file has `time:`", field="device", value=device.name)
    return TimeFormula(form, key, settings.causal, PricedBlock(at, pricing(device, settings, "middle")))


class _Opaque(dict[tuple[int, ...], Any]):
    """How products fill a device, as a function that is not looked into."""

    def __init__(self, amounts: list[Any]) -> None:
        super().__init__()
        self._amounts = amounts

    def __contains__(self, output: object) -> bool:
        return True

    def __getitem__(self, output: tuple[int, ...]) -> Any:
        import sympy

        return sympy.Function("use")(*(self._amounts[at] for at in output))


def _symbols(*, in_turn: bool) -> Ceilings:
    """A device's figures as symbols. in_turn: whether its cores fetch and multiply one after the other."""
    import sympy

    made: Any = {name: sympy.Symbol(name, positive=True) for name in Ceilings._fields}
    return Ceilings(**{**made, "inside": dict.fromkeys(RATES, made["inside"]), "in_turn": in_turn})


# ---- text


def _text(call: KernelCall | Sending, amounts: tuple[Polynomial, ...]) -> str:
    """A term as it is read: what is divided by which of OF_DEVICES."""
    if isinstance(call, Sending):
        return f"latency + ({amounts[call.wire]}) / links"
    launches = str(amounts[call.launches])
    launch = "launch" if launches == "1" else f"({launches})*launch" if "+" in launches else f"{launches}*launch"
    through = f"({amounts[call.bytes]}) / {rules.OF_MEMORY.get(call.work, 'memory')}"
    if call.flops is None:
        return f"{launch} + {through}"
    return f"{launch} + max(({amounts[call.flops]}) / ({call.work} * use), {through})"
