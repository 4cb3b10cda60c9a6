"""slime launch scripts (THUDM/slime@624b824a): Megatron's arguments, packed micro-batches, a model by its name."""

from __future__ import annotations

from typing import Final

from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.keys import name_model
from mla_cost.inputs.importers.megatron import arguments_of, code_of, tell_rest, world_of
from mla_cost.inputs.importers.megatron_model import read_model
from mla_cost.inputs.importers.megatron_run import read_run

_SOURCE: Final = "THUDM/slime@624b824a slime/utils/arguments.py:"
_OWN: Final = ("--rollout-batch-size", "--actor-num-nodes", "--hf-checkpoint", "--n-samples-per-prompt")


def _recognises(foreign: Foreign) -> bool:
    given = arguments_of(foreign, _OWN)
    return given is not None and sum(flag in given.given for flag in _OWN) >= 2


def _read(foreign: Foreign, reading: FileReading) -> None:
    given = arguments_of(foreign, _OWN)
    if given is None:
        raise InputError("no slime arguments were found", file=foreign.file)
    world = world_of(foreign, given)
    if "--hidden-size" in given.given:
        read_model(given, reading)
    else:
        word = " ".join(given.words("--hf-checkpoint") or [])
        name_model(reading, word, f"--hf-checkpoint {word}")
    _length(given, reading)
    for always in ("--bf16", "--use-distributed-optimizer"):  # slime/backends/megatron_utils/arguments.py:153-157
        given.given.setdefault(always, [])
    read_run(given, reading, world, foreign.dp)
    _micro_batches(given, reading)
    code_of(given, reading)
    tell_rest(foreign, reading, given)


def _length(given: Arguments, reading: FileReading) -> None:
    """Tokens of a micro-batch: what --max-tokens-per-gpu packs on each context-parallel rank, else a whole response."""
    packed, sp = given.number("--max-tokens-per-gpu"), given.number("--context-parallel-size") or 1
    response = given.number("--rollout-max-response-len")
    if given.has("--use-dynamic-batch-size") and packed:
        reading.ignore("--use-dynamic-batch-size", "each micro-batch is priced as one sequence of the packed length")
        given.given["--seq-length"] = [str(packed * sp)]
    elif response and "--seq-length" not in given.given:
        given.given["--seq-length"] = [str(response)]
    given.given.setdefault("--micro-batch-size", ["1"])


def _micro_batches(given: Arguments, reading: FileReading) -> None:
    """At most: as many as full responses of a step fill (--rollout-batch-size x samples over steps and data ranks)."""
    told, response = reading.settings, given.number("--rollout-max-response-len")
    prompts, steps = given.number("--rollout-batch-size"), given.number("--num-steps-per-rollout") or 1
    if not prompts or not response:
        return
    samples = prompts * (given.number("--n-samples-per-prompt") or 1) // (steps * told["dp"])
    most = max(told["pp"], -(-samples * response // told["seq_len"]))
    reading.assume(
        "micro_batches", most, "as many as a step's responses fill at their full length", f"{_SOURCE}691-708"
    )


FORMAT: Final = Format("slime", "a slime launch script", _recognises, _read)
