"""Degrees, schedules and layouts against Megatron's rules written out, and laws that hold for every legal plan."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.errors import InputError
from mla_cost.mesh.parallel import (
    Chunk,
    Parallel,
    Pass,
    Shape,
    busiest_passes,
    implied_layout,
    in_flight,
    parse_layout,
    passes,
    problems,
    schedule,
    stages,
)

GOLDEN = Parallel(tp=2, pp=4, ep=16, dp=8, micro_batches=64, layout="Et*2|(tt|)*5t|tmL")
GOLDEN_SHAPE = Shape(
    heads=128, num_layers=14, ffn=18432, moe_ffn=2048, shared_ffn=2048, num_experts=64, num_mtp=1, seq_len=4096,
    global_batch=512,
)  # fmt: skip
SMALL = st.integers(1, 6)


@st.composite
def pipelines(draw: st.DrawFn) -> Parallel:
    p, v = draw(SMALL), draw(st.integers(1, 4))
    g = draw(st.integers(p, 2 * p))
    rest = draw(st.sampled_from([0, *range(p, g)]))
    m = draw(st.integers(1, 4)) * g + rest
    return Parallel(pp=p, virtual_stages=v if p > 1 else 1, group_size=g, micro_batches=m)


def test_the_golden_run_is_legal_and_laid_out_as_megatron_does() -> None:
    assert problems(GOLDEN, GOLDEN_SHAPE) == ()
    assert (GOLDEN.world, GOLDEN.dense_dp, GOLDEN.expert_dp, GOLDEN.chunks) == (64, 8, 1, 2)
    held = stages(GOLDEN, 14, 1)
    assert held[0] == (Chunk(True, 0, 2, 0, False), Chunk(False, 8, 2, 0, False))
    assert held[3] == (Chunk(False, 6, 2, 0, False), Chunk(False, 13, 1, 1, True))
    assert [in_flight(GOLDEN, stage) for stage in range(4)] == [11, 9, 7, 5]
    assert set(busiest_passes(GOLDEN, 3)) == {Pass(way, at, beside=(4, 0)) for way in (True, False) for at in (0, 1)}


def test_the_published_deepseek_v3_layout_has_61_layers_on_16_stages() -> None:
    published = Parallel(pp=16, ep=64, dp=128, micro_batches=120, layout="Et*3|(tttt|)*14ttmL")
    shape = GOLDEN_SHAPE._replace(num_layers=61, num_experts=256, global_batch=15360)
    assert problems(published, shape) == ()
    assert (published.world, published.expert_dp) == (2048, 2)
    assert [sum(chunk.num_layers for chunk in stage) for stage in stages(published, 61, 1)] == [3, *[4] * 14, 2]


@given(pipelines())
def test_in_flight_is_megatrons_warm_up_plus_one(parallel: Parallel) -> None:
    p, m, v, g = parallel.pp, parallel.micro_batches, parallel.virtual_stages, parallel.group
    for stage in range(p):
        kept = in_flight(parallel, stage)
        warm_up = p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * g
        assert kept == min(m * v, warm_up + 1)
        assert kept <= m * v
        assert stage == 0 or kept <= in_flight(parallel, stage - 1)


@given(pipelines())
def test_the_schedule_does_every_pass_once_forward_first(parallel: Parallel) -> None:
    everything = {(chunk, m) for chunk in range(parallel.virtual_stages) for m in range(parallel.micro_batches)}
    for stage in range(parallel.pp):
        open_passes: set[tuple[int, int]] = set()
        done: Counter[tuple[int, int]] = Counter()
        most = 0
        for step in schedule(parallel, stage):
            at = step.chunk, step.micro_batch
            if step.forward:
                open_passes.add(at)
                most = max(most, len(open_passes))
            else:
                open_passes.remove(at)
                done[at] += 1
        assert (set(done), set(done.values()), open_passes) == (everything, {1}, set())
        assert most == in_flight(parallel, stage)


@given(pipelines(), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_the_busiest_passes_hold_the_worst_of_the_whole_schedule(parallel: Parallel, bytes_of: list[int]) -> None:
    """Whatever each chunk keeps: a few rounds, and of them the ends of runs, are enough."""

    def kept(at: Pass) -> int:
        return sum(map(int.__mul__, at.beside, bytes_of))

    longer = parallel._replace(micro_batches=parallel.micro_batches + 12 * parallel.group)
    for stage in range(parallel.pp):
        whole, busiest = set(passes(longer, stage)), busiest_passes(longer, stage)
        assert whole.issuperset(busiest)
        assert not any(covers(other, at) for other in busiest for at in busiest if other != at)
        for way, chunk in {at[:2] for at in whole}:
            of_all, of_few = (max(kept(at) for at in some if at[:2] == (way, chunk)) for some in (whole, busiest))
            assert of_all == of_few


def test_a_million_micro_batches_in_one_group_are_followed_by_their_runs() -> None:
    """Stage 0 of 3, 3 chunks, one group: every micro-batch goes through chunk 0, then chunk 1, 4 into chunk 2, by hand.

    Then chunk 2 goes forward and back by turns until all are through it.
    """
    m = 10**6
    found = busiest_passes(Parallel(pp=3, virtual_stages=3, micro_batches=m, group_size=m), 0)
    assert [at for at in found if at.forward] == [
        Pass(True, 0, (m - 1, 0, 0)),
        Pass(True, 1, (m, m - 1, 0)),
        Pass(True, 2, (m, m, 4)),
    ]
    assert [at for at in found if not at.forward] == [
        Pass(False, 2, (m, m, 4)),
        Pass(False, 1, (m, m - 1, 0)),
        Pass(False, 0, (m - 1, 0, 0)),
    ]


def test_a_layout_of_more_parts_than_are_priced_is_refused() -> None:
    def refused(parts: int) -> list[str]:
        layout = f"Et*4{'|' * (parts - 1)}L"
        parallel = Parallel(pp=2, ep=1, micro_batches=8, layout=layout)
        return [problem.text for problem in problems(parallel, Shape(heads=4, num_layers=4))]

    assert refused(1024) == []
    assert refused(1026) == [
        "pipeline_layout has 1,026 parts, and at most 1,024 are priced; leave out parts without layers"
    ]


def covers(other: Pass, at: Pass) -> bool:
    same = (other.forward, other.chunk) == (at.forward, at.chunk)
    return same and all(map(int.__ge__, other.beside, at.beside))


def test_interleaved_passes_of_the_last_of_two_stages() -> None:
    """Typed from the schedule of two micro-batches: chunk 0 never goes back while chunk 1 keeps anything."""
    two = Parallel(pp=2, virtual_stages=2, micro_batches=2)
    assert [(at.forward, at.chunk, at.beside) for at in passes(two, 1)] == [
        (True, 0, (0, 0)),
        (True, 0, (1, 0)),
        (True, 1, (2, 0)),
        (False, 1, (2, 0)),
        (True, 1, (2, 0)),
        (False, 1, (2, 0)),
        (False, 0, (1, 0)),
        (False, 0, (0, 0)),
    ]


@given(pipelines(), st.integers(1, 5), st.integers(0, 2))
def test_stages_hold_every_layer_once_in_order(parallel: Parallel, each: int, num_mtp: int) -> None:
    layers = parallel.pp * parallel.virtual_stages * each
    held = stages(parallel, layers, num_mtp)
    in_order = [stage[chunk] for chunk in range(parallel.virtual_stages) for stage in held]
    assert [index for chunk in in_order for index in chunk.layers] == list(range(layers))
    assert sum(chunk.num_mtp for chunk in in_order) == num_mtp == in_order[-1].num_mtp
    assert [chunk.embedding for chunk in in_order].count(True) == 1 == [chunk.loss for chunk in in_order].count(True)


def test_uneven_ends() -> None:
    uneven = Parallel(pp=4, first_layers=3, last_layers=2)
    assert [stage[0].num_layers for stage in stages(uneven, 13)] == [3, 4, 4, 2]
    interleaved = Parallel(pp=3, virtual_stages=2, micro_batches=3, last_layers=2)
    assert [[chunk.num_layers for chunk in stage] for stage in stages(interleaved, 10)] == [[2, 2], [2, 2], [1, 1]]
    assert [chunk.first for stage in stages(interleaved, 10) for chunk in stage] == [0, 5, 2, 7, 4, 9]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Ettt|(tt|)*29,m|L", ("Ettt", *["tt"] * 29, "m", "L")),
        ("E|t*3|L", ("E", "ttt", "L")),
        ("E|||tL", ("E", "", "", "tL")),
        ("E|*3tL", ("E", "", "", "tL")),
        ("E(t|t)*2L", ("Et", "tt", "tL")),
    ],
)
def test_layout_strings(text: str, parts: tuple[str, ...]) -> None:
    assert parse_layout(text) == parts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Etx|L", "pipeline_layout: 'Etx|L': at character 3, 'x': nothing of that name goes into a stage"),
        ("E(tt|*5L", "at character 2, '(': this parenthesis is never closed"),
        ("E(t(t))*2", "at character 4, '(': a group holds letters and | only: repeats do not nest"),
        ("E(tt|)tL", "at character 6, ')': a group is followed by * and the number of repeats"),
        ("Et*|L", "at character 3, '*': * is followed by the number of repeats, 1 or more"),
        ("Et*0|L", "at character 3, '*': * is followed by the number of repeats, 1 or more"),
        ("Et*999999|L", "makes more than 100000 parts"),
        ("*2", "at character 1, '*': nothing of that name"),
        ("Et*٣L", "at character 3, '*': * is followed by the number of repeats"),
    ],
)
def test_layout_errors_quote_the_text_and_the_place(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert said in str(caught.value)
    assert "t (transformer layer)" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "shape", "text"),
    [
        ({"tp": 3}, {"seq_len": None}, "heads (128) is not divisible by tp (3); change tp to 2"),
        ({"ep": 12, "dp": 6}, {"global_batch": None}, "experts (64) is not divisible by ep (12); change ep to 8"),
        ({"ep": 64}, {}, "16 ranks do not split into groups of ep 64 x etp 1 = 64; change ep to 16 or dp to 32"),
        ({}, {"seq_len": 4095}, "seq_len 4095 does not split over sp 1 x tp 2; change seq_len to 4096 or 4094"),
        ({}, {"global_batch": 256}, "= 512, but global_batch is 256; change micro_batches to 32"),
        ({}, {"global_batch": 500}, "change global_batch to 504 and micro_batches to match"),
        ({"micro_batches": 2}, {"global_batch": None}, "change micro_batches to 4 or more"),
        ({"micro_batches": 6}, {"global_batch": None}, "holds 2, fewer than pp 4; change micro_batches to 4 or 8"),
        ({"group_size": 3}, {}, "micro_batch_group 3 is below pp 4; change micro_batch_group to 4 or more"),
        ({"layout": None, "group_size": 4}, {}, "only an interleaved schedule has groups of micro-batches, and"),
        ({"pp": 3}, {}, "pipeline_layout has 8 parts, which pp 3 does not divide; change pp to 2 or add parts"),
        ({"virtual_stages": 4}, {}, "pp 4 x virtual_stages 4 are 16; change virtual_stages to 2"),
        ({}, {"num_layers": 15}, "pipeline_layout has 14 t, the model 15 layers; write 15 t"),
        ({}, {"num_mtp": 0}, "pipeline_layout has 1 m, the model 0 MTP modules; write 0 m"),
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


def test_stages_refuse_what_does_not_split() -> None:
    with pytest.raises(InputError, match="61 layers do not split over pp 64 x virtual_stages 1; change pp to 61, or"):
        stages(Parallel(pp=64), 61)


def test_layers_that_do_not_divide_are_laid_out_as_even_as_can_be() -> None:
    held = stages(Parallel(pp=4), 27, 1)
    assert [[chunk.num_layers for chunk in chunks] for chunks in held] == [[7], [7], [7], [6]]
    assert (held[-1][-1].num_mtp, held[-1][-1].loss, held[0][0].embedding) == (1, True, True)
    assert held == stages(Parallel(pp=4, layout="Ettttttt|ttttttt|ttttttt|ttttttmL"), 27, 1)
    assert implied_layout(Parallel(pp=4), 27, 1) == "Ettttttt|(ttttttt|)*2ttttttmL"
    assert implied_layout(Parallel(pp=3), 27, 0) is None
    assert implied_layout(Parallel(pp=4, last_layers=3), 27, 0) is None
