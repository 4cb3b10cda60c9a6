"""Every layer on one stage, in order; layouts as even as can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_cost.errors import InputError
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.placement import implied_layout, stages
from tests.mesh.pipelines import pipelines


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
    interleaved = Parallel(pp=3, virtual_stages=2, num_micro_batches=3, last_layers=2)
    assert [[chunk.num_layers for chunk in stage] for stage in stages(interleaved, 10)] == [[2, 2], [2, 2], [1, 1]]
    assert [chunk.first for stage in stages(interleaved, 10) for chunk in stage] == [0, 5, 2, 7, 4, 9]


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
