"""One spec in the model and in the torch executor, to the byte: shared by tests of layers and of recomputation."""

from __future__ import annotations

from mla_cost.checks.reference import Spec, run_fake
from mla_cost.checks.reference.measure import Recording
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language.dims import base_values, predicates_of
from mla_cost.language.machine import Timeline
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key


def program(spec: Spec) -> tuple[Timeline, dict[str, int]]:
    """The model's timeline of a spec, and the values of its symbols."""
    dims = spec.dims
    form, scheme = spec.pair
    values = {
        "S": spec.seq_len,
        "P": spec.sp,
        "t": spec.tp,
        "b": spec.micro_batch,
        "n": dims.heads // spec.tp,
        "h": dims.hidden,
        "d_q": dims.q_lora_rank or 0,
        "d_c": dims.kv_lora_rank,
        "k": dims.nope,
        "r": dims.rope,
        "v": dims.value,
        "d_q_part": (dims.q_lora_rank or 0) // spec.tp,
        "kv_part": (dims.kv_lora_rank + dims.rope) // spec.tp,
        "f": spec.ffn // spec.tp,
        "V": spec.vocab // spec.tp,
        "q": -(-spec.seq_len // spec.sp * spec.micro_batch // spec.loss_chunks),
        **experts(spec),
    }
    divided = SCHEMES[scheme].divides_heads
    base = base_values(values, divided)
    key = Key(form, scheme, spec.kernel, predicates_of(base, divided), spec.dtype, layer=spec.layer, remat=spec.remat)
    if spec.sharded_down and spec.tp > 1:
        key = key._replace(down_projections="sharded")
    return timeline(key._replace(cross_entropy=spec.loss, moe_style=spec.moe_style)), base


def experts(spec: Spec) -> dict[str, int]:
    """Values of the symbols that only an expert layer has."""
    if spec.layer != "moe":
        return {}
    rows = spec.seq_len // spec.sp // spec.tp * spec.micro_batch * spec.experts_per_token
    return {
        "E": spec.ep,
        "T": spec.etp,
        "e": spec.experts,
        "c": spec.experts // spec.ep,
        "K": spec.experts_per_token,
        "R": rows,
        "w": -(-rows // spec.ep),
        "z": -(-rows // spec.ep),
        "g": spec.expert_ffn // spec.etp,
        "m": spec.shared_ffn // spec.tp,
    }


def sizes(run: Timeline, base: dict[str, int]) -> list[int]:
    """Signed bytes of every allocation and free; frees with no allocation between them in rising order, as recorded."""
    found: list[int] = []
    freed: list[int] = []
    for event in run.events:
        if event.allocation is None:
            continue
        amount = event.allocation.size.at(base)
        if event.what == "free":
            freed.append(-amount)
            continue
        found += [*sorted(freed), amount]
        freed = []
    return found + sorted(freed)


def collectives(recording: Recording) -> list[tuple[str, str, str, int]]:
    return [(c.kind, c.axis, c.phase, c.payload_bytes) for c in recording.collectives]


def check(spec: Spec) -> None:
    """Assert that the model and the executor agree on the timeline, what is saved and what is sent."""
    recording = run_fake(spec)
    run, base = program(spec)
    assert sizes(run, base) == recording.timeline()
    assert sorted(a.size.at(base) for a in run.allocations if a.saved) == sorted(s.bytes for s in recording.saved)
    assert [(c.kind, c.axis, c.phase, c.payload.at(base)) for c in run.collectives] == collectives(recording)
