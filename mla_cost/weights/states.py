"""Bytes of weights, gradients and optimizer on one rank, by the rows of a sharding and of an optimizer.

Sources: Megatron-Core at d98e8a64: models/gpt/gpt_model.py (what a stage holds), transformer/multi_latent_attention.py
(duplicated down-projections), optimizer/distrib_optimizer.py. What each way to shard does is in its declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.declared.states import (
    GRADIENTS,
    MASTER,
    MOMENTS,
    OPTIMIZER,
    PARTIAL,
    WEIGHTS,
    Gathering,
    Optimizer,
    Sharding,
)
from mla_cost.errors import InputError
from mla_cost.inputs.config import ModelConfig
from mla_cost.language.machine import DTYPE_BYTES
from mla_cost.language.numbers import ceil_divide
from mla_cost.mesh.degrees import Parallel
from mla_cost.mesh.legality import Shape
from mla_cost.weights.held import Flat, Holder, RankParameters

FULL: Final = "fp32"  # what an optimizer computes in


class StateSettings(NamedTuple):
    """How states are kept.

    sharding, optimizer: by the names of their rows. dtype: of weights that state none of their own. main_dtype: of
    master weights, `int16` for the lower halves of fp32 ones. sharded_down: down-projections are split over tp instead
    of whole on each rank. megatron_sp: gradients of weights whole over tp are left partial. replicas, given_back,
    ahead: of a sharding that splits weights: copies of all parts, whether what forward gathered is given back, units
    gathered before their turn. offload: per cent of a rank's part that is updated on its host.
    """

    sharding: str = defaults.SHARDING
    optimizer: str = defaults.OPTIMIZER
    dtype: str = "bf16"
    gradient_dtype: str = FULL
    moment_dtype: str = FULL
    main_dtype: str = FULL
    sharded_down: bool = False
    megatron_sp: bool = True
    replicas: int = 1
    given_back: bool = True
    ahead: int = 0
    to_owners: bool = False
    offload: int = 0

    @property
    def gathering(self) -> Gathering | None:
        """What is alive beside activations while weights are gathered; None where every rank has them whole."""
        gathers = self.row.gathers
        return None if gathers is None else gathers(self.given_back, self.ahead, self.replicas > 1)

    @property
    def row(self) -> Sharding:
        """The row of the sharding that runs at these dtypes."""
        row = SHARDINGS[self.sharding].running(self.dtype, self.gradient_dtype)
        return row.reduced_to_owners() if self.to_owners else row

    @property
    def tensors(self) -> Optimizer:
        """The row of the optimizer."""
        return OPTIMIZERS[self.optimizer]

    def master_dtype(self, weight_dtype: str) -> str | None:
        """Of a master weight that is held beside the weight itself; None where the weight is its own.

        fp32 weights are (NVIDIA/Megatron-LM@d98e8a64 optimizer/distrib_optimizer.py:466-469), but some clone them.
        """
        if self.row.whole_dtype:
            return None
        return None if weight_dtype == FULL and not self.row.clones else self.main_dtype


DEFAULTS: Final = StateSettings()


class StateItem(NamedTuple):
    """One line of a rank's states: `moments`, of the dense or the expert weights; padding included and named.

    elements of all `ranks` that share it (1: the rank has it whole) at `size` bytes each, and padding.
    """

    name: str
    holder: Holder
    bytes: int
    padding_bytes: int = 0
    elements: int = 0
    size: int = 0
    ranks: int = 1


class States(NamedTuple):
    """Bytes on one rank.

    step_bytes: what the optimizer step makes beside what is held, when no activation is alive any more; of it
    making_bytes for the update of a matrix. host_bytes: on the rank's host; to_host, from_host: sent in a step.
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
    making_bytes: int = 0
    host_bytes: int = 0
    to_host_bytes: int = 0
    from_host_bytes: int = 0

    @property
    def optimizer_bytes(self) -> int:
        """Master weights and what the optimizer keeps for itself."""
        return self.master_bytes + self.moment_bytes

    @property
    def total(self) -> int:
        """All that is held between steps, after the first."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.buffer_bytes


def weights_alone(weight_bytes: int) -> States:
    """What stands where nothing is trained by an optimizer: weights, whose gradients are tensors like any other."""
    return States(weight_bytes, 0, 0, 0, 0, 0, ())


def shape_of(
    config: ModelConfig,
    settings: StateSettings = DEFAULTS,
    *,
    seq_len: int | None = None,
    micro_batch_size: int = 1,
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
        micro_batch_size=micro_batch_size,
    )


def states(held: RankParameters, parallel: Parallel, settings: StateSettings = DEFAULTS) -> States:
    """Bytes of weights, gradients and the optimizer's states on that rank.

    Raises:
        InputError: a sharding that no pipeline has.

    """
    require(parallel, settings)
    items = tuple(item for flat in held.trained for item in _items(flat, parts_of(flat, parallel, settings), settings))
    making = _making(held, parallel, settings)
    host = _on_host(held, parallel, settings)
    return States(
        weight_bytes=_named(items, WEIGHTS),
        gradient_bytes=_named(items, GRADIENTS) + _named(items, PARTIAL),
        master_bytes=_named(items, MASTER),
        moment_bytes=_named(items, MOMENTS),
        buffer_bytes=sum(flat.elements * DTYPE_BYTES[flat.dtype] for flat in held.untrained),
        padding_bytes=sum(item.padding_bytes for item in items),
        items=items,
        step_bytes=making
        + sum(_copied_gradients(flat, parts_of(flat, parallel, settings), settings) for flat in held.trained),
        making_bytes=making,
        host_bytes=host.kept,
        to_host_bytes=host.sent,
        from_host_bytes=host.back,
    )


class _OnHost(NamedTuple):
    """Bytes on a rank's host, and those that cross to it and back in a step."""

    kept: int = 0
    sent: int = 0
    back: int = 0


def _on_host(held: RankParameters, parallel: Parallel, settings: StateSettings) -> _OnHost:
    row = settings.row.offload
    if not settings.offload or row is None:
        return _OnHost()
    away = [(_line(flat, parallel, settings).away(MASTER, flat.elements), flat.dtype) for flat in held.trained]
    count = sum(elements for elements, _ in away)
    back = sum(elements * DTYPE_BYTES[dtype] for elements, dtype in away)
    return _OnHost(count * row.host, count * row.to_host, back)


def _line(flat: Flat, parallel: Parallel, settings: StateSettings) -> _Line:
    return _Line(flat, parts_of(flat, parallel, settings), settings.row, settings.offload)


def _making(held: RankParameters, parallel: Parallel, settings: StateSettings) -> int:
    """What the update of the largest dense matrix has alive; experts' are smaller, and one is updated at a time."""
    making = settings.tensors.making
    if making is None:
        return 0
    matrices = {piece for flat in held.only("dense").trained for piece, _ in flat.pieces if piece.matrix}
    return max((making(each.rows, each.elements // each.rows, parallel.tp) for each in matrices), default=0)


def bucket_bytes(settings: StateSettings) -> int:
    """The buffer that gradients are reduced through, alive through every backward; 0 where there is none."""
    return settings.row.bucket_elements * DTYPE_BYTES[settings.dtype]


def sharding_problem(parallel: Parallel, settings: StateSettings) -> str:
    """Why states cannot be shared that way at these degrees, with the way out; empty where they can."""
    if parallel.pp > 1 and settings.row.one_stage:
        return settings.row.one_stage.format(pp=parallel.pp)
    if settings.row.whole_dtype and settings.main_dtype != FULL:
        return (
            f"sharding {settings.sharding} keeps weights in fp32 and none beside them; change main_weights to fp32, or "
            "sharding to distributed"
        )
    if settings.offload and _offload_problem(settings):
        return _offload_problem(settings)
    whole = settings.tensors.whole
    if whole and settings.sharding not in whole:
        return (
            f"optimizer {settings.optimizer} updates whole matrices, which sharding {settings.sharding} cuts; change "
            f"sharding to {' or '.join(reversed(whole))}"
        )
    return _replicas_problem(parallel, settings) if settings.replicas > 1 else ""


def _offload_problem(settings: StateSettings) -> str:
    """Why no optimizer of that kind runs on the host."""
    row, given_up = settings.row.offload, "change optimizer_offload to 0"
    if row is None:
        others = " or ".join(name for name, each in SHARDINGS.items() if each.offload is not None)
        return f"optimizer_offload is priced with sharding {others}, and it is {settings.sharding}; {given_up}"
    for field, has, wanted in (
        ("optimizer", settings.optimizer, row.optimizer),
        ("moment_dtype", settings.moment_dtype, row.moment_dtype),
        ("main_weights", settings.main_dtype, row.main_dtype),
    ):
        if has != wanted:
            return f"the optimizer on the host has {field} {wanted} only; use that, or {given_up}"
    return ""


def _replicas_problem(parallel: Parallel, settings: StateSettings) -> str:
    count, groups = settings.replicas, {"dp x sp": parallel.dense_dp, "expert_dp": parallel.expert_dp}
    if settings.row.gathers is None:
        others = " or ".join(name for name, row in SHARDINGS.items() if row.gathers is not None)
        return f"replicas {count} are those of sharding {others}, and it is {settings.sharding}; change replicas to 1"
    wrong = next((f"{axis} ({size})" for axis, size in groups.items() if size % count), None)
    return f"replicas {count} do not divide the ranks of {wrong}; change replicas to 1" if wrong else ""


def require(parallel: Parallel, settings: StateSettings) -> None:
    """Nothing, where states can be shared that way.

    Raises:
        InputError: where they cannot.

    """
    wrong = sharding_problem(parallel, settings)
    if wrong:
        raise InputError(wrong)


def ranks_of(flat: Flat, parallel: Parallel) -> int:
    """The ranks that hold the same weights."""
    return parallel.dense_dp if flat.holder == "dense" else parallel.expert_dp


def parts_of(flat: Flat, parallel: Parallel, settings: StateSettings) -> int:
    """Of those ranks, the ones that share them: of one replica."""
    return ranks_of(flat, parallel) // settings.replicas


def padded_elements(flat: Flat, ranks: int, row: Sharding) -> int:
    """Elements of a buffer after padding so that `ranks` share equally."""
    if row.by_weight and flat.pieces:
        return sum(count * piece.padded(ranks) for piece, count in flat.pieces)
    return row.padded_elements(flat.elements, ranks)


def _items(flat: Flat, ranks: int, settings: StateSettings) -> Iterator[StateItem]:
    """Every state of one buffer."""
    line = _Line(flat, ranks, settings.row, settings.offload)
    weight, gradient = DTYPE_BYTES[flat.dtype], DTYPE_BYTES[settings.gradient_dtype]
    if settings.row.whole_dtype:
        weight = gradient = DTYPE_BYTES[FULL]
    master = settings.master_dtype(flat.dtype)
    yield line.of(WEIGHTS, flat.elements, weight)
    yield line.of(GRADIENTS, flat.elements, gradient)
    if settings.row.partial:
        yield line.of(PARTIAL, flat.elements, weight)
    yield line.of(MASTER, flat.elements, DTYPE_BYTES[master] if master else 0)
    for elements, size in _kept(flat, settings):
        yield line.of(MOMENTS, elements, size)


def _kept(flat: Flat, settings: StateSettings) -> Iterator[tuple[int, int]]:
    """For how many weights an optimizer keeps its tensors, and their bytes per weight."""
    sizes = {"all": 0, "matrices": 0, "others": 0}
    for tensor in settings.tensors.tensors:
        sizes[tensor.of] += DTYPE_BYTES[tensor.dtype or settings.moment_dtype]
    counts = {"all": flat.elements, "matrices": flat.matrices, "others": flat.elements - flat.matrices}
    yield from ((counts[which], size) for which, size in sizes.items() if size)


class _Line(NamedTuple):
    """The states of one buffer under a row, so many per cent of its optimizer's on the host."""

    flat: Flat
    ranks: int
    row: Sharding
    offload: int = 0

    def of(self, state: str, elements: int, size: int) -> StateItem:
        """One state of so many weights: a part of the padded buffer, all of it, or the weights alone."""
        ranks = self.ranks if state in self.row.split else 1
        kept, least = self._part(state, elements), ceil_divide(elements, ranks)
        padding, away = kept - least, self.away(state, elements)
        return StateItem(
            state, self.flat.holder, (kept - away) * size, min(padding, kept - away) * size, elements, size, ranks
        )

    def away(self, state: str, elements: int) -> int:
        """Of a rank's part of so many weights, those whose state is on the host; one whole weight more in truth."""
        if state not in OPTIMIZER:
            return 0
        return ceil_divide(self._part(state, elements) * self.offload, 100)

    def _part(self, state: str, elements: int) -> int:
        if state not in self.row.split | self.row.padded:
            return elements
        ranks = self.ranks if state in self.row.split else 1
        return padded_elements(self.flat._replace(elements=elements), self.ranks, self.row) // ranks


def _copied_gradients(flat: Flat, ranks: int, settings: StateSettings) -> int:
    """The step casts its part of gradients for main weights in fp32; the fused Adam of remainders reads bf16.

    Megatron-Core at d98e8a64: optimizer/distrib_optimizer.py:2746-2792, `_copy_model_grads_to_main_grads`.
    """
    main = settings.master_dtype(flat.dtype) or flat.dtype
    if settings.row.whole_dtype:
        return 0
    if settings.gradient_dtype == FULL or main != FULL:
        return 0
    return _Line(flat, ranks, settings.row, settings.offload).of(MOMENTS, flat.elements, DTYPE_BYTES[FULL]).bytes


def _named(items: Iterable[StateItem], name: str) -> int:
    return sum(item.bytes for item in items if item.name == name)
