"""One question, typed and bounded: what a plan file holds, what the flags fill in, what `mla_cost.plan` takes."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from mla_cost.declared import defaults
from mla_cost.errors import shown
from mla_cost.language.recompute import canonical

_LARGEST = 2**50


def _bounded(given: Any, read: ValidatorFunctionWrapHandler) -> ByteSize:
    try:
        amount: ByteSize = read(given)
    except ValidationError:
        raise ValueError(f"must be a number of bytes, or text with a unit such as 2GiB, not {shown(given)}") from None
    if not 0 <= amount <= _LARGEST:
        raise ValueError(f"must be between 0 and {_LARGEST} bytes, not {shown(given)}")
    return amount


Memory = Annotated[ByteSize, WrapValidator(_bounded)]
Names = tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...]


Degree = Annotated[int, Field(ge=1, le=2**16)]


class PlanSettings(BaseModel):
    """Every setting of a plan. Sizes are counts; memory is bytes, or text with a unit such as `2GiB`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Annotated[str, Field(min_length=1, max_length=1000)] = defaults.MODEL
    device: Names = defaults.DEVICES
    scope: Literal["attention", "model"] = defaults.SCOPE
    form: Names = defaults.FORMS
    scheme: str | None = None
    kernel: str = defaults.ATTENTION_KERNEL
    seq_len: Annotated[int, Field(ge=2, le=2**30)] = defaults.SEQ_LEN
    micro_batch: Annotated[int, Field(ge=1, le=2**16)] = 1
    sp: Degree = defaults.SP
    tp: Degree = 1
    pp: Degree = 1
    ep: Degree = 1
    etp: Degree = 1
    dp: Degree = 1
    micro_batches: Annotated[int, Field(ge=1, le=2**20)] = 1
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] = 1
    micro_batch_group: Annotated[int, Field(ge=1, le=2**20)] | None = None
    first_layers: Annotated[int, Field(ge=0, le=4096)] | None = None
    last_layers: Annotated[int, Field(ge=0, le=4096)] | None = None
    pipeline_layout: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    schedule: Annotated[str, Field(min_length=1, max_length=1000)] | None = None  # None: the usual one for the chunks
    stage: Annotated[int, Field(ge=0, le=2**16)] | None = None
    mtp: Annotated[int, Field(ge=0, le=1000)] | None = None  # multi-token-prediction modules; None: the model's own
    sharding: Literal["ddp", "distributed", "zero1", "zero2"] = "distributed"
    gradient_dtype: Literal["fp32", "bf16"] = "fp32"
    moment_dtype: Literal["fp32", "bf16"] = "fp32"
    main_weights: Literal["fp32", "remainders"] = "fp32"
    vocab_multiple: Annotated[int, Field(ge=1, le=2**20)] = 128
    imbalance_percent: Annotated[int, Field(ge=100, le=1_000_000)] | Literal["worst"] = 100
    down_projections: Literal["replicated", "sharded"] = "replicated"
    layers: Annotated[int, Field(ge=1, le=4096)] = 1
    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    v_layout: Literal["view", "contiguous"] = "view"
    value_padding: Literal["none", "qk"] | None = None
    attention_layout: Literal["sbnd", "bsht", "bnsd"] = "sbnd"
    softmax_dtype: Literal["activation", "fp32"] = "activation"
    mask: Literal["none", "tensor"] = "none"
    names: Literal["rebound", "held"] = "rebound"
    idle_mlp: Annotated[int, Field(ge=0, le=2**20)] = 0
    norm: Literal["fused", "composite"] = "fused"
    causal: bool = True
    remat: Annotated[str, Field(max_length=200), AfterValidator(canonical)] = "none"
    profile: Literal["reference", "megatron"] = "reference"
    dispatcher: Literal["alltoall", "deepep", "hybridep"] = "alltoall"
    shared_overlap: Literal["off", "on"] = "off"
    rope_fusion: Literal["on", "off"] = "on"
    cross_entropy: Literal[
        "native", "no-upcast", "in-place", "native-fused", "fused", "chunked", "te-in-place", "te-fp32"
    ] = "native"
    loss_chunks: Annotated[int, Field(ge=1, le=2**20)] = 8
    other_memory: Memory = ByteSize(0)
    published: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    reserve: dict[str, Memory] = {}
    fragmentation_percent: Annotated[int, Field(ge=0, le=50)] | None = None
    dims: dict[str, Any] = {}
    facts: dict[str, Any] = {}

    def by_scope(self) -> Self:
        """The settings with the defaults of their scope, where nothing was said."""
        usual: dict[str, Any] = defaults.OF_SCOPE[self.scope]
        unsaid = {name: value for name, value in usual.items() if name not in self.model_fields_set}
        return self.model_copy(update=unsaid)
