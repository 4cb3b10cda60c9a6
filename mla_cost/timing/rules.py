"""How long one call takes, over numbers or arrays of them: launch, arithmetic, memory and links.

    seconds = launch floor + max(flops / (peak x ceiling x use), bytes / (bandwidth x ceiling))

Use is worked out from the shape: output tiles over the compute units with their last round, the contracted width, rows
per expert, key positions. Nothing here is fitted to a training run; docs/time.md has the model on one page.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from mla_cost.language.numbers import ceil_divide, is_array, maximum, minimum, where
from mla_cost.timing.ceilings import Ceilings

SPREAD = frozenset({"all_to_all", "cycles"})  # collectives that send every other rank a like part over its own link
# classes with a ceiling of their own, where a device states it
OF_MEMORY = {name: name for name in ("rope", "permutation", "norm", "softmax", "copy", "loss")}
_OPERANDS = "gemm"


class Limits(NamedTuple):
    """What a call needs of each limit. Seconds; its time is launch + the larger of the others."""

    launch: Any
    compute: Any
    memory: Any

    @property
    def seconds(self) -> Any:
        """How long it takes."""
        if type(self.compute) is float and not self.compute:
            return self.launch + self.memory
        return self.launch + maximum(self.compute, self.memory)


def memory_rate(on: Ceilings, work: str) -> Any:
    """Bytes a second that a kernel of this class moves."""
    return on.bandwidth * (on.operands if work == _OPERANDS else getattr(on, OF_MEMORY.get(work, "memory")))


def moved(on: Ceilings, work: str, total_bytes: Any, launches: Any) -> Limits:
    """Kernels that only move memory."""
    return Limits(launches * on.launch, 0.0, total_bytes / memory_rate(on, work))


class ProductShape(NamedTuple):
    """Of a product: so many of m by k times k by n; grouped, m is the rows of all groups. Numbers or arrays."""

    batch: Any
    m: Any
    n: Any
    k: Any


Tiles = tuple[Any, Any]  # along a size: wide ones, and half as wide ones


def along(side: int, size: Any) -> Tiles:
    """How many output tiles, so many wide, lie along a size."""
    return ceil_divide(size, side), ceil_divide(size, side // 2)


def tile_use(on: Ceilings, shape: ProductShape, tiles: tuple[Tiles, Tiles] | None = None) -> Any:
    """The part of the device's arithmetic that whole rounds of output tiles put to use, from 0 to 1.

    Tiles are square; half as wide ones fill the device sooner, and run at a part of the rate. tiles: those along m and
    along n, where they are known.
    """
    batch, m, n, _ = shape
    of_device = _Tiling(on.units, int(on.tile), on.small_tile)
    if is_array(batch) or is_array(m) or is_array(n):
        return _filled(of_device, batch, m * n, tiles or (along(of_device.side, m), along(of_device.side, n)))
    return _filled_once(of_device, batch, m, n)


class _Tiling(NamedTuple):
    """What output tiles depend on of a device: compute units, the width of a tile, the rate of half as wide ones."""

    units: float
    side: int
    small: float


def _filled(on: _Tiling, batch: Any, output: Any, tiles: tuple[Tiles, Tiles]) -> Any:
    alone = not is_array(batch) and batch == 1  # which needs no arithmetic
    whole = output if alone else output * batch
    used = []
    for width, (one, two) in zip((on.side, on.side // 2), zip(*tiles, strict=True), strict=True):
        every = one * two if alone else one * two * batch
        used.append(whole / (ceil_divide(every, int(on.units)) * (on.units * width * width)))
    return maximum(used[0], on.small * used[1])


@lru_cache(maxsize=4096)  # the ends of a band ask for the same
def _filled_once(on: _Tiling, batch: Any, m: Any, n: Any) -> Any:
    return _filled(on, batch, m * n, (along(on.side, m), along(on.side, n)))


def rises(amount: Any, half: float) -> Any:
    """From 0 to 1: a half at `half`."""
    return amount / (amount + half)


def multiplied(on: Ceilings, dtype: str, flops: Any, total_bytes: Any, shape: ProductShape, use: Any = None) -> Limits:
    """A product, or a batch of equal ones. use: its `tile_use`, where that is known."""
    peak = on.peak_fp32 if dtype == "fp32" else on.peak_bf16
    rate = peak * on.gemm * rises(shape.k, on.depth_half) * (tile_use(on, shape) if use is None else use)
    return _product(on, flops / rate, total_bytes / memory_rate(on, "gemm"))


def _product(on: Ceilings, compute: Any, memory: Any) -> Limits:
    """One kernel; a core that fetches operands and multiplies in turn needs both."""
    return Limits(on.launch, compute + memory if on.in_turn else compute, memory)


def multiplied_by_groups(
    on: Ceilings, dtype: str, flops: Any, total_bytes: Any, shape: ProductShape, ratio: float = 1.0
) -> Limits:
    """A product by groups of rows, evenly filled. ratio: of the rate of forward."""
    peak = on.peak_fp32 if dtype == "fp32" else on.peak_bf16
    rate = peak * on.grouped * ratio * rises(shape.m / shape.batch, on.rows_half)
    return _product(on, flops / rate, total_bytes / memory_rate(on, "gemm"))


def attended(on: Ceilings, flops: Any, total_bytes: Any, keys: Any, launches: Any, backward: bool) -> Limits:
    """Fused attention over so many key positions. flops: as the kernel runs them, masked blocks left out."""
    rate = on.peak_bf16 * on.attention * rises(keys, on.length_half) * (on.backward_ratio if backward else 1.0)
    return Limits(launches * on.launch, flops / rate, total_bytes / memory_rate(on, "attention"))


# ---- links


class SentByLink(NamedTuple):
    """What a rank sends of a collective: bytes inside its node, and to others."""

    inside: Any
    between: Any

    @property
    def both(self) -> Any:
        """All of it."""
        return self.inside + self.between


class Crossing(NamedTuple):
    """How a group lies on nodes. ranks: of the group; local: of them in a node."""

    ranks: Any
    local: Any

    @property
    def nodes(self) -> Any:
        """Nodes that the group spans."""
        return ceil_divide(self.ranks, self.local)


def sent(kind: str, wire: Any, group: Crossing, once_per_node: Any = 1.0) -> SentByLink:
    """Wire bytes by the class of their link.

    Gathers and reductions go by node: what crosses, crosses once for each other node, on the rail of each device.
    An all-to-all sends each piece to its rank, as do cycles that use every link alike; once_per_node: the part of what
    crosses that is left where a row that several ranks of a node want is sent there once.
    """
    others = maximum(group.ranks - 1, 1)
    if kind in SPREAD:
        between = wire * (group.ranks - group.local) / others
        return SentByLink(wire - between, between * once_per_node)
    if kind == "point_to_point":
        far = where(group.nodes > 1, 1.0, 0.0)
        return SentByLink(wire * (1.0 - far), wire * far)
    between = wire * (group.nodes - 1) / others
    return SentByLink(wire - between, between)


def steps(kind: str, group: Crossing) -> Any:
    """Rounds of a collective inside a node, one after another."""
    if kind in {*SPREAD, "point_to_point"}:
        return 1
    return (group.local - 1) * (2 if kind == "all_reduce" else 1)


def collective(on: Ceilings, kind: str, rate: str, wire: Any, group: Crossing, once_per_node: Any = 1.0) -> Any:
    """Seconds of one collective. rate: which of the device's rates inside a node it has."""
    amounts = sent(kind, wire, group, once_per_node)
    inside = amounts.inside / (on.inside[rate] * _links(on, kind, group))
    between = amounts.between / on.network
    crosses = where(group.nodes > 1, 1.0, 0.0)
    rounds = on.latency + steps(kind, group) * on.step_latency + crosses * on.network_latency
    carried = inside + between if on.staged else maximum(inside, between)
    return where(wire > 0, rounds + carried, 0.0 * carried)


def _links(on: Ceilings, kind: str, group: Crossing) -> Any:
    """The part of a device's links inside a node that a group can use: over a full mesh, those to its own ranks.

    What is passed on to one neighbour takes the one link to it.
    """
    if not on.mesh:
        return 1.0
    if kind == "point_to_point":
        return 1.0 / on.mesh
    return minimum(maximum(group.local - 1, 1), on.mesh) / on.mesh


def local_ranks(ranks: Any, stride: Any, domain: Any) -> Any:
    """Ranks of a group in one node, where neighbours in the group are `stride` ranks apart."""
    return maximum(minimum(ranks, domain // maximum(stride, 1)), 1)
