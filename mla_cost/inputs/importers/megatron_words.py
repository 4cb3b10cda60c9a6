"""Fields of Megatron's config as Megatron's arguments, for those who write them in YAML or as overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading, Foreign
from mla_cost.inputs.importers.megatron import code_of, tell_rest
from mla_cost.inputs.importers.megatron_model import read_model
from mla_cost.inputs.importers.megatron_run import read_run

# fields whose arguments go by other names (megatron/training/arguments.py and argument_utils.py, d98e8a64)
_OTHER_NAMES: Final = {
    "num_moe_experts": "num-experts",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "gated_linear_unit": "swiglu",
    "encoder_seq_length": "seq-length",
    "sequence_length": "seq-length",
    "mtp_num_layers": "mtp-num-layers",
}
# switches that arguments have the other way round: (field, its value): the argument
_SWITCHES: Final = {
    ("apply_rope_fusion", False): "no-rope-fusion",
    ("share_embeddings_and_output_weights", False): "untie-embeddings-and-output-weights",
    ("grad_reduce_in_fp32", True): "accumulate-allreduce-grads-in-fp32",
    ("grad_reduce_in_fp32", False): "grad-reduce-in-bf16",
}
_ACTIVATIONS: Final = ("silu", "swiglu", "fast-swiglu")


def as_arguments(fields: Mapping[str, Any], file: str) -> Arguments:
    """The arguments that say what these fields say; what they have no argument for keeps its name."""
    told: dict[str, Any] = {}
    for field, value in fields.items():
        name = field.rpartition(".")[2]
        switch = _SWITCHES.get((name, value)) if isinstance(value, bool) else None
        if switch is not None:
            told[switch] = True
        elif name == "activation" and value in _ACTIVATIONS:
            told["swiglu"] = True
        elif not isinstance(value, Mapping):
            told[_OTHER_NAMES.get(name, name)] = value
    return Arguments.of_mapping({key.replace("_", "-"): value for key, value in told.items()}, file)


def read_config(foreign: Foreign, reading: FileReading, given: Arguments, world: int | None) -> None:
    """Model, where the fields state one, and run."""
    if "--hidden-size" in given.given:
        read_model(given, reading)
    elif "num_layers" not in reading.facts:
        raise InputError("is not in the file, and no model is without it", file=given.file, field="hidden_size")
    read_run(given, reading, world, foreign.dp)
    code_of(given, reading)
    reading.assumed = [each._replace(source=f"{each.source} (of Megatron-LM's arguments)") for each in reading.assumed]
    tell_rest(foreign, reading, given)
