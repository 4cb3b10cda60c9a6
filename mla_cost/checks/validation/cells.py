"""The cells that are compared: three sizes of grid, made from what the executor and the model both know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from heapq import heapify, heappop, heappush
from itertools import chain, combinations, cycle, product
from typing import Any, Literal

from mla_cost.checks.reference.spec import DIMS, SETTINGS, Dims, Spec
from mla_cost.checks.reference.spec import SCHEMES as EXECUTED
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language.program import Pair

Size = Literal["quick", "default", "full"]
Pairing = tuple[str, str | None]
TINY = DIMS["tiny"]
SHAPES: dict[str, Dims] = {
    "tiny": TINY,
    "no query latent": replace(TINY, q_lora_rank=None),
    "no rope": replace(TINY, rope=0),
    "wide values": replace(TINY, value=12),
    "one head": replace(TINY, heads=1),
}
WIDER = replace(TINY, value=16)  # wider than query and key, so nothing can be padded to them
MODELS = {name: dims for name, dims in DIMS.items() if dims is not TINY}
_NAMES = {dims: name for name, dims in {**DIMS, **SHAPES, "wider values": WIDER}.items()}
_USUAL = Spec()


def name(spec: Spec) -> str:
    """A cell in words: what is asked for, then each setting that is not the executor's default."""
    maths = " ".join(part for part in (spec.form, spec.scheme, spec.kernel) if part)
    dims = _NAMES.get(spec.dims) or str(spec.dims)
    said = {"form", "scheme", "kernel", "dims", "seq_len", "sp"}
    rest = [f"{f.name}={getattr(spec, f.name)}" for f in fields(spec) if f.name not in said and _unusual(spec, f.name)]
    return " ".join([maths, f"[{dims}]", f"seq_len={spec.seq_len}", f"sp={spec.sp}", *rest])


def _unusual(spec: Spec, field: str) -> bool:
    return bool(getattr(spec, field) != getattr(_USUAL, field))


def pairings() -> list[Pairing]:
    """Every form with every scheme that both sides have; None where it is the form's usual one."""
    found: list[Pairing] = []
    for form, declared in FORMS.items():
        schemes = [declared.scheme] if isinstance(declared, Pair) else list(SCHEMES)
        found += [(form, None if s == declared.scheme else s) for s in schemes if _made(form=form, scheme=s, sp=1)]
    return [pair for pair in found if not _renamed_pair(pair)]


def _both() -> list[str]:
    """The schemes that the executor runs, and those that the model tries unasked."""
    run = {scheme for schemes in EXECUTED.values() for scheme in schemes}
    return [name for name, scheme in SCHEMES.items() if scheme.offered or name in run]


def _renamed_pair(pair: Pairing) -> bool:
    """Whether a form with a scheme of its own choice is another entry under that entry's name."""
    return any(isinstance(d, Pair) and (d.form, d.scheme) == pair for d in FORMS.values())


def _made(**asked: Any) -> Spec | None:
    """The cell, or None where the executor has no program for it."""
    try:
        return Spec(**asked)
    except ValueError:
        return None


def made(cells: Iterable[dict[str, Any]]) -> list[Spec]:
    """The cells that exist, each once. A kernel that takes no shared key is refused alike by both sides."""
    return list(dict.fromkeys(spec for spec in (_made(**asked) for asked in cells) if spec is not None))


def _kernels(fused: bool) -> list[str]:
    return [kernel.name for kernel in KERNELS.values() if kernel.fused is fused]


# ---- settings that matter


def settings_of(kernel: str) -> list[dict[str, Any]]:
    """Every combination of the settings that a kernel has a say in. `v_layout` and `norm` belong to the form."""
    declared = KERNELS[kernel]
    axes: dict[str, tuple[Any, ...]] = {
        "dtype": ("bf16", "fp32"),
        "v_layout": SETTINGS["v_layout"],
        "norm": SETTINGS["norm"],
    }
    if declared.fused:
        axes["value_padding"] = SETTINGS["value_padding"] if declared.pads(shared=False) else (None,)
    else:
        axes["softmax_dtype"] = SETTINGS["softmax_dtype"]
        axes["mask"] = SETTINGS["mask"]
        axes["attention_layout"] = SETTINGS["attention_layout"]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]


# ---- the grids


def fake_cells(size: Size) -> list[Spec]:
    """The cells whose memory, traffic and flops are compared on fake tensors.

    full: all there are, and the cross product. default: of each group few cells that show every two values together
    that the group shows. quick: each third of those.
    """
    if size == "full":
        return list(dict.fromkeys([*chain(*groups()), *_crossed()]))
    chosen = list(dict.fromkeys(chain(*map(covering, groups()))))
    return chosen if size == "default" else chosen[::3]


def groups() -> tuple[list[Spec], ...]:
    """All cells but the cross product, by what they are for."""
    return _real(), _small(), _stacks(), _held(), _torchs_own()


def covering(cells: Iterable[Spec]) -> list[Spec]:
    """Few of the cells, in order, that together show every two values of two fields that all of them show.

    The cell that shows most of what is not shown yet is taken first. What a cell adds only falls, so one that still
    adds no less than the next was last known to add is the best there is.
    """
    offered = list(cells)
    shown = [pairs_of(spec) for spec in offered]
    waiting = [(-len(pairs), at) for at, pairs in enumerate(shown)]
    heapify(waiting)
    seen: set[tuple[object, object]] = set()
    taken: list[int] = []
    while waiting:
        at = heappop(waiting)[1]
        added = len(shown[at] - seen)
        if waiting and added < -waiting[0][0]:
            heappush(waiting, (-added, at))
        elif added:
            taken.append(at)
            seen |= shown[at]
    return [offered[at] for at in sorted(taken)]


def pairs_of(spec: Spec) -> set[tuple[object, object]]:
    """Every two fields with the values that the cell gives them."""
    return set(combinations([(f.name, getattr(spec, f.name)) for f in fields(spec)], 2))


def _points(dims: Dims) -> list[tuple[int, int]]:
    """Sequence lengths and degrees of a real model, up to 131,072 positions and one head per rank (or 64 ranks)."""
    return [(4096, 1), (16384, 8), (131072, min(64, dims.heads))]


def _real() -> list[Spec]:
    """Published widths, in the style that plans price by default."""
    return made(
        {"form": form, "scheme": scheme, "kernel": kernel, "dims": dims, "seq_len": seq_len, "sp": sp}
        for dims in MODELS.values()
        for (seq_len, sp) in _points(dims)
        for form, scheme in pairings()
        for kernel in KERNELS
        if scheme is None or kernel in _kernels(fused=False)[:1]
    )


def _small() -> list[Spec]:
    """Small dims that differ in structure, on one, some and all ranks; the settings take turns from cell to cell."""
    turns = {kernel: cycle(_shuffled(settings_of(kernel))) for kernel in KERNELS}
    asked = (
        {"form": form, "scheme": scheme, "kernel": kernel, "dims": dims, "seq_len": 16, "sp": sp, **next(turns[kernel])}
        for dims in SHAPES.values()
        for kernel in KERNELS
        for sp in (1, 2, 8)
        for form, scheme in pairings()
        if sp <= dims.heads
    )
    batches = cycle((2, 1, 2))
    return made({**cell, "micro_batch": next(batches)} for cell in asked)


def _shuffled(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Far-apart combinations first: a stride that shares no factor with the number of combinations visits all."""
    return [settings[at * 7 % len(settings)] for at in range(len(settings))]


def _stacks() -> list[Spec]:
    """Blocks in a row."""
    return made(
        {"form": form, "scheme": scheme, "kernel": kernel, "dims": TINY, "seq_len": 16, "sp": sp, "layers": layers}
        for form, scheme in pairings()
        for kernel in _kernels(fused=False)[:1] + _kernels(fused=True)[-1:]
        for sp in (1, 2)
        for layers in (2, 5)
    )


def _held() -> list[Spec]:
    """Nothing between the exchanges bound twice, beside weights that do not run: published widths, then small ones."""
    usual: dict[str, Any] = {"names": "held", "idle_mlp": 16}
    real: dict[str, Any] = {"dims": replace(next(iter(MODELS.values())), q_lora_rank=None), "seq_len": 16384, "sp": 8}
    small: list[dict[str, Any]] = [
        {"dims": dims, "seq_len": 16, "sp": sp, "mask": mask}
        for dims in SHAPES.values()
        for sp in (1, 2, 8)
        for mask in SETTINGS["mask"]
        if sp <= dims.heads
    ]
    kernels = _kernels(fused=False) + _kernels(fused=True)[-1:]
    return made(
        usual | {"form": form, "scheme": scheme, "kernel": kernel} | cell
        for form, scheme in pairings()
        for kernel in kernels
        for cell in (real, *small)
    )


def _torchs_own() -> list[Spec]:
    """Cells where torch selects a fused backend of its own on this machine: there agreement is no construction."""
    return made(
        {
            "form": form,
            "scheme": scheme,
            "kernel": kernel,
            "dims": dims,
            "seq_len": 4096,
            "sp": sp,
            "value_padding": "qk",
            "fused_attention": "sdpa",
        }
        for form, scheme in pairings()
        for kernel in _kernels(fused=True)[:1]
        for dims in list(MODELS.values())[:1]
        for sp in (1, 8)
    )


def _crossed() -> Iterator[Spec]:
    """The full cross product, with one head per rank on the most ranks and both query paths."""
    dims = DIMS["kimi-k2"]
    dtypes = ("bf16", "fp16", "fp32")
    for form, scheme in pairings():
        for kernel in KERNELS:
            yield from made(
                {"form": form, "scheme": scheme, "kernel": kernel, "seq_len": 4096, "dims": widths, "sp": sp}
                | settings
                | {"dtype": dtype}
                for widths in (dims, replace(dims, q_lora_rank=None))
                for sp in (1, 2, 8, 64)
                for settings in settings_of(kernel)
                if settings["dtype"] == "bf16"
                for dtype in dtypes
            )


def allocator_cells(size: Size) -> list[Spec]:
    """Small dims on real tensors: every letter order, one rank and several, one block and more."""
    usual = {"dims": TINY, "seq_len": 128, "dtype": "fp32", "norm": "composite"}
    variants: list[dict[str, Any]] = [{"sp": 1}, {"sp": 2}]
    if size != "quick":
        variants += [{"sp": 1, "attention_layout": layout} for layout in SETTINGS["attention_layout"]]
        variants += [{"sp": 1, "micro_batch": 2}, {"sp": 2, "mask": "tensor"}, {"sp": 1, "v_layout": "contiguous"}]
        variants += [{"sp": 8}, {"sp": 1, "layers": 3}, *({"sp": 1, "dims": dims} for dims in SHAPES.values())]
    found = made(
        usual | {"form": form, "scheme": scheme, "kernel": kernel} | variant
        for form, scheme in pairings()
        for kernel in _kernels(fused=False)
        for variant in variants
    )
    return found if size == "full" else covering(found)


def rank_cells(size: Size, ranks: int) -> list[Spec]:
    """Small dims on real processes: every form at 1, 2, 4, ... ranks, and each kernel and variant on two."""
    usual: dict[str, Any] = {"dims": TINY, "seq_len": 16, "micro_batch": 2, "mask": "tensor", "dtype": "fp32"}
    degrees = [sp for sp in (1, 2, 4, 8) if sp <= ranks]
    variants: list[dict[str, Any]] = [{"sp": sp} for sp in degrees]
    variants += [{"sp": sp, "dtype": "bf16"} for sp in (1, degrees[-1])]
    if size != "quick":
        few = degrees[min(1, len(degrees) - 1)]
        variants += [{"sp": few, "kernel": kernel} for kernel in KERNELS]
        variants += [{"sp": few, "attention_layout": layout} for layout in SETTINGS["attention_layout"]]
        variants += [{"sp": few, "dims": replace(TINY, rope=0, q_lora_rank=None)}, {"sp": few, "layers": 2}]
        variants += [
            {"sp": few, "v_layout": "contiguous", "norm": "composite"},
            {"sp": few, "softmax_dtype": "fp32", "dtype": "bf16"},
        ]
    return made(
        usual | {"form": form, "scheme": scheme} | variant for form, scheme in pairings() for variant in variants
    )


def refusable() -> Iterator[dict[str, Any]]:
    """Every form, scheme and kernel together, on one rank, some, and a number that divides nothing."""
    for form, declared in FORMS.items():
        for scheme in [None] if isinstance(declared, Pair) else _both():
            for kernel in KERNELS:
                yield from (
                    {"form": form, "scheme": scheme, "kernel": kernel, "dims": dims, "seq_len": 16, "sp": sp}
                    for dims in (TINY, WIDER)
                    for sp in (1, 2, 3, 16)
                )
