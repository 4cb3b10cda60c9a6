"""docs/schemes.md, a page for each scheme and its picture: who holds what before and after each move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.explaining.explain import collective_factors, variant_key
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import base_values, declared, product_text
from mla_cost.language.program import Scheme, called, first_op
from mla_cost.language.timeline import DTYPE_BYTES, Allocation, Timeline
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.resolve import inner_values, symbol_values
from mla_cost.pricing.step_traffic import PHASES
from mla_cost.results import markdown

RANKS: Final = 4
INNER: Final = 2
CHUNKS: Final = 2 * RANKS  # of the sequence
HEADS: Final = 4
INDEX_INNER: Final = 4  # ranks of an inner group in the table of all schemes
_CELL: Final = 8
DEALT: Final = {
    "contiguous": "A rank holds neighbouring positions",
    "zig-zag": "A rank holds two chunks of the sequence, one from each end, so causal work is even",
}
MOVES: Final = {
    "sequence_to_heads": "all-to-all",
    "heads_to_sequence": "all-to-all back",
    "gather": "all-gather",
}
ATTENDS: Final = {
    "hops": "chunks come hop by hop",
    "windows": "chunks come by windows",
    "cycles": "pieces come on cycles",
    "gather": "all-gather as it attends",
    "heads": "all-gather, a head at a time",
}
_OPENING: Final = """<!-- made by docs/build.py -->
# Schemes

What crosses ranks, a page for each declaration in `mla_cost/declared/schemes/` ([how they are
written](adding.md#a-scheme)). `mla-cost compare` prices all of them at one setting, with time where a device is named;
`mla-cost crossover A B` finds where one stops winning. Bytes are those of one rank and layer at DeepSeek-V3's widths,
16384 tokens over 8 ranks in bf16; where there are groups inside groups, of 4 ranks. `stated` was read in code,
`derived` follows from what was read, `inferred` is ours from words: `compare` and searches leave that out unless asked.
"""
_PAGE: Final = """<!-- made by docs/build.py -->
# {name}

{title}.

![{name}: who holds what](../pictures/schemes/{name}.svg)

Four ranks, a sequence in eight chunks (left to right), four heads (top to bottom): dark is what a rank holds, light
what comes from others while it attends. Bytes below are those of one block and rank in bf16, more than one rank and
head, by the symbols of [notation.md](../notation.md); a scheme of another implementation's attention call stands here
in a block of plain torch.
"""


class HeldHeads(NamedTuple):
    """Chunks and heads that a rank holds, and those that come while it attends."""

    chunks: frozenset[int]
    heads: frozenset[int]
    coming: frozenset[int] = frozenset()


def page() -> str:
    """The table of all schemes."""
    heads = ("scheme", "basis", "sent forward, MiB", "backward, MiB", "kept, MiB", "run by", "use it")
    return "\n".join([_OPENING, markdown.table(heads, [_row(scheme) for scheme in SCHEMES.values()]), ""])


def pages() -> Iterator[tuple[str, str]]:
    """A page for each scheme, by the name of its file."""
    for scheme in SCHEMES.values():
        yield f"{scheme.name}.md", _told(scheme)


def _row(scheme: Scheme) -> tuple[str, ...]:
    run = _timeline(scheme)
    values = _values(scheme)
    sent = [sum(c.wire.at(values) for c in run.collectives if c.phase in parts) for parts in PHASES.values()]
    kept = sum(each.size.at(values) for each in run.allocations if each.saved)
    found = [f"{amount / 2**20:,.0f}" for amount in (*sent, kept)]
    return f"[{scheme.name}](schemes/{scheme.name}.md)", scheme.basis, *found, ", ".join(scheme.profiles), scheme.use


def _values(scheme: Scheme) -> dict[str, int]:
    """DeepSeek-V3's symbols over eight ranks, four of them in an inner group."""
    model = catalog.model("deepseek-v3")
    settings = PlanSettings(scope="attention", seq_len=16384, sp=8)
    values = symbol_values(model, settings)
    values |= inner_values(scheme, values, INDEX_INNER)
    return base_values(values, *scheme.groups(values.get("A", 1), values.get("C", 1)))


def _told(scheme: Scheme) -> str:
    found = [_PAGE.format(name=scheme.name, title=f"{scheme.title[0].upper()}{scheme.title[1:]}")]
    found += [f"- **When.** Use it {scheme.use}."] * bool(scheme.use)
    found += [f"- **Sent {phase}.** `{told}`" for phase, told in _sent(scheme)]
    found.append(f"- **Dealt.** {DEALT[scheme.deal]}.")
    found += [f"- **Asks** that {each}." for each in _asks(scheme)]
    found.append(f"- **Run by** profile {' and '.join(scheme.profiles)}; others refuse it by name.")
    found += [f"- **Found in** {', '.join(scheme.systems)}."] * bool(scheme.systems)
    read = {"stated": "Stated: read in", "derived": "Derived from", "inferred": "Inferred: ours, from what is said in"}
    found.append(
        f"- **{read[scheme.basis].partition(' ')[0]}** {read[scheme.basis].partition(' ')[2]} {scheme.source}."
    )
    found += [f"- **Follows** {scheme.paper}, which was not opened."] * bool(scheme.paper)
    found += [f"- **Note:** {note}." for note in scheme.notes]
    rows = [(f"{each.label}", f"`[{' '.join(each.dims)}]`", each.dtype, f"`{_bytes(each)}`") for each in _kept(scheme)]
    found += ["", "What the block keeps for backward:", "", markdown.table(("tensor", "dims", "dtype", "bytes"), rows)]
    return "\n".join(found) + "\n"


def _kept(scheme: Scheme) -> list[Allocation]:
    return [each for each in _timeline(scheme).allocations if each.saved]


def _bytes(kept: Allocation) -> str:
    width = str(DTYPE_BYTES[kept.dtype])
    return product_text((width, *declared(dim for dim in kept.dims if dim != "1")))


def _asks(scheme: Scheme) -> Iterator[str]:
    words = {"seq_len": "the sequence", "heads": "the heads", "sp": "sp"}
    for need in scheme.requires:
        by = f"{need.times} x {need.by}" if need.times > 1 else need.by
        if need.kind == "at_most":
            yield f"{need.what} is at most {by}"
        else:
            yield f"{by} divides {words.get(need.what, need.what)}"


def _sent(scheme: Scheme) -> Iterator[tuple[str, str]]:
    run = _timeline(scheme)
    for phase, parts in PHASES.items():
        called = Counter(
            product_text(collective_factors(run, at)) for at, call in enumerate(run.collectives) if call.phase in parts
        )
        yield phase, " + ".join(f"{count}*{text}" if count > 1 else text for text, count in called.items())


def _timeline(scheme: Scheme) -> Timeline:
    kernel = next(kernel.name for kernel in KERNELS.values() if kernel.fused)
    return timeline(variant_key(defaults.BASELINE, kernel=kernel, scheme=scheme.name))


# ---- pictures


def pictures() -> Iterator[tuple[str, str]]:
    """Every picture by the name of its file."""
    for scheme in SCHEMES.values():
        yield f"{scheme.name}.svg", picture(scheme)


def own_chunks(scheme: Scheme, rank: int) -> frozenset[int]:
    """The chunks that a rank is dealt."""
    if scheme.deal == "zig-zag":
        return frozenset({rank, CHUNKS - 1 - rank})
    return frozenset({2 * rank, 2 * rank + 1})


def held(scheme: Scheme, rank: int) -> dict[str, tuple[HeldHeads, HeldHeads, HeldHeads]]:
    """Queries, keys and values, and the output: as dealt, while the rank attends, and once its output is home."""
    own, every = own_chunks(scheme, rank), frozenset(range(CHUNKS))
    all_heads = frozenset(range(HEADS))
    before = HeldHeads(own, all_heads)
    group, heads = every, frozenset({rank})
    if scheme.inside == "heads":
        first = rank // INNER * INNER
        group = frozenset().union(*(own_chunks(scheme, each) for each in range(first, first + INNER)))
        heads = frozenset(range(rank % INNER * HEADS // INNER, (rank % INNER + 1) * HEADS // INNER))
    divided = HeldHeads(group, heads) if scheme.divides_heads else before
    if scheme.attends and not scheme.turns:
        there = divided._replace(coming=every - divided.chunks)
    elif scheme.divides_heads:
        there = divided
    else:
        there = HeldHeads(every, all_heads)
    nothing = HeldHeads(frozenset(), frozenset())
    return {
        "queries": (before, divided, nothing),
        "keys and values": (before, there, nothing),
        "output": (nothing, divided, before),
    }


def moved(scheme: Scheme) -> dict[str, str]:
    """What happens to each on its way to the middle column, and to the output after it."""
    asked = {"queries": ("query",), "keys and values": ("key", "latent", "nope_key"), "output": ("output",)}
    found = {}
    for what, points in asked.items():
        move = next((scheme.moves[point] for point in points if point in scheme.moves), "")
        found[what] = MOVES.get(first_op(move), "not moved")
    if scheme.attends:
        how = next((each for each in called(scheme.attends)[1] if each.startswith("move ")), "move hops")
        inner = f"{found['keys and values']}, then " if found["keys and values"] != "not moved" else ""
        found["keys and values"] = f"{inner}{ATTENDS[how.partition(' ')[2]]}"
        if scheme.attends == "gathered_attention":
            found["keys and values"] = ATTENDS["gather"]
    if scheme.turns:
        found = dict.fromkeys(found, "all-to-all, one head a rank at a time")
    return found


def picture(scheme: Scheme) -> str:
    """The picture as SVG."""
    across, down = CHUNKS * _CELL + 16, HEADS * _CELL + 40
    block, titles = RANKS * across + 28, ("as dealt", "while it attends", "its output home")
    width, height = len(titles) * block + 20, 3 * down + 32
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    )
    found = [
        f'{opening} font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    words = moved(scheme)
    for column, title in enumerate(titles):
        left = 20 + column * block
        found.append(f'<text x="{left}" y="16" font-weight="bold">{title}</text>')
        for rank in range(RANKS):
            for row, (what, states) in enumerate(held(scheme, rank).items()):
                x, y = left + rank * across, 36 + row * down
                arrives = column == (2 if what == "output" else 1)
                if rank == 0 and (states[column].chunks or arrives):
                    found.append(f'<text x="{x}" y="{y}">{_label(what, words[what], arrives)}</text>')
                if states[column].chunks:
                    found += _matrix(x, y + 6, states[column])
                    found.append(f'<text x="{x}" y="{y + 18 + HEADS * _CELL}" fill="#666666">rank {rank}</text>')
    return "\n".join([*found, "</svg>", ""])


def _label(what: str, move: str, arrives: bool) -> str:
    return f"{what}: {move}" if arrives else what


def _matrix(x: int, y: int, state: HeldHeads) -> Iterator[str]:
    for head in range(HEADS):
        for chunk in range(CHUNKS):
            mine = head in state.heads
            colour = (
                "#0072B2" if mine and chunk in state.chunks else "#9ECAE9" if mine and chunk in state.coming else ""
            )
            fill = colour or "#F2F2F2"
            left, top = x + chunk * _CELL, y + head * _CELL
            yield f'<rect x="{left}" y="{top}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{fill}"/>'
