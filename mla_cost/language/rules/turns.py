"""Heads in turns: one of each rank is made, exchanged, attended to and exchanged back before the next ones are made.

Read in source for queries, keys and values that are products of hidden states:
togethercomputer/Untied-Ulysses@e465aa8 untied_ulysses/fully_fused_attn.py:91-157 forward, 233-351 backward. Here
queries are made of what their up-projection takes, keys and values of the latent, each time anew.
"""

from __future__ import annotations

from typing import NamedTuple

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.rules.exchange import SEQUENCE, recorded
from mla_cost.language.timeline import Product

Dims = tuple[str, ...]


@op("in_turns")
def in_turns(machine: Machine, label: str, source: Tensor, up: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """source [s b c], up [n k+r c], latent with the rotated key [s b d_c+r] and weight [n k+v d_c] to [s b n v].

    Kept: source, latent, the output and the log-sum-exp of a rank's own heads over all positions. A turn has P heads,
    one for each rank, l turns make n. Backward makes queries, keys and values again, sends them again, and with them
    the output and its gradient; so it sends twice what forward does.
    """
    width = weight.dims[1].rpartition("+")[2]
    result = machine.new(label, (*source.dims[:2], "n", width), source.dtype)
    turn = HeadTurn(machine, source.dims[:2], (up.dims[1], width), weight.dims[1])
    products = _Projections(machine, source.dims, up.dims, latent.dims, weight.dims)
    products.forward()
    rows = turn.there_and_back(label)
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (source, up, latent, weight)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        sums: list[Tensor | None] = [machine.new(*item) for item in made]
        products.forward(again=True)
        there = turn.exchanged()
        turn.sends(("queries", "keys", "values", "output", "gradient of output"))
        there += [machine.new(f"{name} of a turn", there[2].dims, made[0][2]) for name in ("output", "its gradient")]
        of_turn = [machine.new(f"gradient of {t.label}", t.dims, t.dtype) for t in there[:3]]
        turn.attends(forward=False)
        there.clear()
        turn.sends(("gradient of queries", "gradient of keys", "gradient of values"))
        own = [turn.own(t.label, t.dims[-1]) for t in of_turn]
        del of_turn
        products.backward()
        del own
        return sums

    machine.attach([result], [source, up, latent, weight], backward, saved=[source, up, latent, weight, result, rows])
    return result


class HeadTurn(NamedTuple):
    """P heads, one for each rank.

    local: the dims of a rank's positions. widths: of keys and values; both: of what a latent is expanded to.
    """

    machine: Machine
    local: Dims
    widths: tuple[str, str]
    both: str

    def there_and_back(self, label: str) -> Tensor:
        """Forward of a turn: exchanged, attended to, and its output sent home. The log-sum-exp of all turns."""
        there = self.exchanged()
        self.sends(("queries", "keys", "values"))
        rows = self.machine.new("log-sum-exp", ("b", "l", "S"), "fp32")
        out = self.machine.new(f"{label} of a turn", there[2].dims, self.machine.dtype)
        self.attends(forward=True)
        there.clear()
        back = self.own(f"{label} of a turn, here", self.widths[1])
        self.sends(("output",))
        del out, back
        return rows

    def own(self, label: str, width: str) -> Tensor:
        """The heads of a turn at a rank's own positions."""
        return self.machine.new(label, (*self.local, "P", width), self.machine.dtype)

    def exchanged(self) -> list[Tensor]:
        """Queries, keys and values of a rank's one head at all positions; what they were made of goes."""
        qk, v = self.widths
        query, pair, key = self.own("query of a turn", qk), self.own("latent expanded", self.both), self.own("key", qk)
        found = [self.machine.new(f"{name} of a turn", ("S", "b", "1", width), self.machine.dtype)
                 for name, width in (("query", qk), ("key", qk), ("value", v))]  # fmt: skip
        del query, pair, key
        return found

    def sends(self, names: tuple[str, ...]) -> None:
        """All-to-alls of all turns: what forward and backward call queries and keys is k + r wide, all else v."""
        for name in names:
            width = self.widths[0 if name.endswith(("queries", "keys")) else 1]
            piece = (*self.local, "l", width)
            recorded(self.machine, "all_to_all", SEQUENCE, name, ("P", *piece), self.machine.dtype, piece)

    def attends(self, *, forward: bool) -> None:
        """A launch a turn, each of one head over all positions."""
        machine, (qk, v) = self.machine, self.widths
        size = machine.predicates.elements
        scores, both = size(("S", "b", "l", qk, "S")) * 2, size(("S", "b", "l", f"{qk}+{v}", "S")) * 2
        through = [machine.bytes_of(("S", "b", "l", width), machine.dtype) for width in (qk, qk, v)]
        out = [machine.bytes_of(("S", "b", "l", v), machine.dtype), machine.bytes_of(("b", "l", "S"), "fp32")]
        times: int = 1 if forward else 2
        again = Polynomial.constant(0) if forward else scores
        machine.flops(both * times, recomputed=again, attention=True, skips_masked=True)
        machine.runs(
            "attention",
            through if forward else [*through, out[0], *out],
            out if forward else through,
            launches=machine.predicates.size("l"),
            product=Product(size(("b", "1")), size(("S",)), size(("S",)), size((f"{qk}+{v}",))),
            flops=both * times + again,
            skips_masked=True,
        )
        if forward:
            one = ("S", "b", "1")
            machine.timeline.fused_calls.append(FusedCall((*one, qk), (*one, qk), (*one, v)))
        else:
            machine.work(fused_backward=Polynomial.symbol("fused_workspace"))


class _Projections:
    """The products that make queries, keys and values of all turns."""

    def __init__(self, machine: Machine, source: Dims, up: Dims, latent: Dims, weight: Dims) -> None:
        self._machine = machine
        self._shapes = (source[:2], up[:2], up[2:]), (latent[:2], weight[:2], weight[2:])
        size = machine.predicates.elements
        self._flops = sum((size((*r, *c, *i)) * 2 for r, c, i in self._shapes), Polynomial.constant(0))

    def forward(self, *, again: bool = False) -> None:
        """Once, or once more in backward."""
        if not again:
            self._machine.flops(self._flops)
        for shape in self._shapes:
            self._machine.multiplies(*shape)

    def backward(self) -> None:
        """The gradients of both operands."""
        self._machine.flops(self._flops * 2, recomputed=self._flops)
        for shape in self._shapes:
            self._machine.multiplies_back(*shape)
