"""The command line of a plan: `mla-cost plan` with the flags that make the same settings again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mla_cost.inputs.settings import PlanSettings

# told whatever they are, in this order: what a plan is about and how it is laid out
ALWAYS: Final = ("model", "device", "seq_len", "form")
# settings of which `plan` has a flag; every other one is told with --set
FLAGS: Final = (
    *("scheme", "kernel", "value_padding", "tp", "sp", "pp", "ep", "etp", "dp", "virtual_stages", "pipeline_layout"),
    *("schedule", "micro_batch", "micro_batches", "sharding", "remat", "profile", "dtype", "layers", "v_layout"),
    *("attention_layout", "softmax_dtype", "mask", "norm", "scope", "stage"),
)
_MAPPINGS: Final = ("dims", "facts", "reserve")


def command_of(settings: PlanSettings) -> str:
    """The command that prints the plan of these settings; what is a default of the scope is left out.

    A fact that is a list or a mapping has no flag: such a plan is a file's, and the command names the rest of it.
    """
    given = PlanSettings(scope=settings.scope).by_scope().model_copy(update={"scope": PlanSettings().scope})
    words = ["mla-cost", "plan"]
    for name in ALWAYS:
        words += [_flag(name), _text(getattr(settings, name))]
    for name in FLAGS:
        if getattr(settings, name) != getattr(given, name):
            words += [_flag(name), _text(getattr(settings, name))]
    return shlex.join([*words, *_rest(settings, given)])


def _rest(settings: PlanSettings, given: PlanSettings) -> Iterator[str]:
    for name in PlanSettings.model_fields:
        value = getattr(settings, name)
        if name in {*ALWAYS, *FLAGS} or value == getattr(given, name):
            continue
        if name == "other_memory":
            yield from ("--other-memory", str(int(value)))
        elif name not in _MAPPINGS:
            yield from ("--set", f"{name}={_text(value)}")
        else:
            yield from _entries(name, value)


def _entries(name: str, entries: Mapping[str, Any]) -> Iterator[str]:
    for key, value in entries.items():
        if name == "reserve":
            yield from ("--reserve", f"{key}={int(value)}")
        elif not isinstance(value, list | tuple | dict):
            yield from ("--set", f"{name}.{key}={_text(value)}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
