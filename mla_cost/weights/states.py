"""Bytes of weights, gradients and optimizer on one rank, and what keeping them equal sends each optimizer step.

Sources: Megatron-Core at d98e8a64: models/gpt/gpt_model.py (what a stage holds), transformer/multi_latent_attention.py
(duplicated down-projections), optimizer/param_layout.py (padding of buckets), optimizer/distrib_optimizer.py,
distributed/finalize_model_grads.py (gradients summed over tp and over embedding copies). DeepSpeed at edaa7221, under
deepspeed/runtime: zero/stage_1_and_2.py (padding 377, buckets 2493-2514, all-reduce 1314-1348, 1437-1460), engine.py
(ZeRO-2 reduces every micro-batch, ZeRO-1 the last one, 2903-2914; which optimizer runs, 1994-1997), bf16_optimizer.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import lcm
from typing import Final, Literal, NamedTuple

from mla_cost.errors import InputError
from mla_cost.inputs.config import ModelConfig
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import Shape
from mla_cost.mesh.placement import Chunk
from mla_cost.weights.parameters import (
    LayerKind,
    Weight,
    embedding_weight,
    final_norm_weight,
    head_weight,
    layer_kinds,
    layer_weights,
    mtp_weights,
)

Sharding = Literal["ddp", "distributed", "zero1", "zero2"]
Holder = Literal["dense", "expert"]
BUCKET_SOURCE: Final = (
    "deepspeedai/DeepSpeed@edaa7221 runtime/zero/stage_1_and_2.py:156, 2493-2514 (setup_buckets): reduce_bucket_size "
    "elements of the weights' dtype, without overlap_comm"
)
PARTIAL: Final = "gradients of a micro-batch"  # in the weights' dtype, beside those that they are added to
_BUFFER_BYTES: Final = 4  # routers keep their correction bias in fp32


class StateSettings(NamedTuple):
    """How states are kept. Bytes are per element.

    sharding: `ddp` keeps all on every rank; `distributed` (Megatron's distributed optimizer) and `zero1` shard the
    optimizer; `zero2` shards gradients as well. gradient_bytes: 4 accumulates in fp32, 2 in bf16. master_bytes: 4, 2
    for the lower halves of fp32, 0 where weights are their own masters. moment_bytes: 4, or 2 for bf16 moments.
    sharded_down: down-projections are split over tp instead of whole on each rank. vocab_multiple: the padded
    vocabulary is a multiple of this times tp. bucket_elements: what ZeRO-2 reduces at once, DeepSpeed's
    reduce_bucket_size. whole_joined: the projection of a module that predicts further ahead is whole on each rank of
    tp, as plain torch has it, and not split.
    """

    sharding: Sharding = "distributed"
    weight_bytes: int = 2
    gradient_bytes: int = 4
    master_bytes: int = 4
    moment_bytes: int = 4
    sharded_down: bool = False
    megatron_sp: bool = True
    vocab_multiple: int = 128
    bucket_elements: int = 500_000_000
    whole_joined: bool = False
    fp16: bool = False

    @property
    def zero(self) -> bool:
        """Whether DeepSpeed shards."""
        return self.sharding in {"zero1", "zero2"}

    @property
    def accumulates(self) -> bool:
        """Whether ZeRO-1 runs as BF16_Optimizer: bf16 weights, their gradients added up in fp32 ones.

        deepspeedai/DeepSpeed@edaa7221 runtime/engine.py:1994-1996.
        """
        bf16 = self.weight_bytes == 2 and not self.fp16
        return self.sharding == "zero1" and bf16 and self.gradient_bytes == 4


DEFAULTS: Final = StateSettings()


class Held(NamedTuple):
    """Elements of one weight on a rank, `part` saying where it belongs: `layer 3`, `mtp 0`, `ends`."""

    part: str
    name: str
    holder: Holder
    elements: int
    over_tp: bool
    shared: bool
    trained: bool


class RankParameters(NamedTuple):
    """Elements that one rank of a stage holds.

    dense, expert: trained weights whose gradients are synchronised over dp x sp and over expert_dp. tp_summed: dense
    weights whole on every rank of tp, whose gradients megatron_sp leaves partial. shared: copies of an embedding that
    another stage holds too. buffers: fp32 elements that no optimizer updates.
    """

    dense: int
    expert: int
    tp_summed: int
    shared: int
    buffers: int

    @property
    def elements(self) -> int:
        """Trained elements."""
        return self.dense + self.expert


class StateItem(NamedTuple):
    """One line of a rank's states: `moments`, of the dense or the expert weights; padding included and named."""

    name: str
    holder: Holder
    bytes: int
    padding_bytes: int = 0


class States(NamedTuple):
    """Bytes on one rank.

    step_bytes: what the optimizer step makes beside what is held, when no activation is alive any more.
    The moments are made by the first optimizer step: before it a run holds `total` less `moment_bytes`.
    """

    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    moment_bytes: int
    buffer_bytes: int
    padding_bytes: int
    items: tuple[StateItem, ...]
    step_bytes: int = 0

    @property
    def optimizer_bytes(self) -> int:
        """Master weights and both moments."""
        return self.master_bytes + self.moment_bytes

    @property
    def total(self) -> int:
        """All that is held between steps, after the first."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes


class StepCollective(NamedTuple):
    """One collective of the optimizer step, for one rank; payload and wire bytes are those of one of its `calls`."""

    kind: Literal["all_reduce", "reduce_scatter", "all_gather"]
    tensor: str
    axis: str
    group_size: int
    calls: int
    payload_bytes: int
    wire_bytes: int
    phase: Literal["step"] = "step"


def shape_of(
    config: ModelConfig,
    settings: StateSettings = DEFAULTS,
    *,
    seq_len: int | None = None,
    micro_batch: int = 1,
    global_batch: int | None = None,
) -> Shape:
    """What the degrees have to divide for `config`, for `mla_cost.mesh.legality.problems`; None asks nothing."""
    experts, ffn = config.num_routed_experts or 0, config.moe_intermediate_size or 0
    latent = config.dims.kv_lora_rank + config.dims.qk_rope_head_dim
    return Shape(
        heads=config.dims.heads,
        num_layers=config.num_layers or 0,
        ffn=0 if experts and config.num_dense_layers == 0 else config.intermediate_size or 0,
        moe_ffn=ffn if experts else 0,
        shared_ffn=(config.num_shared_experts or 0) * ffn,
        num_experts=experts,
        num_mtp=config.num_mtp_layers or 0,
        down_widths=(config.dims.q_lora_rank or 0, latent) if settings.sharded_down else (),
        seq_len=seq_len,
        megatron_sp=settings.megatron_sp,
        global_batch=global_batch,
        micro_batch=micro_batch,
    )


def padded_vocabulary(vocab: int, tp: int, multiple: int = 128) -> int:
    """Tokens after padding to a multiple of `multiple` x tp (Megatron's --make-vocab-size-divisible-by)."""
    step = multiple * tp
    return -(-vocab // step) * step


def rank_parameters(
    config: ModelConfig, parallel: Parallel, chunks: Sequence[Chunk], settings: StateSettings = DEFAULTS
) -> RankParameters:
    """What one rank of the stage that holds `chunks` has of a countable model; legal degrees are assumed.

    A stage with MTP modules and no embedding of its own holds a copy, and so does the last stage of a tied model.
    """
    found = [
        (count, _held("", weight, shared, parallel, settings))
        for count, weight, shared in _counted(config, parallel, chunks)
    ]
    trained = [(count, held) for count, held in found if held.trained]
    return RankParameters(
        dense=_sum((count, held) for count, held in trained if held.holder == "dense"),
        expert=_sum((count, held) for count, held in trained if held.holder == "expert"),
        tp_summed=_sum((count, held) for count, held in trained if held.over_tp),
        shared=_sum((count, held) for count, held in trained if held.shared),
        buffers=_sum((count, held) for count, held in found if not held.trained),
    )


def rank_weights(
    config: ModelConfig, parallel: Parallel, chunks: Sequence[Chunk], settings: StateSettings = DEFAULTS
) -> Iterator[Held]:
    """Every weight that `rank_parameters` counts, layer by layer."""
    weights: dict[LayerKind, tuple[Weight, ...]] = {}
    for index, kind in _layers(config, chunks):
        if kind not in weights:
            weights[kind] = layer_weights(config, kind)
        yield from (_held(f"layer {index}", weight, False, parallel, settings) for weight in weights[kind])
    for index in range(sum(chunk.num_mtp for chunk in chunks)):
        yield from (_held(f"mtp {index}", weight, False, parallel, settings) for weight in mtp_weights(config))
    for weight, shared in _ends(config, parallel, chunks):
        yield _held("ends", weight, shared, parallel, settings)


def states(held: RankParameters, parallel: Parallel, settings: StateSettings = DEFAULTS) -> States:
    """Bytes of weights, gradients and Adam's states on that rank.

    Raises:
        InputError: ZeRO-2 in a pipeline, which DeepSpeed refuses.

    """
    _require(parallel, settings)
    items = tuple(_state_items(held, parallel, settings))
    return States(
        weight_bytes=_named(items, "weights"),
        gradient_bytes=_named(items, "gradients") + _named(items, PARTIAL),
        master_bytes=_named(items, "master weights"),
        moment_bytes=_named(items, "moments"),
        buffer_bytes=held.buffers * _BUFFER_BYTES,
        padding_bytes=sum(item.padding_bytes for item in items),
        items=items,
        step_bytes=_copied_gradients(held, parallel, settings),
    )


def step_collectives(
    held: RankParameters, parallel: Parallel, settings: StateSettings = DEFAULTS
) -> tuple[StepCollective, ...]:
    """What one rank sends per optimizer step to keep weights equal; groups of one rank send nothing and are left out.

    Payload and wire: all-reduce 2 (P - 1) / P x payload; reduce-scatter (P - 1) / P x payload; all-gather (P - 1) x
    payload, the shard. ZeRO-1 and ZeRO-2 all-reduce gradients, and ZeRO-2 those of every micro-batch.
    """
    _require(parallel, settings)
    size = settings.gradient_bytes
    found = [
        _all_reduce("gradients of weights whole over tp", "tp", parallel.tp, held.tp_summed * size),
        _all_reduce("gradients of embedding copies", "pp", _embedding_group(held, parallel), held.shared * size),
    ]
    if not settings.megatron_sp:
        del found[0]
    for holder, elements, group in _holders(held, parallel):
        found += _synchronised(holder, elements, group, parallel, settings)
    return tuple(collective for collective in found if collective.group_size > 1 and collective.payload_bytes)


def bucket_bytes(settings: StateSettings) -> int:
    """The buffer that ZeRO fills with gradients and reduces, alive through every backward; 0 under other shardings.

    It is as wide as the weights and has its full size whatever a rank holds. BF16_Optimizer has none. A second one,
    with overlap_comm, which is off by default, is not counted. Source: `BUCKET_SOURCE`.
    """
    return settings.bucket_elements * settings.weight_bytes if settings.zero and not settings.accumulates else 0


def reduced_bytes(settings: StateSettings, sp: int) -> int:
    """Bytes per element of the gradients that are reduced over dp.

    DeepSpeed reduces in the weights' dtype whatever it accumulates in, in fp32 where a sequence is shared
    (edaa7221 runtime/engine.py:1405-1416, 1857; zero/stage_1_and_2.py:1843-1847; constants.py:306).
    """
    if not settings.zero:
        return settings.gradient_bytes
    return 4 if sp > 1 else settings.weight_bytes


def shard_elements(elements: int, group: int, sharding: Sharding) -> int:
    """Elements of one rank's optimizer shard: the padded whole over the group; without sharding the whole."""
    return elements if sharding == "ddp" else padded_elements(elements, group, sharding) // group


def padded_elements(elements: int, group: int, sharding: Sharding) -> int:
    """Elements after padding so that `group` ranks share equally.

    Megatron pads to lcm(group, 128), here once per buffer: it does so once per bucket and aligns each weight to 64,
    which adds at most lcm(group, 128) elements a bucket. DeepSpeed pads to 2 x group. ddp pads nothing.
    """
    if sharding == "ddp" or not elements:
        return elements
    step = lcm(group, 128) if sharding == "distributed" else 2 * group
    return -(-elements // step) * step


def sharding_problem(parallel: Parallel, settings: StateSettings) -> str:
    """Why states cannot be shared that way at these degrees, with the way out; empty where they can."""
    if settings.sharding != "zero2" or parallel.pp == 1:
        return ""
    return (
        f"zero2 shards gradients as each micro-batch ends, which a pipeline (pp {parallel.pp}) would repeat per "
        "micro-batch, and DeepSpeed refuses it; change sharding to zero1 or distributed, or pp to 1"
    )


def _require(parallel: Parallel, settings: StateSettings) -> None:
    wrong = sharding_problem(parallel, settings)
    if wrong:
        raise InputError(wrong)


def _held(part: str, weight: Weight, shared: bool, parallel: Parallel, settings: StateSettings) -> Held:
    elements = _on_rank(weight, parallel, settings)
    over_tp = parallel.tp > 1 and _is_whole(weight, settings)
    holder: Holder = "expert" if weight.split == "experts" else "dense"
    return Held(part, weight.name, holder, elements, over_tp, shared, weight.trained)


def _counted(config: ModelConfig, parallel: Parallel, chunks: Sequence[Chunk]) -> Iterator[tuple[int, Weight, bool]]:
    """Every weight once for each kind of layer: how many there are, and whether another stage holds a copy."""
    kinds = Counter(kind for _, kind in _layers(config, chunks))
    for kind, count in kinds.items():
        yield from ((count, weight, False) for weight in layer_weights(config, kind))
    modules = sum(chunk.num_mtp for chunk in chunks)
    yield from ((modules, weight, False) for weight in (mtp_weights(config) if modules else ()))
    yield from ((1, weight, shared) for weight, shared in _ends(config, parallel, chunks))


def _layers(config: ModelConfig, chunks: Sequence[Chunk]) -> Iterator[tuple[int, LayerKind]]:
    """The layers of a stage, each with its kind."""
    kinds = layer_kinds(config)
    yield from ((index, kinds[index]) for chunk in chunks for index in chunk.layers)


def _ends(config: ModelConfig, parallel: Parallel, chunks: Sequence[Chunk]) -> Iterator[tuple[Weight, bool]]:
    embeds, loss = any(chunk.embedding for chunk in chunks), any(chunk.loss for chunk in chunks)
    mtp = any(chunk.num_mtp for chunk in chunks)
    copied = parallel.pp > 1 and bool(config.tied_embeddings or config.num_mtp_layers)
    if embeds or mtp or (loss and config.tied_embeddings):
        yield embedding_weight(config), copied
    if loss:
        yield final_norm_weight(config), False
    if loss and not config.tied_embeddings:
        yield head_weight(config), False


def _on_rank(weight: Weight, parallel: Parallel, settings: StateSettings) -> int:
    """Elements of `weight` on one rank; parts that do not divide are rounded up."""
    if _is_whole(weight, settings):
        return weight.elements
    if weight.split == "experts":
        return -(-weight.elements // (parallel.ep * parallel.etp))
    if weight.split == "vocab":
        rows = padded_vocabulary(weight.shape[0], parallel.tp, settings.vocab_multiple)
        return rows // parallel.tp * weight.shape[1]
    return -(-weight.elements // parallel.tp)


def _is_whole(weight: Weight, settings: StateSettings) -> bool:
    whole = {"replicated": True, "down": not settings.sharded_down, "joined": settings.whole_joined}
    return whole.get(weight.split, False)


def _holders(held: RankParameters, parallel: Parallel) -> tuple[tuple[Holder, int, int], ...]:
    return ("dense", held.dense, parallel.dense_dp), ("expert", held.expert, parallel.expert_dp)


def _state_items(held: RankParameters, parallel: Parallel, settings: StateSettings) -> Iterator[StateItem]:
    for holder, elements, group in _holders(held, parallel):
        whole = padded_elements(elements, group, settings.sharding)
        shard = shard_elements(elements, group, settings.sharding)
        buffer = whole if settings.sharding == "distributed" or settings.accumulates else elements
        graded = shard if settings.sharding == "zero2" else buffer
        spare, shard_spare = buffer - elements, shard - -(-elements // group) if shard != elements else 0
        graded_spare = shard_spare if settings.sharding == "zero2" else spare
        yield _item("weights", holder, whole, whole - elements, settings.weight_bytes)
        yield _item("gradients", holder, graded, graded_spare, settings.gradient_bytes)
        if (
            settings.accumulates
        ):  # cleared by the step alone, immediate_grad_update being off (bf16_optimizer.py:69, 387)
            yield _item(PARTIAL, holder, elements, 0, settings.weight_bytes)
        yield _item("master weights", holder, shard, shard_spare, settings.master_bytes)
        yield _item("moments", holder, shard, shard_spare, 2 * settings.moment_bytes)


def _item(name: str, holder: Holder, elements: int, spare: int, size: int) -> StateItem:
    return StateItem(name, holder, elements * size, spare * size)


def _copied_gradients(held: RankParameters, parallel: Parallel, settings: StateSettings) -> int:
    """The step casts a shard of bf16 gradients for fp32 main weights; the fused Adam of remainders reads bf16.

    Megatron-Core at d98e8a64: optimizer/distrib_optimizer.py:2746-2792, `_copy_model_grads_to_main_grads`.
    """
    if settings.gradient_bytes == 4 or (settings.master_bytes or settings.weight_bytes) < 4:
        return 0
    shards = (shard_elements(count, group, settings.sharding) for _, count, group in _holders(held, parallel))
    return 4 * sum(shards)


def _synchronised(
    holder: Holder, elements: int, group: int, parallel: Parallel, settings: StateSettings
) -> Iterator[StepCollective]:
    axis, name = ("dp x sp" if holder == "dense" else "expert_dp"), f"{holder} gradients"
    size, sharding = reduced_bytes(settings, parallel.sp), settings.sharding
    whole = padded_elements(elements, group, sharding)
    shard = whole // group
    sent = (group - 1) * shard
    if sharding == "distributed":
        yield StepCollective("reduce_scatter", name, axis, group, 1, whole * size, sent * size)
    else:  # BF16_Optimizer reduces its flat buffer, padding and all (bf16_optimizer.py:148-154)
        calls = parallel.micro_batches if sharding == "zero2" else 1
        reduced = whole if settings.accumulates else elements
        yield _all_reduce(name, axis, group, reduced * size)._replace(calls=calls)
    if sharding != "ddp":
        payload, wire = shard * settings.weight_bytes, sent * settings.weight_bytes
        yield StepCollective("all_gather", f"{holder} weights", axis, group, 1, payload, wire)


def _all_reduce(tensor: str, axis: str, group: int, payload: int) -> StepCollective:
    """The payload is padded to a multiple of the group before it travels twice."""
    wire = 2 * (group - 1) * -(-payload // group)
    return StepCollective("all_reduce", tensor, axis, group, 1, payload, wire)


def _embedding_group(held: RankParameters, parallel: Parallel) -> int:
    """Stages that hold the embedding: the first and the one with the head or MTP modules."""
    return 2 if held.shared and parallel.pp > 1 else 1


def _named(items: Iterable[StateItem], name: str) -> int:
    return sum(item.bytes for item in items if item.name == name)


def _sum(counted: Iterable[tuple[int, Held]]) -> int:
    return sum(count * held.elements for count, held in counted)
