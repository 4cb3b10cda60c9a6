"""What rings keep, and the most that they hold in forward and backward, to the byte of their libraries' own lines.

The executor runs those lines on fake tensors; kernels stand in, so what a kernel saves holds by construction.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

pytest.importorskip("torch")

from mla_cost.checks.reference.ring_memory import run_ring
from mla_cost.checks.reference.spec import DIMS, Dims, Spec
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.block import BlockFigures, figures
from mla_cost.pricing.resolve import resolve

FIELDS = {"nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim", "value": "v_head_dim"}
TINY, V3 = DIMS["tiny"], DIMS["deepseek-v3"]
NO_QUERY_LATENT = Dims(hidden=24, heads=4, q_lora_rank=None, kv_lora_rank=12, nope=6, rope=10, value=4)
# scheme, ranks, ranks of an inner group, tokens of a rank, sequences, dims
CASES: tuple[tuple[str, int, int, int, int, Dims], ...] = (
    *(("ring-own", ranks, 1, 16, 1, TINY) for ranks in (2, 3, 4, 8)),
    ("ring-own", 8, 1, 2048, 1, V3),
    ("ring-own", 4, 1, 8, 2, NO_QUERY_LATENT),
    *(("latent-ring", ranks, 1, 16, 1, TINY) for ranks in (2, 3, 4, 8)),
    ("latent-ring", 8, 1, 2048, 1, V3),
    ("latent-ring", 4, 1, 8, 2, NO_QUERY_LATENT),
    ("gather-heads", 4, 1, 8, 2, TINY),
    ("gather-heads", 8, 1, 256, 1, V3),
    ("usp", 4, 2, 16, 1, TINY),
    ("usp", 8, 2, 16, 2, TINY),
    ("usp", 16, 4, 1024, 1, V3),
)


def modelled(scheme: str, inside: int, spec: Spec) -> BlockFigures:
    dims = {FIELDS.get(name, name): value for name, value in asdict(spec.dims).items()}
    asked: dict[str, Any] = {"seq_len": spec.seq_len, "sp": spec.sp, "micro_batch": spec.micro_batch, "dims": dims}
    settings = PlanSettings(scope="attention", scheme=scheme, kernel="flash", sp_inside=inside, **asked)
    model = catalog.changed(catalog.model(settings.model), settings.dims, settings.facts)
    return figures(resolve(model, "explicit", settings), "none")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:5])))
def test_to_the_byte(case):
    scheme, ranks, inside, local, batch, dims = case
    spec = Spec(scheme="kv-gather", kernel="flash", dims=dims, seq_len=ranks * local, sp=ranks, micro_batch=batch)
    ran = run_ring(scheme, spec, inside)
    most = {phase: max(e.live_bytes for e in ran.events if e.phase == phase) for phase in ("forward", "backward")}
    model = modelled(scheme, inside, spec)
    assert model.saved_bytes == sum(storage.bytes for storage in ran.saved)
    assert model.seen.forward.bytes == most["forward"]
    assert model.seen.backward.bytes == most["backward"]
