"""How Megatron-LM's arguments run a model: degrees, batch, precision, recomputation, dispatch (d98e8a64)."""

from __future__ import annotations

from typing import Final

from mla_cost.declared.foreign import ADAM, CP_COMM_TYPES, HIERARCHICAL, PLAIN, SHARED_STATES, TRAINED
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.errors import InputError
from mla_cost.inputs.importers.arguments import Arguments
from mla_cost.inputs.importers.imported import FileReading
from mla_cost.inputs.importers.megatron_model import ARGUMENTS, CONFIG, MEGATRON, number_or
from mla_cost.inputs.table import TABLE
from mla_cost.language.recompute import DISCARDING, POLICIES

PARALLEL: Final = f"{MEGATRON}core/model_parallel_config.py"
TRAINING: Final = f"{MEGATRON}training/config/training_config.py"
OPTIMIZER: Final = f"{MEGATRON}core/optimizer/optimizer_config.py"
# setting, default, line in PARALLEL, flag and the name that MindSpeed or launchers give it
_DEGREES: Final = (
    ("tp", 1, 55, "--tensor-model-parallel-size"),
    ("pp", 1, 83, "--pipeline-model-parallel-size"),
    ("sp", 1, 100, "--context-parallel-size"),
    ("ep", 1, 127, "--expert-model-parallel-size"),
)


def read_run(given: Arguments, reading: FileReading, world: int | None, dp: int | None) -> None:
    """Settings of the run. world: ranks in all, where the launcher states them; dp: where the user does.

    Raises:
        InputError: degrees that do not go together, and words that Megatron has not.

    """
    reading.put("form", [TRAINED])
    number = given.number("--seq-length")
    if number is None:
        raise InputError("is not in the file, and no run is without it", file=given.file, field="--seq-length")
    reading.take("seq_len", number, "--seq-length")
    _degrees(given, reading, world, dp)
    _pipeline(given, reading)
    _batch(given, reading)
    _precision(given, reading)
    _optimizer(given, reading)
    _recompute(given, reading)
    _experts(given, reading)
    _loss(given, reading)


def _degrees(given: Arguments, reading: FileReading, world: int | None, dp: int | None) -> None:
    for setting, usual, line, *flags in _DEGREES:
        number_or(given, reading, setting, flags, usual, f"{PARALLEL}:{line}")
    reported = reading.settings
    etp = given.number("--expert-tensor-parallel-size", "--expert-tensor-model-parallel-size")
    if etp is None and reading.facts.get("num_routed_experts"):
        why = "--expert-tensor-parallel-size is tp where absent"
        reading.assume("etp", reported["tp"], why, f"{ARGUMENTS}:587-588")
    elif etp is not None:
        reading.take("etp", etp, "--expert-tensor-parallel-size")
    if given.has("--sequence-parallel") is None and reported["tp"] > 1:
        what = "sequence shards between tensor-parallel regions are priced (megatron_sp); without them more is kept"
        reading.ignore("no --sequence-parallel", what, priced=True)
    _data_ranks(given, reading, world, dp)
    _context(given, reading)


def _data_ranks(given: Arguments, reading: FileReading, world: int | None, dp: int | None) -> None:
    """World over tp, pp and cp (arguments.py:440-448); with no world the fewest that hold the experts."""
    reported = reading.settings
    model, experts = reported["tp"] * reported["sp"], reported["ep"] * reported.get("etp", 1)
    if dp is not None:
        return reading.put("dp", dp)
    if world is None:
        least = next(ranks for ranks in range(1, experts + 1) if not model * ranks % experts)
        why = "how many ranks there are is not in the file; taken: the fewest that hold the experts (--dp states it)"
        return reading.assume("dp", least, why)
    if world % (model * reported["pp"]):
        raise InputError(
            f"{world} ranks do not split into tp {reported['tp']} x cp {reported['sp']} x pp {reported['pp']}",
            file=given.file,
            field="the launcher's ranks",
        )
    return reading.take("dp", world // (model * reported["pp"]), f"{world:,} ranks over tp x cp x pp")


def _context(given: Arguments, reading: FileReading) -> None:
    """How context-parallel ranks exchange."""
    words = given.words("--cp-comm-type")
    if reading.settings["sp"] == 1:
        return None
    if words is None:
        why = "--cp-comm-type is p2p where absent"
        return reading.assume("scheme", CP_COMM_TYPES["p2p"], why, f"{ARGUMENTS}:3221")
    if len(set(words)) != 1 or words[0] not in CP_COMM_TYPES:
        raise InputError(
            "is not priced", file=given.file, field="--cp-comm-type", value=" ".join(words),
            allowed=f"one of {', '.join(CP_COMM_TYPES)}, the same for all layers",
        )  # fmt: skip
    reading.take("scheme", CP_COMM_TYPES[words[0]], "--cp-comm-type")
    sizes = given.words("--hierarchical-context-parallel-sizes") or []
    if CP_COMM_TYPES[words[0]] == HIERARCHICAL and sizes and sizes[0].isdecimal():
        reading.take("sp_inside", int(sizes[0]), "--hierarchical-context-parallel-sizes")
    return None


def _pipeline(given: Arguments, reading: FileReading) -> None:
    layout = given.text("--pipeline-model-parallel-layout")
    chunk = given.number("--num-layers-per-virtual-pipeline-stage")
    virtual = given.number("--num-virtual-stages-per-pipeline-rank")
    if layout is not None:
        reading.take("pipeline_layout", layout, "--pipeline-model-parallel-layout")
    elif virtual is not None:
        reading.take("virtual_stages", virtual, "--num-virtual-stages-per-pipeline-rank")
    elif chunk:
        each = (reading.facts["num_layers"] + _counted_ends(given)) // reading.settings["pp"]
        reading.take("virtual_stages", max(1, each // chunk), "--num-layers-per-virtual-pipeline-stage")
    for setting, flag in (
        ("first_layers", "--decoder-first-pipeline-num-layers"),
        ("last_layers", "--decoder-last-pipeline-num-layers"),
        ("micro_batch_group", "--microbatch-group-size-per-virtual-pipeline-stage"),
    ):
        found = given.number(flag)
        if found is not None:
            reading.take(setting, found, flag)
    _ends(given, reading)


_ENDS: Final = (
    ("first_layers", "--account-for-embedding-in-pipeline-split"),
    ("last_layers", "--account-for-loss-in-pipeline-split"),
)


def _counted_ends(given: Arguments) -> int:
    return sum(flag in given.given for _, flag in _ENDS)


def _ends(given: Arguments, reading: FileReading) -> None:
    """The embedding and the loss counted as a layer each: the first and the last part hold one layer less."""
    found = [flag for _, flag in _ENDS if given.has(flag)]
    told = reading.settings
    parts = told["pp"] * told.get("virtual_stages", 1)
    each, left = divmod(reading.facts["num_layers"] + len(found), parts)
    if not found or parts == 1 or left:
        return
    if parts == told["pp"]:
        for setting, flag in _ENDS:
            if flag in found:
                reading.take(setting, each - 1, flag)
        return
    held = ["t" * each] * parts
    held[0] = f"E{'t' * (each - (_ENDS[0][1] in found))}"
    held[-1] = f"{'t' * (each - (_ENDS[1][1] in found))}{'m' * reading.facts.get('num_mtp_layers', 0)}L"
    reading.drop(("virtual_stages",), "stands in the layout", priced=False)
    reading.take("pipeline_layout", "|".join(held), " ".join(found))


def _batch(given: Arguments, reading: FileReading) -> None:
    micro = number_or(given, reading, "micro_batch", ["--micro-batch-size"], 1, f"{TRAINING}:11, which has no default")
    total, dp = given.number("--global-batch-size"), reading.settings["dp"]
    if total is None:
        why = "--global-batch-size is one micro-batch a data rank where absent"
        return reading.assume("micro_batches", 1, why, f"{ARGUMENTS}:702-703")
    if total % (micro * dp):
        raise InputError(
            f"does not split over micro-batches of {micro} on {dp:,} data ranks",
            file=given.file,
            field="--global-batch-size",
            value=total,
            allowed=f"a multiple of {micro * dp:,}, or other ranks with --dp",
        )
    return reading.take("micro_batches", total // (micro * dp), "--global-batch-size")


def _precision(given: Arguments, reading: FileReading) -> None:
    bf16, fp16 = given.has("--bf16"), given.has("--fp16")
    if bf16 or fp16:
        reading.take("dtype", "bf16" if bf16 else "fp16", bf16 or fp16 or "")
    else:
        reading.assume("dtype", "fp32", "--bf16 and --fp16 are off where absent", f"{PARALLEL}:177-181")
    half, whole = given.has("--grad-reduce-in-bf16"), given.has("--accumulate-allreduce-grads-in-fp32")
    aware = given.has("--use-precision-aware-optimizer")
    main = given.choice(("fp32", "bf16"), "--main-grads-dtype")
    if half or (aware and main == "bf16"):
        reading.take("gradient_dtype", "bf16", half or "--main-grads-dtype bf16")
    elif whole or main:
        reading.take("gradient_dtype", "fp32", whole or "--main-grads-dtype fp32")
    else:
        why = "bf16 weights have fp32 gradients unless --grad-reduce-in-bf16"
        reading.assume("gradient_dtype", "fp32", why, f"{ARGUMENTS}:1213-1216")


def _optimizer(given: Arguments, reading: FileReading) -> None:
    found = given.text("--optimizer")
    if found in OPTIMIZERS and found not in ADAM:
        reading.take("optimizer", found, given.said("--optimizer"))
    elif found not in {None, *ADAM}:
        reading.ignore(given.said("--optimizer"), "two moments of Adam are priced", priced=True)
    if given.has("--optimizer-cpu-offload"):  # which hands dtypes of moments on to nobody
        reading.take("optimizer_offload", _per_cent(given, "--optimizer-offload-fraction"), "--optimizer-cpu-offload")
    else:
        _moment_dtypes(given, reading)
    fsdp, shared = given.has("--use-megatron-fsdp", "--use-torch-fsdp2"), given.has("--use-distributed-optimizer")
    strategy = given.text("--data-parallel-sharding-strategy")
    if fsdp and strategy == "no_shard":
        reading.take("sharding", PLAIN, "--data-parallel-sharding-strategy no_shard")
    elif fsdp:
        reading.take("sharding", SHARED_STATES, f"{fsdp}")
        what = "the distributed optimizer is priced: weights and gradients whole on every rank"
        reading.ignore(f"{fsdp} {strategy or 'optim_grads_params'}", what, priced=True)
    elif shared:
        reading.take("sharding", SHARED_STATES, shared)
    else:
        why = "--use-distributed-optimizer is off where absent"
        reading.assume("sharding", PLAIN, why, f"{ARGUMENTS}:3156")


def _per_cent(given: Arguments, flag: str) -> int:
    """A fraction as per cent, all of it where absent (training/arguments.py:2922).

    Raises:
        InputError: no number from 0 to 1.

    """
    text = given.text(flag)
    if text is None:
        return 100
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError("must be a number from 0 to 1", file=given.file, field=flag, value=text)
    return round(100 * share)


def _moment_dtypes(given: Arguments, reading: FileReading) -> None:
    """Dtypes of moments and main weights, which only the precision-aware optimizer has other than fp32."""
    if given.has("--use-precision-aware-optimizer") is None:
        return
    first, second = (given.text(flag) or "fp32" for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype"))
    if first == second and first in TABLE["moment_dtype"].values:
        reading.take("moment_dtype", first, "--exp-avg-dtype, --exp-avg-sq-dtype")
    else:
        said = f"--exp-avg-dtype {first} --exp-avg-sq-dtype {second}"
        reading.ignore(said, "both moments are priced as fp32", priced=True)
    main, recipe = given.text("--main-params-dtype") or "fp32", given.text("--fp8-recipe")
    if main == "fp32" and recipe in {None, "delayed"}:
        why = "the precision-aware optimizer keeps what bf16 leaves of fp32 weights (store_param_remainders)"
        reading.assume("main_weights", "remainders", why, f"{OPTIMIZER}:192, 407-414")


def _recompute(given: Arguments, reading: FileReading) -> None:
    granularity = given.choice(("full", "selective"), "--recompute-granularity")
    short, moe = given.has("--recompute-activations"), given.has("--moe-layer-recompute")
    modules, method = given.words("--recompute-modules"), given.choice(("uniform", "block"), "--recompute-method")
    layers = given.number("--recompute-num-layers")
    if granularity is None and not short and not moe:
        return reading.assume("remat", "none", "--recompute-granularity is none where absent", f"{CONFIG}:532")
    if granularity == "full":
        reading.take("remat", "full", "--recompute-granularity full")
        if method == "block" and layers is not None:
            reading.take("remat_layers", layers, "--recompute-method block --recompute-num-layers")
        elif (layers or 1) > 1:
            said = f"--recompute-method {method} --recompute-num-layers {layers}"
            reading.ignore(said, "every layer is priced as recomputed by itself", priced=True)
        return None
    names = [*(modules if modules is not None else ["core_attn"]), *(["moe"] if moe else [])]
    known = [name for name in dict.fromkeys(names) if name in {*POLICIES, *DISCARDING}]
    unknown = sorted(set(names) - set(known))
    if unknown:
        reading.ignore(f"--recompute-modules {' '.join(unknown)}", "is not priced", priced=True)
    policy = "+".join(known) or "none"
    if modules is None:
        why = "--recompute-modules is core_attn where absent" + (", and --moe-layer-recompute adds moe" if moe else "")
        return reading.assume("remat", policy, why, f"{CONFIG}:1940-1941, 2014-2025")
    return reading.take("remat", policy, "--recompute-modules")


def _experts(given: Arguments, reading: FileReading) -> None:
    if not reading.facts.get("num_routed_experts"):
        return
    kind = given.text("--moe-token-dispatcher-type")
    backend = given.text("--moe-flex-dispatcher-backend") or "deepep"
    if given.has("--moe-enable-deepep"):
        kind, backend = "flex", "deepep"
    if kind == "flex" and backend in {"deepep", "hybridep"}:
        reading.take("dispatcher", backend, "--moe-token-dispatcher-type flex")
    elif kind in {"alltoall", "alltoall_seq"}:
        reading.take("dispatcher", "alltoall", "--moe-token-dispatcher-type")
    else:
        said = given.said("--moe-token-dispatcher-type") if kind else "no --moe-token-dispatcher-type (allgather)"
        reading.ignore(said, "is not priced; dispatch by alltoall is", priced=reading.settings["ep"] > 1)
        reading.put("dispatcher", "alltoall")
    if given.has("--moe-shared-expert-overlap"):
        reading.take("shared_overlap", "on", "--moe-shared-expert-overlap")


def _loss(given: Arguments, reading: FileReading) -> None:
    if given.has("--no-rope-fusion"):
        reading.take("rope_fusion", "off", "--no-rope-fusion")
    if given.text("--attention-backend") == "unfused":
        reading.take("attention_backend", "unfused", "--attention-backend")
    fused, kind = given.has("--cross-entropy-loss-fusion"), given.text("--cross-entropy-fusion-impl") or "native"
    if fused:
        reading.take("cross_entropy", "native-fused" if kind == "native" else "te-fp32", f"{fused} {kind}")
