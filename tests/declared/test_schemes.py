"""Every scheme's bytes, by figures typed from worked examples of its source, and the ends at which schemes meet.

Elements are those of DeepSeek-V3 per rank and layer (128 heads, k 128, r 64, v 128, d_c 512) at 16384 tokens over 8
ranks, so 2048 each, unless a line says otherwise; bytes are 2 an element, gradients of some rings 4.
"""

from __future__ import annotations

from typing import Any

import pytest

import mla_cost
from mla_cost.declared.schemes import SCHEMES
from mla_cost.inputs import catalog
from mla_cost.inputs.settings import PlanSettings
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.resolve import resolve
from mla_cost.results import Result
from mla_cost.studies.compare import compare

TINY = {
    "hidden": 32,
    "heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
RINGS = 1174405120  # 2 * 7 * 2048 * 40960: keys and values of every other rank
LATENTS = 16515072  # 2 * 7 * 2048 * 576
# scheme: bytes sent forward and backward
SENT: dict[str, tuple[int, int]] = {
    "ring-own": (RINGS, 3858759680),  # 2 * 7 * T * W and 4 * 8 * T * W
    "ring-cycles": (RINGS, 2 * RINGS),
    "ring-mindspeed": (RINGS, 2 * RINGS),
    "ring-cache-full": (RINGS, 1342177280),  # keys and values one hop, gradients seven
    "ring-cache-half": (RINGS, 1744830464),  # keys one hop, values and gradients seven
    "double-ring": (RINGS, 2 * RINGS),
    "gather-rotate": (RINGS, 3858759680),
    "gather-heads": (RINGS, 2 * RINGS),
    "kv-gather": (RINGS, RINGS),
    "kv-gather-zigzag": (RINGS, RINGS),
    "ulysses": (2 * 146800640, 2 * 146800640),
    "ulysses-padded": (2 * 176160768, 2 * 176160768),
    "ulysses-headless": (2 * 133038080, 2 * 133038080),
    "ulysses-rope-copies": (2 * 147718144, 2 * 147718144),
    "ulysses-turns": (2 * 146800640, 4 * 146800640),  # q, k, v and the output once more in backward
    "latent-gather": (2 * 81657856, 2 * 81657856),
    "latent-key-gather": (LATENTS, LATENTS),
    "index-key-gather": (LATENTS, LATENTS),  # this model has no indexer
    "latent-ring": (LATENTS, 54263808),  # gradients in fp32, eight hops
}
OF_MEGATRON = {"ring": (RINGS, 2 * RINGS), "kv-all-gather": (RINGS, 2 * RINGS)}
# scheme: kept keys and values in elements a token, of 40960 where a rank keeps its own
KEPT = {"ring-own": 40960, "double-ring": 40960, "ring-cache-full": 7 * 40960, "ring-cache-half": 7 * 24576 + 16384}


def row(scheme: str, form: str = "explicit", **asked: Any) -> Result:
    settings: dict[str, Any] = {"scope": "attention", "kernel": "flash", "seq_len": 16384, "sp": 8, **asked}
    return mla_cost.plan(form=form, scheme=scheme, **settings).results[0]


def sent(found: Result) -> tuple[int | None, int | None]:
    return found.communication.forward.wire_bytes, found.communication.backward.wire_bytes


def over(found: Result, ranks: int, phase: str = "forward") -> int:
    """Bytes sent among groups of so many ranks."""
    calls = found.communication.collectives
    return sum(call.wire_bytes for call in calls if call.group_size == ranks and call.phase == phase)


@pytest.mark.parametrize("scheme", SENT)
def test_bytes_sent(scheme):
    assert sent(row(scheme, sp_inside=4)) == SENT[scheme]


def test_every_scheme_has_figures_here_or_in_two_levels():
    assert {*SENT, *OF_MEGATRON, "usp", "hybrid-mindspeed", "a2a-p2p"} == set(SCHEMES)


def test_megatrons_schemes():
    """One dense layer of a made-up depth: what the attention call sends, for every layer alike."""
    asked: dict[str, Any] = {"scope": "model", "profile": "megatron", "sp": 8, "seq_len": 16384, "tp": 1, "dp": 8}
    layers = 61
    found = {}
    for scheme in ("ring", "kv-all-gather"):
        calls = mla_cost.plan(form="explicit", scheme=scheme, mtp=0, pp=1, **asked).results[0].communication.collectives
        own = [call for call in calls if call.axis == "sp"]
        found[scheme] = tuple(sum(c.wire_bytes for c in own if c.phase == p) // layers for p in ("forward", "backward"))
    assert found == OF_MEGATRON


@pytest.mark.parametrize("scheme", KEPT)
def test_what_is_kept_of_keys_and_values(scheme):
    own = row("ring-own", sp_inside=4).memory.saved_bytes
    kept = row(scheme, sp_inside=4).memory.saved_bytes
    assert own is not None
    assert kept is not None
    assert kept - own == 2 * 2048 * (KEPT[scheme] - 40960)


# inner ranks: elements inside, elements outside, forward
LEVELS = {2: (83886080, 251658240), 4: (125829120, 83886080), 8: (146800640, 0), 1: (0, 587202560)}


@pytest.mark.parametrize("inside", LEVELS)
def test_two_levels(inside):
    found = row("usp", sp_inside=inside)
    assert sent(found)[0] == 2 * sum(LEVELS[inside])
    if inside in {2, 4} and inside != 8 // inside:
        assert (over(found, inside), over(found, 8 // inside)) == tuple(2 * part for part in LEVELS[inside])


@pytest.mark.parametrize("sp", [2, 4, 8])
def test_at_either_end_two_levels_are_one_of_the_two(sp):
    """Storage by storage: tensors, peaks, collectives, flops."""
    asked: dict[str, Any] = {"dims": TINY, "seq_len": 64, "sp": sp, "device": "a100-80gb"}
    for inside, pure in ((sp, "ulysses"), (1, "ring-own")):
        nested, alone = row("usp", sp_inside=inside, **asked), row(pure, **asked)
        assert nested.memory == alone.memory
        assert nested.communication == alone.communication
        assert nested.flops == alone.flops


def test_a_window_turns_inside_while_its_chunks_go_on():
    """Of 16 ranks in windows of 2: eight hops inside, seven between; of 8 in windows of 4: six and one."""
    one = 2 * 64 // 16 * 8 * (12 + 8)
    for sp, window, inside, between in ((16, 2, 8, 7), (8, 4, 6, 1)):
        found = row("double-ring", dims=TINY, seq_len=4 * sp, sp=sp, sp_inside=window)
        assert (over(found, window), over(found, sp // window)) == (inside * one, between * one)


def test_groups_as_large_as_can_be_where_nobody_says():
    """The greatest common divisor of heads and ranks, as ms-swift chooses it: 4 of 8 heads and 12 ranks."""
    found = row("usp", dims=TINY, seq_len=48, sp=12)
    assert {call.group_size for call in found.communication.collectives} == {4, 3}


def test_refusals_name_the_way_out_and_it_works():
    refused = row("usp", dims=TINY, seq_len=48, sp=12, sp_inside=8)
    assert refused.verdict is not None
    assert refused.verdict.status == "illegal"
    assert refused.verdict.reason.endswith("does not divide sp 12; the nearest sp_inside below is 4")
    again = row("usp", dims=TINY, seq_len=48, sp=12, sp_inside=6).verdict
    assert again is not None
    assert again.reason.endswith("does not divide 8 heads; the nearest sp_inside below is 4")
    assert row("usp", dims=TINY, seq_len=48, sp=12, sp_inside=4).memory.saved_bytes
    eager = row("ring-own", kernel="eager").verdict
    assert eager is not None
    assert "use kernel flash" in eager.reason
    absorbed = row("ring-own", form="absorbed").verdict
    assert absorbed is not None
    assert "its scheme is latent-gather" in absorbed.reason
    wide = row("ulysses-padded", dims=TINY | {"v_head_dim": 16}, seq_len=64).verdict
    assert wide is not None
    assert wide.reason.endswith("V (16) is wider than that (12); use scheme ulysses")
    assert row("ulysses", dims=TINY | {"v_head_dim": 16}, seq_len=64).memory.saved_bytes
    assert row("ulysses-headless", dims=TINY | {"qk_rope_head_dim": 0}, seq_len=64).memory.saved_bytes


def test_rings_differ_by_what_goes_home():
    """Transformer Engine's backward sends 4 (P - 1) bytes an element, own-chunk rings 2 (P - 1) + 4 P: 1.64 at P 8."""
    assert SENT["ring-own"][1] * 28 == OF_MEGATRON["ring"][1] * 46


def test_a_sweep_prices_groups_inside_groups_as_plans_do():
    over: dict[str, Any] = {"sp": [1, 2, 4, 8], "sp_inside": [0, 1, 2, 4], "scheme": ["usp", "double-ring", "ring-own"]}
    settings: dict[str, Any] = {"scope": "attention", "kernel": "flash", "device": None, "dims": TINY, "seq_len": 64}
    table = mla_cost.sweep(over=over, form="explicit", **settings)
    assert len(table) == 48


def test_a_latent_ring_of_a_small_model():
    """DeepSeek-V2-Lite, four ranks of 4096 tokens: 576 elements where expanded keys and values have 5120."""
    found = row("latent-ring", model="deepseek-v2-lite", seq_len=16384, sp=4)
    assert sent(found) == (14155776, 51904512)


# ranks, tokens: MB of 1e6 of explicit and LAGA as arXiv 2607.17644 prints them in table 1
PRINTED = {
    (4, 4096): (251.7, 127.0),
    (4, 8192): (503.3, 254.0),
    (8, 4096): (146.8, 74.0),
    (8, 8192): (293.6, 148.0),
    (8, 16384): (587.2, 296.0),
    (16, 4096): (78.6, 39.6),
    (16, 8192): (157.3, 79.2),
    (16, 16384): (314.6, 158.5),
}


def printed(scheme: str, **asked: Any) -> float:
    """The paper's account: all-to-alls twice, the latent once as it is handed over."""
    calls = row(scheme, **asked).communication.collectives
    forward = [call for call in calls if call.phase == "forward"]
    twice = sum(2 * call.wire_bytes for call in forward if call.kind == "all_to_all")
    return (twice + sum(call.payload_bytes for call in forward if call.kind == "all_gather")) / 1e6


@pytest.mark.parametrize(("ranks", "tokens"), PRINTED)
def test_the_printed_table_of_the_laga_paper(ranks, tokens):
    found = tuple(round(printed(scheme, sp=ranks, seq_len=tokens), 1) for scheme in ("ulysses", "latent-gather"))
    assert found == PRINTED[ranks, tokens]


def test_its_ratios_by_heads():
    for heads, ratio in ((16, 1.88), (32, 1.94), (64, 1.97), (128, 1.98)):
        asked: dict[str, Any] = {"sp": 8, "seq_len": 8192, "dims": {"heads": heads}}
        assert round(printed("ulysses", **asked) / printed("latent-gather", **asked), 2) == ratio


# of eight ranks, as infinigence/HamiltonAttention@86606900 H100-1/hamilton_attention.py:198-208 has them
CYCLES = (
    (7, 0, 1, 5, 2, 4, 3, 6), (7, 2, 0, 3, 5, 4, 6, 1), (6, 2, 3, 1, 4, 0, 7, 5), (2, 5, 1, 0, 6, 3, 7, 4),
    (2, 1, 6, 4, 5, 7, 3, 0), (5, 0, 4, 7, 1, 3, 2, 6), (5, 3, 4, 1, 2, 7, 6, 0),
)  # fmt: skip


def test_cycles_spread_a_rings_bytes_over_all_links():
    """Seven cycles use each of 56 links once; a chunk of 7 pieces goes 7 hops, so a link carries 7 pieces, not 49."""
    links = [(each[at], each[(at + 1) % 8]) for each in CYCLES for at in range(8)]
    assert len(links) == len(set(links)) == 56
    asked = PlanSettings(seq_len=16384, sp=8, form=("explicit",), kernel="flash")
    found = {row.scheme: row for row in compare(asked, ("ring-mindspeed", "ring-cycles")).rows}
    chunk = 2 * 2048 * 40960  # keys and values forward; in backward they and their gradients
    assert found["ring-cycles"].busiest_link_bytes == 3 * chunk
    assert found["ring-mindspeed"].busiest_link_bytes == 3 * 7 * chunk


# widths of a grouped-query model: 128 for keys, values and queries
GROUPED = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128}


def elements(found: Result, *tensors: str, phase: str = "forward") -> int:
    """What is sent of these tensors, all where none is named."""
    calls = [call for call in found.communication.collectives if call.phase == phase]
    return sum(call.wire_bytes for call in calls if not tensors or call.tensor in tensors) // 2


def held(found: Result, *tensors: str) -> int:
    """Elements of these tensors, each once."""
    sizes = {each.name: each.bytes // 2 for each in found.memory.tensors if each.name in tensors}
    return sum(sizes.values())


def test_copies_of_fewer_key_heads_than_ranks():
    """Eight ranks of 1024 tokens, 32 query heads, 4 key heads: copies make of them as many heads as they are copied to.

    Copied to the degree that is 8 (DeepSpeed ALST, verl), to the query heads 32 (MindSpeed). One key for all heads is
    gathered, as the absorbed form does it: there a key of 256 is both.
    """
    asked: dict[str, Any] = {"seq_len": 8192, "sp": 8, "device": None}
    degree = row("ulysses", dims={**GROUPED, "heads": 8}, **asked)
    heads = row("ulysses", dims={**GROUPED, "heads": 32}, **asked)
    assert elements(degree, "key", "value") == 1835008
    assert held(degree, "key", "value") == 2097152
    assert elements(heads, "q", "o") + elements(degree, "key", "value") == 9175040
    assert elements(heads) == 14680064
    assert elements(heads, "key", "value") == 7340032
    assert held(heads, "key", "value") == 8388608
    one = {"kv_lora_rank": 192, "qk_rope_head_dim": 64, "heads": 32}
    gathered = row("latent-gather", form="absorbed", dims=one, **{**asked, "kernel": "eager"})
    assert elements(gathered, "key") == 1835008
    assert held(gathered, "key") == 2097152


def test_turns_of_untied_ulysses():
    """Qwen3-32B, 64 query and 8 key heads of 128, eight ranks of 1024 tokens: 8 turns, 7/8 of what lies there less."""
    asked: dict[str, Any] = {"seq_len": 8192, "sp": 8, "device": None}
    queries = row("ulysses-turns", dims={**GROUPED, "heads": 64}, **asked)
    keys = row("ulysses-turns", dims={**GROUPED, "heads": 8}, **asked)
    of_keys, of_queries = ("keys", "values"), ("queries", "output")
    assert elements(queries, *of_queries) + elements(keys, *of_keys) == 16515072
    there = [(*names, *(f"gradient of {name}" for name in names)) for names in (of_queries, of_keys)]
    assert (
        sum(elements(run, *names, phase="backward") for run, names in zip((queries, keys), there, strict=True))
        == 33030144
    )
    whole = row("ulysses", dims={**GROUPED, "heads": 64}, **asked)
    assert 8 * held(queries, "query of a turn") == held(whole, "q")


def test_gathers_of_grouped_keys():
    """Eight key heads of 128: WLB-LLM keeps what it gathered, the Llama-3 way gathers one head at a time, twice."""
    dims = {**GROUPED, "heads": 8}
    kept = row("kv-gather", dims=dims, seq_len=32768, device=None)
    assert (elements(kept), elements(kept, phase="backward")) == (58720256, 58720256)
    again = row("gather-heads", dims=dims, seq_len=8192, device=None)
    assert (elements(again), elements(again, phase="backward")) == (14680064, 29360128)
    settings = PlanSettings(scope="attention", scheme="gather-heads", kernel="flash", dims=dims, seq_len=8192, sp=8)
    point = resolve(catalog.changed(catalog.model("deepseek-v3"), dims, {}), "explicit", settings)
    buffers = [each for each in timeline(point.key).allocations if each.label == "key and value of two heads"]
    assert {each.size.at(point.values) // 2 for each in buffers} == {2 * 2097152}


def test_one_transfer_of_a_double_ring():
    """LoongTrain: 131072 tokens, 8 key heads copied to 16 ranks, 4 groups: 16777216 bytes a hop."""
    found = row("usp", dims={**GROUPED, "heads": 16}, seq_len=131072, sp=64, sp_inside=16, device=None)
    assert over(found, 4) == 3 * 16777216


@pytest.mark.parametrize(("model", "expanded"), [("deepseek-v3.2", 1174405120), ("glm-5", 939524096)])
def test_sparse_attention_gathers_the_latent_and_the_index_key(model, expanded):
    """Eight ranks of 4096 tokens send 576 + 128 elements a token, and the same back, against 40960 or 32768."""
    asked: dict[str, Any] = {"model": model, "seq_len": 32768, "device": None}
    found = row("index-key-gather", form="absorbed", **{**asked, "kernel": "mem-efficient"})
    assert elements(found) == elements(found, phase="backward") == 20185088
    assert elements(row("kv-gather", **asked)) == expanded
