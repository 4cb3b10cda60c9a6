"""What a model and a device are, as data: frozen, strictly typed, every number bounded, every fact with its source.

The bounds are far above any published model; they exist so that the exact integer arithmetic downstream has a limit.
Few pydantic classes on purpose: building one costs start-up time on every command.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mla_cost.errors import InputError, nearest
from mla_cost.language.numbers import minimum, where

_SHOWN: Final = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$"  # it is printed: nothing that a terminal would act on
Text = Annotated[str, Field(min_length=1, max_length=2000, pattern=_SHOWN)]
Plain = Annotated[str, Field(pattern=_SHOWN)]
Hidden = Annotated[int, Field(ge=1, le=2**20)]
Width = Annotated[int, Field(ge=1, le=2**16)]
RopeWidth = Annotated[int, Field(ge=0, le=2**16, multiple_of=2)]
MOST_LAYERS: Final = 4096  # tens of times the deepest model that is published
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
Vocabulary = Annotated[int, Field(ge=1, le=2**24)]
Tokens = Annotated[int, Field(ge=1, le=2**32)]
Experts = Annotated[int, Field(ge=0, le=2**16)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]
Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Scalar = Plain | bool | int | Number

Family = Literal["cuda", "rocm", "ascend", "cpu"]
ParameterFact = Literal["total_reported", "active_reported", "exact", "derived_main_model", "derived_with_indexer"]
IndexerDim = Literal["index_n_heads", "index_head_dim", "index_topk", "index_kpool"]
CheckpointFact = Literal["mtp_modules", "fp8_block", "inv_freq"]
# what a device reaches of what its sheet promises, in the order of its file; docs/time.md says what each is
TimeFact = Literal[
    "launch_floor_us",
    "host_launch_us",
    "compute_units",
    "peak_fp32_tflops",
    "tile",
    "small_tile_rate",
    "gemm_share",
    "gemm_depth_half",
    "grouped_gemm_share",
    "grouped_gemm_rows_half",
    "grouped_gemm_input_ratio",
    "grouped_gemm_weight_ratio",
    "attention_share",
    "attention_length_half",
    "attention_backward_ratio",
    "memory_share",
    "rope_share",
    "permutation_share",
    "gemm_memory_share",
    "norm_share",
    "softmax_share",
    "copy_share",
    "loss_share",
    "all_gather_share",
    "reduce_scatter_share",
    "all_reduce_share",
    "all_to_all_share",
    "point_to_point_share",
    "dispatch_share",
    "collective_latency_us",
    "step_latency_us",
    "network_share",
    "network_latency_us",
]

FINER: Final = frozenset(
    {"gemm_memory_share", "norm_share", "softmax_share", "copy_share"}
)  # memory_share stands for those not stated
_Frozen: Final = ConfigDict(frozen=True, extra="forbid", strict=True)


class AttentionDims(BaseModel):
    """The widths of one MLA block, in elements; `q_lora_rank` None means that the query comes straight from hidden."""

    model_config = _Frozen

    hidden: Hidden
    heads: Width
    q_lora_rank: Width | None
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: RopeWidth
    v_head_dim: Width

    @property
    def qk_head_dim(self) -> int:
        """The width of a head's query and key: without and with rotation."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_head_dim(self) -> int:
        """The widths of a head's key and value together."""
        return self.qk_head_dim + self.v_head_dim


class ModelConfig(BaseModel):
    """One model: the dims of its MLA block and the published facts that pricing the whole model needs.

    None means that the source does not state the fact or that the model has no such part. `num_layers` counts
    transformer blocks; `num_mla_layers` counts MLA blocks, fewer in hybrid models and more where a block holds two;
    `mla_layers` says which they are, and `mla_layer_indices` lists them from 0 where not every block holds one.
    `parameters` are element counts; `indexer` belongs to sparse attention, which the attention scope does not price,
    and `indexer_layer_indices` lists the layers (from 0) that have their own where the others share it.

    `router_correction_bias`: a bias that only steers the choice of experts; `num_zero_experts` are scored but hold no
    weights. `checkpoint` says what a checkpoint's `parameters.exact` holds beside the main model: MTP modules with
    their own embedding and head, the block of FP8 scales, inv_freq entries per layer. `uncounted_parts` names parts
    of the model that these facts do not describe; `uncounted_parameters` (elements per layer) then stands for them.
    `other_layer_parameters` (elements) and `other_layer_bytes` (saved for backward, per micro-batch and rank) stand
    for the token mixer of one layer that holds no MLA block, `indexer_layer_bytes` (likewise) for the indexer of one
    layer that has its own. These four are the user's own figures. `assumed`: by fact, what was taken
    in place of what the model's file does not state.
    """

    model_config = _Frozen

    name: Text
    title: Text
    hf_id: Text | None = None
    aliases: tuple[Text, ...] = ()
    dims: AttentionDims
    model_type: Text | None = None
    num_layers: Layers | None = None
    num_mla_layers: Layers | None = None
    attention_kind: Text = "mla"
    mla_layers: Text = "all"
    mla_layer_indices: tuple[Annotated[int, Field(ge=0, lt=MOST_LAYERS)], ...] | None = None
    intermediate_size: Hidden | None = None
    moe_intermediate_size: Hidden | None = None
    num_routed_experts: Experts | None = None
    num_shared_experts: Experts | None = None
    num_experts_per_token: Experts | None = None
    num_expert_groups: Experts | None = None
    num_groups_per_token: Experts | None = None
    num_dense_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    num_mtp_layers: Annotated[int, Field(ge=0, le=1000)] | None = None
    router_scores: Literal["sigmoid", "softmax"] | None = None
    router_correction_bias: bool | None = None
    num_zero_experts: Experts | None = None
    vocab_size: Vocabulary | None = None
    max_position_embeddings: Tokens | None = None
    tied_embeddings: bool | None = None
    dtype: Text | None = None
    parameters: dict[ParameterFact, Count] = {}
    parameters_exact_scope: Text | None = None
    checkpoint: dict[CheckpointFact, Count] = {}
    indexer: dict[IndexerDim, Width] | None = None
    indexer_layer_indices: tuple[Annotated[int, Field(ge=0, lt=MOST_LAYERS)], ...] | None = None
    uncounted_parts: Text | None = None
    uncounted_parameters: Count | None = None
    other_layer_parameters: Count | None = None
    other_layer_bytes: Bytes | None = None
    indexer_layer_bytes: Bytes | None = None
    rope: dict[Plain, Scalar] = {}
    traits: dict[Plain, Scalar] = {}
    assumed: dict[Text, Text] = {}
    verified: bool = False
    verified_basis: Text = "not stated"
    unverified_fields: tuple[Text, ...] = ()
    sources: tuple[Text, ...] = ()
    notes: Text | None = None

    @model_validator(mode="after")
    def _layers_agree(self) -> Self:
        indices, count = self.mla_layer_indices, self.num_mla_layers
        if indices is not None and len(indices) != count:
            raise ValueError(f"mla_layer_indices lists {len(indices)} layers, num_mla_layers is {count}")
        if indices and self.num_layers is not None and max(indices) >= self.num_layers:
            raise ValueError(f"mla_layer_indices names layer {max(indices)}, num_layers is {self.num_layers}")
        return self

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        """A token chooses among the experts that there are, and the layers that are dense are among the layers."""
        experts, chosen = self.num_routed_experts, self.num_experts_per_token
        scored = (experts or 0) + (self.num_zero_experts or 0)
        if experts and chosen is not None and chosen > scored:
            what = f"a token cannot choose {chosen} of {scored} experts"
            raise InputError(what, field="num_experts_per_token", allowed=f"0 to {scored}")
        dense, layers = self.num_dense_layers, self.num_layers
        if dense is not None and layers is not None and dense > layers:
            what = f"{dense} dense layers are more than num_layers {layers}"
            raise InputError(what, field="num_dense_layers", allowed=f"0 to {layers}")
        return self

    def is_verified(self, field: str) -> bool:
        """Whether the fact `field` (a field of this class or of `dims`) was read in a published source."""
        return self.verified and field not in self.unverified_fields and field not in self.assumed


SECOND_HAND: Final = "second hand"  # how the text of such a source begins


class Fact(BaseModel):
    """One figure with the key of its source, and whether it was read there (True) or recalled or nominal (False).

    low, high: between which it lies, where it is known as a range around its value.
    """

    model_config = _Frozen

    value: Count | Number | tuple[Count, ...]
    verified: bool
    source: Text
    note: Text | None = None
    low: Count | Number | None = None
    high: Count | Number | None = None

    @property
    def integer(self) -> int:
        """The value as an int; ValueError when the fact is not one whole number."""
        if isinstance(self.value, int):
            return self.value
        raise ValueError(f"not a whole number: {self.value}")


class HighEnd(BaseModel):
    """What a communicator of a library takes at most, by its own source: buffers of every connection that it may make.

    A connection has buffers on each of its channels: `channel_bytes` to a device of the node, `network_channel_bytes`
    beyond. Rings and trees hold `channels` to `peers` others (`network_channels` to `network_peers` where a group does
    not fit in a node); sends and receives hold `p2p_channels` to each other device of the node and one pool
    (`network_pool_bytes`) for those beyond it; switches that reduce hold `multicast_bytes_per_rank` for each rank of a
    node. Bytes.
    """

    model_config = _Frozen

    channel_bytes: Bytes
    network_channel_bytes: Bytes
    channels: Count
    peers: Count
    network_channels: Count
    network_peers: Count
    p2p_channels: Count
    network_pool_bytes: Bytes = 0
    multicast_bytes_per_rank: Bytes = 0

    def bytes_for(self, ranks: Any, node: int, sends: Any = 0) -> Any:
        """Bytes of one communicator of two or more `ranks`, `node` of them in a node, that sends to `sends` others.

        Ranks and sends are numbers or arrays.
        """
        local, beyond = minimum(ranks, node), ranks > node
        within = self.channel_bytes * self.channels * minimum(ranks - 1, self.peers)
        across = self.network_channel_bytes * self.network_channels * minimum(ranks - 1, self.network_peers)
        sending = self.channel_bytes * self.p2p_channels * minimum(sends, local - 1)
        pool = where(beyond & (sends > 0), self.network_pool_bytes, 0)
        multicast = where(local > 1, self.multicast_bytes_per_rank * local, 0)
        return where(beyond, across, within) + sending + pool + multicast


class ReserveItem(BaseModel):
    """Visible memory that tensors cannot have: once per `process`, or once per `communicator` of a process.

    `by_group_size` refines `bytes` for the smaller groups: the entry of the smallest listed size that holds the
    group counts, and `bytes` counts beyond the largest. `high` says what a communicator may take instead: `bytes` is
    then the low end, which a verdict stands on.
    """

    model_config = _Frozen

    name: Text
    bytes: Bytes
    per: Literal["process", "communicator"]
    verified: bool
    source: Text
    note: Text | None = None
    by_group_size: dict[Annotated[int, Field(ge=1, le=2**20)], Bytes] = {}
    high: HighEnd | None = None

    def high_bytes_for(self, group_size: Any, node: int, sends: Any = 0) -> Any:
        """The high end for one communicator on nodes of `node` devices; `bytes_for` where none is stated."""
        low = self.bytes_for(group_size)
        return low if self.high is None else where(group_size <= 1, low, self.high.bytes_for(group_size, node, sends))

    def bytes_for(self, group_size: Any = 1) -> Any:
        """Bytes of this item for one communicator of `group_size` ranks, or an array; one rank makes none."""
        if self.per == "process":
            return self.bytes
        found: Any = self.bytes
        for size in sorted(self.by_group_size, reverse=True):
            found = where(group_size <= size, self.by_group_size[size], found)
        return where(group_size <= 1, 0, found)


class DeviceConfig(BaseModel):
    """One accelerator as torch addresses it. Bandwidths are GB/s (1e9) per device and per direction.

    `sources` spells out the source keys of the facts; `further` holds what is read where it exists, or not at all yet;
    `time` what the device reaches of what its sheet promises: all of `TimeFact` but
    those of FINER, or nothing and no time is told.
    """

    model_config = _Frozen

    name: Text
    title: Text
    vendor: Text
    family: Family
    arch: Text
    aliases: tuple[Text, ...] = ()
    marketing_gb: Fact
    runtime_total_bytes: Fact
    framework_visible_bytes: Fact | None = None
    memory_bandwidth_gb_s: Fact
    peak_bf16_dense_tflops: Fact
    intra_node_gb_s: Fact
    intra_node_topology: Text
    inter_node_gb_s: Fact
    devices_per_node: Fact
    further: dict[Plain, Fact] = {}
    time: dict[TimeFact, Fact] = {}
    reserve: tuple[ReserveItem, ...] = ()
    sources: dict[Plain, Text]
    notes: Text | None = None

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        for field, fact in self.facts().items():
            if fact.source not in self.sources:
                raise ValueError(f"{field}: the source {fact.source!r} is not listed under sources")
        return self

    @model_validator(mode="after")
    def _time_is_whole(self) -> Self:
        """All figures of time or none, none of them zero but by choice, each between its ends, shares at most one."""
        needed = (name for name in get_args(TimeFact) if name not in FINER)
        missing = [name for name in needed if name not in self.time] if self.time else []
        if missing:
            raise InputError("time is not predicted of a part of its figures", field="time", allowed=", ".join(missing))
        for name, fact in self.time.items():
            most = 1 if name.endswith(("_share", "_ratio", "_rate")) else 1e15
            ends: list[Any] = [end for end in (fact.low, fact.value, fact.high) if end is not None]
            if isinstance(fact.value, tuple) or ends != sorted(ends) or not _positive(name, ends) or ends[-1] > most:
                allowed = (
                    f"low, value and high in this order, {'from' if name in _FREE else 'above'} 0, at most {most:g}"
                )
                raise InputError("out of range", field=f"time.{name}", value=fact.value, allowed=allowed)
        return self

    @model_validator(mode="after")
    def _bytes_are_whole(self) -> Self:
        for field, fact in self.facts().items():
            if field.endswith("_bytes") and isinstance(fact, Fact) and not isinstance(fact.value, int):
                raise ValueError(f"{field}: a byte count is a whole number, not {fact.value}")
        return self

    @property
    def visible_bytes(self) -> Fact:
        """Bytes the runtime shows torch; where that was never read, the runtime's total, which the note then says."""
        if self.framework_visible_bytes is not None:
            return self.framework_visible_bytes
        said = "the runtime's total: what torch shows was not found for this device and is a little less"
        return self.runtime_total_bytes.model_copy(update={"verified": False, "note": said})

    @property
    def linked_devices(self) -> int:
        """Devices that share the fast links: of a node, or of a wider domain where the device has one."""
        return self.further.get("devices_per_nvlink_domain", self.devices_per_node).integer

    def facts(self) -> dict[str, Fact | ReserveItem]:
        """Every sourced figure by its name: the fields of this class, then `further.*`, `time.*` and `reserve.*`."""
        own = {field: value for field, value in self if isinstance(value, Fact)}
        further = {f"further.{name}": fact for name, fact in self.further.items()}
        further |= {f"time.{name}": fact for name, fact in self.time.items()}
        return {**own, **further, **{f"reserve.{item.name}": item for item in self.reserve}}

    def second_hand(self, fact: Fact | ReserveItem) -> bool:
        """Whether the source of a figure repeats it from elsewhere, so that reading it there verifies little."""
        return self.sources[fact.source].startswith(SECOND_HAND)


_FREE: Final = frozenset(  # what may cost nothing
    {"launch_floor_us", "host_launch_us", "collective_latency_us", "step_latency_us", "network_latency_us"}
)


def _positive(name: str, ends: list[Any]) -> bool:
    return all(end > 0 or (name in _FREE and end == 0) for end in ends)


Config = TypeVar("Config", bound=BaseModel)
_DEEPEST: Final = 32

_SHOULD_BE: Final = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "model_type": "must be a mapping",
    "string_pattern_mismatch": "must be text without control characters",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
_LIMIT: Final = {
    "greater_than_equal": ("ge", "at least {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "less than {}"),
    "multiple_of": ("multiple_of", "a multiple of {}, from 0 up"),
    "string_too_short": ("min_length", "text of at least {} character"),
    "string_too_long": ("max_length", "text of at most {} characters"),
    "literal_error": ("expected", "{}"),
}


def validated(kind: type[Config], data: Mapping[str, Any], *, file: str | None = None, prefix: str = "") -> Config:
    """`data` as a `kind`; the first fault becomes an InputError, the others its `further`: field, what is allowed."""
    try:
        return kind.model_validate({key: _tuples_of(key, value, file, prefix) for key, value in data.items()})
    except ValidationError as error:
        raise _input_errors(error, kind, data, file, prefix) from None


def _tuples_of(key: Any, value: Any, file: str | None, prefix: str) -> Any:
    try:
        return _tuples(value)
    except InputError as error:
        raise InputError(
            error.message, file=file, field=f"{prefix}.{key}" if prefix else key, allowed=error.allowed
        ) from None


def _tuples(value: Any, inside: int = 0) -> Any:
    """Lists as tuples: the configs are frozen, and strict validation takes no list for a tuple.

    Raises:
        InputError: lists in lists, deeper than any field has them.

    """
    if inside > _DEEPEST:
        raise InputError("lists and mappings inside one another", allowed=f"at most {_DEEPEST} deep")
    if isinstance(value, Mapping):
        return {key: _tuples(item, inside + 1) for key, item in value.items()}
    return tuple(_tuples(item, inside + 1) for item in value) if isinstance(value, list | tuple) else value


_MOST_FAULTS: Final = 20


def _input_errors(
    error: ValidationError, kind: type[BaseModel], data: Mapping[str, Any], file: str | None, prefix: str
) -> InputError:
    """Every field with a fault, once: a union complains for each of its members."""
    by_path: dict[tuple[str, ...], list[Any]] = {}
    for complaint in error.errors(include_url=False):
        by_path.setdefault(tuple(_path_in(data, complaint["loc"])), []).append(complaint)
    groups = list(by_path.values())[:_MOST_FAULTS]
    first, *further = [_input_error(complaints, kind, data, file, prefix) for complaints in groups]
    return first.beside(further) if further else first


def _input_error(
    complaints: list[Any], kind: type[BaseModel], data: Mapping[str, Any], file: str | None, prefix: str
) -> InputError:
    first, *further = complaints
    path = _path_in(data, first["loc"])
    words = _words_beside(path, data, further)
    details: dict[str, Any] = {"file": file, "field": _field([*([prefix] if prefix else []), *path])}
    match first["type"]:
        case "missing":
            return InputError("this key is missing", **details)
        case "extra_forbidden":
            keys = _keys_at(kind, path[:-1])
            meant = nearest(path[-1], keys, count=1)
            return InputError("unknown key", nearest=meant, allowed=None if meant else ", ".join(keys), **details)
        case "value_error":
            return _rule_error(first["ctx"]["error"], details)
        case problem if problem in _LIMIT:
            key, limit = _LIMIT[problem]
            allowed = limit.format(first["ctx"][key]) + words
            if problem.startswith("string"):
                return InputError(f"must be {allowed}", value=first["input"], **details)
            what = "unknown value" if problem == "literal_error" else "out of range"
            return InputError(what, value=first["input"], allowed=allowed, **details)
        case problem:
            return InputError(_SHOULD_BE.get(problem, first["msg"]) + words, value=first["input"], **details)


def _field(path: list[str]) -> str | None:
    """A path as it is told: `reserve, entry 1: per` where a place in a list stands in it."""
    told = ""
    for part in path:
        joint = "." if told and not told.endswith(": ") else ""
        told = f"{told}, entry {int(part) + 1}: " if part.isdigit() else f"{told}{joint}{part}"
    return told.removesuffix(": ") or None


def _words_beside(path: list[str], data: Mapping[str, Any], further: Iterable[Any]) -> str:
    """The words that a field takes beside what its first complaint asks for, as ` or 'worst'`; empty where none."""
    return "".join(
        f" or {complaint['ctx']['expected']}"
        for complaint in further
        if complaint["type"] == "literal_error" and _path_in(data, complaint["loc"]) == path
    )


def _rule_error(broken: ValueError, details: Mapping[str, Any]) -> InputError:
    """What a rule over several fields says; one that names the field to change is reported there."""
    if not isinstance(broken, InputError):
        return InputError(str(broken), **details)
    field = ".".join(part for part in (details["field"], broken.field) if part)
    return InputError(broken.message, file=details["file"], field=field, allowed=broken.allowed)


def _path_in(data: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys of pydantic's `location` that the user wrote, and the one that is missing: no labels of unions."""
    path = []
    for part in location:
        path.append(str(part))
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return path if isinstance(data, Mapping) else path[:-1]
    return path


def _keys_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    """The valid keys of the mapping at `path` inside a `kind`; list positions and names of entries are passed over."""
    for part in path:
        field = kind.model_fields.get(part)
        kind = next(_models_in(field.annotation), kind) if field is not None else kind
    return list(kind.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
