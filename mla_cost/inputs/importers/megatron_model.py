"""The model that Megatron-LM's arguments describe. Defaults were read at d98e8a64 in megatron/training/arguments.py."""

from __future__ import annotations

from typing import Final

from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading

MEGATRON: Final = "NVIDIA/Megatron-LM@d98e8a64 megatron/"
ARGUMENTS: Final = f"{MEGATRON}training/arguments.py"
CONFIG: Final = f"{MEGATRON}core/transformer/transformer_config.py"
_MOST_LAYERS: Final = 4096


def read_model(given: Arguments, reading: FileReading) -> None:
    """Dims and facts of the model.

    Raises:
        InputError: a model without MLA, or what no MLA model can be without.

    """
    if given.has("--multi-latent-attention") is None:
        raise InputError(
            "this run has no --multi-latent-attention, and only MLA is priced", file=given.file, field="model"
        )
    _widths(given, reading)
    layers = _layers(given, reading)
    _experts(given, reading, layers)
    _vocabulary(given, reading)
    reading.hints += [text for name in _NAMES if (text := " ".join(given.words(name) or []))]


_NAMES: Final = ("--tokenizer-model", "--tokenizer-name-or-path", "--hf-checkpoint", "--model-type-hf")


def _required(given: Arguments, flag: str) -> int:
    found = given.number(flag)
    if found is None:
        raise InputError("is not in the file, and no model is without it", file=given.file, field=flag)
    return found


def _widths(given: Arguments, reading: FileReading) -> None:
    for dim, flag in (("hidden", "--hidden-size"), ("heads", "--num-attention-heads")):
        reading.take(f"dims.{dim}", _required(given, flag), flag)
    rank = given.number("--q-lora-rank")
    if rank is None:
        reading.assume("dims.q_lora_rank", None, "--q-lora-rank is none where absent", f"{ARGUMENTS}:3548")
    else:
        reading.take("dims.q_lora_rank", rank, "--q-lora-rank")
    for dim, usual, line, *flags in _LATENT:
        number_or(given, reading, f"dims.{dim}", flags, usual, f"{ARGUMENTS}:{line}")


# dim, Megatron's default, its line, the flag and older names of MindSpeed's
# (Ascend/MindSpeed-LLM@c77308a1 mindspeed_llm/features_manager/arguments/deprecated_args.py:38-41)
_LATENT: Final = (
    ("kv_lora_rank", 32, 3550, "--kv-lora-rank"),
    ("qk_nope_head_dim", 128, 3552, "--qk-head-dim", "--qk-nope-head-dim"),
    ("qk_rope_head_dim", 64, 3554, "--qk-pos-emb-head-dim", "--qk-rope-head-dim"),
    ("v_head_dim", 128, 3556, "--v-head-dim"),
)


def number_or(
    given: Arguments, reading: FileReading, setting: str, flags: list[str] | tuple[str, ...], usual: int, source: str
) -> int:
    """The number of a flag, or the framework's default, which is reported."""
    found = given.number(*flags)
    if found is None:
        reading.assume(setting, usual, f"{flags[0]} is {usual} where absent", source)
        return usual
    reading.take(setting, found, flags[0])
    return found


def _layers(given: Arguments, reading: FileReading) -> int:
    """Layers without those that MindSpeed marks as doing nothing (--noop-layers)."""
    layers, empty = _required(given, "--num-layers"), given.text("--noop-layers")
    idle = len(empty.split(",")) if empty else 0
    said = f"--num-layers less {idle} of --noop-layers" if idle else "--num-layers"
    reading.take("facts.num_layers", layers - idle, said)
    modules = given.number("--mtp-num-layers")
    if modules is None:
        reading.assume("facts.num_mtp_layers", 0, "--mtp-num-layers is none where absent", f"{CONFIG}:68")
    else:
        reading.take("facts.num_mtp_layers", modules, "--mtp-num-layers")
    _dense_width(given, reading)
    return layers - idle


def _dense_width(given: Arguments, reading: FileReading) -> None:
    hidden, gated = reading.dims["hidden"], given.has("--swiglu")
    if gated is None:
        reading.ignore("no --swiglu", "the MLP is priced as SwiGLU; without it there is one matrix less", priced=True)
    usual = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
    number_or(given, reading, "facts.intermediate_size", ["--ffn-hidden-size"], usual, f"{ARGUMENTS}:1320-1329")


def _experts(given: Arguments, reading: FileReading, layers: int) -> None:
    experts = given.number("--num-experts")
    if experts is None:
        reading.assume("facts.num_routed_experts", 0, "--num-experts is none where absent", f"{ARGUMENTS}:3518")
        for fact in ("num_dense_layers", "num_shared_experts"):
            reading.put(f"facts.{fact}", layers if fact == "num_dense_layers" else 0)
        return
    reading.take("facts.num_routed_experts", experts, "--num-experts")
    width = number_or(
        given, reading, "facts.moe_intermediate_size", ["--moe-ffn-hidden-size", "--moe-intermediate-size"],
        reading.facts["intermediate_size"], f"{ARGUMENTS}:1650-1651",
    )  # fmt: skip
    number_or(given, reading, "facts.num_experts_per_token", ["--moe-router-topk"], 2, f"{CONFIG}:760")
    _shared(given, reading, width)
    _dense_layers(given, reading, layers)
    _router(given, reading)


def _shared(given: Arguments, reading: FileReading, width: int) -> None:
    """Shared experts as so many of the routed ones' width: Megatron states their width in all."""
    count = given.number("--n-shared-experts")
    if count is not None:
        return reading.take("facts.num_shared_experts", count, "--n-shared-experts")
    flag = "--moe-shared-expert-intermediate-size"
    total = given.number(flag)
    if total is None:
        return reading.assume("facts.num_shared_experts", 0, f"{flag} is none where absent", f"{CONFIG}:701")
    if total % width:
        raise InputError(
            f"is priced as a multiple of --moe-ffn-hidden-size, {width}", file=given.file, field=flag, value=total
        )
    return reading.take("facts.num_shared_experts", total // width, flag)


def _dense_layers(given: Arguments, reading: FileReading, layers: int) -> None:
    """How many layers before the first with experts are dense; layers that alternate are not priced."""
    first = given.number("--first-k-dense-replace")
    if first is not None:
        given.has("--moe-layer-freq")
        return reading.take("facts.num_dense_layers", first, "--first-k-dense-replace")
    flag = "--moe-layer-freq"
    words = given.words(flag) or []
    text = "".join(words) if len(words) < 2 or set(words) - {"0", "1"} else f"[{','.join(words)}]"
    if not text:
        return reading.assume("facts.num_dense_layers", 0, f"{flag} is 1 where absent", f"{ARGUMENTS}:3520")
    kinds = pattern(text)
    if kinds is not None and text.strip().isdigit():
        kinds = [0 if at % kinds[0] else 1 for at in range(layers)] if kinds[0] else None
    dense = kinds.index(1) if kinds and 1 in kinds else 0
    if not kinds or kinds[:layers] != [0] * dense + [1] * (layers - dense):
        raise InputError(
            "only dense layers before all expert layers are priced", file=given.file, field=flag, value=text,
            allowed=f"1, or {layers} layers with the zeros first, as [0]*3+[1]*{layers - 3}",
        )  # fmt: skip
    return reading.take("facts.num_dense_layers", dense, flag)


def pattern(text: str) -> list[int] | None:
    """The list that text such as `([0]*3+[1]*58)` stands for, or a number as a list of one; None for anything else.

    >>> pattern("([0]+[1,1]*2)*2")
    [0, 1, 1, 1, 1, 0, 1, 1, 1, 1]
    """
    compact = text.replace(" ", "").strip("'\"")
    if compact.isascii() and compact.isdigit() and len(compact) < 6:
        return [int(compact)]
    found, rest = _sum(compact, 0)
    return found if rest == "" else None


def _sum(text: str, depth: int) -> tuple[list[int] | None, str]:
    found: list[int] = []
    while True:
        part, text = _repeated(text, depth)
        if part is None or len(found) + len(part) > _MOST_LAYERS:
            return None, text
        found += part
        if not text.startswith("+"):
            return found, text
        text = text[1:]


def _repeated(text: str, depth: int) -> tuple[list[int] | None, str]:
    part: list[int] | None
    if text.startswith("(") and depth < 8:
        part, text = _sum(text[1:], depth + 1)
        if not text.startswith(")"):
            return None, text
        text = text[1:]
    elif text.startswith("["):
        inside, closed, text = text[1:].partition("]")
        words = inside.split(",")
        part = [int(word) for word in words] if closed and all(word in {"0", "1"} for word in words) else None
    else:
        return None, text
    while part is not None and text.startswith("*"):
        digits = text[1:][: len(text) - 1 - len(text[1:].lstrip("0123456789"))]
        text = text[1 + len(digits) :]
        times = int(digits) if digits and len(digits) < 6 else 0
        part = part * times if times * len(part) <= _MOST_LAYERS else None
    return part, text


def _router(given: Arguments, reading: FileReading) -> None:
    flag = "--moe-router-score-function"
    scores = given.text(flag)
    if scores is None:
        reading.assume("facts.router_scores", "softmax", f"{flag} is softmax where absent", f"{CONFIG}:808")
    elif scores in {"softmax", "sigmoid"}:
        reading.take("facts.router_scores", scores, flag)
    else:
        reading.ignore(given.said(flag), "scores of this kind are priced as sigmoid", priced=True)
        reading.put("facts.router_scores", "sigmoid")
    bias = given.has("--moe-router-enable-expert-bias")
    if bias is None:
        why = "--moe-router-enable-expert-bias is off where absent"
        reading.assume("facts.router_correction_bias", value=False, why=why, source=f"{CONFIG}:816")
    else:
        reading.take("facts.router_correction_bias", value=True, said=bias)


def _vocabulary(given: Arguments, reading: FileReading) -> None:
    """The vocabulary, and to what it is padded: a multiple of --make-vocab-size-divisible-by times tp."""
    untied = given.has("--untie-embeddings-and-output-weights")
    if untied is None:
        why = "--untie-embeddings-and-output-weights is off where absent"
        reading.assume("facts.tied_embeddings", value=True, why=why, source=f"{ARGUMENTS}:2460")
    else:
        reading.take("facts.tied_embeddings", value=False, said=untied)
    padded, own = given.number("--padded-vocab-size"), given.number("--vocab-size")
    multiple = "--make-vocab-size-divisible-by"
    if padded is not None:
        given.has(multiple)
        reading.take("facts.vocab_size", padded, "--padded-vocab-size")
        reading.take("vocab_multiple", 1, "--padded-vocab-size")
        return
    if own is not None:
        reading.take("facts.vocab_size", own, "--vocab-size")
    number_or(given, reading, "vocab_multiple", [multiple], 128, f"{ARGUMENTS}:2441")
