"""Conditions that more than one scheme has."""

from mla_cost.language.program import Requirement

SEQUENCE = Requirement(
    "divides",
    "seq_len",
    "sp",
    "every rank holds an equal part of the sequence, and sp {sp} does not divide seq_len {seq_len}",
)
HALVES = Requirement(
    "divides",
    "seq_len",
    "sp",
    "every rank holds two equal chunks of the sequence, and 2 x sp {sp} does not divide seq_len {seq_len}",
    times=2,
)
HEADS = Requirement(
    "divides", "heads", "sp", "every rank keeps an equal number of heads, and sp {sp} does not divide {heads} heads"
)
INSIDE = Requirement(
    "divides",
    "sp",
    "sp_inside",
    "every inner group has as many ranks, and sp_inside {sp_inside} does not divide sp {sp}",
)
HEADS_INSIDE = Requirement(
    "divides",
    "heads",
    "sp_inside",
    "every rank of an inner group keeps as many heads, and sp_inside {sp_inside} does not divide {heads} heads",
)
HALVES_OUTSIDE = Requirement(
    "divides",
    "seq_len",
    "sp_outside",
    "every inner group holds two equal chunks, and 2 x {sp_outside} groups do not divide seq_len {seq_len}",
    times=2,
)
NARROW_VALUES = Requirement(
    "at_most",
    "v",
    "qk",
    "V is filled up to the width of keys, and V ({v}) is wider than that ({qk})",
    way_out="use scheme ulysses",
)
