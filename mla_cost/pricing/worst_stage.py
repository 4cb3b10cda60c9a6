"""Which stage of a pipeline is the worst, and what it has alive when most is: numbers, or arrays of them. Bytes."""

from __future__ import annotations

from typing import Any

from mla_cost.language.numbers import maximum, where


def in_step(active: Any, made: Any) -> Any:
    """Whether most is alive inside the optimizer step, which runs behind the schedule with no activation left.

    active: the most that the schedule has alive. made: what the step makes beside what is held.
    """
    return made > active


def stage_peak(states: Any, persistent: Any, active: Any, made: Any) -> Any:
    """The most that a stage holds: its states and persistent buffers, and what is alive beside them."""
    return states + persistent + maximum(active, made)


def in_flight_and_working(saved_in_flight: Any, active: Any, made: Any) -> tuple[Any, Any]:
    """What is alive beside states at the peak: for micro-batches in flight, and for the one at work or by the step."""
    step = in_step(active, made)
    return where(step, 0, saved_in_flight), where(step, made, active - saved_in_flight)


def worse(peak: Any, than: Any) -> Any:
    """Whether a stage takes the place of the worst one before it; of equal ones the first stays."""
    return peak > than
