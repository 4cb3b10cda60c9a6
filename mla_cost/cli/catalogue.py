"""`mla-cost models`, `devices`, `plans` and `show NAME`: the catalogue as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from mla_cost.errors import InputError
from mla_cost.inputs import catalog
from mla_cost.inputs.config import SECOND_HAND, DeviceConfig, Fact, ModelConfig, ReserveItem

_GIB: Final = 2**30
_YES_NO: Final = {True: "yes", False: "no"}
_OWN_LINES: Final = ("verified", "unverified_fields", "sources", "notes", "assumed", "hf_id", "aliases", "mla_layers")


def models(output: str = "table") -> None:
    """Print every model of the catalogue with its attention widths (elements) and its number of MLA blocks."""
    configs = [catalog.model(name) for name in catalog.model_names()]
    if _is_json(output):
        _print_json("models", [config.model_dump(mode="json") for config in configs])
        return
    headings = ("model", "hidden", "heads", "q", "kv", "nope", "rope", "v", "blocks", "")
    _print_table(headings, (_model_row(config) for config in configs), left=("model", ""))
    _print("q, kv: latent ranks; q -: no query latent. blocks: MLA blocks/transformer blocks where they differ.")
    _print("*: not every width was read in a published source. `mla-cost show NAME` gives every fact.")


def devices(output: str = "table") -> None:
    """Print every device of the catalogue: memory visible to torch (GiB), bandwidths (GB/s), bf16 peak (TFLOPS)."""
    configs = [catalog.device(name) for name in catalog.device_names()]
    if _is_json(output):
        _print_json("devices", [config.model_dump(mode="json") for config in configs])
        return
    headings = ("device", "GiB", "memory", "TFLOPS", "link", "net", "that is")
    _print_table(headings, (_device_row(config) for config in configs), left=("device", "that is"))
    _print("GiB: what torch sees. memory, link (in a node), net (between nodes): GB/s, one direction, one device.")
    _print("*: recalled or nominal, not read at a source. `mla-cost show NAME` gives every fact.")


def plans(output: str = "table") -> None:
    """Print every ready plan: what it is, its model, device, ranks and tokens."""
    from mla_cost.studies import presets

    found = presets.plans()
    if _is_json(output):
        reported = [
            {"name": it.name, "title": it.title, "ranks": it.ranks, "settings": it.settings.model_dump(mode="json")}
            for it in found
        ]
        _print_json("plans", reported)
        return
    rows = ((it.name, f"{it.ranks:,}", f"{it.settings.seq_len:,}", it.title) for it in found)
    _print_table(("plan", "ranks", "tokens", "that is"), rows, left=("plan", "that is"))
    _print("`mla-cost plan NAME` prices one; flags override what it says, and --levers says what to change.")


def show(name: str, output: str = "table") -> None:
    """Print every fact of the model or device called `name` (or in the file `name`), sourced, verified or not."""
    config = catalog.entry(name)
    kind = "model" if isinstance(config, ModelConfig) else "device"
    if _is_json(output):
        counted = {"parameters": _counted(config)} if isinstance(config, ModelConfig) else {}
        _print_json(kind, config.model_dump(mode="json") | counted)
        return
    _print(f"{config.name}: {config.title}")
    if isinstance(config, ModelConfig):
        _show_model(config)
    else:
        _show_device(config)


def _is_json(output: str) -> bool:
    if output not in ("table", "json"):
        raise InputError("unknown format", field="--format", value=output, allowed="table or json")
    return output == "json"


def _model_row(config: ModelConfig) -> tuple[str, ...]:
    dims = config.dims
    rank = "-" if dims.q_lora_rank is None else str(dims.q_lora_rank)
    widths = (dims.kv_lora_rank, dims.qk_nope_head_dim, dims.qk_rope_head_dim, dims.v_head_dim)
    blocks = str(config.num_mla_layers)
    blocks += "" if config.num_mla_layers == config.num_layers else f"/{config.num_layers}"
    read = "" if all(config.is_verified(dim) for dim in type(dims).model_fields) else "*"
    return config.name, str(dims.hidden), str(dims.heads), rank, *map(str, widths), blocks, read


def _device_row(config: DeviceConfig) -> tuple[str, ...]:
    visible = config.visible_bytes
    links = config.intra_node_gb_s, config.inter_node_gb_s
    facts = (config.memory_bandwidth_gb_s, config.peak_bf16_dense_tflops, *links)
    memory = f"{visible.integer / _GIB:.2f}{_star(visible)}"
    return config.name, memory, *(f"{fact.value:g}{_star(fact)}" for fact in facts), config.title


def _star(fact: Fact) -> str:
    return "" if fact.verified else "*"


def _show_model(config: ModelConfig) -> None:
    _print_lines("published as", [name for name in (config.hf_id, *config.aliases) if name])
    rows = [(fact, _sure(config, fact), _value(fact, value)) for fact, value in _facts_of(config)]
    _print_table(("fact", "verified", "value"), rows, left=("fact", "verified", "value"))
    _print_lines("MLA blocks", [] if config.mla_layers == "all" else [config.mla_layers])
    _print_lines("assumed", config.assumed.values())
    _print_lines("parameters", _count_lines(config))
    _print_lines("verified by", [config.verified_basis])
    _print_lines("source", config.sources)
    _print_lines("note", [config.notes] if config.notes else [])


def _sure(config: ModelConfig, fact: str) -> str:
    """Whether a fact was read in a published source; what was put in the place of one was read nowhere."""
    name = fact.rpartition(".")[2]
    return "assumed" if name in config.assumed else _YES_NO[config.is_verified(name)]


def _counted(config: ModelConfig) -> dict[str, Any]:
    """The published counts of `config` beside those worked out from its dims, in elements; or why there are none."""
    from mla_cost.weights import parameters

    published: dict[str, Any] = config.model_dump(include={"parameters"})["parameters"]
    reason = parameters.refusal(config)
    if reason is not None:
        return published | {"total": None, "active": None, "refusal": reason}
    found = parameters.parameters(config)
    counts = found._asdict() | {
        "active_includes": parameters.ACTIVE_INCLUDES,
        "items": [{**item._asdict(), "parameters": item.elements} for item in found.items],
        "remainder": [{"name": name, "parameters": elements} for name, elements in found.remainder],
    }
    return published | counts | {"refusal": None}


def _count_lines(config: ModelConfig) -> list[str]:
    counted = _counted(config)
    if counted["refusal"] is not None:
        return [counted["refusal"]]
    indexer = f", of which indexers {counted['indexer']:,}" if counted["indexer"] else ""
    mtp = f"; MTP modules {counted['mtp']:,} more" if counted["mtp"] else ""
    lines = [f"{counted['total']:,} in all{indexer}, {counted['active']:,} active per token{mtp}"]
    rest = [f"{part['name']} {part['parameters']:,}" for part in counted["remainder"]]
    return [*lines, f"the checkpoint's exact count beyond these: {', '.join(rest)}"] if rest else lines


def _facts_of(config: ModelConfig) -> Iterator[tuple[str, Any]]:
    """Every stated fact; those of a nested mapping one by one, under `mapping.key`."""
    for field, value in config:
        if field in ("name", "title", "verified_basis", *_OWN_LINES) or value is None or value in ({}, ()):
            continue
        nested = dict(value) if field in ("dims", "parameters", "checkpoint", "indexer", "rope", "traits") else None
        yield from [(field, value)] if nested is None else [(f"{field}.{key}", item) for key, item in nested.items()]


def _show_device(config: DeviceConfig) -> None:
    about = ("vendor", config.vendor), ("family", config.family), ("arch", config.arch)
    _print_lines("is", [", ".join(f"{key} {value}" for key, value in about)])
    _print_lines("also known as", [", ".join(config.aliases)] if config.aliases else [])
    rows = [_fact_row(config, name, fact) for name, fact in config.facts().items()]
    visible = () if config.framework_visible_bytes else (_fact_row(config, "visible_bytes", config.visible_bytes),)
    headings = ("fact", "verified", "source", "value")
    _print_table(headings, [*rows, *visible], left=headings)
    _print_lines("links in a node", [config.intra_node_topology])
    for key, source in config.sources.items():
        _print_lines(f"source {key}", [source])
    _print_lines("note", [config.notes] if config.notes else [])


def _fact_row(config: DeviceConfig, name: str, fact: Fact | ReserveItem) -> tuple[str, ...]:
    if isinstance(fact, Fact):
        value = _value(name, fact.value)
    else:
        groups = "".join(f"\n{_bytes(size)} for {ranks} ranks" for ranks, size in fact.by_group_size.items())
        end = "" if fact.high is None else " at the low end"
        value = f"{_bytes(fact.bytes)} per {fact.per}{end}{groups}"
    noted = f"{value}\n{fact.note}" if fact.note else value
    sure = SECOND_HAND if fact.verified and config.second_hand(fact) else _YES_NO[fact.verified]
    return name, sure, fact.source, noted


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _YES_NO[value]
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if value is None:
        return "none"
    if isinstance(value, int) and name.endswith("_bytes"):
        return _bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(size: int) -> str:
    return f"{size:,} B ({size / _GIB:.2f} GiB)"


def _print_json(kind: str, value: Any) -> None:
    print(json.dumps({"schema": f"mla-cost/{kind}/1", kind: value}, indent=2))


def _print_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, left: Collection[str]) -> None:
    from mla_cost.views import terminal  # slow to import, and JSON never needs it
    from mla_cost.views.grid import TextGrid

    table = TextGrid(headings, left)
    for row in rows:
        table.add(*row)
    terminal.show(table)


def _print_lines(label: str, lines: Iterable[str]) -> None:
    for line in lines:
        _print(f"{label}: {line}")


def _print(line: str) -> None:
    """No markup: the text is the catalogue's or the user's own."""
    from mla_cost.views import terminal

    terminal.show(line)
