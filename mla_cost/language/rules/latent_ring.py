"""A ring of latents: each hop brings a chunk of the latent, of which keys and values are made and let go.

Read in source: mlc-ai/pith-train@889a4088. Saved are the query, the rank's own latent, the output and its statistics;
the weight is cast to fp32 for the sum of its gradient.
"""

from __future__ import annotations

from mla_cost.language.machine import FusedCall, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import Polynomial
from mla_cost.language.rules.around import Steps, hops, merged, products
from mla_cost.language.rules.exchange import SEQUENCE

Dims = tuple[str, ...]


@op("latent_ring")
def latent_ring(machine: Machine, label: str, query: Tensor, latent: Tensor, weight: Tensor) -> Tensor:
    """query [s b n k+r], latent with the rotated key [s b d_c+r] and weight [n k+v d_c] to [s b n v].

    Latents go P - 1 hops in their dtype, in backward again, with gradients in fp32 that go P hops, home. Counted is the
    first rank, which expands the chunks of all others whole: in zig-zag order others need half of some.
    """
    heads, both, _ = weight.dims
    width = both.rpartition("+")[2]
    rows, batch = latent.dims[:2]
    dims = (*query.dims[:-1], width)
    key, value = (rows, batch, heads, query.dims[-1]), (rows, batch, heads, width)
    hops(machine, SEQUENCE, latent.label, latent.dims, latent.dtype, "P_others")
    coming = machine.new(f"{latent.label} of other ranks", ("2", *latent.dims), latent.dtype)
    result, statistics = _step(machine, label, dims, query, (key, value))
    scores, output = products(machine, query, width)
    expand = machine.predicates.elements(("P", rows, batch, *weight.dims)) * 2
    machine.flops(scores + output, attention=True, skips_masked=True)
    machine.flops(expand)
    work = Steps(machine, query, (key, value), "P")
    shape: tuple[Dims, Dims, Dims] = ("P", rows, batch), weight.dims[:2], weight.dims[2:]
    work.forward(scores + output)
    machine.multiplies(*shape)
    machine.timeline.fused_calls.append(FusedCall(query.dims, key, value))
    del coming
    made = [(f"gradient of {t.label}", t.dims, t.dtype) for t in (query, latent, weight)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops((scores + output) * 2, recomputed=scores, attention=True, skips_masked=True)
        machine.flops(expand * 2, recomputed=expand)
        of_query = machine.new(f"{made[0][0]}, summed", made[0][1], "fp32")
        of_weight = machine.new(f"{made[2][0]}, summed", made[2][1], "fp32")
        wide = machine.new(f"{weight_label}, in fp32", made[2][1], "fp32")
        coming = machine.new(
            f"{made[1][0].removeprefix('gradient of ')} of other ranks", ("2", *made[1][1]), made[1][2]
        )
        hops(machine, SEQUENCE, made[1][0].removeprefix("gradient of "), made[1][1], made[1][2], "P_others")
        expanded = [machine.new("key of a step", key, made[1][2]), machine.new("value of a step", value, made[1][2])]
        steps = [machine.new(f"gradient of {t.label}", t.dims, made[1][2]) for t in expanded]
        work.backward((scores + output) * 2 + scores)
        machine.multiplies(*shape)
        machine.multiplies_back(*shape)
        machine.work(fused_backward=Polynomial.symbol("fused_workspace"))
        going = machine.new(f"{made[1][0]}, here and on its way", ("2", *made[1][1]), "fp32")
        hops(machine, SEQUENCE, made[1][0], made[1][1], "fp32", "P")
        del coming, expanded, steps, wide
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        del of_query, of_weight, going
        return results

    weight_label = weight.label
    machine.attach([result], [query, latent, weight], backward, saved=[query, latent, weight, result, statistics])
    return result


def _step(
    machine: Machine, label: str, dims: tuple[str, ...], query: Tensor, pair: tuple[tuple[str, ...], ...]
) -> tuple[Tensor, Tensor]:
    """The merged output, while keys and values of a step are there."""
    held = [
        machine.new(f"{name} of a step", each, query.dtype) for name, each in zip(("key", "value"), pair, strict=True)
    ]
    found = merged(machine, label, dims, query)
    held.clear()
    return found
