"""What one rank sends in an optimizer step to keep equal weights equal, by the row of a sharding.

Sources: Megatron-Core at d98e8a64, distributed/finalize_model_grads.py (gradients summed over tp and over copies of an
embedding). What each way to shard sends is in its declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from mla_cost.declared.states import Collective, Send
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.numbers import ceil_divide, minimum
from mla_cost.mesh.degrees import Parallel
from mla_cost.weights.held import Flat, RankParameters
from mla_cost.weights.states import DEFAULTS, StateSettings, padded_elements, parts_of, require


class StepCollective(NamedTuple):
    """One collective of the optimizer step, for one rank; payload and wire bytes are those of one of its `calls`."""

    kind: Collective
    tensor: str
    axis: str
    group_size: int
    calls: int
    payload_bytes: int
    wire_bytes: int
    dtype: str
    phase: Literal["step"] = "step"


def step_collectives(
    held: RankParameters, parallel: Parallel, settings: StateSettings = DEFAULTS
) -> tuple[StepCollective, ...]:
    """What one rank sends per optimizer step to keep weights equal; groups of one rank send nothing and are left out.

    Payload and wire: all-reduce 2 (P - 1) / P x payload; reduce-scatter (P - 1) / P x payload; all-gather (P - 1) x
    payload, the shard. Reduces to each part's owner: what is not the rank's own part, which the last rank has least of.

    Raises:
        InputError: a sharding that no pipeline has.

    """
    require(parallel, settings)
    found = every_collective(held, parallel, settings)
    return tuple(collective for collective in found if collective.group_size > 1 and collective.payload_bytes)


def every_collective(held: RankParameters, parallel: Parallel, settings: StateSettings) -> list[StepCollective]:
    """As `step_collectives`, with those of one rank, which send nothing, and those of nothing."""
    return [*_copies(held, parallel, settings), *_synchronised(held, parallel, settings)]


def _copies(held: RankParameters, parallel: Parallel, settings: StateSettings) -> Iterator[StepCollective]:
    """Gradients of weights that ranks of tp, or the first and last stage, hold copies of."""
    dtype = settings.gradient_dtype
    size, stages = DTYPE_BYTES[dtype], 2 if held.shared and parallel.pp > 1 else 1
    if settings.megatron_sp:
        yield _all_reduce("gradients of weights whole over tp", "tp", parallel.tp, held.tp_summed * size, dtype)
    yield _all_reduce("gradients of embedding copies", "pp", stages, held.shared * size, dtype)


def _synchronised(held: RankParameters, parallel: Parallel, settings: StateSettings) -> Iterator[StepCollective]:
    """What the sharding sends for every buffer."""
    for flat in held.trained:
        for send in settings.row.sends:
            if send.again and not settings.given_back:
                continue
            found = _sent(send, flat, parallel, settings)
            calls = send.times * (parallel.num_micro_batches if send.calls == "micro-batch" else 1)
            yield found._replace(calls=calls)


def _sent(send: Send, flat: Flat, parallel: Parallel, settings: StateSettings) -> StepCollective:
    axis, group = ("dp x sp" if flat.holder == "dense" else "expert_dp"), parts_of(flat, parallel, settings)
    dtype = _dtype(send, flat, parallel, settings)
    size, whole = DTYPE_BYTES[dtype], padded_elements(flat, group, settings.row)
    name = f"{flat.holder} {send.state}" + (f" of {flat.dtype}" if flat.dtype != settings.dtype else "")
    if send.copies:
        return _all_reduce(f"{name} over replicas", axis, settings.replicas, whole // group * size, dtype)
    if send.kind == "all_reduce":
        return _all_reduce(name, axis, group, (whole if send.padded else flat.elements) * size, dtype)
    part = whole // group
    if send.kind == "reduce":
        wire = minimum(flat.elements, (group - 1) * part) * size
        return StepCollective(send.kind, name, axis, group, 1, flat.elements * size, wire, dtype)
    handed = part if send.kind == "all_gather" else whole
    return StepCollective(send.kind, name, axis, group, 1, handed * size, (group - 1) * part * size, dtype)


def _dtype(send: Send, flat: Flat, parallel: Parallel, settings: StateSettings) -> str:
    if send.shared_dtype is not None and parallel.sp > 1:
        return send.shared_dtype
    return flat.dtype if send.dtype == "weights" else settings.gradient_dtype


def _all_reduce(tensor: str, axis: str, group: int, payload: int, dtype: str) -> StepCollective:
    """The payload is padded to a multiple of the group before it travels twice."""
    wire = 2 * (group - 1) * ceil_divide(payload, group)
    return StepCollective("all_reduce", tensor, axis, group, 1, payload, wire, dtype)
