"""Megatron-LM: a shell script that starts pretrain_gpt.py, a file of arguments, or a test case's `MODEL_ARGS`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from mla_cost.declared.profiles import PROFILES
from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading, Foreign, Format
from mla_cost.inputs.importers.megatron_model import CONFIG, read_model
from mla_cost.inputs.importers.megatron_run import read_run
from mla_cost.inputs.importers.shell import Script

_KNOWN_BY: Final = ("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--num-attention-heads")
_MODEL_ARGS: Final = "MODEL_ARGS"
_NODES: Final = ("--nnodes", "--nodes", "-N", "--actor-num-nodes")
_PER_NODE: Final = (
    *("--actor-num-gpus-per-node", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node", "--num-gpus"),
)
_PROFILE: Final = "megatron"
# settings that mean something under a profile with code of its own
OF_OWN_CODE: Final = ("dispatcher", "shared_overlap", "rope_fusion", "attention_backend", "cross_entropy")
# flags that change no priced figure, by how their names begin or end: what data, how long, what is reported and stored
_QUIET: Final = re.compile(
    r"--(no-)?(lr|min-lr|weight-decay|.*-wd-|adam|clip-grad|optimizer$|log|tensorboard|wandb|save|load|ckpt|dist-ckpt"
    r"|eval|data|split|tokenizer|vocab-file|merge-file|train|exit|init-|seed|manual-gc|num-workers|mmap|timing|profile"
    r"|distributed-(timeout|backend)|use-mcore-models|position-embedding|rotary|rope|use-rot|mscale|beta-|norm-epsilon"
    r"|kv-channels|max-position|attention-dropout|hidden-dropout|normalization|qk-layernorm|disable-bias|mock-data"
    r"|overlap|ddp|moe-(router-(load|group|num-groups|topk-scaling|pre|bias-update|dtype|force|fusion)|aux|z-loss"
    r"|grouped|permut|permute|token-drop|per-layer|hybridep|deepep)|enable-experimental|create-attention-mask"
    r"|masked-softmax|bias-|transformer-impl|use-flash-attn|attention-backend|mtp-loss|override-opt|auto-detect"
    r"|check-for-nan|calculate-per-token|spec|finetune|reset-|handler|trust-remote|legacy-tokenizer|decoupled"
    r"|global-batch|rampup|nproc|nnodes|node-rank|master|rdzv|local-|tee|batch-size|loss-scale|initial-loss|hysteresis"
    r"|gradient-accumulation-fusion|cuda-device|async|non-persistent|use-dist-ckpt|iteration|one-logger|te-rng)"
)
# what changes memory and is not priced
_NOT_PRICED: Final[Mapping[str, str]] = {
    "--fp8-format": "FP8 is not priced: bf16 linears are",
    "--fp8-recipe": "FP8 is not priced: bf16 linears are",
    "--fp8-param-gather": "FP8 weights are not priced",
    "--fp4-format": "FP4 is not priced: bf16 linears are",
    "--fine-grained-activation-offloading": "activations are priced on the device",
    "--cpu-offloading-num-layers": "activations are priced on the device",
    "--moe-expert-capacity-factor": "all rows of an even share are priced, none dropped",
    "--moe-pad-expert-input-to-capacity": "rows are priced without padding to capacity",
    "--overlap-moe-expert-parallel-comm": "a second micro-batch that overlaps is not priced",
    "--delay-wgrad-compute": "inputs kept for later weight gradients are not priced",
    "--cuda-graph-impl": "graphs' own memory pools are not priced",
    "--enable-cuda-graph": "graphs' own memory pools are not priced",
    "--external-cuda-graph": "graphs' own memory pools are not priced",
    "--mla-down-proj-fusion": "the fused down-projection is priced as two",
    "--use-nccl-ub": "buffers registered with NCCL are not priced",
    "--distribute-saved-activations": "saved inputs are priced whole on each tp rank",
    "--num-distributed-optimizer-instances": "states are priced shared by all data ranks",
    "--moe-latent-size": "experts on a latent are not priced",
    "--use-dynamic-batch-size": "micro-batches are priced at their full length",
}


def arguments_of(foreign: Foreign, own: Iterable[str] = ()) -> Arguments | None:
    """The arguments of the training program in a file; None where none is there. own: flags that mark it, too."""
    if foreign.data is not None:
        listed = foreign.data.get(_MODEL_ARGS)
        return Arguments.of_mapping(listed, foreign.file) if isinstance(listed, Mapping) else None
    if foreign.script is None:
        return None
    words = _program(foreign.script, {*_KNOWN_BY, *own})
    return Arguments(words, foreign.file) if words else None


def _program(script: Script, marks: set[str]) -> list[str]:
    """The command with most of the flags that mark a run; else every variable that holds flags, as in an include."""

    def count(words: Iterable[str]) -> int:
        return len(marks & {word.partition("=")[0].replace("_", "-") for word in words})

    best = max(script.commands, key=count, default=())
    if count(best) >= 2:
        return list(best)
    held = [word for text in script.variables.values() if "--" in text for word in text.split()]
    return held if count(held) >= 2 else []


def world_of(foreign: Foreign, given: Arguments) -> int | None:
    """Ranks in all: nodes times ranks of each, from the launcher's flags, `#SBATCH` lines or WORLD_SIZE."""
    script = foreign.script
    if script is None:
        return None
    launch = Arguments(script.sbatch, foreign.file)
    for words in script.commands:
        launch.given = Arguments(words, foreign.file).given | launch.given
    launch.given = given.given | launch.given
    nodes, each = _first(launch, _NODES), _first(launch, _PER_NODE) or _gres(launch)
    given.used |= {name for name in (*_NODES, *_PER_NODE) if name in given.given}
    if each is not None:
        return each * (nodes or 1)
    stated = script.variables.get("WORLD_SIZE", "")
    return int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 9 else None


def _first(launch: Arguments, names: Iterable[str]) -> int | None:
    for name in names:
        words = launch.given.get(name, [])
        if words and words[0].isascii() and words[0].isdigit() and 0 < len(words[0]) < 9 and int(words[0]):
            return int(words[0])
    return None


def _gres(launch: Arguments) -> int | None:
    found = re.fullmatch(r"gpu(?::\w+)?:(\d{1,4})", " ".join(launch.given.get("--gres", [])))
    return int(found[1]) if found else None


def _recognises(foreign: Foreign) -> bool:
    return arguments_of(foreign) is not None


def _read(foreign: Foreign, reading: FileReading) -> None:
    given = arguments_of(foreign)
    if given is None:
        raise InputError("no Megatron arguments were found", file=foreign.file)
    read_arguments(foreign, reading, given, world_of(foreign, given))
    code_of(given, reading)
    tell_rest(foreign, reading, given)


def read_arguments(foreign: Foreign, reading: FileReading, given: Arguments, world: int | None) -> None:
    """Model and run of a list of arguments.

    Raises:
        InputError: as the two.

    """
    read_model(given, reading)
    read_run(given, reading, world, foreign.dp)


def code_of(given: Arguments, reading: FileReading) -> None:
    """Whose code is priced: Transformer Engine's, in bf16; else plain torch code."""
    kind = given.text("--transformer-impl")
    if reading.settings["dtype"] != "bf16" or kind == "local":
        reading.ignore(
            f"--transformer-impl {kind}", "Megatron's own kernels are priced as plain torch code", priced=True
        )
        reading.drop(OF_OWN_CODE, "is priced under profile megatron alone")
    elif kind is None:
        why = "--transformer-impl is transformer_engine where absent"
        reading.assume("profile", _PROFILE, why, f"{CONFIG}:1314")
    else:
        reading.take("profile", _PROFILE, f"--transformer-impl {kind}")
    assert _PROFILE in PROFILES


def tell_rest(foreign: Foreign, reading: FileReading, given: Arguments, more: Mapping[str, str] | None = None) -> None:
    """Every flag that nothing has read, with why no plan takes it. more: what else is not priced, by flag."""
    reported = {**_NOT_PRICED, **(more or {})}
    for name in given.rest():
        if name in reported:
            reading.ignore(given.said(name), reported[name], priced=True)
        elif _QUIET.match(name):
            reading.ignore(name, "changes no figure that is priced")
        else:
            reading.ignore(given.said(name), "is not known here")
    for line, why in foreign.script.skipped if foreign.script else ():
        reading.ignore(f"line {line}", why)


FORMAT: Final = Format("megatron", "Megatron-LM arguments", _recognises, _read)
