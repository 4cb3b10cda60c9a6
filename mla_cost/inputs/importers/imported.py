"""What an importer makes of a foreign file: settings of a plan, and a list of what it took, ignored and assumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from mla_cost.inputs.importers.shell import Script


class Foreign(NamedTuple):
    """A foreign file as it was read. data: of JSON, YAML and TOML; script: of shell. dp: data ranks that the user
    states beside it, which decide how many micro-batches a global batch makes;
    model: likewise, where the file names none of the catalogue.
    """

    file: str
    text: str
    data: Mapping[str, Any] | None = None
    script: Script | None = None
    dp: int | None = None
    model: str | None = None


class Taken(NamedTuple):
    """A setting that the file states. said: in its own words."""

    setting: str
    value: Any
    said: str


class Assumed(NamedTuple):
    """A setting that the file does not state. why: what decides it; source: where that is defined, empty if nowhere."""

    setting: str
    value: Any
    why: str
    source: str = ""


class Ignored(NamedTuple):
    """What the file states and a plan does not take. priced: whether it changes memory or traffic of a run."""

    said: str
    why: str
    priced: bool = False


class Format(NamedTuple):
    """A foreign format. recognises: whether a file is one; read: fills in what it states."""

    name: str
    title: str
    recognises: Callable[[Foreign], bool]
    read: Callable[[Foreign, FileReading], None]


class FileReading:
    """What is being collected of one file: settings of a plan, and dims and facts of the model that it states."""

    def __init__(self, foreign: Foreign) -> None:
        self.file = foreign.file
        self.stated_model = foreign.model
        self.settings: dict[str, Any] = {}
        self.dims: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.hints: list[str] = []  # names that the file gives its model, such as a tokenizer's
        self.taken: list[Taken] = []
        self.assumed: list[Assumed] = []
        self.ignored: list[Ignored] = []

    def put(self, setting: str, value: Any) -> None:
        """Keep a value under `seq_len`, `dims.hidden` or `facts.num_layers`."""
        head, dot, key = setting.partition(".")
        held = {"dims": self.dims, "facts": self.facts}.get(head, self.settings) if dot else self.settings
        held[key if dot else head] = value

    def take(self, setting: str, value: Any, said: str) -> None:
        """A value that the file states."""
        self._forget(setting)
        self.put(setting, value)
        self.taken.append(Taken(setting, value, said))

    def assume(self, setting: str, value: Any, why: str, source: str = "") -> None:
        """A value that the file does not state."""
        self._forget(setting)
        self.put(setting, value)
        self.assumed.append(Assumed(setting, value, why, source))

    def _forget(self, setting: str) -> None:
        """What was taken or assumed for a setting before."""
        self.taken = [each for each in self.taken if each.setting != setting]
        self.assumed = [each for each in self.assumed if each.setting != setting]

    def drop(self, settings: Iterable[str], why: str, *, priced: bool = True) -> None:
        """Settings that the run states and what is priced has not, or has elsewhere."""
        for name in settings:
            if self.settings.pop(name, None) is None:
                continue
            said = [each.said for each in self.taken if each.setting == name]
            self._forget(name)
            for each in said:
                self.ignore(each, why, priced=priced)

    def ignore(self, said: str, why: str, *, priced: bool = False) -> None:
        """What no plan takes."""
        self.ignored.append(Ignored(said, why, priced))


class Imported(NamedTuple):
    """A plan that a foreign file states. settings: as a plan file has them; own_model: as a model's file has them,
    where the catalogue has no model like it (`settings["model"]` is then the foreign file itself).
    """

    format: str
    title: str
    file: str
    settings: dict[str, Any]
    own_model: dict[str, Any] | None
    taken: tuple[Taken, ...]
    assumed: tuple[Assumed, ...]
    ignored: tuple[Ignored, ...]
