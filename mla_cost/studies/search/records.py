"""What a search answers: plain typed records with the fields of the JSON (schema mla-cost/search/1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from mla_cost.results import Lever, Plan, Status


class Candidate(NamedTuple):
    """One legal plan with its figures. Bytes on one rank.

    value_padding: None for the kernel's own. pipeline_layout: None where layers split equally. required, usable: of the
    verdict that `plan` gives. least_headroom: what is left where libraries take the most that they may. sent, flops: in
    one optimizer step, of the stage that sends, or runs, most, as levers have them (a plan lists what the stage that
    holds most sends and runs); flops: executed, exact below 2^53. idle: the share of a pipeline's schedule that a stage
    waits, (pp - 1) / (virtual_stages micro_batches + pp - 1), were all micro-batches and stages alike. weight: what
    ranks it, in seconds (`studies.search.weight`): no prediction; inside_node, between_nodes: the bytes sent, as the
    weight tells them apart. alike: how many further candidates have the same figures. variants: how many further ones
    that fit have the same degrees (the row is the first of them). command: what plans it.
    seconds: of an optimizer step, in the middle of the band of the device's ceilings, and tokens_per_second of all
    devices; None where the device's file has none. too_close: whether that band could turn its order with the first
    row's, seconds_low, seconds_high: the band; None of rows that are not priced by `plan` too.
    """

    form: str
    scheme: str
    kernel: str
    value_padding: str | None
    devices: int
    tp: int
    sp: int
    pp: int
    ep: int
    etp: int
    dp: int
    virtual_stages: int
    pipeline_layout: str | None
    micro_batch: int
    micro_batches: int
    sharding: str
    remat: str
    status: Status
    required_bytes: int
    usable_bytes: int
    headroom_bytes: int
    least_headroom_bytes: int
    sent_bytes: int
    sent_by_axis: Mapping[str, int]
    flops: int
    idle: float
    alike: int
    weight_seconds: float
    inside_node_bytes: int
    between_nodes_bytes: int
    variants: int
    command: str
    seconds: float | None = None
    tokens_per_second: float | None = None
    model_flops_utilisation: float | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    too_close: bool | None = None

    def plan(self) -> Plan:
        """The plan of this row, as its command prices it."""
        from mla_cost.studies.planned import plan_of

        return plan_of(self.command)


class Ruled(NamedTuple):
    """What a rule forbids. rule: the setting it is about; number, of: how many of what; example: one, and its way out.

    layouts: choices of tp, sp, pp, dp, ep and virtual stages; batches: a layout with a micro-batch; candidates: with a
    form, a scheme, sharding and remat. Each is counted under the first rule that it breaks.
    """

    rule: str
    of: Literal["layouts", "batches", "candidates"]
    number: int
    example: str


class Miss(NamedTuple):
    """What comes nearest where nothing fits. short: what it lacks. Bytes.

    reason: its verdict's. candidate: None where nothing is legal; problems then says what is wrong with the layout that
    breaks the fewest rules, and the ways out. remedy: the smallest change that makes it fit, in words; levers: every
    single change that does, within the limits of the search; more_devices: what fits on the fewest devices that were
    tried, with full recomputation where it is allowed; tried_devices: those counts.
    """

    candidate: Candidate | None
    reason: str
    short_bytes: int | None
    problems: tuple[str, ...]
    remedy: str | None
    levers: tuple[Lever, ...]
    more_devices: Candidate | None
    tried_devices: tuple[int, ...] = ()
