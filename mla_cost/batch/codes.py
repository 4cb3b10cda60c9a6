"""Small ints that stand for the words of a row, and what stands where a row has no number."""

from __future__ import annotations

from typing import Final

from mla_cost.declared.kernels import KERNELS
from mla_cost.pricing import usable
from mla_cost.pricing.automatic import AUTO

STATUSES: Final = (*usable.STATUSES, "illegal", "none")
FITS, TIGHT, OOM, UNSUPPORTED, ILLEGAL, NONE = range(len(STATUSES))
# why a row is refused; the whole sentence is reported on request
REASONS: Final = ("", "no program", "does not divide", "too large", "not trained here")
NO_PROGRAM, REQUIREMENT, TOO_LARGE, UNTRAINED = range(1, len(REASONS))
KERNEL_NAMES: Final = (*KERNELS, AUTO)  # auto: where it was refused before one was chosen
PADDINGS: Final = ("none", "qk")  # of V
MISSING: Final = -1  # every number of an illegal row, and what a verdict needs where no device is named
