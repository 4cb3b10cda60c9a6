"""Rotary position embedding by rotate-half, with real tables."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10000.0


def rope_tables(positions: Tensor, rope: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Positions `[s]` -> cos and sin `[s 1 1 r]` in the activation dtype."""
    frequencies = BASE ** (-torch.arange(0, rope, 2, dtype=torch.float32) / rope)
    angles = torch.outer(positions.float(), frequencies).repeat(1, 2)[:, None, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    """`[s b n r]` -> `[s b n r]`: (first, second) -> (-second, first)."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`[s b n r]` -> `[s b n r]`, rotated by its position."""
    return x * cos + rotate_half(x) * sin
