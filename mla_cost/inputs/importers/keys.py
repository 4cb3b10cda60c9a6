"""A file of nested keys, flat as `training.seq_len`, each taken at most once and the rest told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mla_cost.declared import foreign
from mla_cost.errors import InputError, shown
from mla_cost.inputs import catalog
from mla_cost.inputs.importers.imported import FileReading
from mla_cost.inputs.yaml_files import SUFFIXES

_DEEPEST: Final = 16
_LARGEST: Final = 2**53


class Keys:
    """Values by dotted key. `used` grows as they are read."""

    def __init__(self, data: Mapping[str, Any], file: str) -> None:
        self.file = file
        self.given: dict[str, Any] = {}
        self.used: set[str] = set()
        self._flatten(data, "", 0)

    def _flatten(self, data: Mapping[str, Any], path: str, depth: int) -> None:
        for key, value in data.items():
            where = f"{path}{key}"
            if isinstance(value, Mapping) and depth < _DEEPEST:
                self._flatten(value, f"{where}.", depth + 1)
            else:
                self.given[where] = value

    def get(self, key: str) -> Any:
        """The value of a key; None where it is absent, null or `auto`, which others decide."""
        value = self.given.get(key)
        if value is None or value == "auto":
            return None
        self.used.add(key)
        return value

    def number(self, key: str) -> int | None:
        """A whole number from 0 up; one that stands as text counts.

        Raises:
            InputError: anything else.

        """
        value = self.get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 17:
            value = int(value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise InputError("must be a whole number", file=self.file, field=key, value=value)
        return value

    def on(self, key: str) -> bool:
        """Whether a switch is on; text counts."""
        value = self.get(key)
        return value is True or (isinstance(value, str) and value.lower() in {"true", "1", "yes"})

    def rest(self) -> list[str]:
        """The keys that nothing has read."""
        return [key for key, value in self.given.items() if key not in self.used and value is not None]


def take_number(
    keys: Keys, reading: FileReading, setting: str, key: str, usual: int | None = None, source: str = ""
) -> None:
    """The number of a key, or the framework's default; nothing where it has none."""
    found = keys.number(key)
    if found is not None:
        reading.take(setting, found, key)
    elif usual is not None:
        reading.assume(setting, usual, f"{key} is {usual} where absent", source)


def fully_sharded(reading: FileReading, said: str) -> None:
    """Weights, gradients and states shared, as the nearest that is declared."""
    if foreign.FULLY_SHARDED:
        reading.take("sharding", foreign.FULLY_SHARDED, said)
        return
    reading.put("sharding", foreign.NEXT_TO_FULLY_SHARDED)
    what = "weights are priced whole on every rank, gradients and states as shared"
    reading.ignore(said, what, priced=True)


def name_model(reading: FileReading, word: str, said: str) -> None:
    """The model that the user states, else the one of the catalogue that a path or a name ends in.

    Raises:
        InputError: where there is none: another model would be priced.

    """
    words = [reading.stated_model] if reading.stated_model else [word, word.rstrip("/").rpartition("/")[2]]
    for name in words:
        try:
            model = catalog.model(name) if reading.stated_model or not name.endswith(SUFFIXES) else None
        except InputError:
            continue
        if model is not None:
            stated = reading.stated_model
            reading.take("model", stated or model.name, "stated beside the file" if stated else said)
            reading.facts = {"num_layers": model.num_layers or 1, "num_routed_experts": model.num_routed_experts or 0}
            return
    what = f"no MLA model of the catalogue goes by {shown(word)}" if word else "no model is named"
    raise InputError(what, file=reading.file, field=said.partition(" ")[0], allowed="the model with --model")


def tell_rest(keys: Keys, reading: FileReading, priced: Iterable[str] = ()) -> None:
    """Every key that nothing has read. priced: beginnings of those that change memory."""
    begins = tuple(priced)
    for key in keys.rest():
        value = keys.given[key]
        if key.startswith(begins) and begins and value not in (False, "none", [], 0):
            reading.ignore(f"{key} {value}", "is not priced", priced=True)
        else:
            reading.ignore(key, "is not known here, or changes no figure that is priced")
