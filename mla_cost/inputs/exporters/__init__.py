"""Plans as settings of frameworks, one a file, found by itself: what it can say, and what has no word there."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from mla_cost.declared.foreign import TRAINED
from mla_cost.errors import InputError, nearest
from mla_cost.inputs import catalog
from mla_cost.inputs.exporters.exported import Exported, ExportedLaunch, Exporter
from mla_cost.inputs.settings import PlanSettings
from mla_cost.inputs.table import TABLE

# what a plan is about and no setting of a run, or is only of what is printed
_ASIDE = frozenset({"model", "device", "form", "scope", "dims", "facts", "mtp", "published", "stage", "reserve"})
_ASIDE_OF_MEMORY = frozenset({"other_memory", "fragmentation_percent", "imbalance_percent"})
_PER_NODE = 8  # where the plan names no device


@cache
def exporters() -> dict[str, Exporter]:
    """Every framework by its name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return {module.EXPORTER.name: module.EXPORTER for module in modules if hasattr(module, "EXPORTER")}


def export(settings: PlanSettings, to: str) -> Exported:
    """The settings of a plan as a framework's.

    Raises:
        InputError: no such framework; the scope attention, or a form that frameworks do not train.

    """
    found = exporters()
    if to not in found:
        allowed = ", ".join(found)
        raise InputError("unknown framework", field="--to", value=to, allowed=allowed, nearest=nearest(to, found))
    if settings.scope != "model":
        raise InputError("a block alone is no run of a framework", field="scope", allowed="model")
    if found[to].trains and TRAINED not in settings.form:
        form = ", ".join(settings.form)
        raise InputError(f"{found[to].title} trains no form {form}", field="form", allowed=TRAINED)
    settings = settings.by_scope()
    model = catalog.changed(catalog.model(settings.model), settings.dims, settings.facts, settings.mtp)
    launch = ExportedLaunch(settings, model, _per_node(settings))
    text, said = found[to].write(launch)
    return Exported(to, text, tuple(_without(settings, said)))


def _per_node(settings: PlanSettings) -> int:
    if not settings.device:
        return _PER_NODE
    return catalog.device(settings.device[0]).devices_per_node.integer


def _without(settings: PlanSettings, said: frozenset[str]) -> list[tuple[str, object]]:
    """The settings that are another than where nothing is said, and that the framework has no word for.

    What data ranks share is told whatever it is: frameworks have defaults of their own.
    """
    usual = PlanSettings(scope=settings.scope).by_scope()
    aside = _ASIDE | _ASIDE_OF_MEMORY | said
    values = ((name, getattr(settings, name)) for name in TABLE if name not in aside)
    return [(name, value) for name, value in values if value != getattr(usual, name) or name == "sharding"]
