"""Cross entropy over a vocabulary that ranks divide. `M:` and `T:` as in the package."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.exchange import TENSOR, recorded


@op("cross_entropy", "te-in-place", kind="loss")
def cross_entropy_in_place(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Transformer Engine's loss before NVIDIA/TransformerEngine@01bbe3eea: the gradient overwrites the bf16 logits.

    Keeps the logits' storage alone and makes nothing in backward. cross_entropy.py at 42b84005.
    """
    _reduced(machine, label, logits)
    machine.runs("loss", [logits, logits], [logits], launches=2)
    result = machine.uncounted(label)
    held = machine.view(logits, logits.axes)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.runs("loss", [held], [held])
        return [machine.view(held, held.axes)]

    machine.attach([result], [logits], backward, saved=[logits])
    return result


@op("cross_entropy", "te-fp32", kind="loss")
def cross_entropy_fp32(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Transformer Engine's loss since 01bbe3eea: an fp32 gradient is made in forward and kept.

    Backward casts it to the logits' dtype. T: cross_entropy.py:62; triton/cross_entropy.py:58.
    """
    gradient = machine.new(f"{label} gradient", logits.dims, "fp32")
    _reduced(machine, label, logits)
    machine.runs("loss", [logits, logits], [gradient], launches=2)
    result = machine.uncounted(label)
    made = (f"gradient of {logits.label}", logits.dims, logits.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [logits], backward, saved=[gradient])
    return result


@op("cross_entropy", "compiled", kind="loss")
def cross_entropy_compiled(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Megatron's own loss through torch.compile: fp32 probabilities are kept, as without it.

    Backward subtracts at the targets in a copy of them (the compiler takes `index_put` out of place) and casts the
    result to the logits' dtype. M: fusions/fused_cross_entropy.py:66-86; jit.py.
    """
    probabilities = machine.new(f"{label} probabilities", logits.dims, "fp32")
    _reduced(machine, label, logits)
    machine.runs("loss", [logits], [probabilities], launches=3)
    result = machine.uncounted(label)
    made = (f"gradient of {logits.label}", logits.dims, logits.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        copied = machine.new(f"{label} probabilities copy", made[1], "fp32")
        found = machine.new(*made)
        del copied
        return [found]

    machine.attach([result], [logits], backward, saved=[probabilities])
    return result


def _reduced(machine: Machine, label: str, logits: Tensor) -> None:
    """Three fp32 numbers per position are gathered over the ranks that divide the vocabulary."""
    rows = logits.dims[:-1]
    losses = machine.new(f"{label} per position", rows, "fp32")
    if machine.predicates.rows_divided:
        recorded(machine, "all_gather", TENSOR, f"statistics of {logits.label}", (*rows, "3"), "fp32", (*rows, "3"))
    del losses
