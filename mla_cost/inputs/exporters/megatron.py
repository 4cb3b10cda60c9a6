"""Megatron-LM's arguments of a plan (NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mla_cost.declared.foreign import CP_COMM_TYPES, HIERARCHICAL, PLAIN, SHARED_STATES
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.exporters.exported import ExportedLaunch, Exporter
from mla_cost.inputs.settings import PlanSettings

Words = Iterator[tuple[str, ...]]
_OWN_CODE: Final = "megatron"
_PLAIN_FLAGS: Final = (
    ("seq_len", "--seq-length"),
    ("tp", "--tensor-model-parallel-size"),
    ("pp", "--pipeline-model-parallel-size"),
    ("sp", "--context-parallel-size"),
    ("ep", "--expert-model-parallel-size"),
    ("etp", "--expert-tensor-parallel-size"),
    ("micro_batch", "--micro-batch-size"),
    ("pipeline_layout", "--pipeline-model-parallel-layout"),
    ("first_layers", "--decoder-first-pipeline-num-layers"),
    ("last_layers", "--decoder-last-pipeline-num-layers"),
    ("micro_batch_group", "--microbatch-group-size-per-virtual-pipeline-stage"),
)
_DIMS: Final = (
    ("hidden", "--hidden-size"),
    ("heads", "--num-attention-heads"),
    ("q_lora_rank", "--q-lora-rank"),
    ("kv_lora_rank", "--kv-lora-rank"),
    ("qk_nope_head_dim", "--qk-head-dim"),
    ("qk_rope_head_dim", "--qk-pos-emb-head-dim"),
    ("v_head_dim", "--v-head-dim"),
)
SAID: Final = frozenset(
    (
        *(name for name, _ in _PLAIN_FLAGS),
        *(
            "dp",
            "micro_batches",
            "optimizer",
            "optimizer_offload",
            "virtual_stages",
            "dtype",
            "gradient_dtype",
            "remat",
            "remat_layers",
            "vocab_multiple",
            "profile",
        ),
    )
)


def words_of(launch: ExportedLaunch) -> Words:
    """Every argument with its words, but for what MindSpeed says in other words."""
    yield from model_words(launch.model)
    yield from run_words(launch.settings)


def model_words(model: ModelConfig) -> Words:
    """Dims, experts, vocabulary."""
    yield ("--multi-latent-attention",)
    for name, flag in _DIMS:
        value = getattr(model.dims, name)
        if value is not None:
            yield flag, str(value)
    if model.num_layers is not None:
        yield "--num-layers", str(model.num_layers)
    if model.intermediate_size is not None:
        yield "--ffn-hidden-size", str(model.intermediate_size)
    yield ("--swiglu",)
    if model.num_mtp_layers is not None:
        yield "--mtp-num-layers", str(model.num_mtp_layers)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    if model.vocab_size is not None:
        yield "--vocab-size", str(model.vocab_size)
    yield from _routed(model)


def _routed(model: ModelConfig) -> Words:
    if model.num_routed_experts:
        yield "--num-experts", str(model.num_routed_experts)
        yield "--moe-ffn-hidden-size", str(model.moe_intermediate_size)
        yield "--moe-router-topk", str(model.num_experts_per_token)
        if model.router_scores is not None:
            yield "--moe-router-score-function", model.router_scores
        if model.router_correction_bias:
            yield ("--moe-router-enable-expert-bias",)


def expert_words(model: ModelConfig) -> Words:
    """Dense layers and shared experts, in Megatron's words."""
    if not model.num_routed_experts:
        return
    dense, layers = model.num_dense_layers or 0, model.num_layers or 0
    yield "--moe-layer-freq", f"[0]*{dense}+[1]*{layers - dense}" if dense else "1"
    if model.num_shared_experts and model.moe_intermediate_size:
        yield "--moe-shared-expert-intermediate-size", str(model.num_shared_experts * model.moe_intermediate_size)


def run_words(told: PlanSettings) -> Words:
    """Degrees, batch, precision, recomputation."""
    for name, flag in _PLAIN_FLAGS:
        value = getattr(told, name)
        if value is not None:
            yield flag, str(value)
    yield "--global-batch-size", str(told.micro_batch * told.micro_batches * told.dp)
    if told.virtual_stages > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(told.virtual_stages)
    if told.tp > 1:
        yield ("--sequence-parallel",)
    if told.dtype != "fp32":
        yield (f"--{told.dtype}",)
    yield "--make-vocab-size-divisible-by", str(told.vocab_multiple)
    yield from _recompute(told.remat, told.remat_layers)
    yield "--optimizer", told.optimizer
    yield from _states(told)


def _recompute(policy: str, layers: int | None) -> Words:
    if policy == "full":
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "uniform" if layers is None else "block"
        yield "--recompute-num-layers", "1" if layers is None else str(layers)
    elif policy != "none":
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *policy.split("+")


def _states(told: PlanSettings) -> Words:
    if told.sharding == SHARED_STATES:
        yield ("--use-distributed-optimizer",)
    half = told.gradient_dtype == "bf16"
    if told.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
        yield "--optimizer-offload-fraction", str(told.optimizer_offload / 100)
        yield ("--use-precision-aware-optimizer",)
        yield "--main-grads-dtype", told.gradient_dtype
    elif told.main_weights == "remainders":
        yield ("--use-precision-aware-optimizer",)
        yield "--main-grads-dtype", told.gradient_dtype
        yield "--exp-avg-dtype", told.moment_dtype
        yield "--exp-avg-sq-dtype", told.moment_dtype
    elif half:
        yield ("--grad-reduce-in-bf16",)
    else:
        yield ("--accumulate-allreduce-grads-in-fp32",)


def _own_words(launch: ExportedLaunch) -> Words:
    """What is Megatron's alone: exchange, dispatch, loss, kernels."""
    told = launch.settings
    if told.sp > 1 and told.scheme in CP_COMM_TYPES.values():
        yield "--cp-comm-type", next(word for word, name in CP_COMM_TYPES.items() if name == told.scheme)
        if told.scheme == HIERARCHICAL and told.sp_inside:
            yield "--hierarchical-context-parallel-sizes", str(told.sp_inside), str(told.sp // told.sp_inside)
    if told.profile != _OWN_CODE:
        yield "--transformer-impl", "local"
        return
    yield "--transformer-impl", "transformer_engine"
    if launch.model.num_routed_experts:
        flex = told.dispatcher != "alltoall"
        yield "--moe-token-dispatcher-type", "flex" if flex else "alltoall"
        if flex:
            yield "--moe-flex-dispatcher-backend", told.dispatcher
    if told.shared_overlap == "on":
        yield ("--moe-shared-expert-overlap",)
    if told.rope_fusion == "off":
        yield ("--no-rope-fusion",)
    if told.attention_backend != "fused":
        yield "--attention-backend", "unfused"
    if told.cross_entropy in {"native-fused", "te-fp32"}:
        yield ("--cross-entropy-loss-fusion",)
        yield "--cross-entropy-fusion-impl", "native" if told.cross_entropy == "native-fused" else "te"


def said(launch: ExportedLaunch) -> frozenset[str]:
    """The settings that the arguments say, with what this plan's values have a word for."""
    told = launch.settings
    found = {*SAID, "main_weights"} | ({"moment_dtype"} if told.main_weights == "remainders" else set())
    found |= {"sharding"} if told.sharding in {SHARED_STATES, PLAIN} else set()
    found |= {"scheme"} if told.sp == 1 or told.scheme in CP_COMM_TYPES.values() else set()
    found |= {"sp_inside"} if told.scheme == HIERARCHICAL else set()
    if told.profile == _OWN_CODE:
        found |= {"dispatcher", "shared_overlap", "rope_fusion"}
        found |= {"attention_backend"} if told.attention_backend != "unfused-in-place" else set()
        found |= {"cross_entropy"} if told.cross_entropy in {"native", "native-fused", "te-fp32"} else set()
    return frozenset(found)


def script(launch: ExportedLaunch, words: Words, program: str = "pretrain_gpt.py") -> str:
    """A command of one argument a line."""
    import shlex

    nodes, each = launch.nodes
    lines = [f"torchrun --nproc_per_node {each} --nnodes {nodes} {program}"]
    lines += [f"    {shlex.join(each)}" for each in words]
    return " \\\n".join(lines) + "\n"


def _write(launch: ExportedLaunch) -> tuple[str, frozenset[str]]:
    words: list[tuple[str, ...]] = [*words_of(launch), *expert_words(launch.model), *_own_words(launch)]
    return script(launch, iter(words)), said(launch)


EXPORTER: Final[Any] = Exporter("megatron", "Megatron-LM", trains=True, write=_write)
