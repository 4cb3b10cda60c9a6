"""What systems of the field claim to change of a decoding step, as cost settings. Estimates: see `basis` of each."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal, NamedTuple

Basis = Literal["stated", "derived", "inferred"]


class Scan(NamedTuple):
    """Keys read in low precision first; blocks that score high are read further, with their values.

    bits: of a scanned key's element. block: keys that share a scale of `scale_bytes` for each element. residual_bytes:
    an element that kept keys read further. kept: share of keys whose blocks stay.
    """

    name: str
    bits: int
    block: int
    scale_bytes: int
    residual_bytes: int
    kept: Fraction
    basis: Basis
    source: str

    def scanned(self, width: int) -> Fraction:
        """Bytes of one key that the scan reads."""
        return Fraction(width * self.bits, 8) + Fraction(width * self.scale_bytes, self.block)

    def read(self, width: int, value_bytes: int) -> Fraction:
        """Bytes of one key and value that are read, on average. value_bytes: of a value whose key is kept."""
        return self.scanned(width) + self.kept * (width * self.residual_bytes + value_bytes)


class Launch(NamedTuple):
    """How operators of a step follow each other. share: of what a kernel per operator waits beyond reading memory."""

    name: str
    share: Fraction
    basis: Basis
    source: str


FFD: Final = Scan(
    name="ffd",
    bits=2,
    block=128,
    scale_bytes=2,
    residual_bytes=1,
    kept=Fraction(1, 20),
    basis="inferred",
    source="arXiv 2609.00097: 2-bit key, 8-bit residual, blocks of 128; grouped queries, MLA not tried. One scale for "
    "a block, head and channel as a third party's re-implementation has it; the kept share is an assumption",
)
SCANS: Final = {scan.name: scan for scan in (FFD,)}
KERNELS: Final = Launch("kernels", Fraction(1), "stated", "a kernel for every operator")
MPK: Final = Launch(
    name="mpk",
    share=Fraction(25, 45),
    basis="inferred",
    source="arXiv 2512.22219: Qwen3-8B on A100 14.5 to 12.5 ms a token above a floor of 10, so 44 % of the rest goes",
)
LAUNCHES: Final = {launch.name: launch for launch in (KERNELS, MPK)}
# beyond reading memory, of one layer with a kernel for every operator: (14.5 - 10) ms over 36 layers (arXiv 2512.22219)
OVERHEAD_US: Final = Fraction(4500, 36)
OVERHEAD_SOURCE: Final = "inferred: arXiv 2512.22219, (14.5 - 10) ms over the 36 layers of Qwen3-8B on A100"
