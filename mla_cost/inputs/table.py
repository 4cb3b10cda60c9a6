"""Every setting of a plan, a row each: what it is, what it may be, who reads it, which commands and flags offer it.

The fields and checks of `PlanSettings`, the flags of every command that prices, the scope check, the columns of
arrays, the axes of a sweep and of a search, the command line of a plan and docs/cli.md are made from these rows.
Imports the standard library, the defaults and the names of schedules only: `mla-cost plan --help` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from mla_cost.declared import defaults
from mla_cost.declared.optimizers import OPTIMIZERS
from mla_cost.declared.schedules import SCHEDULES
from mla_cost.declared.shardings import SHARDINGS

Kind = Literal["name", "names", "text", "tokens", "count", "choice", "bytes", "switch", "entries", "mapping"]
Scope = Literal["attention", "model"]
Reader = Literal["layers", "states", "pipelines", "verdicts"]
Search = Literal["fixed", "degree", "choice", "follows", "none"]
Formula = Literal["plan", "style", "set", "none"]

# the values of a choice, as types: `PlanSettings` has them too
Scopes = Literal["attention", "model"]
StateDtype = Literal["fp32", "bf16"]
MomentDtype = Literal["fp32", "bf16", "fp16", "fp8"]  # NVIDIA/Megatron-LM@d98e8a64 training/arguments.py, exp_avg_dtype
MainWeights = Literal["fp32", "remainders"]
DownProjections = Literal["replicated", "sharded"]
Dtype = Literal["bf16", "fp16", "fp32"]
ValueLayout = Literal["view", "contiguous"]
ValuePadding = Literal["none", "qk"]
AttentionLayout = Literal["sbnd", "bsht", "bnsd"]
SoftmaxDtype = Literal["activation", "fp32"]
Mask = Literal["none", "tensor"]
BoundNames = Literal["rebound", "held"]
Norm = Literal["fused", "composite"]
Profiles = Literal["reference", "megatron"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
Switched = Literal["off", "on"]
AttentionBackend = Literal["fused", "unfused", "unfused-in-place"]
Reshard = Literal["on", "off"]
CrossEntropy = Literal["native", "no-upcast", "in-place", "native-fused", "fused", "chunked", "te-in-place", "te-fp32"]

MoeStyle = Literal["fused", "torchtitan", "transformers"]

BOTH: Final[tuple[Scope, ...]] = ("attention", "model")
MODEL: Final[tuple[Scope, ...]] = ("model",)
BLOCK: Final[tuple[Scope, ...]] = ("attention",)
NOWHERE: Final[tuple[Scope, ...]] = ()
ALL: Final[frozenset[Reader]] = frozenset(get_args(Reader))
LAYERS: Final[frozenset[Reader]] = frozenset({"layers"})
STATES: Final[frozenset[Reader]] = frozenset({"states"})
PIPELINES: Final[frozenset[Reader]] = frozenset({"pipelines"})
VERDICTS: Final[frozenset[Reader]] = frozenset({"verdicts"})
NO_BYTES: Final[frozenset[Reader]] = frozenset()  # of what time alone depends on

# the headings of a command's help, in order
PRICED: Final = "What is priced"
ATTENTION: Final = "Attention"
MESH: Final = "Ranks and pipeline"
STEP: Final = "The step and what is kept"
BLOCKS: Final = "Blocks in a row (scope attention)"
CODE: Final = "Whose implementation"
MEMORY: Final = "Memory"
TIME: Final = "Time"
GROUPS: Final = (PRICED, ATTENTION, MESH, STEP, CODE, BLOCKS, MEMORY, TIME)


class Idle(NamedTuple):
    """Where a setting changes no figure: all of these fields have one of these values. why: what a note says of it."""

    where: Mapping[str, tuple[Any, ...]]
    why: str


class Setting(NamedTuple):
    """One setting.

    help: what it is, without the default. unit: of a number. least, most: bounds, both included. values: of a choice.
    default: where nothing is said. unsaid: what that is, as the end of a sentence, where the value does not tell it.
    none: None is a value. metavar, aliases: of the flag. also: its other names, in files and from Python too. flag:
    whether there is one, else --set alone offers it.
    scopes: which have it. reads: which part of pricing depends on it, of what is no number (arrays group by it).
    axes: the scopes in which a sweep goes over it. numbers: those in which that is an array of numbers.
    search: how a search takes it: as one value; over degrees; over choices; it follows from the rest; not at all.
    formula: whether a formula takes it: as a number of a plan, as a style, by --set alone. subject: what is asked
    about, and no way to answer it. own_code: of profiles with code of their own. op_by_op: of attention that runs op
    by op. heading: reported above a table whatever it is. example: a value for the page of flags.
    """

    name: str
    group: str
    help: str
    kind: Kind
    default: Any = None
    unsaid: str = ""
    unit: str = ""
    least: int | None = None
    most: int | None = None
    values: tuple[str, ...] = ()
    none: bool = False
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    flag: bool = True
    scopes: tuple[Scope, ...] = BOTH
    reads: frozenset[Reader] = ALL
    axes: tuple[Scope, ...] | None = None
    numbers: tuple[Scope, ...] = NOWHERE
    search: Search = "fixed"
    formula: Formula = "none"
    subject: bool = False
    own_code: bool = False
    op_by_op: bool = False
    heading: bool = False
    idle: tuple[Idle, ...] = ()
    example: str = ""

    @property
    def swept(self) -> tuple[Scope, ...]:
        """The scopes in which a sweep goes over it: those that have it, unless its row says otherwise."""
        return self.scopes if self.axes is None else self.axes

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on a command line."""
        return (*(f"--{name.replace('_', '-')}" for name in (self.name, *self.also)), *self.aliases)


_DEGREE: Final[Mapping[str, Any]] = {"kind": "count", "unit": "ranks", "default": 1, "least": 1, "most": 2**16}
_RANKS: Final[Mapping[str, Any]] = {**_DEGREE, "scopes": MODEL, "numbers": MODEL, "search": "degree", "heading": True}
_STAGE_LAYERS: Final = Setting(
    "first_layers", MESH, "Layers of the first stage", "count", unit="layers", least=0, most=4096, none=True,
    unsaid="as even as can be by default", scopes=MODEL, reads=PIPELINES, search="follows", example="4",
)  # fmt: skip


# a setting of time: no byte depends on it, so neither a sweep's arrays nor a search ask for it
_OF_TIME: Final[Mapping[str, Any]] = {"reads": NO_BYTES, "axes": NOWHERE, "group": TIME}
_UNGATHERED: Final = (
    Idle(
        {"sharding": tuple(name for name, row in SHARDINGS.items() if row.gathers is None)},
        "only a sharding that splits weights gathers them",
    ),
)


def _without_owners() -> Iterator[Idle]:
    """Where nobody reduces gradients to owners: whole rows, and what runs in a row's place at some dtypes."""
    reducing = [name for name, row in SHARDINGS.items() if row.has_owners]
    others = tuple(name for name in SHARDINGS if name not in reducing)
    yield Idle({"sharding": others}, f"only sharding {' and '.join(reducing)} may reduce gradients to their owners")
    for name in reducing:
        for weights, gradients, running in SHARDINGS[name].cases:
            if not running.has_owners:
                where = {"sharding": (name,), "dtype": (weights,), "gradient_dtype": (gradients,)}
                yield Idle(
                    where, f"with {weights} weights and {gradients} gradients {running.title.partition(':')[0]} runs"
                )


_WITHOUT_OWNERS: Final = tuple(_without_owners())


def _choice(values: Any, default: str | None, **row: Any) -> Any:
    return {"kind": "choice", "values": get_args(values), "default": default, **row}


_OVERLAP: Final[Mapping[str, Any]] = {
    **_choice(Switched, None, none=True, unsaid="as the profile has it by default", scopes=MODEL, example="on"),
    **_OF_TIME,
}


# one paragraph a row
# fmt: off
_ROWS: Final = (
    Setting(
        "model", PRICED, "A model of the catalogue, a model YAML or a config.json", "name", most=1000,
        default=defaults.MODEL, formula="plan", subject=True, example="kimi-k2",
    ),
    Setting(
        "device", PRICED, "Devices, repeated or separated by commas; `none` for no verdict", "names",
        default=defaults.DEVICES, unsaid=f"{' and '.join(defaults.DEVICES)} by default", formula="plan", subject=True,
        example="h100-80gb",
    ),
    Setting(
        "seq_len", PRICED, "Sequence length, all ranks together; 128k is 131,072", "tokens", unit="tokens",
        default=defaults.SEQ_LEN, least=2, most=2**30, numbers=BOTH, formula="plan", heading=True, example="128k",
    ),
    Setting(
        "form", PRICED, "Forms, repeated or separated by commas", "names", default=defaults.FORMS,
        unsaid="`all` by default", formula="set", subject=True, example=defaults.EXAMPLES["form"],
    ),
    Setting(
        "scope", PRICED, "What is priced: a rank of the whole model, or attention blocks alone",
        **_choice(Scopes, defaults.SCOPE), axes=NOWHERE, search="none", formula="set", heading=True,
        example="attention",
    ),
    Setting(
        "dims", PRICED, "Dims of the model in place of its own, as --set dims.heads=64", "mapping", default={},
        flag=False, axes=NOWHERE, formula="set", example="dims.heads=64",
    ),
    Setting(
        "facts", PRICED, "Other facts of the model in place of its own, as --set facts.num_experts_per_token=4",
        "mapping",
        default={}, flag=False, axes=NOWHERE, formula="set", example="facts.num_experts_per_token=4",
    ),
    Setting(
        "mtp", PRICED, "Multi-token-prediction modules", "count", unit="modules", least=0, most=1000, none=True,
        unsaid="the model's own by default, 0 leaves them out", scopes=MODEL, example="0",
    ),
    Setting(
        "scheme", ATTENTION, "What crosses ranks", "name", none=True, unsaid="each form has its usual one",
        reads=LAYERS, search="choice", formula="style", example=defaults.EXAMPLES["scheme"],
    ),
    Setting(
        "kernel", ATTENTION, "How attention is executed", "name", default=defaults.ATTENTION_KERNEL,
        unsaid=f"{defaults.OF_SCOPE['model']['kernel']} by default: the one that trains the form on the device",
        reads=LAYERS, formula="style", example=defaults.EXAMPLES["kernel"],
    ),
    Setting(
        "value_padding", ATTENTION, "Pad V to the width of Q and K", **_choice(ValuePadding, None), none=True,
        unsaid="as the kernel has it by default", reads=LAYERS, formula="style", example="qk",
    ),
    Setting(
        "tp", MESH, "Tensor-parallel ranks", **{**_RANKS, "scopes": BOTH}, formula="set", example="8",
    ),
    Setting(
        "sp", MESH, "Ranks that share one sequence",
        **{**_RANKS, "default": defaults.SP, "scopes": BOTH, "numbers": BOTH},
        unsaid=f"{defaults.OF_SCOPE['model']['sp']} by default, at scope attention the largest up to {defaults.SP} "
        "that divides heads and sequence",
        aliases=("--cp", "--context-parallel-size"), formula="plan", example="8",
    ),
    Setting(
        "sp_inside", MESH,
        "Neighbours that form an inner group where a scheme has groups inside groups; 0 is the most that divide heads "
        "and sp", "count", unit="ranks", default=0, least=0, most=2**16, scopes=BOTH, numbers=BOTH, search="fixed",
        reads=LAYERS, example="4",
    ),
    Setting(
        "pp", MESH, "Pipeline stages", **{**_RANKS, "unit": "stages"}, example="16",
    ),
    Setting(
        "ep", MESH, "Ranks that share the experts", **_RANKS, example="8",
    ),
    Setting(
        "etp", MESH, "Ranks that share each expert", **_RANKS, example="2",
    ),
    Setting(
        "dp", MESH, "Data-parallel ranks", **{**_RANKS, "search": "follows"}, example="64",
    ),
    Setting(
        "virtual_stages", MESH, "Chunks of layers that a stage holds, interleaved", "count", unit="chunks", default=1,
        least=1, most=1024, scopes=MODEL, numbers=MODEL, search="degree", example="2",
    ),
    Setting(
        "pipeline_layout", MESH, "What each stage holds, as 'Et|(tt|)*3tL'", "text", most=10_000, none=True,
        unsaid="as even as can be by default", metavar="LAYOUT", scopes=MODEL, reads=PIPELINES, search="follows",
        example="'Et|(tt|)*3tL'",
    ),
    Setting(
        "schedule", MESH, f"In which order stages run micro-batches: {', '.join(SCHEDULES)}, or a table of passes",
        "text", most=1000, none=True, unsaid="1f1b by default, interleaved with virtual stages",
        metavar="NAME|FILE.yaml", scopes=MODEL, reads=PIPELINES, example="gpipe",
    ),
    _STAGE_LAYERS,
    _STAGE_LAYERS._replace(name="last_layers", help="Layers of the last stage"),
    Setting(
        "micro_batch_group", MESH, "Micro-batches that a chunk runs before the next has its turn", "count",
        unit="micro-batches", least=1, most=2**20, none=True, unsaid="as many as stages by default", scopes=MODEL,
        reads=PIPELINES, example="8",
        idle=(Idle({"virtual_stages": (1,), "pipeline_layout": (None,)}, "only virtual stages take turns"),),
    ),
    Setting(
        "micro_batch", STEP, "Sequences in a micro-batch", "count", unit="sequences", default=1, least=1, most=2**16,
        numbers=BOTH, search="degree", formula="plan", heading=True, example="2", also=("micro_batch_size",),
    ),
    Setting(
        "micro_batches", STEP, "Micro-batches of a step", "count", unit="micro-batches", default=1, least=1,
        most=2**20, scopes=MODEL, numbers=MODEL, search="follows", heading=True, example="32",
        also=("num_micro_batches",),
    ),
    Setting(
        "sharding", STEP, "What data-parallel ranks share", "choice", values=tuple(SHARDINGS),
        default=defaults.SHARDING, scopes=MODEL, reads=ALL, search="choice", heading=True,
        example=next(reversed(SHARDINGS)),
    ),
    Setting(
        "replicas", STEP, "Copies of a fully sharded model, each split over the ranks that are left (HSDP)", "count",
        unit="copies", default=1, least=1, most=2**16, scopes=MODEL, reads=STATES | PIPELINES, example="4",
    ),
    Setting(
        "reshard", STEP, "Whether weights gathered for forward are given back until backward",
        **_choice(Reshard, "on"), scopes=MODEL, reads=STATES | PIPELINES, example="off", idle=_UNGATHERED,
    ),
    Setting(
        "prefetch", STEP, "Units whose weights are gathered before their turn", "count", unit="units", default=0,
        unsaid="by default none in forward, one in backward", least=0, most=64, scopes=MODEL,
        reads=STATES | PIPELINES, example="1", idle=_UNGATHERED,
    ),
    Setting(
        "multi_rank_bucket_allreduce", STEP,
        "DeepSpeed's switch: gradients are all-reduced, or reduced to the rank that owns each",
        **_choice(Switched, "on"), scopes=MODEL, reads=STATES, idle=_WITHOUT_OWNERS, example="off",
    ),
    Setting(
        "optimizer", STEP, "What updates the weights", "choice", values=tuple(OPTIMIZERS), default=defaults.OPTIMIZER,
        scopes=MODEL, reads=STATES, heading=True, example=next(reversed(OPTIMIZERS)),
    ),
    Setting(
        "optimizer_offload", STEP, "Share of a rank's part of the optimizer whose states and step are on the host",
        "count", unit="%", default=0, least=0, most=100, scopes=MODEL, reads=STATES, example="100",
    ),
    Setting(
        "remat", STEP, "What backward runs again: core_attn, mlp, moe, ...", "text", default="none", most=200,
        metavar="none|full|PART+PART", reads=LAYERS, search="choice", formula="style", heading=True,
        example="core_attn+moe",
    ),
    Setting(
        "remat_layers", STEP, "Layers of each chunk that remat full runs again, from its first; the others keep all",
        "count", unit="layers", least=0, most=4096, none=True, unsaid="all of them by default", scopes=MODEL,
        reads=LAYERS | PIPELINES, example="8",
    ),
    Setting(
        "profile", CODE, "Whose implementation runs (megatron: scope model)", **_choice(Profiles, defaults.PROFILE),
        formula="set", example="megatron",
    ),
    Setting(
        "dtype", STEP, "Activations, weights, gradients", **_choice(Dtype, "bf16"), reads=LAYERS | STATES | VERDICTS,
        formula="style", heading=True, example="fp16",
    ),
    Setting(
        "gradient_dtype", STEP, "Gradients as they are added up over micro-batches and ranks",
        **_choice(StateDtype, "fp32"),
        scopes=MODEL, reads=STATES | VERDICTS, heading=True, example="bf16",
    ),
    Setting(
        "moment_dtype", STEP,
        "What the optimizer keeps for itself: both moments of Adam (fp8: without their scales, 4 bytes a tensor)",
        **_choice(MomentDtype, "fp32"), scopes=MODEL, reads=STATES, example="bf16",
    ),
    Setting(
        "main_weights", STEP, "The optimizer's own weights: whole, or what bf16 leaves of them",
        **_choice(MainWeights, "fp32"), scopes=MODEL, reads=LAYERS | STATES, example="remainders",
    ),
    Setting(
        "imbalance_percent", STEP, "Rows that reach the experts of the rank, per cent of an even share, or `worst`",
        "count", unit="%", default=100, least=100, most=1_000_000, values=("worst",), metavar="PERCENT|worst",
        scopes=MODEL, reads=LAYERS, example="150",
    ),
    Setting(
        "vocab_multiple", STEP, "The vocabulary is padded to a multiple of this times tp", "count", unit="tokens",
        default=128, least=1, most=2**20, scopes=MODEL, numbers=MODEL, example="64",
    ),
    Setting(
        "layers", BLOCKS, "Equal blocks in a row", "count", unit="blocks", default=1, least=1, most=4096,
        numbers=BLOCK, scopes=BOTH, axes=BLOCK, search="none", example="4",
    ),
    Setting(
        "v_layout", ATTENTION, "V as a view or a copy", **_choice(ValueLayout, "view"), reads=LAYERS, formula="style",
        example="contiguous",
    ),
    Setting(
        "attention_layout", ATTENTION, "The order of letters in eager attention", **_choice(AttentionLayout, "sbnd"),
        reads=LAYERS, formula="style", op_by_op=True, example="bnsd",
    ),
    Setting(
        "softmax_dtype", ATTENTION, "Dtype of the softmax", **_choice(SoftmaxDtype, "activation"), reads=LAYERS,
        formula="style", op_by_op=True, example="fp32",
    ),
    Setting(
        "mask", ATTENTION, "A mask tensor in eager attention", **_choice(Mask, "none"), reads=LAYERS, formula="style",
        op_by_op=True, example="tensor",
    ),
    Setting(
        "norm", ATTENTION, "RMSNorm in one kernel, or op by op", **_choice(Norm, "fused"), reads=LAYERS,
        formula="style", example="composite",
    ),
    Setting(
        "names", ATTENTION, "Whether a name of the block's code goes where it is bound again",
        **_choice(BoundNames, "rebound"), reads=LAYERS, formula="style", example="held",
    ),
    Setting(
        "idle_mlp", BLOCKS, "An MLP whose weights lie beside a block and do not run", "count", unit="elements",
        default=0, least=0, most=2**20, metavar="WIDTH", axes=BLOCK, search="none", formula="style", example="8192",
    ),
    Setting(
        "causal", ATTENTION, "Whether flops count attention as causal", "switch", default=True,
        unsaid="it does by default", reads=LAYERS, formula="set",
    ),
    Setting(
        "down_projections", CODE, "Down-projections of the latents over tensor-parallel ranks",
        **_choice(DownProjections, "replicated"), scopes=MODEL, reads=LAYERS | STATES, example="sharded",
        idle=(Idle({"tp": (1,)}, "tp 1 divides no weights"),),
    ),
    Setting(
        "dispatcher", CODE, "What sends tokens to experts", **_choice(Dispatcher, "alltoall"), scopes=MODEL,
        reads=LAYERS | VERDICTS, own_code=True, example="deepep",
    ),
    Setting(
        "shared_overlap", CODE, "Whether shared experts run beside the dispatch", **_choice(Switched, "off"),
        scopes=MODEL, reads=LAYERS, own_code=True, example="on",
    ),
    Setting(
        "rope_fusion", CODE, "Whether the rotation is one kernel", **_choice(Switched, "on"), scopes=MODEL,
        reads=LAYERS, own_code=True, example="off",
    ),
    Setting(
        "attention_backend", CODE, "Whether attention is the kernel's, or products around a softmax",
        **_choice(AttentionBackend, "fused"), scopes=MODEL, reads=LAYERS | VERDICTS, own_code=True, example="unfused",
    ),
    Setting(
        "cross_entropy", CODE, "How the loss is computed", **_choice(CrossEntropy, "native"), scopes=MODEL,
        reads=LAYERS, example="fused",
    ),
    Setting(
        "moe_style", CODE, "Router and rows of experts in one kernel each, or op by op as that code writes them",
        **_choice(MoeStyle, "fused"), scopes=MODEL, reads=LAYERS, example="torchtitan",
    ),
    Setting(
        "loss_chunks", CODE, "Pieces of a chunked loss", "count", unit="chunks", default=8, least=1, most=2**20,
        scopes=MODEL, numbers=MODEL, example="16",
        idle=(
            Idle(
                {"cross_entropy": tuple(name for name in get_args(CrossEntropy) if name != "chunked")},
                "only cross_entropy chunked cuts the loss into pieces",
            ),
        ),
    ),
    Setting(
        "stage", MESH, "The pipeline stage that is selected", "count", least=0, most=2**16, none=True,
        unsaid="the worst by default", scopes=MODEL, reads=PIPELINES, search="none", heading=True, example="0",
    ),
    Setting(
        "other_memory", MEMORY, "Memory beside this scope", "bytes", default=0, unit="bytes", metavar="BYTES",
        reads=VERDICTS, heading=True, example="2GiB",
    ),
    Setting(
        "host_memory", MEMORY, "Memory of one node's host for what ranks keep there", "bytes", default=0, unit="bytes",
        unsaid="the device's own by default, where it is known", metavar="BYTES", scopes=MODEL, reads=NO_BYTES,
        axes=NOWHERE, idle=(Idle({"optimizer_offload": (0,)}, "optimizer_offload 0 keeps nothing there"),),
        example="1TiB",
    ),
    Setting(
        "fragmentation_percent", MEMORY, "Visible memory kept as a margin for fragmentation", "count", unit="%",
        least=0, most=50, none=True, reads=VERDICTS, axes=MODEL, example="8",
        unsaid=f"{defaults.FRAGMENTATION_PERCENT['model']} by default, "
        f"{defaults.FRAGMENTATION_PERCENT['attention']} at scope attention",
    ),
    Setting(
        "reserve", MEMORY, "Override a reserve item of the device", "entries", default={}, unit="bytes",
        metavar="ITEM=BYTES", reads=VERDICTS, axes=NOWHERE, example="'runtime context=1GiB'",
    ),
    Setting(
        name="devices_per_node", help="Devices that share the fast links of a node", kind="count", unit="devices",
        least=1, most=2**16, none=True, unsaid="the device's own by default", example="8", **_OF_TIME,
    ),
    Setting(
        name="axis_order", help="Mesh axes over devices, innermost first", kind="text", most=40,
        default="tp-cp-ep-dp-pp", unsaid="Megatron's tp-cp-ep-dp-pp by default", metavar="ORDER", scopes=MODEL,
        example="tp-cp-dp-ep-pp", **_OF_TIME,
    ),
    Setting(
        name="inter_node_gb_s", help="What a device sends to others beyond its node", kind="count", unit="GB/s",
        least=1, most=10**5, none=True, unsaid="the device's own by default", example="11", **_OF_TIME,
    ),
    Setting(
        name="graphs", help="Whether kernels are launched by graphs, without the host", **_choice(Switched, "off"),
        example="on", **_OF_TIME,
    ),
    Setting(
        name="launch_floor", help="What every kernel takes at least; 0 for one persistent kernel a region",
        kind="count", unit="ns", least=0, most=10**9, none=True, unsaid="the device's own by default", example="0",
        **_OF_TIME,
    ),
    Setting(
        name="tp_overlap", help="Whether products hide tensor-parallel exchanges", **_OVERLAP,
    ),
    Setting(
        name="expert_overlap", help="Whether other micro-batches hide experts' exchanges", **_OVERLAP,
    ),
    Setting(
        name="gradient_overlap", help="Whether backward hides the reduction of gradients",
        **_OVERLAP,
    ),
    Setting(
        name="gather_overlap", help="Whether forward hides the gathering of weights", **_OVERLAP,
    ),
    Setting(
        name="p2p_overlap", help="Whether passes hide what goes from stage to stage", **_OVERLAP,
    ),
    Setting(
        name="tokens", help="Tokens of a whole training, for its days and device-hours; 14.8T", kind="tokens",
        unit="tokens", least=1, most=2**60, none=True, unsaid="not told by default", scopes=MODEL, example="14.8T",
        **_OF_TIME,
    ),
    Setting(
        name="price", help="Price of a device-hour, for that of the training", kind="text", most=20, none=True,
        unsaid="not told by default", metavar="AMOUNT", scopes=MODEL, example="2.10", **_OF_TIME,
    ),
    Setting(
        "published", PRICED, "A published figure to print beside the answer", "text", most=200, none=True, flag=False,
        axes=NOWHERE, example="published=NAME",
    ),
)
# fmt: on

TABLE: Final[Mapping[str, Setting]] = {row.name: row for row in _ROWS}


def rows(**wanted: Any) -> Iterator[Setting]:
    """The settings whose rows have these values, in the table's order."""
    return (row for row in TABLE.values() if all(getattr(row, key) == value for key, value in wanted.items()))


_ALSO: Final = {other: row.name for row in TABLE.values() for other in row.also}


def own_name(name: Any) -> Any:
    """The name of a setting in place of another one of its; what is none stays."""
    return _ALSO.get(name, name) if isinstance(name, str) else name


def by_own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their own names.

    Raises:
        ValueError: one that is stated by two of them.

    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = own_name(name)
        if own in found:
            raise ValueError(f"{name} is stated twice: {own} is the same setting")
        found[own] = value
    return found


def names(**wanted: Any) -> tuple[str, ...]:
    """The names of these settings."""
    return tuple(row.name for row in rows(**wanted))


MODEL_ONLY: Final = names(scopes=MODEL)
SUBJECTS: Final = names(subject=True)
MAPPINGS: Final = tuple(row.name for row in TABLE.values() if row.kind in {"mapping", "entries"})
LISTS: Final = names(kind="names")


def ignored_by(reader: Reader) -> frozenset[str]:
    """The settings on which this part of pricing does not depend."""
    return frozenset(row.name for row in TABLE.values() if reader not in row.reads)


def idle(field: str, settings: Any) -> str:
    """Why this setting changes no figure beside the others, where its row tells; else empty."""
    found = TABLE[field].idle
    return next((each.why for each in found if _there(each, settings)), "")


def _there(found: Idle, settings: Any) -> bool:
    return all(getattr(settings, name) in values for name, values in found.where.items())
