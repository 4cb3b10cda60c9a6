"""What nobody has described but for the bytes that it keeps: a token mixer without MLA, an indexer."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op


@op("other_mixer")
def other_mixer(machine: Machine, label: str, hidden: Tensor) -> Tensor:
    """hidden [s b h] to [s b h], keeping B bytes, what it keeps of its input among them.

    What it has alive for a moment, its flops and what it sends are not known.
    """
    kept = machine.new("kept by the token mixer", ("B",), "int8")
    result = machine.new(label, hidden.dims, hidden.dtype)
    made = (f"gradient of {hidden.label}", hidden.dims, hidden.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [hidden], backward, saved=[kept])
    return result


@op("with_indexer")
def with_indexer(machine: Machine, attended: Tensor) -> Tensor:
    """The same tensor, and I bytes that the indexer beside it keeps until backward comes by."""
    kept = machine.new("kept by the indexer", ("I",), "int8")
    view = machine.view(attended, attended.axes)
    machine.attach([view], [attended], lambda gradients: [gradients[0]], saved=[kept])
    return view
