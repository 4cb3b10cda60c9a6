"""Torch's fully_shard (FSDP2): weights, gradients and states split, a unit gathered when it runs.

Read in torch 2.13, torch/distributed/fsdp/_fully_shard: `_fsdp_collectives.py` foreach_all_gather (325), its copy-out
(431) and foreach_reduce (522); `_fsdp_param_group.py` wait_for_unshard (417), post_backward (588), _backward_prefetch
(795), finalize_backward (763); `_fsdp_state.py` _pre_forward (290). The units are those of pytorch/torchtitan
(models/llama4/infra/parallelize.py, apply_fsdp): the embedding, every layer, the head with its norm; experts by their
second dim where more ranks share them than there are. What a moment holds:

- an all-gather's output lies beside the weights that are copied out of it; in forward it stays until the next unit's
  copy-out has returned, in backward it goes at once;
- in backward the unit ahead is gathered before this one runs, and the buffer from which the unit behind is reduced
  stays until this one's gradients are complete;
- gradients of a unit stay whole until all of them are copied into that buffer, and of those that are put in another
  order first the last stays until it is sent (a local name of foreach_reduce holds it);
- with replicas, every part that is all-reduced stays until backward ends.
"""

from mla_cost.declared.states import EARLIER, GRADIENTS, OPTIMIZER, WEIGHTS, Alive, Gathering, Send, Sharding


def gathering(given_back: bool, ahead: int, replicas: bool) -> Gathering:
    """The moments of a unit. ahead: units gathered before their turn, both ways; 0 is forward none, backward one."""
    before = () if given_back else (Alive("gathered", EARLIER, -1),)
    coming = (Alive("arriving", 1, ahead),) if ahead else ()
    next_ones = (Alive("arriving", 1, ahead - 1),) if ahead > 1 else ()
    going = (Alive("arriving", -max(1, ahead), -1),) if given_back else before
    gone = (Alive("arriving", 1 - ahead, -1),) if ahead > 1 else ()
    summed = (Alive("part", 1, -EARLIER),) if replicas else ()
    behind = (Alive("reduced", 1, 1), *summed)
    twice = (Alive("gathered"), Alive("arriving"), Alive("rearranged"))
    return Gathering(
        gather=(*before, Alive("arriving", -1, -1), *twice, *next_ones),
        forward=(*before, Alive("gathered"), Alive("arriving"), *coming),
        regather=(*behind, *twice, *gone) if given_back else (*behind, *before, Alive("gathered")),
        backward=(*behind, Alive("gathered"), *going),
        reduce=(*summed, *going, Alive("gradients"), Alive("lingering"), Alive("reduced")),
        scatter=(*summed, *going, Alive("lingering"), Alive("reduced"), Alive("part"), Alive("cast")),
    )


SHARDING = Sharding(
    name="fsdp",
    title="weights, gradients and states are split; a layer is gathered when it runs, forward and backward",
    source="pytorch/pytorch torch/distributed/fsdp/_fully_shard at 2.13",
    step=lambda ranks: ranks,
    sends=(
        Send("weights", "all_gather", dtype="weights", calls="micro-batch", padded=True),
        Send("weights", "all_gather", dtype="weights", calls="micro-batch", padded=True, again=True),
        Send("gradients", "reduce_scatter", dtype="gradients", calls="micro-batch", padded=True),
        Send("gradients", "all_reduce", dtype="gradients", calls="micro-batch", padded=True, copies=True),
    ),
    split=OPTIMIZER | {WEIGHTS, GRADIENTS},
    gathers=gathering,
    by_weight=True,
    whole_dtype=True,
    profiles=("reference",),
    one_stage=(
        "fsdp gathers a layer for every pass, and what a pipeline's stages (pp {pp}) keep gathered between passes is "
        "not priced; change pp to 1, or sharding to zero1 or distributed"
    ),
    own_weights=(
        "fsdp keeps weights that several units share in a unit around them, which is not priced: {shared}; {way_out}"
    ),
)
