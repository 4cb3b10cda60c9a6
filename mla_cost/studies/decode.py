"""The least that a decoding step reads and takes on a device: an estimate that states what it covers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, NamedTuple

from mla_cost.declared.decoding import LAUNCHES, OVERHEAD_SOURCE, OVERHEAD_US, SCANS, Scan
from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import Fact, ModelConfig
from mla_cost.language.numbers import ceil_divide
from mla_cost.pricing import kv_cache
from mla_cost.pricing.key import form_of
from mla_cost.studies.cache import WEIGHT_BYTES, chosen, counted
from mla_cost.weights.parameters import parameters

COVERS: Final = (
    "one new token for each sequence: weights that the batch meets, the cache of every sequence, products of "
    "attention; left out: activations, the exchanges of ranks, sampling, pages, a queue"
)


class Step(NamedTuple):
    """One decoding step of a form on one of `tp` devices. Bytes; times in microseconds.

    floor_us: what reading memory and computing take at least, whichever is more. step_us: with what operators wait.
    """

    form: str
    scan: str
    launch: str
    weight_bytes: int
    cache_bytes: int
    bytes_per_token: Fraction
    read_us: Fraction
    compute_us: Fraction
    floor_us: Fraction
    overhead_us: Fraction
    step_us: Fraction
    basis: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: float(value) if isinstance(value, Fraction) else value for name, value in self._asdict().items()}


def decode(
    model: str = "deepseek-v3",
    *,
    context: int | str = "128k",
    batch: int = 64,
    device: str = "h100-80gb",
    tp: int = 8,
    dtype: str = "bf16",
    weights: str = "fp8",
    scan: str = "none",
    launch: str = "kernels",
    overhead_us: float | None = None,
) -> list[Step]:
    """The steps of every form that a decoder may keep a cache for.

    overhead_us: what operators of one layer wait beyond reading memory, each a kernel of its own.

    Raises:
        InputError: a name, size or dtype that is none, or a model whose weights cannot be counted.

    """
    length, size, ranks = counted("context", context), counted("batch", batch), counted("tp", tp)
    _require(dtype, weights, scan, launch, overhead_us)
    own, on = catalog.model(model), catalog.device(device)
    held = ceil_divide(_met(own, size) * WEIGHT_BYTES[weights], ranks)
    waits = OVERHEAD_US if overhead_us is None else Fraction(overhead_us)
    overhead = waits * LAUNCHES[launch].share * (own.num_layers or 1)
    rate, peak = _exact(on.memory_bandwidth_gb_s) * 1000, _exact(on.peak_bf16_dense_tflops) * 10**6
    found = []
    for form in kv_cache.forms():
        cached = _cached(own, form, dtype, length, ranks, SCANS.get(scan)) * size
        read = (held + cached) / rate
        compute = Fraction(_flops(own, form, length) * size, ranks) / peak
        floor = max(read, compute)
        basis = (*_basis(scan, launch, overhead_us), f"weights: {_weight_basis(own)}")
        found.append(
            Step(form, scan, launch, held, int(cached), (held + cached) / size, read, compute, floor, overhead,
                 floor + overhead, basis)
        )  # fmt: skip
    return found


def _require(dtype: str, weights: str, scan: str, launch: str, overhead_us: float | None) -> None:
    for field, given, known in (
        ("cache-dtype", dtype, kv_cache.DTYPES),
        ("weights", weights, tuple(WEIGHT_BYTES)),
        ("scan", scan, ("none", *SCANS)),
        ("launch", launch, tuple(LAUNCHES)),
    ):
        chosen(field, given, known)
    if overhead_us is not None and not 0 <= overhead_us <= 1e6:
        raise InputError("must be microseconds", field="overhead-us", value=overhead_us, allowed="0 to 1000000")


def _exact(fact: Fact) -> Fraction:
    return Fraction(str(fact.value))


def _cached(model: ModelConfig, form: str, dtype: str, context: int, ranks: int, scan: Scan | None) -> Fraction:
    """Bytes of a sequence's cache that one rank reads for one new token."""
    every = kv_cache.of_model(model, dtype, form)
    if scan is None:
        return Fraction(every.of_sequence(context, ranks))
    dims = model.dims
    layers = kv_cache.cached_layers(model)
    if form_of(form).shared_key:  # the value is a part of the key, which the scan and the residual give
        return scan.read(dims.kv_lora_rank + dims.qk_rope_head_dim, 0) * context * layers
    heads = ceil_divide(dims.heads, ranks)
    one = scan.read(dims.qk_head_dim, 2 * dims.v_head_dim)
    return one * heads * context * layers


def _flops(model: ModelConfig, form: str, context: int) -> int:
    """Products of attention of one new token with all before, in all layers: multiply-add is 2."""
    dims = model.dims
    latent = 2 * dims.kv_lora_rank + dims.qk_rope_head_dim
    width = latent if form_of(form).shared_key else dims.kv_head_dim
    return 2 * dims.heads * width * context * kv_cache.cached_layers(model)


def _met(model: ModelConfig, batch: int) -> int:
    """Elements of weights that a batch of tokens meets: an expert counts where any token is sent to it."""
    known = parameters(model)
    table = 0 if model.tied_embeddings else (model.vocab_size or 0) * model.dims.hidden
    experts, each = model.num_routed_experts or 0, model.num_experts_per_token or 0
    if not experts or experts == each:
        return known.total - table
    one = Fraction(known.total - known.active, experts - each)
    missed = Fraction(experts - each, experts) ** min(batch, 4096)
    return int(known.total - table - one * experts * missed)


def _weight_basis(model: ModelConfig) -> str:
    return "estimated, experts chosen evenly" if model.num_routed_experts else "counted"


def _basis(scan: str, launch: str, overhead_us: float | None) -> tuple[str, ...]:
    reported = [f"overhead: {OVERHEAD_SOURCE if overhead_us is None else 'stated by the user'}"]
    reported += [f"{name}: {each.basis}, {each.source}" for name, each in SCANS.items() if name == scan]
    reported += [f"{launch}: {LAUNCHES[launch].basis}, {LAUNCHES[launch].source}"] * (LAUNCHES[launch].share != 1)
    return tuple(reported)
