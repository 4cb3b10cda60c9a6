"""Exact parameter counts of a model, weight by weight: what it holds, what a token meets, what a checkpoint adds.

For a whole model and without a program: what a rank holds of it is read off the programs (`pricing/stage_weights`), but
for the parts that none describes, which `undeclared_weights` lists.
Counts are elements. The rules are those of the published implementations (transformers, models/deepseek_v3 and its
relatives; LongCat's block of two attentions in models/longcat_flash), restated in docs/parallelism.md.
Parts that the facts of a model do not describe are refused by name; nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from mla_cost.errors import InputError
from mla_cost.inputs.config import ModelConfig
from mla_cost.language.numbers import ceil_divide

ACTIVE_INCLUDES: Final = (
    "every weight of the main model and its indexers but the routed experts that a token is not sent to: embedding and "
    "head whole, shared experts, router; no MTP module"
)
_NEVER_FP8: Final = ("embedding", "head", "router", "eh_proj")


class Weight(NamedTuple):
    """One weight tensor, or `copies` equal ones. `shape` is (out, in), or (width,) of a norm, in elements.

    trained: an optimizer updates it. dtype: its own, where it is not that of the other weights.
    """

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    trained: bool = True
    dtype: str | None = None

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.copies * prod(self.shape)


class LayerKind(NamedTuple):
    """What tells the layers of a model apart: `attention` blocks (0 where another mixer stands), MoE, own indexer."""

    attention: int
    moe: bool
    indexer: bool

    @property
    def label(self) -> str:
        """Words for a table: `MoE layer`, `dense layer with indexer`."""
        mixer = "" if self.attention else " without MLA"
        return f"{'MoE' if self.moe else 'dense'} layer{mixer}{' with indexer' if self.indexer else ''}"


class Item(NamedTuple):
    """One line of the count: `layers` times `each` elements of the weight `name` in `part`."""

    part: str
    name: str
    layers: int
    each: int

    @property
    def elements(self) -> int:
        """Elements in all layers."""
        return self.layers * self.each


class Parameters(NamedTuple):
    """Counts of one model, in elements.

    total: main model and indexers, no MTP module. active: what one token meets of it (`ACTIVE_INCLUDES`). mtp: all
    MTP modules sharing the embedding and head; mtp_with_copies: with an embedding and a head each. remainder: how a
    checkpoint's exact count differs from `total`, by cause; empty where no exact count is known.
    """

    total: int
    active: int
    main_model: int
    indexer: int
    mtp_modules: int
    mtp: int
    mtp_with_copies: int
    items: tuple[Item, ...]
    remainder: tuple[tuple[str, int], ...]


def parameters(config: ModelConfig) -> Parameters:
    """Every parameter of `config`, counted.

    Raises:
        InputError: what is missing for a count, and the way out.

    """
    require_countable(config)
    items = tuple(_items(config))
    total = sum(item.elements for item in items)
    indexer = sum(item.elements for item in items if item.name.startswith("indexer"))
    modules = config.num_mtp_layers or 0
    mtp = modules * total_of(mtp_weights(config)) if modules else 0
    copies = modules * 2 * _stated(config, "vocab_size") * config.dims.hidden
    return Parameters(
        total=total,
        active=total - _idle(config),
        main_model=total - indexer,
        indexer=indexer,
        mtp_modules=modules,
        mtp=mtp,
        mtp_with_copies=mtp + copies,
        items=items,
        remainder=tuple(_remainder(config, total)),
    )


def refusal(config: ModelConfig) -> str | None:
    """Why the parameters of `config` cannot be counted, with the way out; None where they can."""
    try:
        require_countable(config)
    except InputError as error:
        return str(error)
    return None


def require_countable(config: ModelConfig) -> None:
    """Nothing, where every weight follows from the facts of `config`.

    Raises:
        InputError: the model's name, all that is missing, and which keys of the model's file answer it.

    """
    found = list(gaps(config))
    if found:
        lacks, ways_out = zip(*found, strict=True)
        raise InputError(
            f"{config.name} cannot be counted: {'; '.join(lacks)}; state {' and '.join(ways_out)}, with --set "
            "facts.NAME=NUMBER or in a copy of the model's file, or price its MLA block alone with --scope attention"
        )


def gaps(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """What keeps a model from being counted, and the keys that would answer it."""
    missing = [fact for fact in _facts_needed(config) if getattr(config, fact) is None]
    if missing:
        hints = [f" ({config.assumed[fact]})" if fact in config.assumed else "" for fact in missing]
        reported = ", ".join(fact + hint for fact, hint in zip(missing, hints, strict=True))
        yield f"its source does not state {reported}", ", ".join(missing)
    if config.uncounted_parts is not None and config.uncounted_parameters is None:
        way_out = "uncounted_parameters (elements per layer; 0 leaves them out)"
        yield f"its dims do not describe {config.uncounted_parts}", way_out
    others = max(0, (config.num_layers or 0) - (config.num_mla_layers or 0))
    if others and config.other_layer_parameters is None:
        lack = f"{others} of its {config.num_layers} layers hold no MLA block ({config.attention_kind})"
        yield lack, "other_layer_parameters (elements of one such layer's token mixer)"


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """The kind of each layer of a countable model, in order."""
    count = _stated(config, "num_layers")
    blocks = _stated(config, "num_mla_layers") // count or 1
    first_moe = _stated(config, "num_dense_layers") if config.num_routed_experts else count
    return _kinds(_Layers(count, blocks, config.mla_layer_indices, first_moe, _indexers(config)))


def layer_weights(config: ModelConfig, kind: LayerKind) -> tuple[Weight, ...]:
    """Every weight of one layer of that kind: norms, attention, MLP or MoE, indexer, and the user's own figures."""
    found = [*_mixers(config, kind)]
    if kind.indexer:
        found += indexer_weights(config)
    if not kind.moe or kind.attention > 1:
        found += _repeated(mlp_weights(config.dims.hidden, _stated(config, "intermediate_size")), kind.attention or 1)
    if kind.moe:
        found += moe_weights(config)
    return (*found, *_uncounted(config))


def attention_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weights of one MLA block with its latent norms; the norm before it is the layer's."""
    dims = config.dims
    heads, latent = dims.heads, dims.kv_lora_rank
    qk = dims.qk_head_dim
    return (
        *_query(dims.hidden, dims.q_lora_rank, heads * qk),
        Weight("attention.kv_down", (latent + dims.qk_rope_head_dim, dims.hidden)),
        Weight("attention.kv_norm", (latent,)),
        Weight("attention.kv_up", (heads * (dims.qk_nope_head_dim + dims.v_head_dim), latent)),
        Weight("attention.output", (dims.hidden, heads * dims.v_head_dim)),
    )


def _query(hidden: int, rank: int | None, width: int) -> tuple[Weight, ...]:
    if rank is None:
        return (Weight("attention.q", (width, hidden)),)
    return (
        Weight("attention.q_down", (rank, hidden)),
        Weight("attention.q_norm", (rank,)),
        Weight("attention.q_up", (width, rank)),
    )


def indexer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The weights of one sparse-attention indexer: query from the query latent, one key with a LayerNorm, head weights.

    Source: transformers 5.24.0, models/deepseek_v32, DeepseekV32Indexer. Without a query latent the query comes from
    hidden.
    """
    assert config.indexer is not None
    heads, width = config.indexer["index_n_heads"], config.indexer["index_head_dim"]
    hidden = config.dims.hidden
    return (
        Weight("indexer.q", (heads * width, config.dims.q_lora_rank or hidden)),
        Weight("indexer.k", (width, hidden)),
        Weight("indexer.k_norm", (2 * width,)),
        Weight("indexer.weights", (heads, hidden)),
    )


def mlp_weights(hidden: int, ffn: int, name: str = "mlp") -> tuple[Weight, ...]:
    """A SwiGLU MLP: gate and up [ffn, hidden], down [hidden, ffn]."""
    return (
        Weight(f"{name}.gate_up", (ffn, hidden), copies=2),
        Weight(f"{name}.down", (hidden, ffn)),
    )


def moe_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """Router, its correction bias, routed experts, and the shared experts as one MLP of their summed width."""
    hidden, experts = config.dims.hidden, _stated(config, "num_routed_experts")
    ffn, scored = _stated(config, "moe_intermediate_size"), experts + (config.num_zero_experts or 0)
    shared = (config.num_shared_experts or 0) * ffn
    return (
        Weight("moe.router", (scored, hidden)),
        *_correction_bias(config),
        Weight("moe.experts.gate_up", (ffn, hidden), copies=2 * experts),
        Weight("moe.experts.down", (hidden, ffn), copies=experts),
        *(mlp_weights(hidden, shared, "moe.shared") if shared else ()),
    )


def _correction_bias(config: ModelConfig) -> tuple[Weight, ...]:
    """What routers keep in fp32, added to the scores that choose experts and updated by no optimizer."""
    scored = _stated(config, "num_routed_experts") + (config.num_zero_experts or 0)
    bias = Weight("moe.correction_bias", (scored,), trained=False, dtype="fp32")
    return (bias,) if config.router_correction_bias else ()


def undeclared_weights(config: ModelConfig, kind: LayerKind) -> tuple[Weight, ...]:
    """The weights of one layer that no program has, each whole on every rank: what a user stated, and these parts.

    An indexer, a router's correction bias, and the rows of a router for experts that do nothing.
    """
    found: list[Weight] = []
    if not kind.attention:
        found.append(_other_mixer(config))
    if kind.indexer:
        found += indexer_weights(config)
    if kind.moe:
        found += _correction_bias(config)
        if config.num_zero_experts:
            found.append(Weight("moe.router of zero experts", (config.num_zero_experts, config.dims.hidden)))
    return (*found, *_uncounted(config))


def _other_mixer(config: ModelConfig) -> Weight:
    return Weight("other mixer", (config.other_layer_parameters or 0,))


def _uncounted(config: ModelConfig) -> tuple[Weight, ...]:
    stated = config.uncounted_parameters
    return (Weight("uncounted parts", (stated,)),) if stated else ()


def mtp_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """One multi-token-prediction module that shares the embedding and head: three norms, eh_proj [h, 2h], a layer.

    The layer is like the model's last one, with an indexer of its own where the model has any.
    Sources: DeepSeek-V3's published layer 61 (enorm, hnorm, eh_proj, shared_head.norm); Megatron-Core,
    transformer/multi_token_prediction.py (enorm, hnorm, eh_proj, final_layernorm).
    """
    hidden = config.dims.hidden
    return (
        *(Weight(f"mtp.{norm}", (hidden,)) for norm in ("embedding_norm", "hidden_norm", "final_norm")),
        Weight("mtp.eh_proj", (hidden, 2 * hidden)),
        *layer_weights(config, mtp_kind(config)),
    )


def mtp_kind(config: ModelConfig) -> LayerKind:
    """The kind of the layer in a multi-token-prediction module: the model's last, or with an indexer the last with MLA.

    An indexer chooses what MLA attends to, so it never stands beside another mixer. GLM-5.3-Flash ends on a layer
    without MLA, and its module is DeepSeek-V3's with MLA (sgl-project/sglang@03c7266d
    python/sglang/srt/models/glm5_next_nextn.py:23, 29).
    """
    kinds = layer_kinds(config)
    if config.indexer is None:
        return kinds[-1]
    return next(kind for kind in reversed(kinds) if kind.attention)._replace(indexer=True)


def embedding_weight(config: ModelConfig) -> Weight:
    """The token embedding [vocabulary, hidden]."""
    return Weight("embedding", (_stated(config, "vocab_size"), config.dims.hidden))


def head_weight(config: ModelConfig) -> Weight:
    """The output head [vocabulary, hidden]; a tied model uses its embedding instead."""
    return Weight("head", (_stated(config, "vocab_size"), config.dims.hidden))


def final_norm_weight(config: ModelConfig) -> Weight:
    """The norm before the head [hidden]."""
    return Weight("final_norm", (config.dims.hidden,))


def total_of(weights: Iterable[Weight]) -> int:
    """Elements of all of them."""
    return sum(weight.elements for weight in weights)


def _facts_needed(config: ModelConfig) -> Iterator[str]:
    yield from ("num_layers", "num_mla_layers", "vocab_size", "tied_embeddings")
    if config.num_routed_experts:
        yield from ("num_dense_layers", "moe_intermediate_size", "num_shared_experts", "num_experts_per_token")
        yield from ("router_correction_bias",)
    dense = config.num_dense_layers != 0 or (config.num_mla_layers or 0) > (config.num_layers or 0)
    if dense or not config.num_routed_experts:
        yield "intermediate_size"


def _stated(config: ModelConfig, fact: str) -> int:
    value = getattr(config, fact)
    assert isinstance(value, int), f"{config.name}: {fact} is needed; call require_countable first"
    return value


class _Layers(NamedTuple):
    """What tells the layers of a model apart. mla, indexers: which layers have one; None: all."""

    layers: int
    blocks: int
    mla: tuple[int, ...] | None
    first_moe: int
    indexers: tuple[int, ...] | None


@lru_cache(maxsize=256)
def _kinds(model: _Layers) -> tuple[LayerKind, ...]:
    return tuple(_kind_of(model, index) for index in range(model.layers))


def _kind_of(model: _Layers, index: int) -> LayerKind:
    attention = model.blocks if model.mla is None or index in model.mla else 0
    indexer = model.indexers is None or index in model.indexers
    return LayerKind(attention, index >= model.first_moe, bool(attention) and indexer)


def _indexers(config: ModelConfig) -> tuple[int, ...] | None:
    """The layers with an indexer of their own; the others of a sharing model use an earlier layer's choice."""
    return config.indexer_layer_indices if config.indexer is not None else ()


def _mixers(config: ModelConfig, kind: LayerKind) -> Iterator[Weight]:
    """Per mixer the norm before it, the mixer, and the norm before what follows."""
    hidden, times = config.dims.hidden, kind.attention or 1
    yield Weight("input_norm", (hidden,), copies=times)
    if kind.attention:
        yield from _repeated(attention_weights(config), times)
    else:
        yield _other_mixer(config)
    yield Weight("pre_mlp_norm", (hidden,), copies=times)


def _repeated(weights: Iterable[Weight], times: int) -> Iterator[Weight]:
    return (weight._replace(copies=times * weight.copies) for weight in weights)


def _items(config: ModelConfig) -> Iterator[Item]:
    ends = [embedding_weight(config), *([] if config.tied_embeddings else [head_weight(config)])]
    yield from (Item(weight.name, weight.name, 1, weight.elements) for weight in (*ends, final_norm_weight(config)))
    for kind, layers in Counter(layer_kinds(config)).items():
        yield from (Item(kind.label, weight.name, layers, weight.elements) for weight in layer_weights(config, kind))


def _idle(config: ModelConfig) -> int:
    """Elements of routed experts that one token is not sent to; zero experts are taken as never chosen."""
    if not config.num_routed_experts:
        return 0
    moe = sum(kind.moe for kind in layer_kinds(config))
    expert = 3 * config.dims.hidden * _stated(config, "moe_intermediate_size")
    return moe * max(0, config.num_routed_experts - _stated(config, "num_experts_per_token")) * expert


def _remainder(config: ModelConfig, total: int) -> Iterator[tuple[str, int]]:
    exact, holds = config.parameters.get("exact"), config.checkpoint
    if exact is None:
        return
    rest, modules = exact - total, holds.get("mtp_modules", 0)
    for name, count in (
        ("MTP modules with their own embedding and head", modules * _own_mtp(config) if modules else 0),
        ("FP8 block scales", _fp8_scales(config, holds["fp8_block"], modules) if "fp8_block" in holds else 0),
        ("inv_freq of the rotary embedding", holds.get("inv_freq", 0) * _stated(config, "num_layers")),
    ):
        rest -= count
        if count:
            yield name, count
    yield "not explained", rest


def _own_mtp(config: ModelConfig) -> int:
    return total_of((*mtp_weights(config), embedding_weight(config), head_weight(config)))


def _fp8_scales(config: ModelConfig, block: int, mtp_modules: int) -> int:
    """One scale per started block x block tile of every projection of attention and MLPs (DeepSeek-V3 checkpoints)."""
    layers = sum(n * _scales(layer_weights(config, kind), block) for kind, n in Counter(layer_kinds(config)).items())
    return layers + (mtp_modules * _scales(mtp_weights(config), block) if mtp_modules else 0)


def _scales(weights: Iterable[Weight], block: int) -> int:
    matrices = [weight for weight in weights if len(weight.shape) == 2 and not weight.name.endswith(_NEVER_FP8)]
    return sum(weight.copies * prod(ceil_divide(side, block) for side in weight.shape) for weight in matrices)
