"""Bytes that decoding keeps of every token: latents, keys and values, index keys. Exact, for the model as a whole.

A latent lies there once for all heads, so tensor-parallel ranks each keep all of it; keys and values of heads are
divided as far as there are heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from mla_cost.declared.forms import FORMS
from mla_cost.inputs.caches import CacheAccount, accounts
from mla_cost.inputs.config import ModelConfig
from mla_cost.language.numbers import ceil_divide
from mla_cost.pricing.key import form_of

DTYPES: Final = ("bf16", "fp8")
FP8_BLOCK: Final = 128  # elements that share an fp32 scale
FP8_SOURCE: Final = (
    "fp8: latent in fp8 with an fp32 scale for 128 elements, rotated key in bf16 (Tencent/KsanaLLM "
    "3rdparty/LLM_kernels/csrc/utils/quant_type.h, fp8_ds_mla: 656 bytes), index key in fp8 with an fp32 scale (132)"
)


class Entry(NamedTuple):
    """What so many layers keep of every `tokens` tokens. bytes: of one entry. divides: its heads, 0 without any."""

    what: str
    layers: int
    tokens: int
    bytes: int
    divides: int = 0

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of one token in all layers."""
        return Fraction(self.layers * self.bytes, self.tokens)

    def on_rank(self, context: int, ranks: int) -> int:
        """Bytes of a sequence on one of so many tensor-parallel ranks; entries that are not full yet do not count."""
        whole = self.layers * (context // self.tokens) * self.bytes
        parts = min(ranks, self.divides) if self.divides else 1
        return ceil_divide(whole, parts)


class Cache(NamedTuple):
    """The cache of a model. per_sequence: bytes beside, whatever the length."""

    name: str
    title: str
    dtype: str
    entries: tuple[Entry, ...]
    basis: str
    source: str
    per_sequence: int = 0
    notes: str = ""

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of one token, on one rank that has everything."""
        return sum((entry.bytes_per_token for entry in self.entries), Fraction(0))

    def of_sequence(self, context: int, ranks: int = 1) -> int:
        """Bytes of a sequence on one of so many tensor-parallel ranks."""
        return self.per_sequence + sum(entry.on_rank(context, ranks) for entry in self.entries)


def stated(name: str, account: CacheAccount) -> Cache:
    """The cache of an account."""
    entries = tuple(Entry(what, layers, tokens, size) for layers, tokens, size, what in account.entries)
    if account.gqa is not None:
        layers, heads, width = account.gqa.layers, account.gqa.kv_heads, account.gqa.head_dim
        entries = (Entry(f"keys and values of {heads} heads of {width}", layers, 1, 4 * heads * width, heads),)
    dtype = "bf16" if account.gqa is not None else "own"
    source = account.source
    return Cache(name, account.title, dtype, entries, account.basis, source, account.per_sequence, account.notes)


def of_model(model: ModelConfig, dtype: str = "bf16", form: str = "") -> Cache:
    """What a model with MLA keeps. form: one whose heads each keep keys and values of their own; else the latent."""
    shared = not form or form_of(form).shared_key
    latent = _latent(model, dtype) if shared else _expanded(model, dtype)
    basis = "derived" if dtype == "bf16" else "assumed" if model.indexer is None else "derived"
    source = "; ".join(model.sources[:1]) + ("" if dtype == "bf16" else f"; {FP8_SOURCE}")
    return Cache(model.name, model.title, dtype, (latent, *_index_keys(model, dtype)), basis, source)


def cached_layers(model: ModelConfig) -> int:
    """Layers that keep a cache of latents, or of keys and values."""
    return model.num_mla_layers or model.num_layers or 1


def _latent(model: ModelConfig, dtype: str) -> Entry:
    rank, rope = model.dims.kv_lora_rank, model.dims.qk_rope_head_dim
    latent = 2 * rank if dtype == "bf16" else rank + 4 * ceil_divide(rank, FP8_BLOCK)
    return Entry(f"latent of {rank} and rotated key of {rope}", cached_layers(model), 1, latent + 2 * rope)


def _expanded(model: ModelConfig, dtype: str) -> Entry:
    dims = model.dims
    size = dims.heads * dims.kv_head_dim * (2 if dtype == "bf16" else 1)
    return Entry(f"keys and values of {dims.heads} heads", cached_layers(model), 1, size, dims.heads)


def _index_keys(model: ModelConfig, dtype: str) -> Iterator[Entry]:
    if model.indexer is None:
        return
    width, pooled = model.indexer["index_head_dim"], model.indexer.get("index_kpool", 1)
    own = model.indexer_layer_indices
    layers = len(own) if own is not None else cached_layers(model)
    yield Entry("index key", layers, pooled, 2 * width if dtype == "bf16" else width + 4)


def caches(models: list[ModelConfig], dtype: str) -> Iterator[Cache]:
    """The caches of accounts, then of models; an account stands for a model of the same name."""
    known = accounts()
    yield from (stated(name, account) for name, account in known.items())
    yield from (of_model(model, dtype) for model in models if model.name not in known)


def forms() -> tuple[str, ...]:
    """The forms that a decoder may keep a cache for."""
    return tuple(name for name in FORMS if form_of(name).name == name)
