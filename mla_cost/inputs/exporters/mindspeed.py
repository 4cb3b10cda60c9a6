"""MindSpeed-LLM's arguments of a plan (Ascend/MindSpeed-LLM@c77308a1): Megatron's, with words of its own."""

from __future__ import annotations

from typing import Any, Final

from mla_cost.declared.foreign import CONTEXT_PARALLEL_ALGORITHMS, HYBRID
from mla_cost.inputs.exporters.exported import ExportedLaunch, Exporter
from mla_cost.inputs.exporters.megatron import Words, said, script, words_of


def _own_words(launch: ExportedLaunch) -> Words:
    told, model = launch.settings, launch.model
    if model.num_routed_experts:
        yield "--first-k-dense-replace", str(model.num_dense_layers or 0)
        yield "--moe-layer-freq", "1"
        yield "--n-shared-experts", str(model.num_shared_experts or 0)
        yield "--moe-token-dispatcher-type", "alltoall"
    if told.sp > 1 and told.scheme in CONTEXT_PARALLEL_ALGORITHMS.values():
        algorithm = next(word for word, name in CONTEXT_PARALLEL_ALGORITHMS.items() if name == told.scheme)
        yield "--context-parallel-algo", algorithm
        if told.scheme == HYBRID and told.sp_inside:
            yield "--ulysses-degree-in-cp", str(told.sp_inside)
    yield ("--use-fused-rmsnorm",)
    yield "--transformer-impl", "local"


def _write(launch: ExportedLaunch) -> tuple[str, frozenset[str]]:
    told = launch.settings
    exchanged = told.sp == 1 or told.scheme in CONTEXT_PARALLEL_ALGORITHMS.values()
    found = said(launch) - {"scheme", "dispatcher", "shared_overlap", "rope_fusion", "cross_entropy"}
    words: list[tuple[str, ...]] = [*words_of(launch), *_own_words(launch)]
    found |= {"scheme"} if exchanged else set()
    found |= {"sp_inside"} if told.scheme == HYBRID else set()
    return script(launch, iter(words)), frozenset(found)


EXPORTER: Final[Any] = Exporter("mindspeed", "MindSpeed-LLM", trains=True, write=_write)
