"""A published Hugging Face `config.json`, as a mapping, read into a `ModelConfig`.

The format is foreign: keys that are not needed are ignored, one fact goes by several spellings, and text models may be
nested. What decides a width is never guessed: a missing width is an error, with the one exception that a model's own
library makes (MiniCPM3's value width). Spellings, defaults and layer patterns were read in transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mla_cost.errors import InputError, shown
from mla_cost.inputs.config import ModelConfig, validated
from mla_cost.inputs.importers.imported import Assumed, FileReading, Foreign, Format
from mla_cost.inputs.importers.stated import ABSENCES, INDEXER, assumed, check_types, near_keys, require_always

_NESTED: Final = ("text_config", "language_config", "llm_config")
_DIMS: Final = {
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "q_lora_rank": ABSENCES["q_lora_rank"].keys,
    "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "qk_nope_head_dim": ("qk_nope_head_dim", "attention_qk_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
    "v_head_dim": ("v_head_dim", "attention_v_dim"),
}
_FACTS: Final = {
    "model_type": ("model_type",),
    "num_layers": ("num_layers", "num_hidden_layers"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "num_routed_experts": ABSENCES["num_routed_experts"].keys,
    "num_shared_experts": ABSENCES["num_shared_experts"].keys,
    "num_experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "num_expert_groups": ("n_group",),
    "num_groups_per_token": ("topk_group",),
    "num_dense_layers": ABSENCES["num_dense_layers"].keys,
    "num_mtp_layers": ABSENCES["num_mtp_layers"].keys,
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings", "model_max_length"),
    "tied_embeddings": ("tie_word_embeddings",),
    "dtype": ("dtype", "torch_dtype"),
}
# model_type: (scores, correction bias), where the file states neither; as the modelling code of each family
_ROUTERS: Final = {"deepseek_v2": ("softmax", False), "deepseek_v3": ("sigmoid", True), "kimi_k2": ("sigmoid", True)}
_SCORES: Final = ("sigmoid", "softmax")
# every key that is read and is no whole number, with what it is
_OTHERS: Final = {
    **dict.fromkeys(("tie_word_embeddings", "use_mla"), "true or false"),
    **dict.fromkeys(("model_type", "dtype", "torch_dtype", "scoring_func", "topk_method"), "text"),
    **dict.fromkeys(("architectures",), "a list"),
    "linear_attn_config": "a mapping",
    "moe_layer_freq": "a whole number or a list",
}
_OTHER_MEANING: Final = ("o_lora_rank",)  # of DeepSeek-V4's output, and no misspelt width
_LEFT: Final = ("layer_types", "per_layer_config", *_NESTED)  # checked where they are read
_NUMBERS: Final = (
    *(key for keys in (*_DIMS.values(), *_FACTS.values()) for key in keys if key not in _OTHERS),
    *(*INDEXER, "layer_group_size", "swa_kv_lora_rank"),
)
_TYPES: Final = {**dict.fromkeys(_NUMBERS, "a whole number"), **_OTHERS}
_READ: Final = frozenset((*_TYPES, *_LEFT, *_OTHER_MEANING))


def model_from_config(config: Mapping[str, Any], *, file: str, name: str | None = None) -> ModelConfig:
    """The model that the published mapping `config` describes; `file` is named in errors and as the source.

    Raises InputError for a model without MLA, for one whose attention is a relative of MLA that is not priced, for a
    missing width and for a wrong type, each under the key that the file uses.
    """
    text = _text_part(config, file)
    check_types(text, _TYPES, file)
    _refuse_other_attention(text, file)
    require_always(text, _READ, file)
    data: dict[str, Any] = {
        "name": name or _name(text, file),
        "title": name or _name(text, file),
        "dims": _dims(text, file),
        **{fact: value for fact, keys in _FACTS.items() if (value := _first(text, keys)) is not None},
        **_layers(text, file),
        **_dense(text, file),
        **_router(text),
        "indexer": {key: text[key] for key in INDEXER if text.get(key) is not None} or None,
        "assumed": {**assumed(text, _READ), **_taken(text)},
        "attention_kind": "mla" if text.get("index_topk") is None else "mla_dsa",
        "verified": True,
        "verified_basis": "the config file itself",
        "sources": [file],
    }
    try:
        return validated(ModelConfig, data, file=file)
    except InputError as error:
        raise _as_written(error, text) from None


def _router(text: Mapping[str, Any]) -> dict[str, Any]:
    """How experts are scored: `scoring_func` and `topk_method` where the file has them, else what its family does."""
    if _first(text, _FACTS["num_routed_experts"]) is None:
        return {}
    scores, method = text.get("scoring_func"), text.get("topk_method")
    family = _ROUTERS.get(str(text.get("model_type")))
    found: dict[str, Any] = {}
    if scores in _SCORES:
        found["router_scores"] = scores
    elif family:
        found["router_scores"] = family[0]
    if isinstance(method, str):
        found["router_correction_bias"] = method == "noaux_tc"
    elif family:
        found["router_correction_bias"] = family[1]
    return found


def _taken(text: Mapping[str, Any]) -> dict[str, str]:
    """What the code of the family decides where the file does not, or names what is not priced apart."""
    found: dict[str, str] = {}
    if text.get("v_head_dim") is None and _first(text, _DIMS["v_head_dim"]) is None:
        found["v_head_dim"] = (
            "v_head_dim is not in the file; taken: hidden_size / num_attention_heads, as MiniCPM3 has it"
        )
    router, scores = _router(text), text.get("scoring_func")
    if "router_scores" in router and scores not in _SCORES:
        stated = "is not in the file" if scores is None else f"{shown(scores)} is not priced apart"
        found["router_scores"] = f"scoring_func {stated}; taken: {router['router_scores']}, as its family's code has it"
    if "router_correction_bias" in router and text.get("topk_method") is None:
        bias = "a" if router["router_correction_bias"] else "no"
        found["router_correction_bias"] = (
            f"topk_method is not in the file; taken: {bias} correction bias, as its family's code has it"
        )
    return found


def _dense(text: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The dense layers that `moe_layer_freq` names: 1, or a list of 0 and 1 by layer with the zeros first."""
    given = text.get("moe_layer_freq")
    if given is None or given == 1:
        return {}
    kinds = list(given) if isinstance(given, list | tuple) else []
    dense = kinds.index(1) if 1 in kinds else len(kinds)
    stated = _first(text, _FACTS["num_dense_layers"])
    layers = _first(text, _FACTS["num_layers"])
    if len(kinds) != layers or kinds != [0] * dense + [1] * (len(kinds) - dense) or stated not in (None, dense):
        raise InputError(
            "only dense layers before all expert layers are priced",
            file=file,
            field="moe_layer_freq",
            value=given,
            allowed="1 with first_k_dense_replace, or a 0 or 1 for each layer, the zeros first and as many",
        )
    return {"num_dense_layers": dense}


def _text_part(config: Mapping[str, Any], file: str) -> Mapping[str, Any]:
    """The mapping that describes the language model; of the outer one only what the inner one leaves open."""
    for key in _NESTED:
        inner = config.get(key)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise InputError("must be a mapping", file=file, field=key, value=inner)
        own = {name: value for name, value in inner.items() if value is not None or name not in config}
        return {**config, **own}
    return config


def _refuse_other_attention(text: Mapping[str, Any], file: str) -> None:
    who = _who(text)
    if text.get("use_mla") is False:
        raise InputError(f"{who} switches MLA off (use_mla: false); only MLA is priced", file=file, field="use_mla")
    if _first(text, _DIMS["kv_lora_rank"]) is not None:
        return
    meant = near_keys(text, _DIMS["kv_lora_rank"], _READ)
    if meant:
        raise InputError(
            f"{who} has {' and '.join(map(shown, meant))}, which nothing reads, and no kv_lora_rank",
            file=file,
            field="kv_lora_rank",
        )
    if _first(text, _DIMS["q_lora_rank"]) is not None:
        raise InputError(
            f"{who} compresses its query (q_lora_rank) but has no kv_lora_rank: its attention, as in DeepSeek-V4, is "
            "not MLA and is not priced",
            file=file,
            field="kv_lora_rank",
        )
    raise InputError(f"{who} has no kv_lora_rank: it is not an MLA model", file=file, field="kv_lora_rank")


def _who(text: Mapping[str, Any]) -> str:
    architectures = text.get("architectures")
    first = architectures[0] if isinstance(architectures, list | tuple) and architectures else None
    named = text.get("model_type") or first
    return named[:80] if isinstance(named, str) and named.isprintable() else "this model"


def _name(text: Mapping[str, Any], file: str) -> str:
    """What people call the file: its folder when it is called config.json, as in a clone of a repository."""
    path = Path(file)
    if path.stem.lower() != "config":
        return path.stem
    return path.resolve().parent.name or _who(text)


def _dims(text: Mapping[str, Any], file: str) -> dict[str, Any]:
    dims = {dim: _agreed(text, keys, file) for dim, keys in _DIMS.items()}
    if dims["v_head_dim"] is None:
        dims["v_head_dim"] = _value_width(text, file)
    for dim, value in dims.items():
        if value is None and dim != "q_lora_rank":
            raise InputError(f"{_who(text)} does not state this width{_has(text, dim)}", file=file, field=_DIMS[dim][0])
    return dims


def _has(text: Mapping[str, Any], dim: str) -> str:
    """What the file has that may be a misspelt width, in brackets; empty where nothing is."""
    meant = near_keys(text, _DIMS[dim], _READ)
    return f" (it has {' and '.join(map(shown, meant))}, which nothing reads)" if meant else ""


def _agreed(text: Mapping[str, Any], keys: tuple[str, ...], file: str) -> Any:
    """The value under any of `keys`; two spellings of one width must not contradict each other."""
    found = {key: text[key] for key in keys if text.get(key) is not None}
    for key, value in found.items():
        first, stated = next(iter(found.items()))
        if value != stated:
            raise InputError(f"is {shown(value)}, which contradicts {first} {shown(stated)}", file=file, field=key)
    return next(iter(found.values()), None)


def _first(text: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((text[key] for key in keys if text.get(key) is not None), None)


def _value_width(text: Mapping[str, Any], file: str) -> int:
    """MiniCPM3 leaves the value width open and its library takes hidden / heads; others have other defaults."""
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    known = text.get("model_type") in (None, "minicpm3")
    if known and type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads == 0:
        return hidden // heads
    raise InputError(
        f"{_who(text)} does not state this width{_has(text, 'v_head_dim')}; only MiniCPM3 is known to take "
        "hidden_size / num_attention_heads",
        file=file,
        field="v_head_dim",
    )


def _layers(text: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`num_layers`, and how many and which of them are MLA."""
    layers = _first(text, _FACTS["num_layers"])
    if type(layers) is not int:
        return {}  # left to validation, which says what is wrong
    if text.get("model_type") == "longcat_flash":
        blocks = layers if text.get("num_layers") is not None else layers // 2
        said = f"all: 2 MLA blocks in each of the {blocks} transformer blocks"
        return {"num_layers": blocks, "num_mla_layers": 2 * blocks, "mla_layers": said}
    indices = _mla_indices(text, layers, file)
    if indices is None or len(indices) == layers:
        return {"num_layers": layers, "num_mla_layers": layers}
    if not indices:
        raise InputError(f"none of the {layers} layers of {_who(text)} is MLA", file=file)
    others = f"the other {layers - len(indices)} are not MLA of these widths and are not priced"
    said = f"{len(indices)} of {layers} blocks; {others}"
    return {"num_layers": layers, "num_mla_layers": len(indices), "mla_layers": said, "mla_layer_indices": indices}


def _mla_indices(text: Mapping[str, Any], layers: int, file: str) -> list[int] | None:
    """The MLA layers of a hybrid model, counted from 0; None when the file names no other kind of layer."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and linear.get("full_attn_layers") is not None:
        full, other = (_list_of(int, linear.get(key) or [], file, key) for key in ("full_attn_layers", "kda_layers"))
        base = 0 if 0 in (*full, *other) else 1
        return sorted(index - base for index in full)
    if text.get("layer_types") is not None:
        types = _list_of(str, text["layer_types"], file, "layer_types")[:layers]
        return [index for index, kind in enumerate(types) if not any(word in kind for word in _other_kinds(text))]
    group = text.get("layer_group_size")
    if type(group) is int and group > 0:
        return [index for index in range(layers) if (index + 1) % group == 0]
    return None


def _other_kinds(text: Mapping[str, Any]) -> tuple[str, ...]:
    """Words in a layer type that is not MLA of the stated widths: dots3's sliding windows have widths of their own."""
    own_widths = "swa_kv_lora_rank" in text or text.get("per_layer_config") is not None
    return ("linear", "sliding") if own_widths else ("linear",)


def _list_of(kind: type[Any], value: Any, file: str, field: str) -> list[Any]:
    if isinstance(value, list | tuple) and all(type(item) is kind for item in value):
        return list(value)
    words = "layer numbers" if kind is int else "layer types"
    raise InputError(f"must be a list of {words}", file=file, field=field, value=value)


def _as_written(error: InputError, text: Mapping[str, Any]) -> InputError:
    """`error` under the key that the user's file has, instead of the one of this package."""
    ours = (error.field or "").removeprefix("dims.").removeprefix("indexer.")
    keys = {**_FACTS, **_DIMS}.get(ours, (ours,))
    written = next((key for key in keys if key in text), keys[0])
    return InputError(
        error.message,
        file=error.file,
        field=written or None,
        value=error.value,
        allowed=error.allowed,
        nearest=error.nearest,
    )


def _recognises(foreign: Foreign) -> bool:
    data = foreign.data or {}
    return "model_type" in data or "architectures" in data or "kv_lora_rank" in data


def _read(foreign: Foreign, reading: FileReading) -> None:
    model = model_from_config(foreign.data or {}, file=foreign.file)
    reading.take("model", foreign.file, "the config itself")
    for fact, why in model.assumed.items():
        reading.assumed.append(Assumed(f"facts.{fact}", "none", why))


FORMAT: Final = Format("huggingface", "a Hugging Face config.json", _recognises, _read)
