"""What a command offers beside the settings of a plan, and how it takes those: tables, read for flags and for docs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

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
    """

    name: str
    group: str
    help: str
    kind: Literal["plan", "form", "text", "tokens", "count", "names", "switch", "either", "path"]
    flags: tuple[str, ...] = ()
    metavar: str = ""
    values: tuple[str, ...] = ()
    default: Any = None
    hidden: bool = False
    example: str = ""


def _formats(*names: str, default: str | None, help: str = "How to print the answer") -> Option:  # noqa: A002  (as typer)
    said = f"{help}; {names[0]} by default."
    return Option("output", OUTPUT, said, "text", ("--format",), "|".join(names), names, default, example=names[1])


_PLAN: Final = "A plan file, or a ready plan that `plans` lists; flags override it."
_SET: Final = Option(
    "assign",
    SETTINGS,
    "Any setting, dims.* and facts.* of the model included: dims.heads=64. Repeat it.",
    "names",
    ("--set",),
    "FIELD=VALUE",
    example="dims.heads=64",
)
_REQUIRE: Final = Option("require_fit", OUTPUT, "Exit with 1 when nothing fits.", "switch")


def _limit(axis: str, words: str) -> Option:
    return Option(f"max_{axis}", ASKED, f"The largest {words} by default.", "count", metavar="N", example="8")


OWN: Final[dict[str, tuple[Option, ...]]] = {
    "plan": (
        Option("file", ASKED, _PLAN, "plan"),
        _SET,
        _formats("table", "json", "csv", "markdown", default="table"),
        Option("require_fit", OUTPUT, "Exit with 1 when no form fits, on every stage.", "switch"),
        Option("levers", OUTPUT, "What each change would do, and the least that fits.", "switch"),
        Option("refused_levers", OUTPUT, "The same, with changes that are refused and why.", "switch"),
        Option(
            "explain_term", OUTPUT, "Where a number comes from: saved, allocated, kept, weights, ...", "text",
            metavar="NAME", example="weights",
        ),
        Option("bars", OUTPUT, "Memory as bars: of every form, or of every stage.", "switch"),
        Option(
            "plot", OUTPUT, "Draw memory: over time, or per stage (scope model).", "path", metavar="FILE.png|svg",
            example="memory.svg",
        ),
    ),
    "sweep": (
        Option("file", ASKED, _PLAN, "plan"),
        Option(
            "over", ASKED,
            "A field to go over: seq_len=4k..128k*2 (a..b*FACTOR or a..b+STEP), sp=1,2,4, device='910b*', form=all, "
            "dims.heads=64,128. Repeat it.",
            "names", metavar="FIELD=VALUES", example="seq_len=4k..128k*2",
        ),
        _SET,
        _formats("table", "csv", "jsonl", "json", "markdown", default=None, help="How to print the rows"),
        Option(
            "save", OUTPUT, "Write every row to a file.", "path", ("--output",), "FILE.csv|.jsonl|.parquet",
            example="rows.csv",
        ),
        Option("resume", OUTPUT, "Continue an --output that was cut.", "switch"),
        Option(
            "plot", OUTPUT, "Draw verdicts over seq_len and sp, a panel per form.", "path", metavar="FILE.png|.svg",
            example="verdicts.svg",
        ),
    ),
    "compare": (
        Option("file", ASKED, _PLAN, "plan"),
        _SET,
        _formats("table", "json", default="table"),
        Option("refused", OUTPUT, "Also the combinations that have no program, and why.", "switch"),
    ),
    "search": (
        Option(
            "file", ASKED, "A plan file or ready plan: what is fixed; its degrees give devices and global batch.",
            "plan",
        ),
        Option(
            "devices", ASKED, "How many devices: 512, or several as 64..1024*2.", "text", metavar="N", example="512"
        ),
        Option("global_batch", ASKED, "Sequences in an optimizer step.", "count", metavar="N", example="1024"),
        _limit("tp", "tp; a node of the device"),
        _limit("sp", "sp; no limit"),
        _limit("pp", "pp; no limit"),
        _limit("ep", "ep; no limit"),
        _limit("micro_batch", "micro-batch; 4"),
        Option(
            "max_idle", ASKED, "The most that a stage may wait for others; 20 by default.", "count", metavar="PERCENT",
            example="10",
        ),
        _SET,
        _formats("text", "json", "csv", default="text"),
        Option(
            "by", OUTPUT, "What comes first, or several by commas.", "text",
            metavar="weight|sent|required|flops|idle|devices", example="required",
        ),
        Option("top", OUTPUT, "How many layouts to tell; 10 by default.", "count", metavar="N", example="3"),
        Option("pareto", OUTPUT, "Those that none beats in memory, bytes sent and flops as well.", "switch"),
        _REQUIRE,
    ),
    "fit": (
        Option("file", ASKED, _PLAN, "plan"),
        Option(
            "max_seq_len", ASKED, "Where the search for the longest sequence ends; 16M by default.", "tokens",
            metavar="TOKENS", example="1M",
        ),
        Option(
            "zigzag", ASKED, "Each rank takes two pieces of a sequence: multiples of 2 sp tp.", "switch"
        ),
        Option(
            "global_batch", ASKED,
            "Sequences in an optimizer step; without it as many micro-batches as stages are assumed.", "count",
            metavar="N", example="1024",
        ),
        _SET,
        _formats("table", "json", default="table"),
    ),
    "explain": (
        Option("form", ASKED, "explicit, absorbed or laga.", "form"),
        Option(
            "quantity", ASKED, "Which figure; saved by default.", "text", metavar="saved|peak|payload|wire|flops",
            default="saved", example="peak",
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
        Option("latex", OUTPUT, "Print the formula as LaTeX.", "switch"),
    ),
}  # fmt: skip


def offered(command: str) -> Iterator[Setting]:
    """The settings of which a command has a flag: every one that applies to what it prices."""
    for row in TABLE.values():
        if row.flag and _applies(command, row):
            yield row


def _applies(command: str, row: Setting) -> bool:
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
