"""From a model, a form and settings to one program and the values of its symbols, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, comb, gcd
from typing import Any, NamedTuple

from mla_cost.declared import defaults
from mla_cost.declared.forms import FORMS
from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.layers import LAYERS
from mla_cost.declared.profiles import PROFILES
from mla_cost.declared.schemes import SCHEMES
from mla_cost.errors import InputError, nearest, shown
from mla_cost.inputs import table
from mla_cost.inputs.config import ModelConfig
from mla_cost.inputs.settings import PlanSettings
from mla_cost.language.dims import SYMBOLS, Predicates, base_values, predicates_of
from mla_cost.language.numbers import at_each, ceil_divide, floor_divide, maximum, round_up
from mla_cost.language.program import ATTEND, Kernel, Pair, Profile, Requirement, Scheme, sizes_asked
from mla_cost.language.recompute import DISCARDING, POLICIES, TOGETHER
from mla_cost.pricing.key import Key, form_of

# the settings that only an implementation has
IMPLEMENTATION = table.names(own_code=True)


class Illegal(ValueError):  # noqa: N818  (named after the status that it becomes)
    """No program exists for this point; the text says why and names the way out."""


class Point(NamedTuple):
    """A point resolved to the key of its program and the values of its symbols."""

    form: str
    scheme: Scheme
    kernel: Kernel
    key: Key
    values: Mapping[str, int]
    v_layout_matters: bool


def resolve(
    model: ModelConfig, form: str, settings: PlanSettings, layer: str = "attention", *, whoever: bool = False
) -> Point:
    """The program and the symbol values of one form at these settings.

    whoever: let a scheme run in a block of another implementation than its own.

    Raises:
        InputError: a name that does not exist. Illegal: names that exist but make no program together.

    """
    scheme = scheme_of(form, settings.scheme)
    kernel = named("kernel", settings.kernel, KERNELS)
    values = symbol_values(model, settings)
    values |= inner_values(scheme, values, settings.sp_inside)
    _require(scheme, values, settings.tp)
    profile = _profile(model, form, kernel, settings, layer)
    _require_scheme(scheme, kernel, profile, settings.sp, whoever)
    if scheme.attends and form_of(form).shared_key:
        raise Illegal(_one_key(scheme, form))
    if layer != "attention":
        values |= layer_values(model, settings)
    elif settings.idle_mlp:
        values["f"] = settings.idle_mlp
    groups = scheme.groups(values.get("A", 1), values.get("C", 1))
    base = base_values(values, *groups)
    predicates = predicates_of(base, *groups)
    require_present(profile, predicates.zeros)
    matters = not predicates.exchanged or "value" not in scheme.moves
    padding = _padding(kernel, form_of(form).shared_key, settings.value_padding, values)
    names = form_of(form).name, scheme.name, kernel.name
    key = _key(names, predicates, settings, layer, padding)
    key = key._replace(mask="none" if kernel.fused else settings.mask, remat=policy(settings.remat, profile))
    key = _surrounded(_implemented(key, profile, settings), settings)
    return Point(form, scheme, kernel, key, base, matters and "value" in form_of(form).points)


def _key(names: tuple[str, str, str], predicates: Predicates, settings: PlanSettings, layer: str, padding: str) -> Key:
    """What of the settings a program is compiled for. names: of the form, the scheme and the kernel."""
    form, scheme, kernel = names
    return Key(
        form=form,
        scheme=scheme,
        kernel=kernel,
        predicates=predicates,
        dtype=settings.dtype,
        v_layout=settings.v_layout,
        value_padding=padding,
        attention_layout=settings.attention_layout,
        softmax_dtype="activation" if settings.softmax_dtype == settings.dtype else settings.softmax_dtype,
        mask=settings.mask,
        names=settings.names,
        norm=settings.norm,
        layer=layer,
        cross_entropy=settings.cross_entropy,
        down_projections=settings.down_projections if predicates.rows_divided else "replicated",
        remat=settings.remat,
        moe_style=settings.moe_style if LAYERS[layer].experts else "fused",
    )


def _surrounded(key: Key, settings: PlanSettings) -> Key:
    """The key with what surrounds a block: weights beside it, and a caller that holds what it is handed.

    Only of a single block: in a stack the output of one is the input of the next, and nobody else's.
    """
    if key.layer != "attention":
        return key
    held = key.names == "held" and settings.layers == 1
    return key._replace(gradient_held=held, output_held=held, idle_mlp="held" if settings.idle_mlp else "none")


def named(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """The declaration of that name.

    Raises:
        InputError: naming what exists and what may have been meant.

    """
    words = tuple(dict.fromkeys((*defaults.ALSO.get(kind, ()), *known)))
    if not isinstance(name, str):
        raise InputError("must be a name", field=kind, value=name, allowed=", ".join(words))
    if name not in known:
        raise InputError(f"unknown {kind} {shown(name)}", allowed=", ".join(words), nearest=nearest(name, words))
    return known[name]


def scheme_of(form: str, wanted: str | None) -> Scheme:
    """The scheme asked for, or the form's own.

    Raises:
        InputError: an unknown name. Illegal: a scheme that moves what the form never makes.

    """
    declared = named("form", form, FORMS)
    scheme: Scheme = named("scheme", declared.scheme if wanted is None else wanted, SCHEMES)
    if isinstance(declared, Pair) and scheme.name != declared.scheme:
        raise Illegal(
            f"{form} is {declared.form} with scheme {declared.scheme}; "
            f"for scheme {scheme.name} ask for form {declared.form}"
        )
    missing = sorted(scheme.moves.keys() - form_of(form).points - scheme.points)
    if not scheme.pieces.keys() - {ATTEND} <= form_of(form).pieces.keys():
        raise Illegal(_one_key(scheme, form))
    if missing:
        raise Illegal(
            f"scheme {scheme.name} moves {' and '.join(missing)}, which form {form} never makes; "
            f"its scheme is {declared.scheme}"
        )
    return scheme


def _one_key(scheme: Scheme, form: str) -> str:
    """What to say of a scheme for keys of every head, and the way out."""
    return (
        f"scheme {scheme.name} moves keys and values of every head, and form {form} has one key for all; "
        f"its scheme is {FORMS[form].scheme}"
    )


def symbol_values(model: Any, settings: Any) -> dict[str, Any]:
    """S, P, b, n and the widths of a model and settings, whose numbers may be arrays."""
    dims = model.dims
    return {
        "S": settings.seq_len,
        "P": settings.sp,
        "b": settings.micro_batch,
        "n": floor_divide(dims.heads, settings.tp),
        "h": dims.hidden,
        "d_q": 0 if dims.q_lora_rank is None else dims.q_lora_rank,
        "d_c": dims.kv_lora_rank,
        "k": dims.qk_nope_head_dim,
        "r": dims.qk_rope_head_dim,
        "v": dims.v_head_dim,
        "i": (model.indexer or {}).get("index_head_dim", 0),
    }


def inner_ranks(wanted: int, heads: int, ranks: int) -> int:
    """The ranks of an inner group: those asked for, or where nobody says the most that divide heads and all ranks."""
    return wanted or gcd(heads, ranks)


def inner_values(scheme: Scheme, values: Mapping[str, Any], wanted: Any) -> dict[str, Any]:
    """A, the ranks of an inner group, and C, how many of those there are; nothing where a scheme has none.

    values: of P and n. wanted: as the setting `sp_inside`. Numbers, or arrays of them.
    """
    if not scheme.inside:
        return {}
    inside = at_each(inner_ranks, wanted, values["n"], values["P"])
    return {"A": inside, "C": maximum(floor_divide(values["P"], inside), 1)}


def policy(wanted: str, profile: Profile) -> str:
    """A recomputation policy, its names known and in a fixed order.

    Raises:
        InputError: a name that the profile has not. Illegal: two that exclude each other.

    """
    names = wanted.split("+")
    for name in names:
        if name in profile.recomputes:
            continue
        if name not in POLICIES:
            raise _no_policy(name, profile)
    for first, second in TOGETHER:
        if first in names and second in names:
            raise Illegal(f"remat {first} runs whole layers again, {second} parts of them; use one of them")
    return "+".join(name for name in (*POLICIES, *DISCARDING) if name in names)


def _no_policy(name: str, profile: Profile) -> InputError:
    """What to write in place of a name that is no policy of the profile: its own, or those of another profile."""
    own = (*POLICIES, *profile.recomputes)
    others = [other for other, declared in PROFILES.items() if set(declared.recomputes) - set(own)]
    allowed = ", ".join(own)
    if name in DISCARDING:
        allowed += f", or profile {' or '.join(others)}"
        return InputError(f"remat {name} belongs to profile {' or '.join(others)}", field="remat", allowed=allowed)
    further = [each for other in others for each in PROFILES[other].recomputes if each not in own]
    if further:
        allowed += f"; with profile {' or '.join(others)} {', '.join(further)} too"
    meant = nearest(name, (*own, *further), count=1)
    reported = [f"{each} (profile {' or '.join(others)})" if each in further else each for each in meant]
    return InputError(f"unknown remat {shown(name)}", allowed=allowed, nearest=reported)


def layer_values(model: ModelConfig, settings: PlanSettings) -> dict[str, int]:
    """What layers need beside attention: tp and its local widths, the vocabulary, and the experts of one rank."""
    rows, routed = layer_rows(settings), (model, settings.ep, settings.imbalance_percent)
    received = received_values(received_rows(*routed, rows), settings.ep)
    return {**layer_sizes(model, settings), **received, **token_values(*routed, rows)}


def layer_rows(settings: Any) -> Any:
    """Positions of one rank outside the regions of tensor parallelism, all sequences of a micro-batch together."""
    return settings.seq_len // settings.sp // settings.tp * settings.micro_batch


def layer_sizes(model: ModelConfig, settings: Any) -> dict[str, Any]:
    """As `layer_values` but for what is routed; the settings' numbers may be arrays, for then so are the sizes."""
    from mla_cost.weights.held import padded_vocabulary  # only the model scope needs the arithmetic of states

    tp, rows = settings.tp, layer_rows(settings)
    width, experts = model.moe_intermediate_size or 0, model.num_routed_experts or 0
    sent = rows * (model.num_experts_per_token or 0)
    return {
        "t": tp,
        "f": (model.intermediate_size or 0) // tp,
        "d_q_part": (model.dims.q_lora_rank or 0) // tp,
        "kv_part": (model.dims.kv_lora_rank + model.dims.qk_rope_head_dim) // tp,
        "B": model.other_layer_bytes or 0,
        "I": model.indexer_layer_bytes or 0,
        "V": padded_vocabulary(model.vocab_size or 0, tp, settings.vocab_multiple) // tp,
        "V_all": model.vocab_size or 0,
        "q": ceil_divide(ceil_divide(settings.seq_len, settings.sp) * settings.micro_batch, settings.loss_chunks),
        "E": settings.ep,
        "T": settings.etp,
        "e": experts,
        "c": experts // settings.ep,
        "K": model.num_experts_per_token or 0,
        "w": ceil_divide(sent, settings.ep),
        "g": width // settings.etp,
        "m": (model.num_shared_experts or 0) * width // tp,
        "j": model.dims.hidden // tp,
    }


def received_rows(model: ModelConfig, ep: int, imbalance: int | str, tokens: Any) -> Any:
    """Rows that reach one rank over ep, each rank having `tokens`: even, that times the imbalance, or all there can be.

    At worst every token of every rank of ep chooses as many of this rank's experts as it may. tokens: an array, too.
    """
    chosen, own = model.num_experts_per_token or 0, (model.num_routed_experts or 0) // ep
    if isinstance(imbalance, str):
        return tokens * ep * min(chosen, own)
    return ceil_divide(tokens * chosen * imbalance, 100)


def received_values(rows: Any, ep: Any) -> dict[str, Any]:
    """Rows that reach one rank over ep, and those that its experts send back to each. Numbers, or arrays of them."""
    return {"R": rows, "z": ceil_divide(rows, ep)}


def token_values(model: ModelConfig, ep: int, imbalance: int | str, tokens: int) -> dict[str, int]:
    """Tokens that one rank's experts receive where a token travels once to every rank that it chose an expert of.

    Choices are taken as drawn evenly from all experts, times the imbalance, and never more than there are; limits on
    groups of experts would make fewer.
    """
    experts, chosen = model.num_routed_experts or 0, model.num_experts_per_token or 0
    if not experts:
        return {"D": 0, "a": 0}
    own = experts // ep
    missed = Fraction(comb(max(0, experts - own), chosen), comb(experts, chosen)) if chosen <= experts else Fraction(0)
    every = tokens * ep
    arrived = every
    if not isinstance(imbalance, str):
        arrived = min(every, ceil(every * (1 - missed) * imbalance / 100))
    return {"D": arrived, "a": ceil_divide(arrived, ep)}


def _profile(model: ModelConfig, form: str, kernel: Kernel, settings: PlanSettings, layer: str) -> Profile:
    """The profile asked for, where it runs this form, kernel and layer.

    Raises:
        InputError: an unknown name. Illegal: what it does not run, with what it does.

    """
    profile: Profile = named("profile", settings.profile, PROFILES)
    if profile.texts and layer not in profile.texts:
        raise Illegal(f"profile {profile.name} prices whole layers; use scope model")
    refuse_form(model, form, profile)
    if profile.kernels and kernel.name not in profile.kernels:
        raise Illegal(
            f"profile {profile.name} does not run kernel {kernel.name}; use kernel {' or '.join(profile.kernels)}"
        )
    return profile


def _require_scheme(scheme: Scheme, kernel: Kernel, profile: Profile, ranks: int, whoever: bool) -> None:
    """Refuse a scheme that a profile or a kernel does not run.

    Raises:
        Illegal: with what does.

    """
    own = profile.name in scheme.profiles or whoever
    if scheme.attends and not own:
        runs = " or ".join(scheme.profiles)
        raise Illegal(f"scheme {scheme.name} is part of an attention call that only profile {runs} has")
    if ranks > 1 and not own:
        known = " or ".join(each.name for each in SCHEMES.values() if profile.name in each.profiles)
        raise Illegal(f"profile {profile.name} is not priced with scheme {scheme.name}; use scheme {known}")
    if scheme.attends and ranks > 1 and not kernel.fused:
        fused = " or ".join(each.name for each in KERNELS.values() if each.fused)
        raise Illegal(f"scheme {scheme.name} attends piece by piece in a fused kernel; use kernel {fused}")


def refuse_form(model: ModelConfig, form: str, profile: Profile) -> None:
    """Say of a form that a profile has no training path for it.

    Raises:
        Illegal: with what can be asked instead, which for a model with sparse attention is another profile.

    """
    if form not in profile.refused:
        return
    if model.indexer is None:
        raise Illegal(f"profile {profile.name} has {profile.refused[form]}")
    raise Illegal(
        f"profile {profile.name} does not price {form} of {model.name}: {profile.sparse}; use profile "
        f"{defaults.PROFILE}, which prices attention to all tokens"
    )


def require_present(profile: Profile, zeros: frozenset[str]) -> None:
    """Refuse dims that are absent and that a profile cannot be without.

    Raises:
        Illegal: naming the dim, why, and the profile that can.

    """
    for dim, why in profile.needs.items():
        if dim in zeros:
            raise Illegal(f"profile {profile.name} needs {SYMBOLS[dim][1]}: {why}; use profile {defaults.PROFILE}")


def _implemented(key: Key, profile: Profile, settings: PlanSettings) -> Key:
    """The key with what only a profile of its own asks about; the reference has one way for each."""
    if not profile.texts:
        return key
    found: dict[str, Any] = {field: getattr(settings, field) for field in ("profile", *IMPLEMENTATION)}
    return key._replace(**{**found, "names": "rebound", **profile.fixed})


def _require(scheme: Scheme, values: Mapping[str, int], tp: int) -> None:
    """Refuse what the scheme cannot divide; heads are those of a rank of tp, and the message says of how many."""
    fields = sizes_asked(values)
    for need in scheme.requires:
        if need.broken(fields):
            shared = f" ({fields['heads'] * tp} over tp {tp})" if tp > 1 and "heads" in {need.what, need.by} else ""
            raise Illegal(f"{need.message.format(**fields)}{shared}; {_way_out(scheme, need, fields)}")


def _way_out(scheme: Scheme, broken: Requirement, fields: Mapping[str, int]) -> str:
    """The nearest degree below that meets every requirement of the scheme, and the nearest length above."""
    if broken.way_out:
        return broken.way_out
    divided = [need for need in scheme.requires if need.by == broken.by]
    most = min(fields[broken.by], gcd(*(fields[need.what] for need in divided)))  # what divides all divides this
    degrees = range(most, 0, -1)
    below = next(size for size in degrees if not any(need.broken({**fields, broken.by: size}) for need in divided))
    reported = f"the nearest {broken.by} below is {below}"
    if broken.what != "seq_len":
        return reported
    parts = broken.parts(fields[broken.by])
    above = f"the nearest seq_len above is {round_up(fields['seq_len'], parts)}"
    return above if broken.by not in table.TABLE else f"{reported}, {above}"


def pads_value(kernel: Kernel, shared: bool, wanted: str | None, values: Mapping[str, Any]) -> Any:
    """Whether V is padded to the width of Q and K where it is narrower: a truth value, or an array of them."""
    asked = kernel.pads(shared) and (wanted or kernel.value_padding) != "none"
    return asked & (values["v"] != values["k"] + values["r"])


def _padding(kernel: Kernel, shared: bool, wanted: str | None, values: Mapping[str, int]) -> str:
    padding = wanted or kernel.value_padding
    qk = values["k"] + values["r"]
    if not pads_value(kernel, shared, wanted, values):
        return "none"
    if values["v"] > qk:
        raise Illegal(
            f"value_padding qk widens V to the query-key width, but V ({values['v']}) is wider than that ({qk}); "
            "use value_padding none"
        )
    return padding


def usual_sp(heads: Any, seq_len: Any) -> Any:
    """The ranks that share a block where nobody says: the largest number up to `defaults.SP` that divides both.

    heads, seq_len: numbers, or arrays of them.

    >>> usual_sp(128, 16384), usual_sp(20, 16384), usual_sp(20, 16380)
    (8, 4, 5)
    """
    found: Any = 1
    for size in range(2, defaults.SP + 1):
        divides = (heads % size == 0) & (seq_len % size == 0)
        found = found + (size - found) * divides
    return found


def refuse_tensor_parallel(settings: PlanSettings) -> None:
    """Say of tensor parallelism that one block has none.

    Raises:
        InputError: where tp is above 1.

    """
    if settings.tp > 1:
        raise InputError(
            f"{settings.tp} belongs to scope model: one block has a rank's heads",
            field="tp",
            allowed="1 with sp to divide a sequence and dims.heads to divide heads, or scope model",
        )
