"""Schemes run for real over gloo, zig-zag and causal: one rank's output and gradients, and the model's bytes."""

from __future__ import annotations

from dataclasses import asdict

import pytest

pytest.importorskip("torch")

import mla_cost
from mla_cost.checks.reference.rings import SCHEMES, RingRun, run_rings
from mla_cost.checks.reference.spec import DIMS

pytestmark = pytest.mark.xdist_group("ranks")

RANKS, INSIDE, SEQ_LEN = 4, 2, 32
TINY = DIMS["tiny"]
FIELDS = {"nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim", "value": "v_head_dim"}


@pytest.fixture(scope="module")
def runs() -> dict[str, RingRun]:
    return run_rings(TINY, ranks=RANKS, inside=INSIDE, seq_len=SEQ_LEN)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_give_what_one_gives(scheme, runs):
    alone = runs["alone"].tensors
    for name, tensor in runs[scheme].tensors.items():
        assert (tensor - alone[name]).abs().max() < 1e-5 * alone[name].abs().max(), name


@pytest.mark.parametrize("scheme", ["ring-own", "usp", "latent-ring"])
def test_hops_send_what_the_model_says(scheme, runs):
    """In fp32, as the ranks ran: point to point, forward and backward."""
    dims = {FIELDS.get(name, name): value for name, value in asdict(TINY).items()}
    settings = {"scheme": scheme, "kernel": "flash", "scope": "attention", "sp": RANKS, "sp_inside": INSIDE}
    plan = mla_cost.plan(form="explicit", dims=dims, seq_len=SEQ_LEN, dtype="fp32", **settings)
    calls = [call for call in plan.results[0].communication.collectives if call.kind == "point_to_point"]
    for phase in ("forward", "backward"):
        assert runs[scheme].sent[phase] == (sum(c.wire_bytes for c in calls if c.phase == phase),) * RANKS


def test_transformer_engines_ring_by_its_source(runs):
    """P - 1 hops of keys and values forward; as many of them and of their gradients in backward."""
    hop = 4 * (SEQ_LEN // RANKS) * TINY.heads * (TINY.nope + TINY.rope + TINY.value)
    assert runs["ring"].sent == {"forward": (3 * hop,) * RANKS, "backward": (6 * hop,) * RANKS}
    assert runs["a2a-p2p"].sent == {"forward": (hop,) * RANKS, "backward": (2 * hop,) * RANKS}
