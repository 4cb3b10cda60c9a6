"""What is so by construction of a whole model, and where to go on from its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mla_cost.declared.layers import LAYERS
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.profiles import PROFILES
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE
from mla_cost.mesh.placement import implied_layout
from mla_cost.mesh.schedule import idle
from mla_cost.pricing.compile import saved
from mla_cost.pricing.stage_cost import StageCost
from mla_cost.pricing.whole_model import parallel_of, state_settings

FUSED = TABLE["moe_style"].default
MTP_PARTS = "several multi-token-prediction modules, and one apart from the loss, are priced from their parts"


def model_notes(model: ModelConfig, settings: PlanSettings, costs: Sequence[StageCost]) -> Iterator[str]:
    """What a reader of a whole model's row has to know of its parts and its layout."""
    yield from _parts(costs)
    yield from _stated_parts(costs)
    yield from _spread(settings)
    if state_settings(settings).row.whole_dtype:
        yield (
            f"sharding {settings.sharding}: a rank keeps its parts of weights and gradients in fp32; dtype is that in "
            "which weights are gathered, gradient_dtype that in which gradients are summed over ranks"
        )
    if OPTIMIZERS[settings.optimizer].note:
        yield OPTIMIZERS[settings.optimizer].note
    yield from _laid_out(model, settings)
    yield from _scheduled(settings)


def _spread(settings: PlanSettings) -> Iterator[str]:
    """Where to go on from a model that nothing spreads over ranks."""
    if settings.tp == settings.pp == settings.ep == settings.dp == 1:
        yield (
            "every rank holds the whole model: spread it with --tp, --pp, --ep and --dp; `mla-cost search --devices N` "
            "ranks the ways to, `mla-cost fit` tells the fewest devices that hold it, `mla-cost plans` layouts to "
            "start from, --scope attention prices one block"
        )


def _parts(costs: Sequence[StageCost]) -> Iterator[str]:
    """What is so by construction, of the parts that the model has."""
    yield from _experts_fused(costs)
    chunks = [chunk for cost in costs for chunk in cost.chunks]
    if any(chunk.num_mtp > 1 or (chunk.num_mtp and not chunk.loss) for chunk in chunks):
        yield MTP_PARTS


def _experts_fused(costs: Sequence[StageCost]) -> Iterator[str]:
    """What the other styles keep more, where the router and the rows of experts are one op each."""
    segments = (segment for cost in costs for chunk in cost.costs for segment in chunk.segments)
    point = next((it.point for it in segments if LAYERS[it.point.key.layer].experts), None)
    if point is None or point.key.moe_style != FUSED or PROFILES[point.key.profile].texts:
        return
    kept = {style: saved(point.key._replace(moe_style=style)).at(point.values) for style in TABLE["moe_style"].values}
    others = [f"{(kept[style] - kept[FUSED]) / 2**30:,.2f} GiB as {style} has it" for style in kept if style != FUSED]
    yield (
        "router and rows of experts are one fused op each, by construction; written op by op (--moe-style), a layer "
        f"keeps for a micro-batch more: {', '.join(others)}"
    )


def _laid_out(model: ModelConfig, settings: PlanSettings) -> Iterator[str]:
    """The layout that was taken where layers do not divide over the stages and none was stated."""
    layers = model.num_layers or 0
    layout = implied_layout(parallel_of(settings), layers, model.num_mtp_layers or 0)
    if layout is not None:
        over = f"pp {settings.pp}" + (f" x virtual_stages {settings.virtual_stages}" * (settings.virtual_stages > 1))
        yield (
            f"{layers} layers do not divide over {over}: taken as even as can be, the ends with the fewer, which is "
            f"--pipeline-layout '{layout}'; state another one to have it otherwise"
        )


def _scheduled(settings: PlanSettings) -> Iterator[str]:
    """What the schedule that was asked for costs in time."""
    if settings.schedule is not None:
        waits, taken = idle(parallel_of(settings))
        share = f"{waits:,} of {taken:,} slots ({100 * waits / taken:.1f} %)"
        yield f"schedule {settings.schedule}: a stage waits in {share}, were all passes alike"


def _stated_parts(costs: Sequence[StageCost]) -> Iterator[str]:
    """What layers hold that only the user's own bytes describe."""
    keys = [segment.point.key for cost in costs for chunk in cost.costs for segment in chunk.segments]
    if any(key.mixer == "other" for key in keys):
        yield (
            "layers without MLA keep the bytes that were stated for them (facts.other_layer_bytes); what their token "
            "mixer has alive for a moment, runs and sends is not counted"
        )
    if any(key.indexer == "own" for key in keys):
        yield (
            "indexers keep the bytes that were stated for them (facts.indexer_layer_bytes); attention to the tokens "
            "that they choose is priced as attention to all"
        )
