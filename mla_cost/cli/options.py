"""What a command offers beside the settings of a plan, and how it takes those: tables, read for flags and for docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from mla_cost.declared import defaults
from mla_cost.inputs.table import GROUPS, TABLE, Setting

SETTINGS: Final = "Any setting"
OUTPUT: Final = "What to print"
ASKED: Final = "What is asked"
HEADINGS: Final = (ASKED, *GROUPS, SETTINGS, OUTPUT)
SEQUENCE_PARALLEL: Final = (
    "--sequence-parallel is Megatron's switch that divides activations over tensor-parallel ranks (here `megatron_sp`, "
    "always on when tp > 1); ranks that share one sequence are --sp (also --cp, --context-parallel-size)"
)


class Option(NamedTuple):
    """One flag, or one argument, of a command. group: the heading of the help; metavar: what the flag takes.

    values: what is allowed, each a word; default: where the flag is absent. hidden: answered, and not listed.
    idle: options beside which it would change nothing, so that both together are refused: a name, or name=VALUE|VALUE.
    """

    name: str
    group: str
    help: str
    kind: Literal["plan", "form", "file", "text", "tokens", "count", "names", "switch", "either", "path"]
    flags: tuple[str, ...] = ()
    metavar: str = ""
    values: tuple[str, ...] = ()
    default: Any = None
    hidden: bool = False
    example: str = ""
    idle: tuple[str, ...] = ()


def _formats(
    *names: str,
    default: str | None,
    help: str = "How to print the answer",  # noqa: A002  (as typer)
    idle: tuple[str, ...] = (),
) -> Option:
    said, words = f"{help}; {names[0]} by default.", "|".join(names)
    return Option("output", OUTPUT, said, "text", ("--format",), words, names, default, example=names[1], idle=idle)


def _less(*formats: str, idle: tuple[str, ...] = ()) -> tuple[Option, Option]:
    """What prints less of a table. formats: the others, which have neither notes nor a reader who looks at them."""
    others = f"output={'|'.join(formats)}"
    short = "Print nothing: the exit code says whether there is an answer."
    return (
        Option("no_notes", OUTPUT, "The table without notes and small print.", "switch", idle=(others, "quiet", *idle)),
        Option("quiet", OUTPUT, short, "switch", ("--quiet", "-q"), idle=(others, *idle)),
    )


_PLAN: Final = "A plan file, or a ready plan that `plans` lists; flags override it."
_DASK: Final = Option(
    "dask",
    OUTPUT,
    "Price on the workers of a dask scheduler (extra dask).",
    "text",
    metavar="ADDRESS",
    example="tcp://10.0.0.1:8786",
)
_SET: Final = Option(
    "assign",
    SETTINGS,
    "Any setting, dims.* and facts.* of the model included: dims.heads=64. Repeat it.",
    "names",
    ("--set",),
    "FIELD=VALUE",
    example="dims.heads=64",
)
_FROM: Final = Option(
    "source",
    ASKED,
    "A launch script or a framework's config in place of a plan file; `import` lists what it reads.",
    "path",
    ("--from",),
    "FILE",
    example="train.sh",
)
_STRICT: Final = Option("strict", ASKED, "With --from: refuse what the file does not decide.", "switch")
_IDLE: Final = Option(
    "max_idle", ASKED, f"The most that a stage may wait for others; {defaults.MAX_IDLE} by default.", "count",
    metavar="PERCENT", example="10",
)  # fmt: skip
_NO_TABLE: Final = ("explain_term", "quiet")
_REQUIRE: Final = Option("require_fit", OUTPUT, "Exit with 1 when nothing fits.", "switch")


def _page_file(example: str) -> Option:
    said = "Write the page to a file; without it, it is printed."
    return Option("save", OUTPUT, said, "path", ("-o", "--output"), "FILE.html", example=example)


def _limit(axis: str, words: str) -> Option:
    return Option(f"max_{axis}", ASKED, f"The largest {words} by default.", "count", metavar="N", example="8")


# two worked examples a command, for the end of its help: a command line, and what it answers
EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "export": (
        (
            "export deepseek-v2-lite-8-a100 --profile megatron --form explicit --to megatron",
            "a ready plan as the command that starts it, and what has no flag there",
        ),
        ("export --from train.sh --to mindspeed", "a script of one framework in the words of another"),
    ),
    "oom": (
        ("oom moonlight-8-h100 --form explicit --log train.log", "what the run of a ready plan ran out of memory for"),
        ("oom --from train.sh --device h100-80gb --log train.log", "the same of a launch script"),
    ),
    "snapshot": (
        ("snapshot memory.pickle --plan moonlight-8-h100 --form explicit", "what was recorded and what was predicted"),
        ("snapshot memory.pickle --from train.sh --device h100-80gb", "the same of a launch script"),
    ),
    "diff": (
        (
            "diff deepseek-v3-2048-h800 deepseek-v3-512-910b",
            "two ready plans: settings, totals and what accounts for them",
        ),
        ("diff train.sh plan.yaml --device h100-80gb", "a launch script beside a plan, on one device"),
    ),
    "completion": (
        ("completion bash", 'for ~/.bashrc: eval "$(mla-cost completion bash)"'),
        ("completion fish", "for ~/.config/fish/completions/mla-cost.fish"),
    ),
    "check": (
        ("check plan.yaml config.json", "each fault as file:line:column: message; 1 where there is one"),
        ("check configs/plans/moonlight-8-h100.yaml --format json", "the same for an editor"),
    ),
    "init": (
        ("init", "a plan of DeepSeek-V3 with a comment to every setting"),
        ("init --model kimi-k2 --device h100-80gb -o plan.yaml", "another model's, to a file that `plan` takes"),
    ),
    "import": (
        ("import train.sh", "a Megatron or MindSpeed script as a commented plan: what is taken, ignored and assumed"),
        ("import train.sh --dp 64 -o plan.yaml", "the same on 64 data ranks, written to a file that `plan` takes"),
    ),
    "plan": (
        ("plan moonlight-8-h100", "a ready plan: what every form needs of each stage, and whether it fits"),
        (
            "plan --model deepseek-v2-lite --device h100-80gb --seq-len 8k --ep 8 --dp 8 --levers",
            "a plan of your own, and what each change of it would do",
        ),
    ),
    "report": (
        ("report moonlight-8-h100 -o report.html", "a ready plan as a page to read, print or send"),
        (
            "report --scope attention --device 910b-64gb --form laga -o block.html",
            "one block: its memory over time and its formulas",
        ),
    ),
    "page": (
        ("page deepseek-v3 -o page.html", "sliders for an attention block: every form and device, exact to the byte"),
        ("page my-model.yaml -o page.html", "the same of a model of your own"),
    ),
    "sweep": (
        ("sweep --scope attention --over seq_len=4k..64k*2 --over sp=1,2,4,8", "one block over lengths and degrees"),
        (
            "sweep moonlight-8-h100 --over micro_batch=1,2,4 --over remat=none,full --output rows.csv",
            "a ready plan with two settings varied, every row in a file",
        ),
    ),
    "search": (
        (
            "search --model moonlight-16b-a3b --device h100-80gb --devices 64 --global-batch 512",
            "the layouts of 64 devices that fit, the lightest first",
        ),
        (
            "search --model deepseek-v3 --device h100-80gb --devices 512..2048*2 --global-batch 4096 --tp 1 --sp 1",
            "how many devices it takes, with two degrees fixed",
        ),
    ),
    "fit": (
        ("fit --scope attention --device 910b-64gb --sp 8", "the longest sequence of one block, and the least sp"),
        (
            "fit --model deepseek-v2-lite --device h100-80gb --ep 8 --dp 8 --seq-len 32k",
            "the longest sequence of a whole model, and the fewest devices for 32k tokens",
        ),
    ),
    "compare": (
        ("compare --sp 8", "every form under every scheme for one block over 8 ranks: kept, peak, sent"),
        (
            "compare --sp 16 --sp-inside 8 --seq-len 32k --device h100-80gb --refused",
            "the same over two nodes, with groups of 8 inside, and why some combinations have no program",
        ),
    ),
    "crossover": (
        ("crossover laga ulysses", "up to how many ranks one sends less, and the inequality behind it"),
        (
            "crossover explicit/usp ring-own --over sp=4..64*2 --sp-inside 4 --quantity backward",
            "two schemes, by what they send in backward",
        ),
    ),
    "cache": (
        ("cache --model deepseek-v3 --context 128k --batch 64", "bytes of a token, a sequence and 64 of them"),
        (
            "cache --model deepseek-v2-lite --context 32k --device h100-80gb",
            "how many sequences fit beside the weights",
        ),
    ),
    "measure": (
        ("measure --quick", "a device file of this machine, printed"),
        ("measure --save mine.yaml", "all shapes, into a file that --device takes"),
    ),
    "calibrate": (
        ("calibrate steps.csv --device h100-80gb", "factors of what steps are made of, and how well they are met"),
        (
            "calibrate steps.csv --device h100-80gb --save mine.yaml",
            "the same, and the device with its ceilings scaled",
        ),
    ),
    "documents": (
        ("documents 32k,16k,8k*2 --sp 4", "four documents over 4 ranks under every way to deal them"),
        (
            "documents lognormal:4k*64@7 --sp 8 --limit 8k --inferred",
            "64 drawn lengths, with ways that give a document ranks by its length",
        ),
    ),
    "decode": (
        ("decode --model deepseek-v3 --context 32k --batch 32", "the least time of a step, latent and expanded"),
        ("decode --scan ffd --launch mpk", "the same with a low-bit scan and one launch, as published"),
    ),
    "explain": (
        ("explain laga --quantity peak", "the formula of the peak, term by term"),
        (
            "explain absorbed --model deepseek-v3 --sp 8 --seq-len 16k",
            "what a block saves, with the value of every term",
        ),
    ),
    "evidence": (
        ("evidence", "a line per published figure"),
        ("evidence --format markdown", "the page with every reason"),
    ),
    "models": (
        ("models", "the widths of every model"),
        ("models --format json", "every fact of every model"),
    ),
    "devices": (
        ("devices", "memory and bandwidths of every device"),
        ("devices --format json", "the same with the source of each figure"),
    ),
    "plans": (
        ("plans", "names for `plan`, `sweep`, `search` and `fit`"),
        ("plans --format json", "the settings of each"),
    ),
    "validate": (
        ("validate --quick", "a small grid against torch, in under 40 seconds"),
        ("validate --quick --ranks 0", "the same without processes that talk to one another"),
    ),
    "show": (
        ("show kimi-k2", "a model: every fact, and whether it was read at its source"),
        ("show h100-80gb", "a device: every figure with its source"),
    ),
}

OWN: Final[dict[str, tuple[Option, ...]]] = {
    "plan": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        _SET,
        _formats("table", "json", "csv", "markdown", default="table"),
        Option(
            "rank", ASKED, "The rank whose stage is told: the last, as logs have it, the worst, or a number.", "text",
            metavar="last|worst|N", example="last",
        ),
        Option(
            "require_fit", OUTPUT, "Exit with 1 when no form fits, on every stage.", "switch", idle=("explain_term",)
        ),
        Option("levers", OUTPUT, "What each change would do, and the least that fits.", "switch", idle=_NO_TABLE),
        Option("refused_levers", OUTPUT, "The same, with changes that are refused and why.", "switch", idle=_NO_TABLE),
        Option(
            "explain_term", OUTPUT, "Where a number comes from: saved, allocated, kept, weights, ...", "text",
            metavar="NAME", example="weights",
        ),
        Option(
            "documents", OUTPUT,
            "The sequence is a pack of these documents: tell attention by length, balance, padding and what travels.",
            "text", metavar="LENGTHS", example="32k,16k,8k*2", idle=("explain_term", "output=csv|markdown"),
        ),
        Option(
            "bars", OUTPUT, "Memory as bars: of every form, or of every stage.", "switch",
            idle=("output=json|csv|markdown", *_NO_TABLE),
        ),
        Option(
            "plot", OUTPUT, "Draw memory: over time, or per stage (scope model).", "path", metavar="FILE.png|svg",
            example="memory.svg", idle=("explain_term",),
        ),
        Option(
            "trace", OUTPUT, "Write the step, or the block, as a Chrome or Perfetto trace.", "path",
            metavar="FILE.json", example="step.json", idle=("explain_term",),
        ),
        Option(
            "picture", OUTPUT, "Which picture --plot draws; memory by default.", "text",
            metavar="memory|levers|communication|schedule",
            values=("memory", "levers", "communication", "schedule"), default="memory", example="levers",
        ),
        Option(
            "snapshot_out", OUTPUT, "Write the first form's predicted timeline for PyTorch's memory viewer.", "path",
            metavar="FILE.pickle", example="predicted.pickle", idle=("explain_term",),
        ),
        *_less("json", "csv", "markdown", idle=("explain_term",)),
    ),
    "report": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        _SET,
        _page_file("report.html"),
    ),
    "sweep": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        Option(
            "over", ASKED,
            "A field to go over: seq_len=4k..128k*2 (a..b*FACTOR or a..b+STEP), sp=1,2,4, device='910b*', form=all, "
            "dims.heads=64,128, or a number that follows from others, 'dp=64/(tp*sp*pp)'. Repeat it.",
            "names", metavar="FIELD=VALUES", example="seq_len=4k..128k*2",
        ),
        Option(
            "zip", ASKED, "Fields that go side by side, the first values of all together: --zip sp=1,2,4 dp=8,4,2.",
            "names", metavar="FIELD=VALUES", example="sp=1,2,4 dp=8,4,2",
        ),
        _SET,
        Option(
            "time", ASKED, "Columns of time too: seconds of an optimizer step, tokens/s, utilisation, idle, exposed.",
            "switch",
        ),
        _formats(
            "table", "csv", "jsonl", "json", "markdown", default=None, help="How to print the rows", idle=("save",)
        ),
        Option(
            "save", OUTPUT, "Write every row to a file.", "path", ("--output",), "FILE.csv|.jsonl|.parquet",
            example="rows.csv",
        ),
        Option(
            "commands", OUTPUT, "Print each row's command line, `mla-cost plan ...`, in place of the rows.", "switch",
            idle=("save", "plot", "output", "quiet"),
        ),
        Option("resume", OUTPUT, "Continue an --output that was cut.", "switch"),
        _DASK,
        Option(
            "plot", OUTPUT, "Draw verdicts over seq_len and sp, a panel per form.", "path", metavar="FILE.png|.svg",
            example="verdicts.svg",
        ),
        *_less("csv", "jsonl", "json", "markdown"),
    ),
    "compare": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        _SET,
        _formats("table", "json", default="table"),
        Option("refused", OUTPUT, "Also the combinations that have no program, and why.", "switch"),
    ),
    "crossover": (
        Option("first", ASKED, "A form, a scheme, or FORM/SCHEME.", "form"),
        Option("second", ASKED, "The one to beat, likewise.", "form"),
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        Option(
            "over", ASKED, "A field to go over, as sweep takes it; sp=1..128*2 by default. Repeat it.",
            "names", metavar="FIELD=VALUES", example="sp=1..64*2",
        ),
        Option(
            "quantity", ASKED, "What less of is better; bytes sent in forward by default.", "text",
            metavar="forward|backward|sent|saved|peak", default="forward", example="saved",
        ),
        _SET,
        _formats("table", "json", default="table"),
        Option(
            "plot", OUTPUT, "Draw both over the first field.", "path", metavar="FILE.png|.svg",
            example="crossover.svg",
        ),
    ),
    "search": (
        Option(
            "file", ASKED, "A plan file or ready plan: what is fixed; its degrees give devices and global batch.",
            "plan",
        ),
        _FROM,
        _STRICT,
        Option(
            "devices", ASKED, "How many devices: 512, or several as 64..1024*2.", "text", metavar="N", example="512"
        ),
        Option("global_batch", ASKED, "Sequences in an optimizer step.", "count", metavar="N", example="1024"),
        _limit("tp", "tp; a node of the device"),
        _limit("sp", "sp; no limit"),
        _limit("pp", "pp; no limit"),
        _limit("ep", "ep; no limit"),
        _limit("micro_batch", "micro-batch; 4"),
        _IDLE,
        _SET,
        _formats("text", "json", "csv", default="text"),
        Option(
            "by", OUTPUT, "What comes first, or several by commas.", "text",
            metavar="time|weight|sent|required|flops|idle|devices", example="required",
        ),
        _DASK,
        Option("top", OUTPUT, "How many layouts to tell; 10 by default.", "count", metavar="N", example="3"),
        Option(
            "pareto", OUTPUT, "Those that none beats in memory left and time as well.", "switch",
            idle=("output=json", "quiet"),
        ),
        Option(
            "plot", OUTPUT, "Draw the layouts: what they need against what they send.", "path", metavar="FILE.png|svg",
            example="layouts.svg",
        ),
        _REQUIRE,
        *_less("json", "csv"),
    ),
    "fit": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        Option(
            "max_seq_len", ASKED, "Where the search for the longest sequence ends; 16M by default.", "tokens",
            metavar="TOKENS", example="1M",
        ),
        Option(
            "zigzag", ASKED, "Each rank takes two pieces of a sequence: multiples of 2 sp tp.", "switch"
        ),
        Option(
            "global_batch", ASKED,
            "Sequences in an optimizer step; without it as many micro-batches as keep to --max-idle are assumed.",
            "count", metavar="N", example="1024",
        ),
        _IDLE,
        Option(
            "by", ASKED, "Which of several layouts on the fewest devices; the first by default.", "text",
            metavar="first|time", example="time",
        ),
        _SET,
        _formats("table", "json", default="table"),
        *_less("json"),
    ),
    "export": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        Option(
            "to", ASKED, "The framework: megatron, mindspeed, torchtitan, deepspeed or torchrun.", "text",
            metavar="FRAMEWORK", example="megatron",
        ),
        _SET,
        _formats("text", "json", default="text"),
    ),
    "oom": (
        Option("file", ASKED, _PLAN, "plan"),
        _FROM,
        _STRICT,
        Option(
            "log", ASKED, "A log with the error; without it, what is piped in.", "path", metavar="FILE",
            example="train.log",
        ),
        _SET,
        _formats("text", "json", default="text"),
    ),
    "snapshot": (
        Option("recorded", ASKED, "What torch.cuda.memory._dump_snapshot has written.", "file"),
        Option("file", ASKED, _PLAN, "path", ("--plan",), "PLAN", example="moonlight-8-h100"),
        _FROM,
        _STRICT,
        _SET,
        _formats("text", "json", default="text"),
    ),
    "diff": (
        Option("first", ASKED, "A plan, a ready plan, a config, a script or a result of plan --format json.", "file"),
        Option("second", ASKED, "Another one.", "file"),
        Option("form", ASKED, "The form of both.", "text", metavar="NAME", example=defaults.EXAMPLES["form"]),
        Option("device", ASKED, "The device of both.", "text", metavar="NAME", example="h100-80gb"),
        _formats("text", "json", default="text"),
    ),
    "import": (
        Option("launch", ASKED, "A launch script, a framework's config, or a folder with a config.json.", "file"),
        Option("dp", ASKED, "Data-parallel ranks, in place of what the file says.", "count", metavar="N", example="64"),
        Option(
            "model", ASKED, "The model, where the file names none that is known.", "text", metavar="NAME",
            example="kimi-k2",
        ),
        _STRICT._replace(help="Refuse what the file does not decide."),
        _formats("yaml", "json", default="yaml"),
        Option(
            "save", OUTPUT, "Write the plan to a file.", "path", ("-o", "--output"), "FILE.yaml", example="plan.yaml"
        ),
    ),
    "explain": (
        Option("form", ASKED, "explicit, absorbed or laga.", "form"),
        Option(
            "quantity", ASKED, "Which figure; saved by default.", "text", metavar="saved|peak|payload|wire|flops|time",
            example="peak", idle=("program",),
        ),
        Option(
            "one", ASKED, "A dim of size one; repeat it.", "names", metavar="sp|heads|batch|positions", example="heads"
        ),
        Option(
            "without", ASKED, "An absent part; repeat it.", "names", metavar="query-latent|rope", example="rope"
        ),
        _SET,
        _formats("table", "json", default="table", help="How to print the terms"),
        Option(
            "program", OUTPUT, "The program as it runs: scheme, kernel, remat and profile in their places.",
            "switch",
        ),
        Option(
            "layer", OUTPUT, "With --program: a layer of a model in place of the block.", "text",
            metavar="dense|moe|head|...", example="moe",
        ),
        Option("latex", OUTPUT, "Print the formula as LaTeX.", "switch", idle=("program", "output=json")),
    ),
}  # fmt: skip


def offered(command: str) -> Iterator[Setting]:
    """The settings of which a command has a flag: every one that applies to what it prices."""
    for row in TABLE.values():
        if row.flag and _applies(command, row):
            yield row


_WITHOUT_SETTINGS: Final = frozenset({"import", "diff"})


def _applies(command: str, row: Setting) -> bool:
    if command in _WITHOUT_SETTINGS:
        return False
    if command == "explain":
        return row.formula in {"plan", "style"}
    return command != "search" or row.search in {"fixed", "degree", "choice"}


# what one command says of a setting in other words than the rest
_OTHER_WORDS: Final[dict[tuple[str, str], str]] = {
    ("search", "device"): "The device; the first one that a plan names by default.",
    ("fit", "seq_len"): "The target of the least sp and the fewest devices; {default}.",
    ("sweep", "model"): "A model, or all that a glob such as 'deepseek*' names; {default}.",
}
_KINDS: Final[dict[str, Any]] = {
    "names": "names",
    "entries": "names",
    "tokens": "tokens",
    "switch": "either",
    "count": "count",
}


def said(command: str, row: Setting) -> Option:
    """The flag of a setting as one command offers it."""
    if command == "search" and row.search in {"degree", "choice"}:
        return _searched(row)
    kind, default = _KINDS.get(row.kind, "text"), default_of(row)
    usual = f"{row.help}; {{default}}." if default and command != "explain" else f"{row.help}."
    words = _OTHER_WORDS.get((command, row.name), usual).format(default=default)
    return Option(row.name, row.group, words, kind, row.flags, metavar_of(row), example=row.example)


def _searched(row: Setting) -> Option:
    """The flag of what a search goes over: all that is legal, or the values that are given."""
    degree = row.search == "degree"
    what = "try these only, as 1,2,4 or 1..8*2" if degree else "try these only, separated by commas"
    unsaid = f"; {row.default} by default" if row.name in {"etp", "virtual_stages"} else ""
    words, metavar = f"{row.help}: {what}{unsaid}.", "VALUES" if degree else "NAMES"
    return Option(row.name, row.group, words, "text", row.flags, metavar, example=row.example)


def default_of(row: Setting) -> str:
    """What is taken where nothing is said, as the end of a sentence."""
    if row.unsaid or row.default in (None, {}):
        return row.unsaid
    return f"{row.default:,} by default" if isinstance(row.default, int) else f"{row.default} by default"


def metavar_of(row: Setting) -> str:
    """What its flag takes, in a word."""
    if row.metavar or row.kind == "switch":
        return row.metavar
    if row.kind == "choice":
        return "|".join(row.values)
    return {"count": "N", "tokens": "TOKENS", "names": "NAMES", "name": "NAME", "bytes": "BYTES"}.get(row.kind, "TEXT")
