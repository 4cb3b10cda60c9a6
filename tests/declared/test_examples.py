"""Where each worked example of the collected schemes is tested, or why it is not.

Names are those of the collection (schemes, packed documents, pipelines, caches, decode systems). It lies beside some
checkouts; there the list is compared with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

COLLECTED = Path(__file__).parents[3] / "shared" / "evidence" / "schemes.yaml"
SCHEMES = "tests/declared/test_schemes.py"
RINGS = "tests/torch/reference/test_rings.py"
PACKING = "tests/mesh/test_packing.py"
CACHE = "tests/studies/test_cache.py"
FFD = "test_ffd_by_its_published_settings"
WHERE: dict[str, str] = {
    **dict.fromkeys(("te-p2p-v3", "te-ag"), f"{SCHEMES}::test_megatrons_schemes"),
    **dict.fromkeys(("te-p2p-counts",), f"{RINGS}::test_transformer_engines_ring_by_its_source"),
    **dict.fromkeys(("ring-own-counts",), f"{RINGS}::test_hops_send_what_the_model_says"),
    **dict.fromkeys(
        ("zigzag-unread", "zigzag-unread-16", "magi-25", "contiguous-unread"),
        f"{PACKING}::test_a_ring_reads_three_quarters_of_what_comes",
    ),
    **dict.fromkeys(
        ("kvg", "a2a-v3", "pith-v3", "laga-wire", "headless-wire", "ring-own-v3", "pt-ag", "verl-kimi", "padded"),
        f"{SCHEMES}::test_bytes_sent",
    ),
    **dict.fromkeys(("usp-8-2", "usp-8-4", "usp-8-8-is-ulysses", "usp-8-1-is-ring"), f"{SCHEMES}::test_two_levels"),
    **dict.fromkeys(
        ("gqa-degree", "gqa-heads", "mqa-gather-equals-degree"),
        f"{SCHEMES}::test_copies_of_fewer_key_heads_than_ranks",
    ),
    **dict.fromkeys(("llama3-8", "wlb"), f"{SCHEMES}::test_gathers_of_grouped_keys"),
    **dict.fromkeys(
        ("dsa-v32-cp8", "dsa-glm5-cp8"), f"{SCHEMES}::test_sparse_attention_gathers_the_latent_and_the_index_key"
    ),
    "loong-kv": f"{SCHEMES}::test_one_transfer_of_a_double_ring",
    "upipe-32b": f"{SCHEMES}::test_turns_of_untied_ulysses",
    "tasp-8": f"{SCHEMES}::test_cycles_spread_a_rings_bytes_over_all_links",
    "pith-v2lite-8": f"{SCHEMES}::test_a_latent_ring_of_a_small_model",
    **dict.fromkeys(("dr-16-2", "dr-8-4"), f"{SCHEMES}::test_a_window_turns_inside_while_its_chunks_go_on"),
    **dict.fromkeys(("ms-full", "ms-half"), f"{SCHEMES}::test_what_is_kept_of_keys_and_values"),
    **dict.fromkeys(
        (
            *("pack-8-4-4", "pack-32-16-8-8", "pack-as-one-zigzag", "pack-contiguous", "needed-8-4-4-zigzag"),
            *("flashcp-whole", "flashcp-cut-small-first", "flashcp-cut-large-first", "flashcp-mixed"),
            "flashcp-per-document-saves-nothing",
        ),
        f"{PACKING}::test_who_holds_and_sends_what",
    ),
    "flashcp-elements": f"{PACKING}::test_flashcps_elements",
    **dict.fromkeys(("hybrid-ranks", "any-degree", "whole-degree"), f"{PACKING}::test_ranks_by_length"),
    **dict.fromkeys(("basp-8-2", "basp-8-8"), f"{PACKING}::test_groups_by_micro_batch"),
    "hsap-12-4": f"{PACKING}::test_between_nodes_only_what_a_document_needs",
    **dict.fromkeys(
        (
            *("v1", "v32", "v4-flash", "v41-flash", "v4-pro", "V3-R1-V3.1-K2", "V2", "V2-Lite-Moonlight"),
            *("V3.2-bf16-with-index", "GLM-5-bf16-with-index", "GLM-5.2-bf16-21-indexers", "MiniCPM3-4B"),
            *("GLM-5-fp8-with-index-V3.2-layout-assumed", "Kimi-K3-24-of-93", "Kimi-Linear-7-of-27"),
            *("GLM-5.3-Flash-latent-only", "GLM-4.7-Flash", "Llama-3-8B", "Llama-3-70B-Qwen2-72B", "Llama-3-405B"),
            *("Qwen3-8B", "Qwen3-235B-A22B", "Llama-2-7B-MHA"),
        ),
        f"{CACHE}::test_bytes_of_a_token",
    ),
    "v41-scan": f"{CACHE}::test_index_scan_of_v41",
    **dict.fromkeys(("eighth", "eighth-measured"), f"{CACHE}::test_what_is_kept_for_good"),
    "mpk-qwen3-8b": f"{CACHE}::test_mpk_removes_44_percent_of_what_is_above_the_floor",
    **dict.fromkeys(
        ("ffd-5-percent", "ffd-scale-fp32", "ffd-scan-only"), f"{CACHE}::test_ffd_by_its_published_settings"
    ),
    **dict.fromkeys(
        (
            *("sp4-4096", "sp4-8192", "sp8-4096", "sp8-8192", "sp8-16384", "sp16-4096", "sp16-8192", "sp16-16384"),
            *("heads-16", "heads-32", "heads-64"),
        ),
        f"{SCHEMES}::test_the_printed_table_of_the_laga_paper",
    ),
}
_PIPELINES = "an order of a pipeline: schedules are declared apart (mla_cost/declared/schedules), not as schemes"
_DSA = "chosen positions and an indexer's gradients are in no program; what is gathered is tested"
WHY_NOT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("composed-1f1b", "composed-cannot-run", "composed-v", "1f1b-4-8", "interleaved-4-8-2"),
            *("dualpipe-4-8", "dualpipe-8-16", "dualpipe-8-16-unequal", "dualpipe-8-32", "dualpipev-4-16"),
            *("dualpipev-2-8", "zbh1-4-8", "zbh1-8-16", "zbh1-3-6-as-an-order", "zbh2-4-8", "zbv-4-8"),
            *("vhalf-8-32", "vmin-8-32"),
        ),
        _PIPELINES,
    ),
    **dict.fromkeys(("zero3-all-ahead", "zero3-one-ahead"), "a sharding of weights, not a scheme"),
    **dict.fromkeys(("alst-16k", "alst-500k"), "tiles of an MLP are no setting; those of a loss are loss_chunks"),
    "latent-expanded-tokens": "latent-ring counts the first rank, which expands most: all 4096 tokens of the example",
    **dict.fromkeys(("dsa-v32-saved", "dsa-glm5-cp8-saved"), _DSA),
}


def test_an_example_is_tested_or_has_a_reason():
    assert not WHERE.keys() & WHY_NOT.keys()
    assert len(WHERE) + len(WHY_NOT) == 119


def test_the_tests_are_there():
    root = Path(__file__).parents[2]
    for where in set(WHERE.values()):
        file, _, name = where.partition("::")
        assert f"def {name}(" in (root / file).read_text(encoding="utf-8"), where


def test_no_example_is_missing():
    if not COLLECTED.is_file():
        pytest.skip("the collection does not lie beside this checkout")
    import yaml

    entries = yaml.safe_load(COLLECTED.read_text(encoding="utf-8"))
    names = [str(it["id"]) for entry in entries["schemes"] for it in entry.get("worked_examples") or ()]
    assert sorted(names) == sorted((*WHERE, *WHY_NOT))
