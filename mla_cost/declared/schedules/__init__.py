"""In which order a stage runs its micro-batches, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path
from typing import Final

from mla_cost.language.schedule import Schedule

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (import_module(f"mla_cost.declared.schedules.{name}").SCHEDULE for name in _FILES)
}
_ONE_CHUNK: Final = "1f1b"
_SEVERAL_CHUNKS: Final = "interleaved"


def usual(chunks: int) -> Schedule:
    """The schedule of stages of so many chunks where none is named."""
    return SCHEDULES[_SEVERAL_CHUNKS if chunks > 1 else _ONE_CHUNK]
