"""Recomputation: which pieces of a program are run again in backward instead of kept (docs/decisions/0009)."""

from __future__ import annotations

# policy: the pieces of program text whose call is wrapped
POLICIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": ("layer",),
    "core_attn": ("attend",),
    "mlp": ("mlp",),
    "moe": ("experts", "shared_experts"),
    "shared_experts": ("shared_experts",),
}
NOT_YET = ("mla_up_proj", "layernorm", "moe_act")  # Megatron's names for what is not priced yet


def pieces(policy: str) -> frozenset[str]:
    """The pieces that a policy wraps; several policies are joined by `+`.

    Raises:
        KeyError: a name that is no policy.

    """
    return frozenset(piece for name in policy.split("+") for piece in POLICIES[name])
