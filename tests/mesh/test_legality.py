"""What degrees are refused, with the way out, and the golden run that is legal."""

from __future__ import annotations

import pytest

from mla_cost.language.schedule import PassKind
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import Shape, problems
from mla_cost.mesh.placement import Chunk, stages
from mla_cost.mesh.schedule import PassInFlight, in_flight, worst_passes

GOLDEN = Parallel(tp=2, pp=4, ep=16, dp=8, num_micro_batches=64, layout="Et*2|(tt|)*5t|tmL")
GOLDEN_SHAPE = Shape(
    heads=128, num_layers=14, ffn=18432, moe_ffn=2048, shared_ffn=2048, num_experts=64, num_mtp=1, seq_len=4096,
    global_batch=512,
)  # fmt: skip


def test_the_golden_run_is_legal_and_laid_out_as_megatron_does() -> None:
    assert problems(GOLDEN, GOLDEN_SHAPE) == ()
    assert (GOLDEN.world, GOLDEN.dense_dp, GOLDEN.expert_dp, GOLDEN.chunks) == (64, 8, 1, 2)
    held = stages(GOLDEN, 14, 1)
    assert held[0] == (Chunk(True, 0, 2, 0, False), Chunk(False, 8, 2, 0, False))
    assert held[3] == (Chunk(False, 6, 2, 0, False), Chunk(False, 13, 1, 1, True))
    assert [in_flight(GOLDEN, stage) for stage in range(4)] == [11, 9, 7, 5]
    assert set(worst_passes(GOLDEN, 3)) == {PassInFlight(way, at, beside=(4, 0)) for way in PassKind for at in (0, 1)}


def test_the_published_deepseek_v3_layout_has_61_layers_on_16_stages() -> None:
    published = Parallel(pp=16, ep=64, dp=128, num_micro_batches=120, layout="Et*3|(tttt|)*14ttmL")
    shape = GOLDEN_SHAPE._replace(num_layers=61, num_experts=256, global_batch=15360)
    assert problems(published, shape) == ()
    assert (published.world, published.expert_dp) == (2048, 2)
    assert [sum(chunk.num_layers for chunk in stage) for stage in stages(published, 61, 1)] == [3, *[4] * 14, 2]


def test_a_layout_of_more_parts_than_are_priced_is_refused() -> None:
    def refused(parts: int) -> list[str]:
        layout = f"Et*4{'|' * (parts - 1)}L"
        parallel = Parallel(pp=2, ep=1, num_micro_batches=8, layout=layout)
        return [problem.text for problem in problems(parallel, Shape(heads=4, num_layers=4))]

    assert refused(1024) == []
    assert refused(1026) == [
        "pipeline_layout has 1,026 parts, and at most 1,024 are priced; leave out parts without layers"
    ]


@pytest.mark.parametrize(
    ("changes", "shape", "text"),
    [
        ({"tp": 3}, {"seq_len": None}, "heads (128) is not divisible by tp (3); change tp to 2"),
        ({"ep": 12, "dp": 6}, {"global_batch": None}, "experts (64) is not divisible by ep (12); change ep to 8"),
        ({"ep": 64}, {}, "16 ranks do not split into groups of ep 64 x etp 1 = 64; change ep to 16 or dp to 32"),
        ({}, {"seq_len": 4095}, "seq_len 4095 does not split over sp 1 x tp 2; change seq_len to 4096 or 4094"),
        ({}, {"global_batch": 256}, "= 512, but global_batch is 256; change micro_batches to 32"),
        ({}, {"global_batch": 500}, "change global_batch to 504 and micro_batches to match"),
        ({"num_micro_batches": 2}, {"global_batch": None}, "change micro_batches to 4 or more"),
        ({"num_micro_batches": 6}, {"global_batch": None}, "holds 2, fewer than pp 4; change micro_batches to 4 or 8"),
        ({"group_size": 3}, {}, "micro_batch_group 3 is below pp 4; change micro_batch_group to 4 or more"),
        ({"layout": None, "group_size": 4}, {}, "only an interleaved schedule has groups of micro-batches, and"),
        ({"pp": 3}, {}, "pipeline_layout has 8 parts, which pp 3 does not divide; change pp to 2 or add parts"),
        ({"virtual_stages": 4}, {}, "pp 4 x virtual_stages 4 are 16; change virtual_stages to 2"),
        ({}, {"num_layers": 15}, "pipeline_layout has 14 t, the model 15 layers; write 15 t"),
        ({}, {"num_mtp": 0}, "pipeline_layout has 1 m, the model 0 MTP modules; set mtp to 1, or write 0 m"),
        ({"layout": None, "pp": 16}, {}, "14 layers do not split over pp 16 x virtual_stages 1; change pp to 14, or"),
        ({"layout": None, "last_layers": 1}, {}, "change last_layers to 2"),
        ({"layout": None, "pp": 1, "virtual_stages": 2}, {}, "change virtual_stages to 1 or pp to 2 or more"),
        ({"layout": None, "pp": 1, "first_layers": 2}, {}, "leave first_layers and last_layers out"),
        ({"layout": "Et*2|(tt|)*5t|tLm"}, {}, "write one L, after all else"),
        ({"layout": "tE*1|(tt|)*5tt|tmL"}, {}, "write one E, before all else"),
        ({"layout": "Et*2|(tt|)*5m|ttL"}, {}, "write every t before the first m"),
        ({"layout": "Et*14|m||||||L"}, {}, "write every m in one of the last 4 parts"),
        (
            {"first_layers": 3},
            {},
            "first_layers is 3, but pipeline_layout says what every stage holds; leave first_layers or ",
        ),
        ({"last_layers": 3}, {}, "last_layers is 3, but pipeline_layout says what every stage holds"),
        ({"dp": 0}, {}, "dp is 0; change dp to 1 or more"),
        ({}, {"down_widths": (577,)}, "down-projection's width (577) is not divisible by tp (2); change tp to 1"),
        ({}, {"num_experts": 0}, "ep is 16, but the model has no routed experts; change ep to 1"),
        ({"ep": 1, "etp": 2}, {"num_experts": 0}, "etp is 2, but the model has no routed experts; change etp to 1"),
    ],
)
def test_a_refusal_says_which_number_to_change_and_to_what(
    changes: dict[str, int], shape: dict[str, int], text: str
) -> None:
    found = problems(GOLDEN._replace(**changes), GOLDEN_SHAPE._replace(**shape))  # type: ignore[arg-type]
    assert any(text in problem.text for problem in found), found
