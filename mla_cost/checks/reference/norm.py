"""RMSNorm over the last dim: fused (one op, as TE's, Apex's and CUDA's are) and composite (plain torch)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mla_cost.checks.reference.opaque import opaque_op

EPSILON = 1e-6


def _forward_results(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _backward_results(gradient: Tensor, x: Tensor, weight: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


@opaque_op("rms_norm(Tensor x, Tensor weight) -> (Tensor, Tensor)", _forward_results)
def rms_norm_forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[... d]` -> the normalised input, contiguous, and one fp32 reciprocal root per row `[...]`."""
    wide = x.float()
    root = wide.pow(2).mean(-1).add(EPSILON).rsqrt()
    return (wide * root.unsqueeze(-1) * weight.float()).to(x.dtype), root


@opaque_op("rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor root) -> (Tensor, Tensor)", _backward_results)
def rms_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the input (contiguous) and of the weight."""
    root, upstream = root.unsqueeze(-1), gradient.float()
    normal = x.float() * root
    scaled = upstream * weight.float()
    dx = root * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    dweight = (upstream * normal).flatten(0, -2).sum(0)
    return dx.to(x.dtype).contiguous(), dweight.to(weight.dtype)


class _FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor
        out, root = rms_norm_forward(x, weight)
        ctx.save_for_backward(x, weight, root)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        dx, dweight = rms_norm_backward(gradients[0], *ctx.saved_tensors)
        return dx, dweight


class RMSNorm(nn.Module):
    """`[... width]` -> `[... width]`. Fused keeps its input as given (a view stays a view) and one root per row."""

    def __init__(self, width: int, style: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the rows of x."""
        if self.style == "composite" or x.is_cuda:  # on CUDA torch's own is one fused op
            return nn.functional.rms_norm(x, (x.size(-1),), self.weight, EPSILON)
        out: Tensor = _FusedRMSNorm.apply(x, self.weight)
        return out
