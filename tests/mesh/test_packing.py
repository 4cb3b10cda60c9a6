"""Packed documents, by worked examples typed from their sources: tokens and pairs, nothing copied from the tool."""

from __future__ import annotations

import pytest

from mla_cost.mesh.packing import Spread, by_micro_batch, deal, degree, planned

MIXED = [
    (0, 0, 4, 0), (0, 28, 32, 0), (0, 4, 8, 1), (0, 24, 28, 1), (0, 8, 12, 2), (0, 20, 24, 2), (0, 12, 20, 3),
    (1, 0, 8, 0), (1, 8, 16, 1), (2, 0, 8, 2), (3, 0, 8, 3),
]  # fmt: skip
SMALL_FIRST = [(0, 2, 10, 0), (0, 0, 2, 1), (1, 0, 3, 1), (2, 0, 3, 1)]
LARGE_FIRST = [(0, 0, 8, 0), (0, 8, 10, 1), (1, 0, 3, 1), (2, 0, 3, 1)]
PACK = [32, 16, 8, 8]


def told(spread: Spread) -> dict[str, object]:
    return {
        "tokens": spread.tokens,
        "work": spread.work,
        "balance": round(float(spread.balance), 4),
        "all": spread.sent("all")[0],
        "not-last": spread.sent("not-last")[0],
        "needed": spread.sent("needed"),
    }


CASES = {
    "two ranks, every document in four": (
        deal([8, 4, 4], 2, "per-document"),
        {"tokens": [8, 8], "work": [28, 28], "all": 8, "needed": [4, 8]},
    ),
    "four ranks, every document in eight": (
        deal(PACK, 4, "per-document"),
        {"work": [184] * 4, "all": 48, "needed": [24, 32, 40, 48], "not-last": 48, "balance": 1.0},
    ),
    "the pack as one, zig-zag": (
        deal(PACK, 4, "zigzag"),
        {"work": [72, 136, 264, 264], "balance": 1.4348, "all": 48, "needed": [24, 16, 8, 8]},
    ),
    "the pack as one, neighbours": (
        deal(PACK, 4, "contiguous"),
        {"work": [136, 392, 136, 72], "balance": 2.1304, "needed": [16, 0, 0, 0]},
    ),
    "whole documents": (
        planned([8, 4, 4], 2, [(0, 0, 8, 0), (1, 0, 4, 1), (2, 0, 4, 1)]),
        {"not-last": 0, "needed": [0, 0], "all": 8, "work": [36, 20], "balance": 1.2857},
    ),
    "a small head is cut": (
        planned([10, 3, 3], 2, SMALL_FIRST),
        {"not-last": 2, "needed": [0, 2], "work": [52, 15]},
    ),
    "a large head is cut": (
        planned([10, 3, 3], 2, LARGE_FIRST),
        {"not-last": 8, "needed": [8, 0], "work": [36, 31], "balance": 1.0746},
    ),
    "a longest document dealt, others whole": (
        planned(PACK, 4, MIXED),
        {"work": [168, 232, 168, 168], "all": 48, "not-last": 36, "needed": [20, 16, 20, 24]},
    ),
    "needed only, zig-zag": (
        deal([8, 4, 4], 2, "zigzag"),
        {"needed": [4, 0], "all": 8, "work": [20, 36]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_holds_and_sends_what(case):
    spread, expected = CASES[case]
    found = told(spread)
    assert {name: found[name] for name in expected} == expected


def test_what_is_over_goes_to_one_chunk_after_another():
    """WLB-LLM: 10 tokens over four chunks are 3, 3, 2, 2, then 6 are 1, 1, 2, 2: eight tokens a rank, none padded."""
    spread = deal([10, 6], 2, "per-document-uneven")
    assert [(each.document, each.first, each.last, each.rank) for each in spread.shards] == [
        (0, 0, 3, 0), (0, 3, 8, 1), (0, 8, 10, 0), (1, 0, 1, 0), (1, 1, 4, 1), (1, 4, 6, 0),
    ]  # fmt: skip
    assert (spread.tokens, spread.padding) == ([8, 8], 0)


def test_the_heuristic_finds_the_small_cut_by_itself():
    assert set(deal([10, 3, 3], 2, "equal").shards) == set(planned([10, 3, 3], 2, SMALL_FIRST).shards)


def test_flashcps_elements():
    """4 x tokens x H x D, keys and values there and back: equation 4 counts all, equation 5 not the last shards."""
    spread = planned([10, 3, 3], 2, SMALL_FIRST)
    heads, width = 16, 128
    assert 4 * spread.sent("all")[0] * heads * width == 65536
    assert 4 * spread.sent("not-last")[0] * heads * width == 16384


def test_a_ring_reads_three_quarters_of_what_comes():
    """One causal document, zig-zag: a quarter of the chunks that a ring brings is read by nobody."""
    for ranks, needed in ((4, 18), (8, 84), (16, 360)):
        spread = deal([2 * ranks * 1000], ranks, "zigzag")
        chunks = sum(spread.sent("needed")) / 1000
        assert round(chunks) == needed  # a chunk's last token is read by none of its own rank's alone
        assert spread.balance == 1
        assert round(1 - needed / (2 * ranks * (ranks - 1)), 2) == 0.25
    neighbours = deal([8000], 4, "contiguous")
    assert round(float(neighbours.balance), 2) == 1.75
    assert sum(neighbours.sent("needed")) * 2 == sum(neighbours.sent("all"))


def test_between_nodes_only_what_a_document_needs():
    """HSAP: two nodes of two ranks, 8 heads, 40 elements a token and head: the first node sends 8 tokens."""
    spread = planned([12, 4], 2, [(0, 0, 8, 0), (0, 8, 12, 1), (1, 0, 4, 1)])
    assert [tokens * (8 // 2) * 40 for tokens in spread.sent("needed")] == [1280, 0]
    assert spread.tokens == [8, 8]


def test_ranks_by_length():
    lengths = [32768, 8192, 4096, 1000, 4097, 10000, 16384, 16385]
    ranks = [degree(length, 4096, doubling=True) for length in lengths]
    assert ranks == [8, 2, 1, 1, 2, 4, 4, 8]
    sent = [(each - 1) * -(-length // each) for each, length in zip(ranks, lengths, strict=True)]
    assert sent == [28672, 4096, 0, 0, 2049, 7500, 12288, 14343]
    assert [degree(length, 4096, doubling=False) for length in (10000, 16385, 20000)] == [3, 5, 5]
    whole = [degree(length, 4096, doubling=False) for length in (4096, 10000, 12289)]
    assert whole == [1, 3, 4]
    assert [(each - 1) * -(-length // each) for each, length in zip(whole, (4096, 10000, 12289), strict=True)] == [
        0,
        6668,
        9219,
    ]


def test_groups_by_micro_batch():
    """BASP: 2 sequences of 16384 over 8 ranks: 4 ranks of 4096 tokens each; all-to-all falls 14 %, a gather 57 %."""
    group, tokens = by_micro_batch(2, 8, 16384)
    assert (group, tokens) == (4, 4096)
    width = 128 * (2 * 192 + 2 * 128)
    assert (7 * tokens * width // 8, 3 * tokens * width // 4) == (293601280, 251658240)
    assert (7 * tokens, (group - 1) * tokens) == (28672, 12288)
    assert by_micro_batch(8, 8, 16384) == (1, 16384)
    assert 4096 * 2 * 128 // 2 == 524288  # tokens times heads of a rank, either way
