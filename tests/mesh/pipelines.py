"""Pipelines that the usual schedules take."""

from __future__ import annotations

from hypothesis import strategies as st

from mla_cost.mesh.degrees import Parallel

SMALL = st.integers(1, 6)


@st.composite
def pipelines(draw: st.DrawFn) -> Parallel:
    p, v = draw(SMALL), draw(st.integers(1, 4))
    g = draw(st.integers(p, 2 * p))
    rest = draw(st.sampled_from([0, *range(p, g)]))
    m = draw(st.integers(1, 4)) * g + rest
    return Parallel(pp=p, virtual_stages=v if p > 1 else 1, group_size=g, num_micro_batches=m)
