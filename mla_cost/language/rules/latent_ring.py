"""A ring of latents: each hop brings a chunk of the latent, of which keys and values are made and let go.

Read in source: mlc-ai/pith-train@889a4088. Saved are the query, the rank's own latent, the output and its statistics;
the weight is cast to fp32 for the sum of its gradient.
"""

from __future__ import annotations

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.around import Steps, hops, merged
from mla_cost.language.rules.exchange import SEQUENCE

Dims = tuple[str, ...]


@op("latent_ring")
def latent_ring(machine: Machine, label: str, query: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """query [s b n k+r], latent with the rotated key [s b d_c+r] and weight [n k+v d_c] to [s b n v].

    Latents go P - 1 hops in their dtype, in backward again, with gradients in fp32 that go P hops, home. Counted is the
    first rank, which expands the chunks of all others whole: in zig-zag order others need half of some.
    """
    key, value = _pair(query.dims, latent.dims, weight.dims)
    hops(machine, SEQUENCE, latent.label, latent.dims, latent.dtype, "P_others")
    coming = machine.new(f"{latent.label} of other ranks", ("2", *latent.dims), latent.dtype)
    result, statistics = _step(machine, label, (*query.dims[:-1], value[-1]), query, (key, value))
    work = Steps(machine, query, (key, value), "P")
    expands = _Expands(machine, ("P", *latent.dims[:2]), weight.dims)
    work.forward()
    expands.forward()
    machine.timeline.fused_calls.append(FusedCall(query.dims, key, value))
    del coming
    latent_label, weight_label = latent.label, weight.label
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, latent, weight)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        of_query = machine.new(f"{made[0][0]}, summed", made[0][1], "fp32")
        of_weight = machine.new(f"{made[2][0]}, summed", made[2][1], "fp32")
        wide = machine.new(f"{weight_label}, in fp32", made[2][1], "fp32")
        coming = machine.new(f"{latent_label} of other ranks", ("2", *made[1][1]), made[1][2])
        hops(machine, SEQUENCE, latent_label, made[1][1], made[1][2], "P_others")
        expanded = _expanded(machine, (key, value), made[1][2])
        steps = [machine.new(f"gradient of {t.label}", t.dims, t.dtype) for t in expanded]
        work.backward()
        expands.backward()
        going = machine.new(f"{made[1][0]}, here and on its way", ("2", *made[1][1]), "fp32")
        hops(machine, SEQUENCE, made[1][0], made[1][1], "fp32", "P")
        del coming, expanded, steps, wide
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        del of_query, of_weight, going
        return results

    machine.attach([result], [query, latent, weight], backward, saved=[query, latent, weight, result, statistics])
    return result


def _pair(query: Dims, latent: Dims, weight: Dims) -> tuple[Dims, Dims]:
    """The dims of keys and values that a rank's latent gives."""
    each = (*latent[:2], weight[0])
    return (*each, query[-1]), (*each, weight[1].rpartition("+")[2])


class _Expands:
    """The product that makes keys and values of the latents of all ranks: [rows h_out] and in backward once more."""

    def __init__(self, machine: Machine, rows: Dims, weight: Dims) -> None:
        self._machine = machine
        self._once = machine.predicates.elements((*rows, *weight)) * 2
        self._shape = rows, weight[:2], weight[2:]

    def forward(self) -> None:
        self._machine.flops(self._once)
        self._machine.multiplies(*self._shape)

    def backward(self) -> None:
        """The gradients of both operands, and the product again."""
        self._machine.flops(self._once * 2, recomputed=self._once)
        self._machine.multiplies(*self._shape)
        self._machine.multiplies_back(*self._shape)


def _step(machine: Machine, label: str, dims: Dims, query: Tensor, pair: tuple[Dims, Dims]) -> tuple[Tensor, Tensor]:
    """The merged output, while keys and values of a step are there."""
    held = _expanded(machine, pair, query.dtype)
    found = merged(machine, label, dims, query)
    held.clear()
    return found


def _expanded(machine: Machine, pair: tuple[Dims, Dims], dtype: str) -> list[Tensor]:
    """Keys and values of a step, made of a latent."""
    return [machine.new(f"{name} of a step", dims, dtype) for name, dims in zip(("key", "value"), pair, strict=True)]
