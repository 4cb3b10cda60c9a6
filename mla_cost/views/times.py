"""How long it takes, as a person reads it: a line a form with its band, then where the time goes as a bar."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from mla_cost.results import Result, Seconds, Time
from mla_cost.views.grid import TextGrid

GLYPHS = "█▓▒░▚╱"
WIDTH = 60
BAND = "The band is that of the device's ceilings (mla-cost show DEVICE); docs/time.md says what is not modelled."


def duration(seconds: float) -> str:
    """Three digits in the unit that suits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds >= 1 / factor or unit == "us":
            amount = seconds * factor
            return f"{amount:,.0f} {unit}" if amount >= 1000 else f"{amount:.3g} {unit}"
    return f"{seconds:g} s"


def band(of: Seconds) -> str:
    """From its low to its high end."""
    return f"{duration(of.low)} to {duration(of.high)}"


def block_times(results: Iterable[Result]) -> Iterator[RenderableType]:
    """Forward and backward of every form."""
    told = [(result.form, result.time) for result in results if result.time is not None]
    if not told:
        return
    table = TextGrid(("form", "time", "forward", "backward", "band", "most of it"), left=("form", "band", "most of it"))
    for form, time in told:
        most = time.parts[0]
        share = f"{most.name} {most.seconds / time.total.seconds:.0%}"
        amounts = map(duration, (time.total.seconds, time.forward.seconds, time.backward.seconds))
        table.add(form, *amounts, band(time.total), share)
    yield table
    close = _too_close(told)
    if close:
        yield Text(close, style="dim")


def _too_close(told: Sequence[tuple[str, Time]]) -> str:
    """What a ranking of forms may not say: those whose order the spread of the ceilings could turn."""
    ranked = sorted(told, key=lambda each: each[1].total.seconds)
    (first, best), *others = ranked
    near = [form for form, time in others if best.too_close(time)]
    return f"Too close to call: {', '.join((first, *near))}." if near else ""


def step_times(results: Iterable[Result]) -> Iterator[RenderableType]:
    """An optimizer step of every form."""
    for result in results:
        if result.time is not None:
            yield Text(_step_line(result.form, result.time))
            yield bar(result.time)
            yield from (Text(note) for note in result.time.notes)


def _step_line(form: str, time: Time) -> str:
    told = [f"{form}: {duration(time.total.seconds)} a step ({band(time.total)})"]
    told.append(f"{time.tokens_per_second or 0:,.0f} tokens/s, {time.tokens_per_second_per_device or 0:,.0f} a device")
    told.append(f"model flops utilisation {time.model_flops_utilisation or 0:.1%}")
    exposed = [f"{axis} {duration(seconds)}" for axis, seconds in time.exposed.items() if seconds > 0]
    told += [f"exposed: {', '.join(exposed)}"] if exposed else []
    if time.idle is not None and time.closed_idle:
        told.append(f"idle {duration(max(time.idle, 0))}, by the closed formula {duration(time.closed_idle)}")
    if time.days is not None:
        told.append(f"the training: {time.days:,.1f} days, {time.device_hours or 0:,.0f} device-hours")
    if time.price is not None:
        told.append(f"at its price {time.price:,.0f}")
    return "; ".join(told)


def bar(time: Time) -> Text:
    """Where the time goes: the largest parts by their shares, the small ones together."""
    every = sum(part.seconds for part in time.parts) or 1.0
    largest = sorted(time.parts, key=lambda part: -part.seconds)[: len(GLYPHS) - 1]
    shown = [(part.name, part.seconds) for part in largest if part.seconds > 0.01 * every]
    rest = every - sum(seconds for _, seconds in shown)
    shown += [("the rest", rest)] if rest > 0.005 * every else []
    cells = "".join(glyph * round(WIDTH * seconds / every) for glyph, (_, seconds) in zip(GLYPHS, shown, strict=False))
    legend = ", ".join(
        f"{glyph} {name} {seconds / every:.0%}" for glyph, (name, seconds) in zip(GLYPHS, shown, strict=False)
    )
    return Text(f"{cells}\n{legend}")
