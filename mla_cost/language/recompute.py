"""Recomputation: which pieces of a program are run again in backward instead of kept (docs/decisions/0009)."""

from __future__ import annotations

# policy: the pieces of program text whose call is wrapped
POLICIES: dict[str, tuple[str, ...]] = {
    "none": (),
    "full": ("layer",),
    "core_attn": ("attend", "unfused"),
    "mlp": ("mlp",),
    "moe": ("mixture", "experts", "shared_experts"),  # as one, where a text has it as one
    "shared_experts": ("shared_experts",),
}
# Megatron's checkpoints without output (CheckpointWithoutOutput, megatron/core/tensor_parallel/random.py, d98e8a64):
# what these pieces return is not kept either. They exist where a profile's texts have the pieces.
DISCARDING: dict[str, tuple[str, ...]] = {
    "mla_up_proj": ("up_projections",),
    "layernorm": ("input_norm", "pre_mlp_norm"),
    "moe_act": ("activation",),
}
# policies that exclude each other: a whole layer that is run again has no modules of its own that are
# (NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py, recompute_granularity)
TOGETHER = tuple(("full", name) for name in DISCARDING)


def canonical(policy: str) -> str:
    """The same policy with each name once, in the order of the tables; `none` beside others says nothing.

    A name that is no policy stays for whoever refuses it.

    >>> canonical("moe+none+core_attn+moe")
    'core_attn+moe'
    """
    names = list(dict.fromkeys(policy.split("+")))
    if len(names) > 1 and "none" in names:
        names.remove("none")
    order = [*POLICIES, *DISCARDING]
    return "+".join(sorted(names, key=lambda name: order.index(name) if name in order else len(order)))


def pieces(policy: str) -> frozenset[str]:
    """The pieces that a policy wraps and whose results are kept; several policies are joined by `+`.

    Raises:
        KeyError: a name that is no policy.

    """
    names = [name for name in policy.split("+") if name not in DISCARDING]
    return frozenset(piece for name in names for piece in POLICIES[name])


def discarded(policy: str) -> frozenset[str]:
    """The pieces that a policy wraps and whose results are made again as well."""
    return frozenset(piece for name in policy.split("+") for piece in DISCARDING.get(name, ()))
