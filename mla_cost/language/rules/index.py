"""The key of an indexer beside attention, where a scheme sends it: what the indexer makes of it is in no program."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op


@op("index_key")
def index_key(machine: Machine, label: str, hidden: Tensor) -> Tensor:
    """hidden [s b h] to [s b i], one key for all heads of the indexer; hidden learns nothing from it.

    Absent where a model has no indexer. Its weight, and the indexer's own products, are counted elsewhere.
    """
    dims = (*hidden.dims[:2], "i")
    if "i" in machine.predicates.zeros:
        return machine.absent(label, dims)
    result = machine.new(label, dims, hidden.dtype)
    machine.attach([result], [hidden], lambda _: [None])
    return result


@op("with_index", absent="left out")
def with_index(machine: Machine, tensors: list[Tensor]) -> Tensor:
    """The first tensor, kept beside it until backward an index key; backward gives the key a gradient of its own.

    That is the gradient of the indexer's loss, which attention never sees.
    """
    attended, *keys = tensors
    tensors.clear()
    made = [(f"gradient of {key.label}", key.dims, key.dtype) for key in keys]
    view = machine.view(attended, attended.axes)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        return [gradients[0], *(machine.new(*item) for item in made)]

    machine.attach([view], [attended, *keys], backward, saved=keys)
    return view
