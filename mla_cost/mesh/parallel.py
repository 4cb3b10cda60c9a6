"""How a model is laid out over ranks: degrees, what is legal, which layers a stage holds, how many are in flight.

Sources: Megatron-Core at d98e8a64: pipeline_parallel/schedules.py (warm-up, order of chunks, micro-batch groups),
transformer/pipeline_parallel_layer_layout.py (layout strings), transformer/transformer_block.py (even and uneven
splits), parallel_state.py (expert groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError, shown

_LAYOUT: Final = "pipeline_layout"  # the setting, as a plan spells it
_LETTERS: Final = "EtmL"
_LONGEST: Final = 100_000
_MOST_PARTS: Final = 1024  # more are mostly empty: what a schedule costs to follow grows with the square of its chunks
_WORDS: Final = (
    "E (embedding), t (transformer layer), m (MTP module), L (loss), | (next stage), (...)*n or x*n (repeat)"
)


class Parallel(NamedTuple):
    """Degrees of parallelism and the pipeline's schedule.

    etp: tensor parallel degree of routed experts (Megatron's default is tp). micro_batches: per optimizer step and
    data rank. virtual_stages: chunks of layers that a stage holds. group_size: micro-batches that visit a chunk before
    the next one's turn (default pp). layout: Megatron's layout string; first_layers, last_layers: layers of the first
    and last stage where they differ from the others.
    """

    tp: int = 1
    sp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    micro_batches: int = 1
    virtual_stages: int = 1
    group_size: int | None = None
    layout: str | None = None
    first_layers: int | None = None
    last_layers: int | None = None

    @property
    def world(self) -> int:
        """Ranks in all: pp tp sp dp."""
        return self.pp * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage: tp sp dp."""
        return self.tp * self.sp * self.dp

    @property
    def dense_dp(self) -> int:
        """Ranks that hold the same dense weights: weights are replicated over sp, so dp sp."""
        return self.dp * self.sp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same experts: tp sp dp / (ep etp)."""
        return self.stage_ranks // (self.ep * self.etp)

    def communicators(self, *, experts: bool) -> dict[str, int]:
        """Ranks of each group that a rank exchanges with, by axis; experts: whether the model has any to share."""
        groups = {"tp": self.tp, "sp": self.sp, "pp": self.pp, "dp x sp": self.dense_dp}
        own = {"ep": self.ep, "etp": self.etp, "expert_dp": self.expert_dp} if experts else {}
        return {**groups, **own}

    def further_communicators(self, *, experts: bool) -> dict[str, int]:
        """Ranks of each group that a step's large exchanges do not need, and that Megatron makes and uses beside.

        Of everything (barriers, start-up), of the model's ranks (the gradients' norm, and once more for experts'
        gradients), of the first and last stage (tied embeddings), of ranks without sp. Source: Megatron-Core at
        d98e8a64, parallel_state.py initialize_model_parallel (:1054, :1148, :1270), optimizer/__init__.py:682.
        """
        every = self.stage_ranks * self.pp
        groups = {"world": every, "model": self.tp * self.pp, "embedding": min(self.pp, 2)}
        without = {"dp": self.dp} if self.sp > 1 else {}
        return {**groups, **without, **({"expert model": self.ep * self.etp * self.pp} if experts else {})}

    @property
    def chunks(self) -> int:
        """Chunks per stage: those of the layout string where one is given."""
        return self.virtual_stages if self.layout is None else max(1, len(parse_layout(self.layout)) // self.pp)

    @property
    def group(self) -> int:
        """Micro-batches that visit a chunk before the next chunk's turn."""
        return self.pp if self.group_size is None else self.group_size


def sends_to(axis: str, ranks: int) -> int:
    """To how many others of a group a rank sends apart from reductions and gathers: neighbours over pp, or all."""
    return min(2, ranks - 1) if axis == "pp" else ranks - 1 if axis in ("ep", "sp") else 0


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
    micro_batch: int = 1


class Problem(NamedTuple):
    """One broken rule: the setting to change, what is wrong, and what to change it to."""

    field: str
    message: str
    way_out: str

    @property
    def text(self) -> str:
        """One sentence for a verdict."""
        return f"{self.message}; {self.way_out}"


class Chunk(NamedTuple):
    """One virtual stage: layers [first, first + num_layers) from 0, MTP modules, whether it embeds and has the loss."""

    embedding: bool
    first: int
    num_layers: int
    num_mtp: int
    loss: bool

    @property
    def layers(self) -> range:
        """Indices of its transformer layers."""
        return range(self.first, self.first + self.num_layers)


class Step(NamedTuple):
    """One step of a stage's schedule: forward or backward of a micro-batch through a chunk, all from 0."""

    forward: bool
    chunk: int
    micro_batch: int


class Pass(NamedTuple):
    """A forward or backward through a chunk. beside: micro-batches that each chunk keeps, but for the one at work."""

    forward: bool
    chunk: int
    beside: tuple[int, ...]


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
        *_schedule(parallel),
        *_pipeline(parallel, shape),
    )


def in_flight(parallel: Parallel, stage: int) -> int:
    """Most chunks whose forward is kept at once at `stage` (from 0); without virtual stages, micro-batches.

    One forward, one backward: min(m, p - i). Interleaved: min(m v, 2 (p - i - 1) + (v - 1) g + 1).
    """
    p, m, v = parallel.pp, parallel.micro_batches, parallel.chunks
    if v == 1:
        return min(m, p - stage)
    return min(m * v, 2 * (p - stage - 1) + (v - 1) * parallel.group + 1)


def schedule(parallel: Parallel, stage: int) -> Iterator[Step]:
    """The forwards and backwards of `stage` in order: warm-up, one forward then one backward, cool-down."""
    order = _order(parallel)
    warm_up = in_flight(parallel, stage) - 1
    last = parallel.chunks - 1
    for count, (micro_batch, chunk) in enumerate(order):
        yield Step(forward=True, chunk=chunk, micro_batch=micro_batch)
        if count >= warm_up:
            done, reached = order[count - warm_up]
            yield Step(forward=False, chunk=last - reached, micro_batch=done)
    for micro_batch, chunk in order[len(order) - warm_up :]:
        yield Step(forward=False, chunk=last - chunk, micro_batch=micro_batch)


def busiest_passes(parallel: Parallel, stage: int) -> tuple[Pass, ...]:
    """Passes of the schedule, in order, one of which is the worst moment of the stage whatever the chunks' bytes.

    While the same chunks go forward and back, what is kept changes by as much at every pass, so that the most is at an
    end of such a run; those beside which another of the same chunk and direction has as much kept are left out. The
    schedule repeats itself between warm-up and cool-down, so a few rounds of it hold every pass that many rounds hold
    (a test compares). Work does not grow with the micro-batches or their groups.
    """
    rounds = -(-2 * in_flight(parallel, stage) // (parallel.group * parallel.chunks)) + 2
    rest = parallel.micro_batches % parallel.group
    few = min(parallel.micro_batches, rounds * parallel.group + rest)
    return _busiest(
        Parallel(pp=parallel.pp, micro_batches=few, virtual_stages=parallel.chunks, group_size=parallel.group), stage
    )


@lru_cache(maxsize=4096)
def _busiest(parallel: Parallel, stage: int) -> tuple[Pass, ...]:
    alike: dict[tuple[bool, int], dict[Pass, None]] = {}
    for at in _ends(parallel, stage):
        alike.setdefault((at.forward, at.chunk), {})[at] = None
    return tuple(at for group in alike.values() for at in group if not any(_covers(other, at) for other in group))


def _ends(parallel: Parallel, stage: int) -> Iterator[Pass]:
    """The first and the last passes of every run, in order, as `passes` has them."""
    held = [0] * parallel.chunks
    for forward, backward, steps in _runs(parallel, stage):
        for done in sorted({0, steps - 1}):
            beside = _after(held, forward, backward, done)
            if forward is not None:
                yield Pass(True, forward, tuple(beside))
            if backward is not None:
                yield Pass(False, backward, tuple(_after(_after(beside, forward, None, 1), None, backward, 1)))
        held = _after(held, forward, backward, steps)


def _after(held: Sequence[int], forward: int | None, backward: int | None, steps: int) -> list[int]:
    """What is kept after so many forwards of one chunk and backwards of another."""
    return [kept + steps * ((at == forward) - (at == backward)) for at, kept in enumerate(held)]


def _runs(parallel: Parallel, stage: int) -> Iterator[tuple[int | None, int | None, int]]:
    """The chunk that goes forward, the one that goes back, and how many steps in a row they do; None in a ramp."""
    ramp = in_flight(parallel, stage) - 1
    visits, last = _visits(parallel), parallel.chunks - 1
    forward = _starts([*visits, (None, ramp)])
    backward = _starts([(None, ramp), *((last - chunk, steps) for chunk, steps in visits)])
    places = sorted({*forward, *backward, parallel.micro_batches * parallel.chunks + ramp})
    ahead = back = None
    for start, end in pairwise(places):
        ahead, back = forward.get(start, ahead), backward.get(start, back)
        yield ahead, back, end - start


def _visits(parallel: Parallel) -> list[tuple[int, int]]:
    """(chunk, micro-batches in a row) of every visit forward: as `_order`, without naming micro-batches."""
    m, g = parallel.micro_batches, parallel.group if parallel.chunks > 1 else parallel.micro_batches
    return [(chunk, min(g, m - start)) for start in range(0, m, g) for chunk in range(parallel.chunks)]


def _starts(visits: Sequence[tuple[int | None, int]]) -> dict[int, int | None]:
    """The chunk at work by the step at which its visit starts."""
    starts = accumulate((steps for _, steps in visits), initial=0)
    return {start: chunk for start, (chunk, steps) in zip(starts, visits, strict=False) if steps}


def passes(parallel: Parallel, stage: int) -> Iterator[Pass]:
    """The steps of the schedule in order, with what is kept beside each."""
    held = [0] * parallel.chunks
    for step in schedule(parallel, stage):
        held[step.chunk] -= not step.forward
        yield Pass(step.forward, step.chunk, tuple(held))
        held[step.chunk] += step.forward


def _covers(other: Pass, one: Pass) -> bool:
    """Whether as much is kept beside the other of two passes, chunk by chunk, and they are not the same."""
    return other != one and all(map(int.__ge__, other.beside, one.beside))


def stages(parallel: Parallel, num_layers: int, num_mtp: int = 0) -> tuple[tuple[Chunk, ...], ...]:
    """What each stage holds, chunk by chunk: `stages(...)[stage][chunk]`.

    Chunk j of stage i is the (j pp + i)-th part of the model. Without a layout string the embedding is in the first
    part, MTP modules and the loss in the last.

    Raises:
        InputError: the layout string is not one, or the layers cannot be split so; with what to change.

    """
    found = next(_pipeline(parallel, Shape(heads=1, num_layers=num_layers, num_mtp=num_mtp)), None)
    if found is not None:
        raise InputError(found.text, field=found.field)
    parts = _parts(parallel, num_layers, num_mtp)
    firsts = [0, *accumulate(part.count("t") for part in parts)]
    chunks = [_chunk(part, first) for part, first in zip(parts, firsts, strict=False)]
    return tuple(tuple(chunks[stage :: parallel.pp]) for stage in range(parallel.pp))


@lru_cache(maxsize=256)
def parse_layout(text: str) -> tuple[str, ...]:
    """Megatron's pipeline layout string as one string of the letters E, t, m, L per part, in order.

    Raises:
        InputError: naming the character and its place, and what may stand there.

    Example:
        >>> parse_layout("Et*2|(tt|)*2t|tmL")
        ('Ett', 'tt', 'tt', 't', 'tmL')

    """
    return tuple(_unrolled(text).split("|"))


def _unrolled(text: str) -> str:
    """`text` without parentheses, repeats and commas, which are cosmetic."""
    done, place = "", 0
    while place < len(text):
        unit, after = _unit(text, place)
        times, place = _times(text, after, grouped=text[place] == "(")
        if len(done) + times * len(unit) > _LONGEST:
            raise _bad(text, after, f"this repeat makes more than {_LONGEST} parts of a model")
        done += unit * times
    return done


def _unit(text: str, place: int) -> tuple[str, int]:
    """The letter, bar or group that starts at `place`, and the place after it."""
    if text[place] == ",":
        return "", place + 1
    if text[place] != "(":
        return _letter(text, place), place + 1
    end = text.find(")", place)
    if end < 0:
        raise _bad(text, place, "this parenthesis is never closed")
    inside = range(place + 1, end)
    nested = next((at for at in inside if text[at] in "(*"), None)
    if nested is not None:
        raise _bad(text, nested, "a group holds letters and | only: repeats do not nest")
    return "".join(_letter(text, at) for at in inside if text[at] != ","), end + 1


def _letter(text: str, place: int) -> str:
    if text[place] not in f"{_LETTERS}|":
        raise _bad(text, place, "nothing of that name goes into a stage")
    return text[place]


def _times(text: str, place: int, *, grouped: bool) -> tuple[int, int]:
    """How often the unit before `place` is repeated, and the place after the `*n`."""
    if text[place : place + 1] != "*":
        if grouped:
            raise _bad(text, place - 1, "a group is followed by * and the number of repeats")
        return 1, place
    end = place + 1
    while text[end : end + 1] in tuple("0123456789"):
        end += 1
    digits = text[place + 1 : end]
    if not digits or len(digits) > 6 or int(digits) < 1:
        raise _bad(text, place, "* is followed by the number of repeats, 1 or more")
    return int(digits), end


def _bad(text: str, place: int, what: str) -> InputError:
    here = f"character {place + 1}, {shown(text[place])}" if place < len(text) else "its end"
    return InputError(f"{shown(text)}: at {here}: {what}", field=_LAYOUT, allowed=_WORDS)


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
    if ranks % expert:
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


def _sequence(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if shape.seq_len is None:
        return
    step = sequence_parts(parallel, megatron_sp=shape.megatron_sp)
    if shape.seq_len % step:
        above = -(-shape.seq_len // step) * step
        message = f"seq_len {shape.seq_len} does not split over sp {parallel.sp} x tp {step // parallel.sp}"
        below = f" or {above - step}" if above > step else ""
        yield Problem("seq_len", message, f"change seq_len to {above}{below}")


def _batch(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if shape.global_batch is None:
        return
    per_step = shape.micro_batch * parallel.dp
    made = per_step * parallel.micro_batches
    if made == shape.global_batch:
        return
    message = (
        f"micro_batch {shape.micro_batch} x dp {parallel.dp} x micro_batches {parallel.micro_batches} = {made}, "
        f"but global_batch is {shape.global_batch}"
    )
    if shape.global_batch % per_step:
        above = -(-shape.global_batch // per_step) * per_step
        yield Problem("global_batch", message, f"change global_batch to {above} and micro_batches to match")
    else:
        yield Problem("micro_batches", message, f"change micro_batches to {shape.global_batch // per_step}")


def _schedule(parallel: Parallel) -> Iterator[Problem]:
    """What Megatron's interleaved schedule asks of micro-batches and their groups."""
    m, p, g = parallel.micro_batches, parallel.pp, parallel.group
    if parallel.chunks == 1:
        if parallel.group_size is not None:
            message = "only an interleaved schedule has groups of micro-batches, and virtual_stages is 1"
            yield Problem("micro_batch_group", message, "leave micro_batch_group out or state virtual_stages")
        return
    if p == 1:
        message = f"virtual_stages is {parallel.chunks}, but pp is 1: only a pipeline interleaves"
        yield Problem("virtual_stages", message, "change virtual_stages to 1 or pp to 2 or more")
    elif g < p:
        way_out = f"change micro_batch_group to {p} or more"
        yield Problem("micro_batch_group", f"micro_batch_group {g} is below pp {p}", way_out)
    elif g > m:
        message = f"an interleaved schedule takes groups of {g} micro-batches, but there are {m}"
        yield Problem("micro_batches", message, f"change micro_batches to {g} or more")
    elif 0 < m % g < p:
        message = f"the last group of {m} micro-batches in groups of {g} holds {m % g}, fewer than pp {p}"
        yield Problem("micro_batches", message, f"change micro_batches to {m - m % g} or {m - m % g + g}")


def _pipeline(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    if parallel.layout is not None:
        yield from _ends_beside_a_layout(parallel)
        yield from _layout_problems(parallel, parallel.layout, shape)
    elif parallel.first_layers is None and parallel.last_layers is None:
        yield from _even_problems(parallel, shape)
    else:
        yield from _uneven_problems(parallel, shape)


def _ends_beside_a_layout(parallel: Parallel) -> Iterator[Problem]:
    for end, layers in _stated_layers(parallel).items():
        message = f"{end}_layers is {layers}, but {_LAYOUT} says what every stage holds"
        yield Problem(f"{end}_layers", message, f"leave {end}_layers or {_LAYOUT} out")


def _even_problems(parallel: Parallel, shape: Shape) -> Iterator[Problem]:
    """Layers that do not divide get an even layout (`implied_layout`), unless a part would be left without any."""
    parts = parallel.pp * parallel.virtual_stages
    if shape.num_layers % parts and parts > shape.num_layers:
        fits = max(1, shape.num_layers // parallel.virtual_stages)
        message = f"{shape.num_layers} layers do not split over pp {parallel.pp} x virtual_stages "
        message += str(parallel.virtual_stages)
        change = f"change pp to {fits}" if fits < parallel.pp else "change virtual_stages to 1"
        yield Problem("pp", message, f"{change}, or state a pipeline_layout")


def implied_layout(parallel: Parallel, num_layers: int, num_mtp: int) -> str | None:
    """The layout taken where layers do not divide over the parts and none is stated; None where nothing is implied."""
    parts = parallel.pp * parallel.virtual_stages
    stated = (parallel.layout, parallel.first_layers, parallel.last_layers)
    if any(each is not None for each in stated) or parts > num_layers or num_layers % parts == 0:
        return None
    return even_layout(num_layers, num_mtp, parts)


def even_layout(num_layers: int, num_mtp: int, parts: int) -> str:
    """A layout of `parts` parts as equal as can be; the ends, which hold embedding and loss, have the fewer layers."""
    each, more = divmod(num_layers, parts)
    fewer = [parts - 1, 0, *range(parts - 2, 0, -1)][: parts - more]
    sizes = [each if part in fewer else each + 1 for part in range(parts)]
    middle = "".join(_repeated("t" * size, len(list(equal))) for size, equal in groupby(sizes[1:-1]))
    return f"E{'t' * sizes[0]}|{middle}{'t' * sizes[-1]}{'m' * num_mtp}L"


def _repeated(part: str, times: int) -> str:
    return f"{part}|" if times == 1 else f"({part}|)*{times}"


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
        message = f"{_LAYOUT} has {len(parts):,} parts, and at most {_MOST_PARTS:,} are priced"
        yield Problem(_LAYOUT, message, "leave out parts without layers")
    elif len(parts) % parallel.pp:
        message = f"{_LAYOUT} has {len(parts)} parts, which pp {parallel.pp} does not divide"
        yield Problem(_LAYOUT, message, f"change pp to {_divisor_below(len(parts), parallel.pp)} or add parts")
    elif parallel.virtual_stages not in (1, len(parts) // parallel.pp):
        message = f"{_LAYOUT} has {len(parts)} parts, pp {parallel.pp} x virtual_stages {parallel.virtual_stages}"
        message += f" are {parallel.pp * parallel.virtual_stages}"
        yield Problem("virtual_stages", message, f"change virtual_stages to {len(parts) // parallel.pp}")
    elif flat.count("t") != shape.num_layers:
        message = f"{_LAYOUT} has {flat.count('t')} t, the model {shape.num_layers} layers"
        yield Problem(_LAYOUT, message, f"write {shape.num_layers} t")
    elif flat.count("m") != shape.num_mtp:
        message = f"{_LAYOUT} has {flat.count('m')} m, the model {shape.num_mtp} MTP modules"
        yield Problem(_LAYOUT, message, f"set mtp to {flat.count('m')}, or write {shape.num_mtp} m")
    else:
        yield from _order_problems(parallel, parts, flat)


def _order_problems(parallel: Parallel, parts: tuple[str, ...], flat: str) -> Iterator[Problem]:
    if flat.count("E") != 1 or not flat.startswith("E"):
        yield Problem(_LAYOUT, f"the embedding is not the first of {_LAYOUT}", "write one E, before all else")
    elif flat.count("L") != 1 or not flat.endswith("L"):
        yield Problem(_LAYOUT, f"the loss is not the last of {_LAYOUT}", "write one L, after all else")
    elif "t" in flat.partition("m")[2]:
        yield Problem(_LAYOUT, "a transformer layer follows an MTP module", "write every t before the first m")
    else:
        held = [index for index, part in enumerate(parts) if "m" in part]
        earlier = len(parts) - parallel.pp
        if len(held) > 1:
            yield Problem(_LAYOUT, "MTP modules are in several parts", "write every m in the same part")
        elif held and held[0] < earlier:
            way_out = f"write every m in one of the last {parallel.pp} parts"
            yield Problem(_LAYOUT, "MTP modules are not in the last virtual stage of their rank", way_out)


def _divides(field: str, by: int, what: str, size: int) -> Iterator[Problem]:
    if size % by:
        below = _divisor_below(size, by)
        yield Problem(field, f"{what} ({size}) is not divisible by {field} ({by})", f"change {field} to {below}")


def _divisor_below(size: int, by: int) -> int:
    return max(divisor for divisor in range(1, by + 1) if size % divisor == 0)


def _parts(parallel: Parallel, num_layers: int, num_mtp: int) -> tuple[str, ...]:
    """The letters of each part of a legal split, in the order of the model."""
    layout = parallel.layout or implied_layout(parallel, num_layers, num_mtp)
    if layout is not None:
        return parse_layout(layout)
    per_stage = _layers_per_stage(parallel, num_layers)
    each = ["t" * (layers // parallel.virtual_stages) for layers in per_stage]
    middle = "|".join(each * parallel.virtual_stages)
    return tuple(f"E{middle}{'m' * num_mtp}L".split("|"))


def _layers_per_stage(parallel: Parallel, num_layers: int) -> list[int]:
    first, last, p = parallel.first_layers, parallel.last_layers, parallel.pp
    stated = [layers for layers in (first, last) if layers is not None]
    middle = p - len(stated)
    each = (num_layers - sum(stated)) // middle if middle else 0
    starts = [] if first is None else [first]
    return [*starts, *[each] * middle, *([] if last is None else [last])]


def _chunk(part: str, first: int) -> Chunk:
    return Chunk("E" in part, first, part.count("t"), part.count("m"), "L" in part)


def _order(parallel: Parallel) -> list[tuple[int, int]]:
    """(micro-batch, chunk) of every forward: a group of micro-batches visits all chunks, then the next group does."""
    m, g = parallel.micro_batches, parallel.group if parallel.chunks > 1 else parallel.micro_batches
    starts = range(0, m, g)
    return [
        (micro_batch, chunk)
        for start in starts
        for chunk in range(parallel.chunks)
        for micro_batch in range(start, min(start + g, m))
    ]
