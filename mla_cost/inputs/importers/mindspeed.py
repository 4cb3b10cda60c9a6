"""MindSpeed-LLM scripts: Megatron's arguments with more of its own (Ascend/MindSpeed-LLM@c77308a1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mla_cost.declared.foreign import CONTEXT_PARALLEL_ALGORITHMS, HYBRID
from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.megatron import OF_OWN_CODE, arguments_of, read_arguments, tell_rest, world_of

SOURCE: Final = "Ascend/MindSpeed-LLM@c77308a1 "
_DEVICE: Final = "910b-64gb"
_PROFILE: Final = "mindspeed"
_OWN: Final = (
    "--context-parallel-algo",
    *("--first-k-dense-replace", "--n-shared-experts", "--noop-layers", "--mla-fa-without-pad", "--use-fused-rmsnorm"),
    *("--reuse-fp32-param", "--swap-optimizer", "--schedules-method", "--use-ascend-coc", "--mla-mm-split"),
    *("--use-fused-swiglu", "--use-fused-rotary-pos-emb", "--model-type-hf", "--mla-zero-memory"),
)
_NOT_PRICED: Final[Mapping[str, str]] = {
    "--swap-optimizer": "states are priced on the device",
    "--swap-attention": "activations are priced on the device",
    "--mla-swap-core-attn-out": "activations are priced on the device",
    "--reuse-fp32-param": "weights are priced beside fp32 ones; this run keeps bf16 weights inside them",
    "--schedules-method": "its schedule is priced as 1F1B",
    "--moe-fb-overlap": "a second micro-batch that overlaps is not priced",
    "--mla-zero-memory": "what it lets go of is priced as kept",
    "--mla-fa-divide-qk": "attention in two halves is priced as one",
    "--moe-zero-memory": "what it lets go of is priced as kept",
    "--recompute-in-bubble": "recomputation in idle time is priced as none",
    "--recompute-in-advance": "recomputation ahead of time is priced as at its time",
    "--moe-tp-extend-ep": "experts are shared by ep alone in a plan",
    "--use-ascend-mc2": "its buffers are not priced",
    "--mtp-mem-efficient-logits": "the logits of the MTP module are priced as kept",
    "--no-shared-storage": "tensors that share storage are priced so",
}


def _recognises(foreign: Foreign) -> bool:
    given = arguments_of(foreign, _OWN)
    return given is not None and any(flag in given.given for flag in _OWN)


def _read(foreign: Foreign, reading: FileReading) -> None:
    given = arguments_of(foreign, _OWN)
    if given is None:
        raise InputError("no MindSpeed arguments were found", file=foreign.file)
    empty = _empty_layers(given)
    for flag in ("--moe-router-load-balancing-type", "--transformer-impl"):
        given.has(flag)
    read_arguments(foreign, reading, given, world_of(foreign, given))
    _exchange(given, reading)
    if empty:
        _uneven(reading, empty)
    _code(reading)
    tell_rest(foreign, reading, given, _NOT_PRICED)


def _code(reading: FileReading) -> None:
    """MindSpeed's own code where a profile of it is declared, else plain torch code."""
    reading.assume("device", [_DEVICE], "MindSpeed runs on Ascend; which device is not in the file")
    reading.drop(OF_OWN_CODE, "is Transformer Engine's and is not priced of MindSpeed")
    if _PROFILE in PROFILES:
        reading.take("profile", _PROFILE, "a script of MindSpeed-LLM")
    else:
        reading.ignore("MindSpeed's kernels", "plain torch code is priced (profile reference)", priced=True)


def _exchange(given: Arguments, reading: FileReading) -> None:
    """MindSpeed's own word for what crosses context-parallel ranks."""
    flag = "--context-parallel-algo"
    word = given.text(flag)
    if reading.settings["sp"] == 1:
        return
    if word is None:
        reading.assume(
            "scheme", CONTEXT_PARALLEL_ALGORITHMS["megatron_cp_algo"], f"{flag} is megatron_cp_algo where absent"
        )
    elif word in CONTEXT_PARALLEL_ALGORITHMS:
        reading.take("scheme", CONTEXT_PARALLEL_ALGORITHMS[word], flag)
        inside = given.number("--ulysses-degree-in-cp")
        if CONTEXT_PARALLEL_ALGORITHMS[word] == HYBRID and inside is not None:
            reading.take("sp_inside", inside, "--ulysses-degree-in-cp")
    else:
        allowed = ", ".join(CONTEXT_PARALLEL_ALGORITHMS)
        raise InputError("is not priced", file=given.file, field=flag, value=word, allowed=allowed)


def _empty_layers(given: Arguments) -> frozenset[int]:
    """The layers of --noop-layers, from 0."""
    words = "".join(given.given.get("--noop-layers", [])).split(",")
    return frozenset(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 5)


def _uneven(reading: FileReading, empty: frozenset[int]) -> None:
    """A layout that says which stages hold fewer layers: those of the layers that do nothing."""
    reported, layers = reading.settings, reading.facts["num_layers"] + len(empty)
    parts = reported["pp"] * reported.pop("virtual_stages", 1)
    if parts == 1 or layers % parts or "pipeline_layout" in reported:
        return
    each = layers // parts
    held = ["t" * sum(at not in empty for at in range(part * each, (part + 1) * each)) for part in range(parts)]
    held[0], held[-1] = f"E{held[0]}", f"{held[-1]}{'m' * reading.facts['num_mtp_layers']}L"
    reading.take("pipeline_layout", "|".join(held), "--noop-layers")


FORMAT: Final = Format("mindspeed", "a MindSpeed-LLM script", _recognises, _read)
