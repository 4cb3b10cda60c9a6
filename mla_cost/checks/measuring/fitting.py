"""From samples to the figures of a device: what every class reaches of the best that was seen, and how that spreads.

A rate is that of all bytes over all seconds of a class, so that calls count by what they take; its ends are the tenth
and ninetieth parts of its calls. Products are fitted with the very rule that predicts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, log
from statistics import fmean, quantiles
from typing import NamedTuple

from mla_cost.checks.measuring.kernels import Sample
from mla_cost.checks.measuring.links import TimedExchange
from mla_cost.timing import rules
from mla_cost.timing.ceilings import MICRO, Ceilings

LEAST = 1e-3  # of a share, where next to nothing was reached
MEMORY = ("elementwise", "norm", "softmax", "copy", "rope", "permutation", "loss")


class FittedFigure(NamedTuple):
    """A figure, the ends of its spread, and how it was taken."""

    value: float
    low: float
    high: float
    note: str

    def times(self, scale: float) -> FittedFigure:
        """The same in another unit."""
        return FittedFigure(self.value * scale, self.low * scale, self.high * scale, self.note)


def bare() -> Ceilings:
    """A device of which nothing is known yet: everything at its peak, and every peak one."""
    floats = dict.fromkeys((name for name in Ceilings._fields if name not in _OTHERS), 1.0)
    return Ceilings(**{**floats, **_OTHERS, "launch": 0.0, "host": 0.0, "depth_half": 0.0})  # type: ignore[arg-type]


_OTHERS = {"inside": {}, "domain": 1, "staged": False, "in_turn": False, "estimated": (), "mesh": 0.0}


def launch(samples: Iterable[Sample]) -> FittedFigure:
    """Microseconds of the smallest kernel, forward and backward."""
    each = [it.seconds / it.launches / MICRO for it in samples if it.work == "launch"]
    return FittedFigure(fmean(each), min(each), max(each), "a chain of tiny kernels, forward and backward")


def rates(samples: Iterable[Sample], work: str, floor: float) -> FittedFigure:
    """Bytes a second of a class that moves memory, without what launching takes."""
    taken = [it for it in samples if it.work == work]
    seconds = [max(it.seconds - it.launches * floor * MICRO, it.seconds / 2) for it in taken]
    each = [it.bytes / one for it, one in zip(taken, seconds, strict=True)]
    low, high = ends(each)
    middle = sum(it.bytes for it in taken) / sum(seconds)
    return FittedFigure(middle, min(low, middle), max(high, middle), f"{len(taken)} timings, {_sizes(taken)}")


def _sizes(taken: Sequence[Sample]) -> str:
    least, most = (end(it.bytes for it in taken) / 1e6 for end in (min, max))
    return f"{least:.2g} to {most:.2g} MB a call"


def ends(each: Sequence[float]) -> tuple[float, float]:
    """The tenth and ninetieth parts; of a few, the least and the most."""
    if len(each) < 4:
        return min(each), max(each)
    parts = quantiles(each, n=10, method="inclusive")
    return parts[0], parts[-1]


def fitted(
    taken: Sequence[Sample], shares: Iterable[float], halves: Sequence[float],
    seconds: Callable[[Sample, float, float], float],
) -> tuple[float, float, list[float]]:  # fmt: skip
    """The share and the half at which predictions are nearest by ratio, and those ratios, measured over predicted."""
    found = [(_off(taken, share, half, seconds), share, half) for share in shares for half in halves]
    off, share, half = min(found, key=lambda one: fmean(map(abs, one[0])))
    return share, half, [exp(each) for each in off]


def _off(
    taken: Sequence[Sample], share: float, half: float, seconds: Callable[[Sample, float, float], float]
) -> list[float]:
    return [log(it.seconds / seconds(it, share, half)) for it in taken]


SHARES = tuple(at / 100 for at in range(4, 101))


def products(samples: Iterable[Sample], on: Ceilings) -> tuple[FittedFigure, FittedFigure, FittedFigure]:
    """What products reach of the fastest of them, the contracted width at which they reach half, and their memory.

    The share may be above one: what the fastest reached is less what fetching its operands took.
    """
    taken = [it for it in samples if it.work == "gemm"]

    def fit(memory: float) -> tuple[float, float, float, list[float]]:
        def seconds(it: Sample, share: float, half: float) -> float:
            assert it.shape is not None
            own = on._replace(gemm=share, depth_half=half, operands=memory)
            return float(rules.multiplied(own, "fp32", it.flops, it.bytes, rules.ProductShape(*it.shape)).seconds)

        share, half, ratios = fitted(taken, (at / 100 for at in range(40, 160, 3)), (0, 8, 16, 32, 64, 128), seconds)
        return fmean(abs(log(each)) for each in ratios), share, half, ratios

    found = [(*fit(memory), memory) for memory in (0.1, 0.15, 0.25, 0.4, 0.6, 1.0)]
    _, share, half, ratios, memory = min(found, key=lambda each: each[0])
    low, high = ends([share / ratio for ratio in ratios])
    note = f"{len(taken)} products, fitted with the rule"
    told = FittedFigure(share, min(low, share), max(high, share), note)
    return told, _alone(max(half, 0.1), "the same fit"), _alone(memory, "the same fit")


def grouped(samples: Iterable[Sample], on: Ceilings) -> tuple[FittedFigure, FittedFigure, FittedFigure, FittedFigure]:
    """Of products by groups: the share, the rows at which half is reached, and the rates of both gradients."""
    every = [it for it in samples if it.work == "grouped_gemm"]
    taken = [it for it in every if not it.backward]

    def seconds(it: Sample, share: float, half: float) -> float:
        assert it.shape is not None
        own = on._replace(grouped=share, rows_half=half)
        return float(rules.multiplied_by_groups(own, "fp32", it.flops, it.bytes, rules.ProductShape(*it.shape)).seconds)

    share, half, ratios = fitted(taken, SHARES, (0.1, 2, 4, 8, 16, 32, 64, 128, 200), seconds)
    whole = sum(it.seconds for it in taken)
    back = [sum(it.seconds for it in every if it.backward and it.of_weight is mine) for mine in (False, True)]
    parts = [_alone(min(1.0, whole / each), "by forward") for each in back]
    return _spread(share, ratios, "experts in a loop"), _alone(half, "the same fit"), parts[0], parts[1]


def attention(samples: Iterable[Sample], on: Ceilings) -> tuple[FittedFigure, FittedFigure, FittedFigure]:
    """Of fused attention: the share, the positions at which half is reached, and backward's rate."""
    every = [it for it in samples if it.work == "attention"]
    taken = [it for it in every if not it.backward]

    def seconds(it: Sample, share: float, half: float) -> float:
        assert it.shape is not None
        own = on._replace(attention=share, length_half=half)
        return float(rules.attended(own, it.flops, it.bytes, it.shape[2], 1, backward=False).seconds)

    share, half, ratios = fitted(taken, SHARES, (0.1, 16, 64, 128, 256, 512), seconds)
    rate = [sum(it.flops for it in part) / sum(it.seconds for it in part) for part in (taken, _backward(every))]
    ratio = _alone(min(1.0, rate[1] / rate[0]), "flops counted 2.5 times forward's")
    return _spread(share, ratios, "causal, equal widths"), _alone(half, "the same fit"), ratio


def _backward(every: Iterable[Sample]) -> list[Sample]:
    return [it for it in every if it.backward]


def _spread(share: float, ratios: Sequence[float], note: str) -> FittedFigure:
    """A share whose calls took longer or shorter than it says."""
    low, high = ends([share / ratio for ratio in ratios])
    return FittedFigure(share, min(max(low, LEAST), share), max(min(high, 1.0), share), note)


def _alone(value: float, note: str) -> FittedFigure:
    return FittedFigure(value, value, value, note)


def exchange(found: Iterable[TimedExchange], kind: str) -> tuple[float, float]:
    """Seconds of a call that sends nothing, and bytes a second, through the smallest and the largest that was timed."""
    each = sorted((it for it in found if it.kind == kind), key=lambda it: it.wire)
    small, large = each[0], each[-1]
    per_byte = max((large.seconds - small.seconds) / (large.wire - small.wire), 1e-13)
    return max(small.seconds - small.wire * per_byte, MICRO), 1 / per_byte
