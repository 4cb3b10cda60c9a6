"""Which degrees a model has no program for, and what to change.

Source: Megatron-Core at d98e8a64, transformer/transformer_block.py (even and uneven splits),
transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from mla_cost.errors import Problem
from mla_cost.language.numbers import round_up
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.layout_string import LAYOUT, parse_layout
from mla_cost.mesh.schedule import schedule_of, size_of

_MOST_PARTS: Final = 1024  # more are mostly empty: what a schedule costs to follow grows with the square of its chunks


class Shape(NamedTuple):
    """What degrees have to divide. Zero or None: the model has no such part, so nothing is asked of it."""

    heads: int
    num_layers: int
    ffn: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    num_experts: int = 0
    num_mtp: int = 0
    down_widths: tuple[int, ...] = ()
    seq_len: int | None = None
    megatron_sp: bool = True
    global_batch: int | None = None
    micro_batch_size: int = 1


def problems(parallel: Parallel, shape: Shape) -> tuple[Problem, ...]:
    """Every rule that the degrees break, in the order in which to mend them; empty when legal."""
    positive = tuple(_positive(parallel))
    if positive:
        return positive
    return (
        *_widths(parallel, shape),
        *_experts(parallel, shape),
        *_sequence(parallel, shape),
        *_batch(parallel, shape),
        *schedule_of(parallel).problems(size_of(parallel)),
        *pipeline_problems(parallel, shape),
    )


def _positive(parallel: Parallel) -> Iterator[Problem]:
    for field, value in parallel._asdict().items():
        if isinstance(value, int) and value < 1:
            yield Problem(field, f"{field} is {value}", f"change {field} to 1 or more")


def _widths(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    shared = [("heads", shape.heads), ("intermediate_size", shape.ffn), ("shared experts' width", shape.shared_ffn)]
    shared += [("down-projection's width", width) for width in shape.down_widths]
    for what, width in shared:
        yield from _divides("tp", parallel.tp, what, width)
    yield from _divides("etp", parallel.etp, "moe_intermediate_size", shape.moe_ffn)


def _experts(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if not shape.num_experts:
        for field, degree in (("ep", parallel.ep), ("etp", parallel.etp)):
            if degree > 1:
                message = f"{field} is {degree}, but the model has no routed experts"
                yield Problem(field, message, f"change {field} to 1")
        return
    yield from _divides("ep", parallel.ep, "experts", shape.num_experts)
    ranks, expert = parallel.stage_ranks, parallel.ep * parallel.etp
    if expert_ranks_left(parallel):
        name = f"tp {parallel.tp} x sp {parallel.sp} x dp {parallel.dp} = {ranks}"
        group = f"ep {parallel.ep} x etp {parallel.etp} = {expert}"
        yield Problem("ep", f"{name} ranks do not split into groups of {group}", _expert_way_out(parallel))


def _expert_way_out(parallel: Parallel) -> str:
    """The nearest ep below that divides, and the least dp above."""
    ranks = parallel.stage_ranks
    fitting = [ep for ep in range(1, parallel.ep) if parallel.ep % ep == 0 and ranks % (ep * parallel.etp) == 0]
    dp = parallel.dp
    while (parallel.tp * parallel.sp * dp) % (parallel.ep * parallel.etp):
        dp += 1
    lower = f"change ep to {fitting[-1]} or " if fitting else f"change etp from {parallel.etp} to 1, or "
    return f"{lower}dp to {dp}"


def sequence_parts(degrees: Any, *, megatron_sp: bool = True) -> Any:
    """Into how many equal parts a sequence splits. degrees: whatever has sp and tp, numbers or arrays."""
    return degrees.sp * degrees.tp if megatron_sp else degrees.sp


def positions_left(seq_len: Any, degrees: Any, *, megatron_sp: bool = True) -> Any:
    """What a split into equal parts leaves of a sequence; it has to be nothing."""
    return seq_len % sequence_parts(degrees, megatron_sp=megatron_sp)


def expert_ranks_left(parallel: Parallel) -> Any:
    """Ranks of a stage that are in no whole group of experts; there have to be none."""
    return parallel.stage_ranks % (parallel.ep * parallel.etp)


def _sequence(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if shape.seq_len is None:
        return
    step = sequence_parts(parallel, megatron_sp=shape.megatron_sp)
    if positions_left(shape.seq_len, parallel, megatron_sp=shape.megatron_sp):
        above = round_up(shape.seq_len, step)
        message = f"seq_len {shape.seq_len} does not split over sp {parallel.sp} x tp {step // parallel.sp}"
        below = f" or {above - step}" if above > step else ""
        yield Problem("seq_len", message, f"change seq_len to {above}{below}")


def _batch(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if shape.global_batch is None:
        return
    per_step = shape.micro_batch_size * parallel.dp
    made = per_step * parallel.num_micro_batches
    if made == shape.global_batch:
        return
    message = (
        f"micro_batch {shape.micro_batch_size} x dp {parallel.dp} x micro_batches {parallel.num_micro_batches} "
        f"= {made}, but global_batch is {shape.global_batch}"
    )
    if shape.global_batch % per_step:
        above = round_up(shape.global_batch, per_step)
        yield Problem("global_batch", message, f"change global_batch to {above} and micro_batches to match")
    else:
        yield Problem("micro_batches", message, f"change micro_batches to {shape.global_batch // per_step}")


def pipeline_problems(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    """The rules that layers over stages break."""
    if parallel.layout is not None:
        yield from _ends_beside_a_layout(parallel)
        yield from _layout_problems(parallel, parallel.layout, shape)
    elif parallel.first_layers is None and parallel.last_layers is None:
        yield from _even_problems(parallel, shape)
    else:
        yield from _uneven_problems(parallel, shape)


def _ends_beside_a_layout(parallel: Parallel) -> Iterator[Problem]:
    for end, layers in _stated_layers(parallel).items():
        message = f"{end}_layers is {layers}, but {LAYOUT} says what every stage holds"
        yield Problem(f"{end}_layers", message, f"leave {end}_layers or {LAYOUT} out")


def _even_problems(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    """Layers that do not divide get an even layout (`implied_layout`), unless a part would be left without any."""
    parts = parallel.pp * parallel.virtual_stages
    if shape.num_layers % parts and parts > shape.num_layers:
        fits = max(1, shape.num_layers // parallel.virtual_stages)
        message = f"{shape.num_layers} layers do not split over pp {parallel.pp} x virtual_stages "
        message += str(parallel.virtual_stages)
        change = f"change pp to {fits}" if fits < parallel.pp else "change virtual_stages to 1"
        yield Problem("pp", message, f"{change}, or state a pipeline_layout")


def _uneven_problems(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    field = "last_layers" if parallel.last_layers is not None else "first_layers"
    if parallel.pp == 1:
        yield Problem(field, "pp is 1, so one stage holds every layer", "leave first_layers and last_layers out")
    elif not _uneven_fits(parallel, shape.num_layers):
        given = [f"{layers} in the {end} stage" for end, layers in _stated_layers(parallel).items()]
        message = (
            f"{' and '.join(given)} do not leave {shape.num_layers} layers that split over the other stages of pp "
        )
        message += f"{parallel.pp} x virtual_stages {parallel.virtual_stages}"
        yield Problem(field, message, _uneven_way_out(parallel, shape.num_layers, field))


def _stated_layers(parallel: Parallel) -> dict[str, int]:
    ends = {"first": parallel.first_layers, "last": parallel.last_layers}
    return {end: layers for end, layers in ends.items() if layers is not None}


def _uneven_fits(parallel: Parallel, num_layers: int) -> bool:
    stated = _stated_layers(parallel).values()
    left, others = num_layers - sum(stated), parallel.pp - len(stated)
    whole = not any(layers % parallel.virtual_stages for layers in stated)
    return whole and left >= 0 and (left % (others * parallel.virtual_stages) == 0 if others else left == 0)


def _uneven_way_out(parallel: Parallel, num_layers: int, field: str) -> str:
    def changed(layers: int) -> Parallel:
        if field == "last_layers":
            return parallel._replace(last_layers=layers)
        return parallel._replace(first_layers=layers)

    now = getattr(parallel, field)
    near = sorted(range(1, num_layers + 1), key=lambda layers: abs(layers - now))
    fits = next((layers for layers in near if _uneven_fits(changed(layers), num_layers)), None)
    return "state a pipeline_layout" if fits is None else f"change {field} to {fits}"


def _layout_problems(parallel: Parallel, layout: str, shape: Shape) -> Iterator[Problem]:
    parts = parse_layout(layout)
    flat = "".join(parts)
    if len(parts) > _MOST_PARTS:
        message = f"{LAYOUT} has {len(parts):,} parts, and at most {_MOST_PARTS:,} are priced"
        yield Problem(LAYOUT, message, "leave out parts without layers")
    elif len(parts) % parallel.pp:
        message = f"{LAYOUT} has {len(parts)} parts, which pp {parallel.pp} does not divide"
        yield Problem(LAYOUT, message, f"change pp to {_divisor_below(len(parts), parallel.pp)} or add parts")
    elif parallel.virtual_stages not in (1, len(parts) // parallel.pp):
        message = f"{LAYOUT} has {len(parts)} parts, pp {parallel.pp} x virtual_stages {parallel.virtual_stages}"
        message += f" are {parallel.pp * parallel.virtual_stages}"
        yield Problem("virtual_stages", message, f"change virtual_stages to {len(parts) // parallel.pp}")
    elif flat.count("t") != shape.num_layers:
        message = f"{LAYOUT} has {flat.count('t')} t, the model {shape.num_layers} layers"
        yield Problem(LAYOUT, message, f"write {shape.num_layers} t")
    elif flat.count("m") != shape.num_mtp:
        message = f"{LAYOUT} has {flat.count('m')} m, the model {shape.num_mtp} MTP modules"
        yield Problem(LAYOUT, message, f"set mtp to {flat.count('m')}, or write {shape.num_mtp} m")
    else:
        yield from _order_problems(parallel, parts, flat)


def _order_problems(parallel: Parallel, parts: tuple[str, ...], flat: str) -> Iterator[Problem]:
    if flat.count("E") != 1 or not flat.startswith("E"):
        yield Problem(LAYOUT, f"the embedding is not the first of {LAYOUT}", "write one E, before all else")
    elif flat.count("L") != 1 or not flat.endswith("L"):
        yield Problem(LAYOUT, f"the loss is not the last of {LAYOUT}", "write one L, after all else")
    elif "t" in flat.partition("m")[2]:
        yield Problem(LAYOUT, "a transformer layer follows an MTP module", "write every t before the first m")
    else:
        held = [index for index, part in enumerate(parts) if "m" in part]
        earlier = len(parts) - parallel.pp
        if len(held) > 1:
            yield Problem(LAYOUT, "MTP modules are in several parts", "write every m in the same part")
        elif held and held[0] < earlier:
            way_out = f"write every m in one of the last {parallel.pp} parts"
            yield Problem(LAYOUT, "MTP modules are not in the last virtual stage of their rank", way_out)


def _divides(field: str, by: int, what: str, size: int) -> Iterator[Problem]:
    if size % by:
        below = _divisor_below(size, by)
        yield Problem(field, f"{what} ({size}) is not divisible by {field} ({by})", f"change {field} to {below}")


def _divisor_below(size: int, by: int) -> int:
    return max(divisor for divisor in range(1, by + 1) if size % divisor == 0)
