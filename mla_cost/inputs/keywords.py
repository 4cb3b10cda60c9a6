"""Keyword arguments of `mla_cost.plan`, `sweep`, `search` and others. Made by python -m mla_cost.checks.schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class CommonKeywords(TypedDict, total=False):
    """Settings that a plan and a search take alike."""

    seq_len: int | str
    facts: Mapping[str, Any]
    mtp: int | None
    kernel: str
    value_padding: Literal["none", "qk"] | None
    sp_inside: int
    schedule: str | None
    micro_batch_group: int | None
    replicas: int
    reshard: Literal["on", "off"]
    prefetch: int
    multi_rank_bucket_allreduce: Literal["off", "on"]
    optimizer: Literal["adam", "muon"]
    optimizer_offload: int
    remat_layers: int | None
    profile: Literal["reference", "megatron"]
    dtype: Literal["bf16", "fp16", "fp32"]
    gradient_dtype: Literal["fp32", "bf16"]
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"]
    main_weights: Literal["fp32", "remainders"]
    imbalance_percent: int | Literal["worst"]
    vocab_multiple: int
    layers: int
    v_layout: Literal["view", "contiguous"]
    attention_layout: Literal["sbnd", "bsht", "bnsd"]
    softmax_dtype: Literal["activation", "fp32"]
    mask: Literal["none", "tensor"]
    norm: Literal["fused", "composite"]
    names: Literal["rebound", "held"]
    idle_mlp: int
    causal: bool
    down_projections: Literal["replicated", "sharded"]
    dispatcher: Literal["alltoall", "deepep", "hybridep"]
    shared_overlap: Literal["off", "on"]
    rope_fusion: Literal["off", "on"]
    attention_backend: Literal["fused", "unfused", "unfused-in-place"]
    cross_entropy: Literal[
        "native", "no-upcast", "in-place", "native-fused", "fused", "chunked", "te-in-place", "te-fp32"
    ]
    moe_style: Literal["fused", "torchtitan", "transformers"]
    loss_chunks: int
    stage: int | None
    other_memory: int | str
    host_memory: int | str
    fragmentation_percent: int | None
    reserve: Mapping[str, int | str]
    devices_per_node: int | None
    axis_order: str
    inter_node_gb_s: int | None
    graphs: Literal["off", "on"]
    launch_floor: int | None
    tp_overlap: Literal["off", "on"] | None
    expert_overlap: Literal["off", "on"] | None
    gradient_overlap: Literal["off", "on"] | None
    gather_overlap: Literal["off", "on"] | None
    p2p_overlap: Literal["off", "on"] | None
    tokens: int | str | None
    price: str | None
    published: str | None


class SettingKeywords(CommonKeywords, total=False):
    """Every setting but the scope."""

    scheme: str | None
    tp: int
    sp: int
    pp: int
    ep: int
    etp: int
    dp: int
    virtual_stages: int
    pipeline_layout: str | None
    first_layers: int | None
    last_layers: int | None
    micro_batch: int
    micro_batch_size: int
    micro_batches: int
    num_micro_batches: int
    sharding: Literal["ddp", "distributed", "fsdp", "zero1", "zero2"]
    remat: str


class PlanKeywords(SettingKeywords, total=False):
    """Every setting."""

    scope: Literal["attention", "model"]


class SearchKeywords(CommonKeywords, total=False):
    """What a search takes, or goes over."""

    scheme: str | Sequence[str] | None
    tp: int | str | Sequence[int] | None
    sp: int | str | Sequence[int] | None
    pp: int | str | Sequence[int] | None
    ep: int | str | Sequence[int] | None
    etp: int | str | Sequence[int] | None
    virtual_stages: int | str | Sequence[int] | None
    micro_batch: int | str | Sequence[int] | None
    micro_batch_size: int | str | Sequence[int] | None
    sharding: str | Sequence[str] | None
    remat: str | Sequence[str] | None
    max_tp: int | None
    max_sp: int | None
    max_pp: int | None
    max_ep: int | None
    max_micro_batch: int | None
    max_idle: int
    by: str | Sequence[str]
    top: int
