"""Plain torch, as docs/decisions/0001, 0007 and 0008 write it: nothing is replaced."""

from mla_cost.language.program import Profile

PROFILE = Profile(
    name="reference",
    title="plain torch, one op per step of the published style",
    source="docs/decisions/0001, 0007 and 0008",
    losses=("native", "no-upcast", "in-place", "fused", "chunked"),
    notes=(
        (
            "profile reference prices what plain torch code keeps (docs/decisions/0007 and 0008); Megatron's kernels "
            "keep less in places and more in others"
        ),
    ),
)
