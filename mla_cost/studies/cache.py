"""How many sequences' caches fit beside the weights, and the least time of a decoding step: estimates of serving.

No serving simulator: pages, fragmentation of pages, activations and graphs are left out, and stand under `covers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError, nearest
from mla_cost.inputs import catalog
from mla_cost.inputs.caches import accounts
from mla_cost.inputs.config import DeviceConfig, ModelConfig
from mla_cost.inputs.counts import count_of
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.numbers import ceil_divide
from mla_cost.pricing import kv_cache
from mla_cost.pricing.kv_cache import Cache
from mla_cost.pricing.usable import Groups, usable
from mla_cost.weights.parameters import parameters, refusal

WEIGHT_BYTES: Final = {"bf16": 2, "fp8": 1}
_MOST: Final = 2**24


class CacheFits(NamedTuple):
    """Sequences beside the weights on one of `ranks` tensor-parallel devices. weight_bytes: of that device.

    sequences: None where weights are not counted, with the reason in `why`.
    """

    device: str
    ranks: int
    usable_bytes: int
    weight_bytes: int | None
    sequences: int | None
    why: str = ""


class CacheRow(NamedTuple):
    """One model's cache. Bytes of the whole cache on a rank; bytes_per_token may be a fraction of a byte."""

    cache: Cache
    bytes_per_token: Fraction
    sequence_bytes: int
    batch_bytes: int
    fits: CacheFits | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the exact bytes of a token as a text beside the number."""
        cache = self.cache
        entries = [entry._asdict() | {"bytes_per_token": float(entry.bytes_per_token)} for entry in cache.entries]
        return {
            "model": cache.name,
            "title": cache.title,
            "dtype": cache.dtype,
            "bytes_per_token": float(self.bytes_per_token),
            "bytes_per_token_exact": str(self.bytes_per_token),
            "sequence_bytes": self.sequence_bytes,
            "batch_bytes": self.batch_bytes,
            "entries": entries,
            "per_sequence_bytes": cache.per_sequence,
            "fits": self.fits._asdict() if self.fits else None,
            "basis": cache.basis,
            "source": cache.source,
            "notes": cache.notes,
        }


def cache(
    model: str | Sequence[str] | None = None,
    *,
    context: int | str = "128k",
    batch: int = 1,
    device: str | None = None,
    tp: int = 1,
    dtype: str = "bf16",
    weights: str = "bf16",
    form: str = "",
) -> list[CacheRow]:
    """Bytes of the KV cache of models: of a token, a sequence and a batch, and what fits beside the weights.

    model: names of the catalogue or of `configs/caches.yaml`, all where None. form: one whose heads keep keys and
    values of their own in place of the latent.

    Raises:
        InputError: a name, size or dtype that is none.

    """
    length, size, ranks = (counted(*each) for each in (("context", context), ("batch", batch), ("tp", tp)))
    chosen("cache-dtype", dtype, kv_cache.DTYPES)
    chosen("weights", weights, tuple(WEIGHT_BYTES))
    if form:
        chosen("form", form, kv_cache.forms())
    on = None if device is None else catalog.device(device)
    names = [model] if isinstance(model, str) else model
    beside = None if on is None else _CachesBeside(on, ranks, weights)
    found = []
    for own, each in _asked(names, dtype, form):
        one = each.of_sequence(length, ranks)
        fits = None if beside is None else _fits(each, own, one, beside)
        found.append(CacheRow(each, each.bytes_per_token, one, one * size, fits))
    return found


def _asked(names: Sequence[str] | None, dtype: str, form: str) -> list[tuple[ModelConfig | None, Cache]]:
    if names is None:
        own = {name: catalog.model(name) for name in catalog.model_names()}
        return [(own.get(each.name), each) for each in kv_cache.caches(list(own.values()), dtype)]
    return [_named(name, dtype, form) for name in names]


def _named(name: str, dtype: str, form: str) -> tuple[ModelConfig | None, Cache]:
    known = accounts()
    key = catalog.normalised(name)
    if key in known and not form:
        return (catalog.model(key) if key in catalog.model_names() else None), kv_cache.stated(key, known[key])
    try:
        own = catalog.model(name)
    except InputError as error:
        allowed = f"a model of the catalogue, or {', '.join(known)}"
        meant = (*nearest(key, known), *error.nearest)
        raise InputError(error.message, field="model", allowed=allowed, nearest=meant[:3]) from None
    return own, kv_cache.of_model(own, dtype, form)


class _CachesBeside(NamedTuple):
    """The device that holds weights beside caches, of so many, and the weights' dtype."""

    device: DeviceConfig
    ranks: int
    weights: str


def _fits(each: Cache, own: ModelConfig | None, one: int, beside: _CachesBeside) -> CacheFits:
    on, ranks = beside.device, beside.ranks
    left = int(usable(on, PlanSettings(scope="model"), Groups({"tp": ranks})).bytes)
    why = f"{each.name} is no model of the catalogue, so its weights are not counted" if own is None else refusal(own)
    if own is None or why:
        return CacheFits(on.name, ranks, left, None, None, why or "")
    held = ceil_divide(parameters(own).total * WEIGHT_BYTES[beside.weights], ranks)
    return CacheFits(on.name, ranks, left, held, max(0, (left - held) // one))


def counted(field: str, given: Any) -> int:
    try:
        found = count_of(given)
    except ValueError as error:
        raise InputError(str(error), field=field) from None
    if not isinstance(found, int) or not 1 <= found <= _MOST * 64:
        raise InputError("must be a whole number", field=field, value=given, allowed=f"1 to {_MOST * 64}")
    return found


def chosen(field: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InputError("unknown", field=field, value=given, allowed=", ".join(known))
