"""One question, typed and bounded: what a plan file holds, what the flags fill in, what `mla_cost.plan` takes.

The rows of `mla_cost.inputs.table` say what each setting is; here stand their types, for readers and type checkers.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mla_cost.declared import defaults
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.shardings import SHARDINGS
from mla_cost.errors import shown
from mla_cost.inputs import table
from mla_cost.inputs.counts import count_of
from mla_cost.inputs.table import TABLE
from mla_cost.language.recompute import canonical

_LARGEST = 2**50
_MOST_MONEY = 1e9
_BARE = 2**20  # a number below it that is typed without a unit is hardly one of bytes


def _bounded(given: Any, read: ValidatorFunctionWrapHandler) -> ByteSize:
    if isinstance(given, str) and given.strip().isdecimal() and 0 < int(given[:20]) < _BARE:
        raise ValueError(f"needs a unit, as {given.strip()}GiB; bytes are {given.strip()}B")
    try:
        amount: ByteSize = read(given)
    except ValidationError:
        raise ValueError(f"must be a number of bytes, or text with a unit such as 2GiB, not {shown(given)}") from None
    if not 0 <= amount <= _LARGEST:
        raise ValueError(f"must be between 0 and {_LARGEST} bytes, not {shown(given)}")
    return amount


def _limits(name: str) -> Any:
    """The bounds of a row: of a number its values, of a text its length."""
    row = TABLE[name]
    if row.kind in {"text", "name"}:
        return Field(min_length=None if name == "remat" else 1, max_length=row.most)
    return Field(ge=row.least, le=row.most)


def _money(given: Any) -> Any:
    """An amount as it would be written: YAML reads one as a number."""
    text = str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
    try:
        amount = float(text) if isinstance(text, str) else 0
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= _MOST_MONEY:
        raise ValueError(f"must be a price of a device-hour such as 2.10, not {shown(given)}")
    return text


def _default(name: str) -> Any:
    return TABLE[name].default


def _named(declared: Collection[str]) -> Any:
    """The name of a declared row; what is none is refused as a word that is not one of a few."""

    def check(given: Any) -> Any:
        if isinstance(given, str) and given in declared:
            return given
        *first, last = map(repr, declared)
        expected = f"{', '.join(first)} or {last}" if first else last
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})

    return Annotated[
        str, BeforeValidator(check), WithJsonSchema({"enum": list(declared), "type": "string"}, mode="serialization")
    ]


if TYPE_CHECKING:
    ShardingName = str
    OptimizerName = str
else:
    ShardingName, OptimizerName = _named(SHARDINGS), _named(OPTIMIZERS)
Memory = Annotated[ByteSize, WrapValidator(_bounded)]
Names = tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...]
Tokens = Annotated[int, BeforeValidator(count_of)]


class PlanSettings(BaseModel):
    """Every setting of a plan. Sizes are counts; memory is bytes, or text with a unit such as `2GiB`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Annotated[str, _limits("model")] = _default("model")
    device: Names = _default("device")
    scope: table.Scopes = _default("scope")
    form: Names = _default("form")
    scheme: str | None = _default("scheme")
    kernel: str = _default("kernel")
    seq_len: Annotated[Tokens, _limits("seq_len")] = _default("seq_len")
    micro_batch: Annotated[int, _limits("micro_batch")] = _default("micro_batch")
    sp: Annotated[int, _limits("sp")] = _default("sp")
    sp_inside: Annotated[int, _limits("sp_inside")] = _default("sp_inside")
    tp: Annotated[int, _limits("tp")] = _default("tp")
    pp: Annotated[int, _limits("pp")] = _default("pp")
    ep: Annotated[int, _limits("ep")] = _default("ep")
    etp: Annotated[int, _limits("etp")] = _default("etp")
    dp: Annotated[int, _limits("dp")] = _default("dp")
    micro_batches: Annotated[int, _limits("micro_batches")] = _default("micro_batches")
    virtual_stages: Annotated[int, _limits("virtual_stages")] = _default("virtual_stages")
    micro_batch_group: Annotated[int, _limits("micro_batch_group")] | None = _default("micro_batch_group")
    first_layers: Annotated[int, _limits("first_layers")] | None = _default("first_layers")
    last_layers: Annotated[int, _limits("last_layers")] | None = _default("last_layers")
    pipeline_layout: Annotated[str, _limits("pipeline_layout")] | None = _default("pipeline_layout")
    schedule: Annotated[str, _limits("schedule")] | None = _default("schedule")
    stage: Annotated[int, _limits("stage")] | None = _default("stage")
    mtp: Annotated[int, _limits("mtp")] | None = _default("mtp")
    sharding: ShardingName = _default("sharding")
    replicas: Annotated[int, _limits("replicas")] = _default("replicas")
    reshard: table.Reshard = _default("reshard")
    prefetch: Annotated[int, _limits("prefetch")] = _default("prefetch")
    multi_rank_bucket_allreduce: table.Switched = _default("multi_rank_bucket_allreduce")
    optimizer: OptimizerName = _default("optimizer")
    gradient_dtype: table.StateDtype = _default("gradient_dtype")
    moment_dtype: table.MomentDtype = _default("moment_dtype")
    main_weights: table.MainWeights = _default("main_weights")
    vocab_multiple: Annotated[int, _limits("vocab_multiple")] = _default("vocab_multiple")
    imbalance_percent: Annotated[int, _limits("imbalance_percent")] | Literal["worst"] = _default("imbalance_percent")
    down_projections: table.DownProjections = _default("down_projections")
    layers: Annotated[int, _limits("layers")] = _default("layers")
    dtype: table.Dtype = _default("dtype")
    v_layout: table.ValueLayout = _default("v_layout")
    value_padding: table.ValuePadding | None = _default("value_padding")
    attention_layout: table.AttentionLayout = _default("attention_layout")
    softmax_dtype: table.SoftmaxDtype = _default("softmax_dtype")
    mask: table.Mask = _default("mask")
    names: table.BoundNames = _default("names")
    idle_mlp: Annotated[int, _limits("idle_mlp")] = _default("idle_mlp")
    norm: table.Norm = _default("norm")
    causal: bool = _default("causal")
    optimizer_offload: Annotated[int, _limits("optimizer_offload")] = _default("optimizer_offload")
    remat: Annotated[str, _limits("remat"), AfterValidator(canonical)] = _default("remat")
    remat_layers: Annotated[int, _limits("remat_layers")] | None = _default("remat_layers")
    profile: table.Profiles = _default("profile")
    dispatcher: table.Dispatcher = _default("dispatcher")
    shared_overlap: table.Switched = _default("shared_overlap")
    rope_fusion: table.Switched = _default("rope_fusion")
    attention_backend: table.AttentionBackend = _default("attention_backend")
    cross_entropy: table.CrossEntropy = _default("cross_entropy")
    moe_style: table.MoeStyle = _default("moe_style")
    loss_chunks: Annotated[int, _limits("loss_chunks")] = _default("loss_chunks")
    other_memory: Memory = ByteSize(_default("other_memory"))
    host_memory: Memory = ByteSize(_default("host_memory"))
    devices_per_node: Annotated[int, _limits("devices_per_node")] | None = _default("devices_per_node")
    axis_order: Annotated[str, _limits("axis_order")] = _default("axis_order")
    inter_node_gb_s: Annotated[int, _limits("inter_node_gb_s")] | None = _default("inter_node_gb_s")
    graphs: table.Switched = _default("graphs")
    launch_floor: Annotated[int, _limits("launch_floor")] | None = _default("launch_floor")
    tp_overlap: table.Switched | None = _default("tp_overlap")
    expert_overlap: table.Switched | None = _default("expert_overlap")
    gradient_overlap: table.Switched | None = _default("gradient_overlap")
    gather_overlap: table.Switched | None = _default("gather_overlap")
    p2p_overlap: table.Switched | None = _default("p2p_overlap")
    tokens: Annotated[Tokens, _limits("tokens")] | None = _default("tokens")
    price: Annotated[str, BeforeValidator(_money), _limits("price")] | None = _default("price")
    published: Annotated[str, _limits("published")] | None = _default("published")
    reserve: dict[str, Memory] = _default("reserve")
    fragmentation_percent: Annotated[int, _limits("fragmentation_percent")] | None = _default("fragmentation_percent")
    dims: dict[str, Any] = _default("dims")
    facts: dict[str, Any] = _default("facts")

    @model_validator(mode="before")
    @classmethod
    def _by_own_names(cls, given: Any) -> Any:
        """Settings that are stated by another name of theirs."""
        return table.by_own_names(given) if isinstance(given, Mapping) else given

    def by_scope(self) -> Self:
        """The settings with the defaults of their scope, where nothing was said."""
        usual: dict[str, Any] = defaults.OF_SCOPE[self.scope]
        unsaid = {name: value for name, value in usual.items() if name not in self.model_fields_set}
        return self.model_copy(update=unsaid)


_DEFAULTS: Final = {name: field.default for name, field in PlanSettings.model_fields.items()}


def is_stated(settings: PlanSettings, name: str) -> bool:
    """Whether a setting is another than where nothing is said."""
    return bool(getattr(settings, name) != _DEFAULTS[name])
