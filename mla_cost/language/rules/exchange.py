"""What crosses ranks: sequence to heads and back, gather, scatter. The backward of each is its transpose.

sequence to heads: [s b n d] to [S b l d], every rank gives away the heads it does not keep. heads to sequence: back.
Gathers go over the ranks of one mesh axis: of a sequence (sp), or of tensor parallelism (tp).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mla_cost.language.machine import Collective, Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.polynomial import ONE, Polynomial
from mla_cost.language.strides import Axis, can_view, contiguous, unfolded

Move = Callable[[Machine, str, Tensor], Tensor]


@op("sequence_to_heads")
def sequence_to_heads(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Sequence-sharded to head-sharded, by all-to-all."""
    return _with_transpose(machine, label, tensor, _sequence_to_heads, _heads_to_sequence)


@op("heads_to_sequence")
def heads_to_sequence(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Head-sharded to sequence-sharded, by all-to-all."""
    return _with_transpose(machine, label, tensor, _heads_to_sequence, _sequence_to_heads)


class Mesh(NamedTuple):
    """One axis of ranks: its name, the symbol of its size, and the dim that it divides: `whole` into `part`.

    Without a dim of its own what is gathered has the ranks as its first one.
    """

    axis: str
    ranks: str
    part: str
    whole: str

    def gathered(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The dims of what all ranks hold, from those of one rank's part."""
        return tuple(self.whole if dim == self.part else dim for dim in dims) if self.part else (self.ranks, *dims)

    def scattered(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """The dims of one rank's part."""
        return tuple(self.part if dim == self.whole else dim for dim in dims) if self.part else dims[1:]


SEQUENCE = Mesh("sp", "P", "s", "S")
INSIDE = Mesh("sp", "A", "s", "S_in")
OUTSIDE = Mesh("sp", "C", "S_in", "S")
TENSOR = Mesh("tp", "t", "u", "s")
EXPERTS = Mesh("ep", "E", "", "")
EXPERT_TENSOR = Mesh("etp", "T", "", "")


def inner(machine: Machine) -> Mesh:
    """The ranks that exchange heads: those of an inner group where there are any, else all of a sequence."""
    return INSIDE if machine.predicates.nested else SEQUENCE


@op("gather")
def gather_sequence(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Positions of all ranks of a sequence, or of an inner group where a scheme has any."""
    return gather(machine, label, tensor, inner(machine))


@op("gather", "tp")
def gather_tensor(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Positions of all tensor-parallel ranks."""
    return gather(machine, label, tensor, TENSOR)


@op("scatter", "tp")
def scatter_tensor(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """This rank's positions of the sum over tensor-parallel ranks."""
    return scatter(machine, label, tensor, TENSOR)


@op("gather", "etp")
def gather_expert(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Rows of all ranks that share each expert."""
    return gather(machine, label, tensor, EXPERT_TENSOR)


@op("scatter", "etp")
def scatter_expert(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """This rank's rows of the sum over the ranks that share each expert."""
    return scatter(machine, label, tensor, EXPERT_TENSOR)


def gather(machine: Machine, label: str, tensor: Tensor, mesh: Mesh = SEQUENCE) -> Tensor:
    """Every rank's positions on every rank, by all-gather; backward reduces and scatters."""
    return _with_transpose(machine, label, tensor, partial(_gather, mesh), partial(_reduce_scatter, mesh))


def scatter(machine: Machine, label: str, tensor: Tensor, mesh: Mesh = SEQUENCE) -> Tensor:
    """The sum over ranks, each keeping its positions, by reduce-scatter; backward gathers."""
    return _with_transpose(machine, label, tensor, partial(_reduce_scatter, mesh), partial(_gather, mesh))


@op("join_columns")
def join_columns(machine: Machine, label: str, tensor: Tensor, dim: str) -> Tensor:
    """Every tp rank's columns [s b part] on every rank, [s b dim], by all-gather; backward reduces and scatters."""
    part = tensor.dims[-1]
    return _with_transpose(machine, label, tensor, partial(_columns_in, dim), partial(_columns_out, part))


def _columns_in(dim: str, machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """As heads to sequence: a receive buffer and a permuted copy, since tp ranks hold at least one position each."""
    send = _row_major(machine, f"{label} send buffer", tensor)
    received = machine.new(f"{label} receive buffer", (TENSOR.ranks, *send.dims), tensor.dtype)
    _record(machine, "all_gather", TENSOR, label, send, send.dims)
    result = machine.new(label, (*send.dims[:-1], dim), tensor.dtype)
    machine.runs("copy", [received], [result])
    del received
    return result


def _columns_out(part: str, machine: Machine, label: str, tensor: Tensor) -> Tensor:
    dims = (*tensor.dims[:-1], part)
    send = machine.new(f"{label} send buffer", (TENSOR.ranks, *dims), tensor.dtype)
    scattered = machine.new(label, dims, tensor.dtype)
    machine.runs("copy", [tensor], [send])
    _record(machine, "reduce_scatter", TENSOR, label, send, dims)
    return scattered


def _with_transpose(machine: Machine, label: str, tensor: Tensor, there: Move, back: Move) -> Tensor:
    result = there(machine, label, tensor)
    name = tensor.label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        made = back(machine, f"gradient of {name}", gradient)
        machine.reported(whole=True)
        return [made]

    machine.reported(whole=True)
    machine.attach([result], [tensor], backward)
    return result


def _sequence_to_heads(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    s, b, n, d = tensor.axes
    mesh = inner(machine)
    ranks, heads = unfolded(machine.predicates, n, (mesh.ranks, machine.predicates.heads))
    send = machine.view(tensor, (ranks, s, b, heads, d))
    if not machine.is_contiguous(send):
        send = machine.copied(send, f"{label} send buffer")
    received = machine.new(label, send.dims, tensor.dtype)
    _all_to_all(machine, mesh, label, received)
    return machine.view(received, contiguous(machine.predicates, (mesh.whole, b.name, heads.name, d.name)))


def _heads_to_sequence(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    _send = _row_major(machine, f"{label} send buffer", tensor)  # held to the return, as torch code does
    _, b, heads, d = tensor.dims
    mesh = inner(machine)
    received = machine.new(f"{label} receive buffer", (mesh.ranks, "s", b, heads, d), tensor.dtype)
    _all_to_all(machine, mesh, label, received)
    ranks, s, batch, local, width = received.axes
    if can_view(machine.predicates, ((ranks, local),)):
        n = Axis("n", ranks.stride if machine.predicates.is_one(heads) else local.stride)
        view = machine.view(received, (s, batch, n, width))
        view.label = label
        return view
    result = machine.new(label, ("s", b, "n", d), tensor.dtype)
    machine.runs("copy", [received], [result])
    return result


def _gather(mesh: Mesh, machine: Machine, label: str, tensor: Tensor) -> Tensor:
    send = _row_major(machine, f"{label} send buffer", tensor)
    gathered = machine.new(label, mesh.gathered(tensor.dims), tensor.dtype)
    _record(machine, "all_gather", mesh, label, send, send.dims)
    return gathered


def _reduce_scatter(mesh: Mesh, machine: Machine, label: str, tensor: Tensor) -> Tensor:
    send = _row_major(machine, f"{label} send buffer", tensor)
    scattered = machine.new(label, mesh.scattered(tensor.dims), tensor.dtype)
    _record(machine, "reduce_scatter", mesh, label, send, scattered.dims)
    return scattered


def _row_major(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    return tensor if machine.is_contiguous(tensor) else machine.copied(tensor, label)


def to_each(handed: tuple[str, ...]) -> str:
    """How many of the rows handed over go to each other expert rank: an even share of what arrived, or of its own.

    The two differ where routing is uneven, since the rank that is priced receives more than it sends out.
    """
    return "z" if handed[0] == "R" else "w"


def _all_to_all(machine: Machine, mesh: Mesh, label: str, buffer: Tensor) -> None:
    _record(machine, "all_to_all", mesh, label, buffer, tuple(dim for dim in buffer.dims if dim != mesh.ranks))


def all_reduce(machine: Machine, mesh: Mesh, label: str, handed: Tensor, piece: tuple[str, ...]) -> None:
    """Record an all-reduce in place: a reduce-scatter and an all-gather, so every piece is sent twice."""
    _record(machine, "all_reduce", mesh, label, handed, piece, times=2)


def _record(
    machine: Machine, kind: str, mesh: Mesh, label: str, handed: Tensor, piece: tuple[str, ...], times: int = 1
) -> None:
    recorded(machine, kind, mesh, label, handed.dims, handed.dtype, piece, times=times)


def recorded(
    machine: Machine,
    kind: str,
    mesh: Mesh,
    label: str,
    handed: tuple[str, ...],
    dtype: str,
    piece: tuple[str, ...],
    *,
    times: int = 1,
    wire: Polynomial | None = None,
) -> None:
    """Record a collective: every rank sends one piece to each of the other ranks, so many times, or `wire` in all.

    What goes from rank to rank hands over as much as it sends.
    """
    payload = machine.bytes_of(handed, dtype) if wire is None else wire
    if wire is None:
        wire = machine.bytes_of(piece, dtype) * (machine.predicates.size(mesh.ranks) - ONE) * times
    machine.runs("collective", (), (), collective=len(machine.timeline.collectives))
    machine.timeline.collectives.append(
        Collective(
            kind=kind,
            axis=mesh.axis,
            ranks=mesh.ranks,
            tensor=label,
            phase=machine.phase,
            dtype=dtype,
            handed=handed,
            piece=piece,
            payload=payload,
            wire=wire,
        )
    )
