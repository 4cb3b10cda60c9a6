"""What crosses ranks: heads out, heads in, gather. The backward of each is its transpose.

heads out: [s b n d] to [S b l d], every rank gives away the heads it does not keep. heads in: the way back.
"""

from __future__ import annotations

from collections.abc import Callable

from mla_cost.engine import DTYPE_BYTES, Collective, Gradients, Machine, Tensor
from mla_cost.layout import Axis, can_view, contiguous, unfolded
from mla_cost.polynomial import ONE

Move = Callable[[Machine, str, Tensor], Tensor]


def heads_out(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Sequence-sharded to head-sharded, by all-to-all."""
    return _with_transpose(machine, label, tensor, _heads_out, _heads_in)


def heads_in(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Head-sharded to sequence-sharded, by all-to-all."""
    return _with_transpose(machine, label, tensor, _heads_in, _heads_out)


def gather(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Every rank's positions on every rank, by all-gather; backward reduces and scatters."""
    return _with_transpose(machine, label, tensor, _gather, _reduce_scatter)


def _with_transpose(machine: Machine, label: str, tensor: Tensor, there: Move, back: Move) -> Tensor:
    result = there(machine, label, tensor)
    name = tensor.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [back(machine, f"gradient of {name}", gradient)]

    machine.attach([result], [tensor], backward)
    return result


def _heads_out(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    s, b, n, d = tensor.axes
    ranks, heads = unfolded(machine.facts, n, ("P", "l"))
    send = machine.view(tensor, (ranks, s, b, heads, d))
    if not machine.is_contiguous(send):
        send = machine.copy(send, f"{label} send buffer")
    received = machine.new(label, send.dims, tensor.dtype)
    _all_to_all(machine, label, received)
    return machine.view(received, contiguous(machine.facts, ("S", b.name, heads.name, d.name)))


def _heads_in(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    _send = _row_major(machine, f"{label} send buffer", tensor)  # held to the return, as torch code does
    _, b, heads, d = tensor.dims
    received = machine.new(f"{label} receive buffer", ("P", "s", b, heads, d), tensor.dtype)
    _all_to_all(machine, label, received)
    ranks, s, batch, local, width = received.axes
    if can_view(machine.facts, ((ranks, local),)):
        n = Axis("n", ranks.stride if machine.facts.is_one(heads) else local.stride)
        view = machine.view(received, (s, batch, n, width))
        view.label = label
        return view
    return machine.new(label, ("s", b, "n", d), tensor.dtype)


def _gather(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    send = _row_major(machine, f"{label} send buffer", tensor)
    gathered = machine.new(label, tuple("S" if dim == "s" else dim for dim in tensor.dims), tensor.dtype)
    _record(machine, "all_gather", label, send, send.dims)
    return gathered


def _reduce_scatter(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    send = _row_major(machine, f"{label} send buffer", tensor)
    scattered = machine.new(label, tuple("s" if dim == "S" else dim for dim in tensor.dims), tensor.dtype)
    _record(machine, "reduce_scatter", label, send, scattered.dims)
    return scattered


def _row_major(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    return tensor if machine.is_contiguous(tensor) else machine.copy(tensor, label)


def _all_to_all(machine: Machine, label: str, buffer: Tensor) -> None:
    _record(machine, "all_to_all", label, buffer, tuple(dim for dim in buffer.dims if dim != "P"))


def _record(machine: Machine, kind: str, label: str, handed: Tensor, piece: tuple[str, ...]) -> None:
    """Every rank sends one piece to each of the other ranks."""
    width, size = DTYPE_BYTES[handed.dtype], machine.facts.elements
    wire = size(piece) * (machine.facts.size("P") - ONE) * width
    machine.timeline.collectives.append(
        Collective(kind, label, machine.phase, handed.dtype, handed.dims, piece, size(handed.dims) * width, wire)
    )
