"""Layers around attention on fake tensors, by the same road that a plan takes: memory and traffic, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mla_cost.checks.reference.fake import run_fake
from mla_cost.checks.reference.measure import Recording
from mla_cost.checks.reference.spec import DIMS, SETTINGS, Spec
from mla_cost.checks.validation.cells import Size, made, name, pairings
from mla_cost.checks.validation.fake import (
    DTYPES,
    MODEL_FAULTS,
    calls_difference,
    peak_row,
    saved_row,
    timeline_row,
    wire_bytes,
)
from mla_cost.checks.validation.predict import predicted
from mla_cost.checks.validation.report import CheckRow, row
from mla_cost.language.evaluate import Evaluation

TINY: dict[str, Any] = {"dims": DIMS["tiny"], "seq_len": 16, "micro_batch": 2, "ffn": 48, "vocab": 64}
TINY |= {"experts": 8, "experts_per_token": 2, "expert_ffn": 16, "shared_ffn": 32}


def layer_cells(size: Size) -> list[Spec]:
    """Every layer at every kind of degree, recomputation and loss; all forms in a dense layer; real widths once."""
    degrees = [{"sp": sp, "tp": tp} for sp in (1, 2) for tp in (1, 2)]
    experts = [{"ep": ep, "etp": etp} for ep in (1, 2) for etp in (1, 2)]
    found = made(TINY | {"layer": "dense", "form": f, "scheme": s} | at for f, s in pairings() for at in degrees)
    found += made(TINY | {"layer": "dense", "sharded_down": True} | at for at in degrees)
    found += made(TINY | {"layer": "moe"} | at | shared for at in degrees for shared in experts)
    found += made(TINY | {"layer": layer} | at for layer in ("embedding", "head") for at in degrees)
    styles: list[dict[str, Any]] = [{"moe_style": style} for style in SETTINGS["moe_style"][1:]]
    found += made(TINY | {"layer": "moe", "ep": 2} | at | style for at in degrees for style in styles)
    losses: list[dict[str, Any]] = [{"loss": loss} for loss in ("no-upcast", "in-place", "fused")]
    losses += [{"loss": "chunked", "loss_chunks": n} for n in (1, 3)]
    found += made(TINY | {"layer": "head"} | loss | at for loss in losses for at in degrees)
    policies = {"dense": ("full", "core_attn", "mlp"), "moe": ("full", "moe", "shared_experts")}
    found += made(
        TINY | {"layer": layer, "remat": remat, "tp": 2, "sp": 1} for layer in policies for remat in policies[layer]
    )
    if size == "quick":
        return found[::4]
    wide = {"seq_len": 4096, "sp": 1}
    return found + made(wide | {"layer": layer, "tp": tp} for layer in ("dense", "moe", "head") for tp in (1, 2))


def check_layer(spec: Spec) -> Iterator[CheckRow]:
    """Every check of one layer. Chunks of a loss repeat, so there only what is kept and the peak are compared."""
    cell, recording = f"{spec.layer} {name(spec)}", run_fake(spec)
    try:
        at = predicted(spec)
    except MODEL_FAULTS as problem:
        yield row("layer: program", cell, f"the executor runs it, the model has none: {problem}")
        return
    stated = recording.by_construction
    for check in (saved_row, peak_row):
        yield _of_layer(check(at, recording, cell, stated))
    if not (spec.loss == "chunked" and spec.loss_chunks > 1):
        yield _of_layer(timeline_row(at, recording, cell, stated))
        yield _collectives(at, recording, cell)


def _of_layer(found: CheckRow) -> CheckRow:
    return found._replace(check=f"layer: {found.check}")


def _collectives(at: Evaluation, recording: Recording, cell: str) -> CheckRow:
    """Every call in order."""
    account = at.account
    ours = [
        ((c.phase, c.kind, DTYPES[c.dtype], at.sizes[payload], at.sizes[wire]), f"{c.tensor} over {c.axis}")
        for c, (payload, wire) in zip(account.timeline.collectives, account.payloads, strict=True)
    ]
    theirs = [
        (c.phase, c.kind, c.dtype, c.payload_bytes, _wire(c.kind, c.payload_bytes, c.group_size))
        for c in recording.collectives
    ]
    return row("layer: collectives", cell, calls_difference(ours, theirs), f"{len(ours)} calls")


def _wire(kind: str, payload: int, ranks: int) -> int:
    """An all-reduce sends what a reduce-scatter and an all-gather of the parts send."""
    return wire_bytes(kind, payload, ranks) * (2 if kind == "all_reduce" else 1)
