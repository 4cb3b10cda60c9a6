"""softmax(q k) v, executed in the styles that people use.

q is `[S b l d]`; key and value are `[S b l d]`, or `[S b d]` where all heads share them.
A kernel is an `nn.Module` without parameters, so that its mask is a buffer like any other table.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mla_cost.checks.reference.fused import flash_attention, npu_fusion_attention, sdpa
from mla_cost.checks.reference.spec import Spec

# attention_layout -> letters of the scores, letters of the output
LETTERS = {"sbnd": ("bnst", "sbnd"), "bnsd": ("bnst", "bnsd"), "bsht": ("bsnt", "bsnd")}


class Eager(nn.Module):
    """Scores, scale, softmax and output, each an op of its own."""

    mask: Tensor | None

    def __init__(self, spec: Spec, scale: float, mask: Tensor | None) -> None:
        super().__init__()
        self.holds = spec.names == "held"
        self.scale, self.letters = scale, LETTERS[spec.attention_layout]
        self.softmax_dtype = torch.float32 if spec.softmax_dtype == "fp32" else None
        self.register_buffer("mask", mask, persistent=False)

    def letters_for(self, key: Tensor) -> tuple[str, str]:
        """Letters of the scores and of the output."""
        return self.letters

    def forward(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; returns `[S b l d]`."""
        return self.held(q, key, value) if self.holds else self.rebound(q, key, value)

    def held(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Every result under a name of its own, so that each lives until this function returns."""
        shared = "tbnd" if key.dim() == q.dim() else "tbd"
        score_letters, out_letters = self.letters_for(key)
        raw_scores = torch.einsum(f"sbnd,{shared}->{score_letters}", q, key)
        scores = raw_scores * self.scale
        visible = scores
        if self.mask is not None:
            mask = self.mask if score_letters == "bnst" else self.mask.unsqueeze(1)
            visible = scores.masked_fill(mask, -torch.inf)
        probs = torch.softmax(visible, -1, dtype=self.softmax_dtype)
        narrow_probs = probs if self.softmax_dtype is None else probs.to(scores.dtype)
        out = torch.einsum(f"{score_letters},{shared}->{out_letters}", narrow_probs, value)
        return out.permute(*(out_letters.index(letter) for letter in "sbnd"))

    def rebound(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Results under few names: what a name held goes as soon as it is bound again."""
        shared = "tbnd" if key.dim() == q.dim() else "tbd"
        score_letters, out_letters = self.letters_for(key)
        scores = torch.einsum(f"sbnd,{shared}->{score_letters}", q, key)
        scores = scores * self.scale
        if self.mask is not None:
            scores = scores.masked_fill(self.mask if score_letters == "bnst" else self.mask.unsqueeze(1), -torch.inf)
        probs = torch.softmax(scores, -1, dtype=self.softmax_dtype)
        if self.softmax_dtype is not None:
            probs = probs.to(scores.dtype)
        out = torch.einsum(f"{score_letters},{shared}->{out_letters}", probs, value)
        return out.permute(*(out_letters.index(letter) for letter in "sbnd"))


class EagerBmm(Eager):
    """Eager without an avoidable copy: with a shared key the probabilities of a position lie together for all heads.

    One order of letters for each kind of key; the attention layout has no say.
    """

    def letters_for(self, key: Tensor) -> tuple[str, str]:
        """Letters of the scores and of the output."""
        return ("bsnt", "sbnd") if key.dim() == 3 else LETTERS["sbnd"]


class Flash(nn.Module):
    """FlashAttention's saves: q, key, value, out and one fp32 log-sum-exp per head and position."""

    def __init__(self, spec: Spec, scale: float, first: int | None) -> None:
        super().__init__()
        self.scale, self.first, self.pads = scale, first, spec.value_padding == "qk"
        self.backend = spec.kernel if spec.fused_attention == "sdpa" else None

    def forward(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; returns `[S b l d]`, a view of a wider output where the value was padded."""
        width, missing = value.size(-1), q.size(-1) - value.size(-1)
        if not self.pads or missing == 0 or key.dim() < q.dim():
            return self.attend(q, key, value)
        return self.attend(q, key, nn.functional.pad(value, (0, missing)))[..., :width]

    def attend(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Call the fused op on tensors as they are."""
        if self.backend is not None:
            return sdpa(q, key, value, self.scale, self.first, self.backend)
        return flash_attention(q, key, value, self.scale, self.first)


class MemEfficient(Flash):
    """Flash's saves at any aligned width; a shared key is copied to every head first."""

    def forward(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; returns `[S b l d]`."""
        if key.dim() < q.dim():
            key = key.unsqueeze(2).expand(-1, -1, q.size(2), -1).contiguous()
            value = key[..., : value.size(-1)]
        return self.attend(q, key, value)


class NpuFusion(Flash):
    """Ascend's fused attention: softmax max and sum in place of the log-sum-exp; pads the value by default."""

    def __init__(self, spec: Spec, scale: float, first: int | None) -> None:
        super().__init__(spec, scale, first)
        self.pads = spec.value_padding in (None, "qk")

    def attend(self, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Call the fused op on tensors as they are."""
        return npu_fusion_attention(q, key, value, self.scale, self.first)


def make_kernel(spec: Spec, scale: float, mask: Tensor | None, first: int | None) -> nn.Module:
    """Return the kernel that the spec names, causal where `mask` and `first` are given.

    mask `[queries keys]` is true where attention is forbidden; first is the position of the first query.
    """
    if spec.kernel in ("eager", "eager-bmm"):
        return (Eager if spec.kernel == "eager" else EagerBmm)(spec, scale, mask)
    return {"flash": Flash, "mem-efficient": MemEfficient, "npu-fusion": NpuFusion}[spec.kernel](spec, scale, first)
