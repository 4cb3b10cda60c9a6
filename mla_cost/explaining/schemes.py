"""docs/schemes.md and its pictures: who holds what before and while a rank attends, made from the declarations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.explaining.explain import collective_factors, variant_key
from mla_cost.language.dims import product_text
from mla_cost.language.program import Scheme
from mla_cost.language.timeline import Timeline
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.step_traffic import PHASES

RANKS: Final = 4
INNER: Final = 2
CHUNKS: Final = 2 * RANKS  # of the sequence
HEADS: Final = 4
_CELL: Final = 8
_OPENING: Final = """<!-- made by docs/build.py -->
# Schemes

What crosses ranks, a section for each declaration in `mla_cost/declared/schemes/` ([how they are
written](adding.md#a-scheme)). Pictures show four ranks, a sequence in eight chunks (left to right) and four heads (top
to bottom): dark is what a rank holds, light what comes from others while it attends. Bytes are those of one block and
rank in bf16, more than one rank and head, by the symbols of [notation.md](notation.md): `P_others` is P - 1. A scheme
of another implementation's attention call stands here in a block of plain torch.

`mla-cost compare` prices all of them at one setting, `mla-cost crossover A B` finds where one stops winning.
"""


class HeldHeads(NamedTuple):
    """Chunks and heads that a rank holds, and those that come while it attends."""

    chunks: frozenset[int]
    heads: frozenset[int]
    coming: frozenset[int] = frozenset()


def page() -> str:
    """The whole page."""
    return "\n".join([_OPENING, *(_section(scheme) for scheme in SCHEMES.values())])


def _section(scheme: Scheme) -> str:
    found = [f"## {scheme.name}\n", f"{scheme.title[0].upper()}{scheme.title[1:]}.\n"]
    found.append(f"![{scheme.name}: who holds what](pictures/schemes/{scheme.name}.svg)\n")
    found += [f"- Use it {scheme.use}."] * bool(scheme.use)
    found += [f"- Sent {phase}: `{told}`." for phase, told in _sent(scheme)]
    found += [f"- Asks that {each}." for each in _asks(scheme)]
    found += [f"- Found in: {', '.join(scheme.systems)}."] * bool(scheme.systems)
    found.append(f"- {scheme.basis.capitalize()}, read in {scheme.source}.")
    found += [f"- Note: {note}." for note in scheme.notes]
    return "\n".join(found) + "\n"


def _asks(scheme: Scheme) -> Iterator[str]:
    words = {"seq_len": "the sequence", "heads": "the heads", "sp": "sp"}
    for need in scheme.requires:
        by = f"{need.times} x {need.by}" if need.times > 1 else need.by
        yield f"{by} {need.kind.replace('_', ' ')} {words.get(need.what, need.what)}"


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


def held(scheme: Scheme, rank: int) -> dict[str, tuple[HeldHeads, HeldHeads]]:
    """Queries, and keys and values: before, and while the rank attends."""
    own, every = own_chunks(scheme, rank), frozenset(range(CHUNKS))
    all_heads = frozenset(range(HEADS))
    before = HeldHeads(own, all_heads)
    group, heads = every, frozenset({rank})
    if scheme.inside == "heads":
        first = rank // INNER * INNER
        group = frozenset().union(*(own_chunks(scheme, each) for each in range(first, first + INNER)))
        heads = frozenset(range(rank % INNER * HEADS // INNER, (rank % INNER + 1) * HEADS // INNER))
    divided = HeldHeads(group, heads) if scheme.divides_heads else before
    if scheme.attends:
        there = divided._replace(coming=every - divided.chunks)
    elif scheme.divides_heads:
        there = divided
    else:
        there = HeldHeads(every, all_heads)
    return {"queries": (before, divided), "keys and values": (before, there)}


def picture(scheme: Scheme) -> str:
    """The picture as SVG."""
    across, down = CHUNKS * _CELL + 24, HEADS * _CELL + 34
    width, height = 2 * (RANKS * across + 24) + 20, 2 * down + 40
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    )
    found = [
        f'{opening} font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, title in enumerate(("as dealt", "while it attends")):
        left = 20 + column * (RANKS * across + 24)
        found.append(f'<text x="{left}" y="16" font-weight="bold">{title}</text>')
        for rank in range(RANKS):
            for row, (what, states) in enumerate(held(scheme, rank).items()):
                x, y = left + rank * across, 34 + row * down
                found.append(f'<text x="{x}" y="{y}">{what if rank == 0 else ""}</text>')
                found += _matrix(x, y + 6, states[column])
                found.append(f'<text x="{x}" y="{y + 18 + HEADS * _CELL}" fill="#666666">rank {rank}</text>')
    return "\n".join([*found, "</svg>", ""])


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
