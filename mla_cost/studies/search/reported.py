"""Rows as the candidates that are reported, and the check of them by `plan`'s own evaluator."""

from __future__ import annotations

from typing import cast

from mla_cost.batch.codes import MISSING, STATUSES
from mla_cost.batch.composed import AXES, require_equal
from mla_cost.inputs.command import command_of
from mla_cost.pricing import rows, stage_work
from mla_cost.results import Result, Status, Time
from mla_cost.studies.search.order import Row
from mla_cost.studies.search.records import Candidate
from mla_cost.studies.search.space import Space


def candidate(space: Space, row: Row, time: Time | None = None, first: Time | None = None) -> Candidate:
    """The candidate of a row. time: what a plan says of it; first: of the first of its table."""
    told = row["time"] != MISSING
    trained = space.question.options.global_batch * space.question.settings.seq_len
    program, config = space.programs[row["program"]], space.parallel_configs[row["config"]]
    return Candidate(
        form=program.form,
        scheme=program.scheme,
        kernel=program.settings.kernel,
        value_padding=program.settings.value_padding,
        devices=config.devices,
        **config.stated,
        sharding=space.shardings[row["sharding"]],
        remat=space.policies[row["policy"]],
        status=cast("Status", STATUSES[row["status"]]),
        required_bytes=row["required"],
        usable_bytes=row["required"] - row["short"],
        headroom_bytes=-row["short"],
        least_headroom_bytes=row["least"],
        sent_bytes=row["sent"],
        sent_by_axis={axis: row[axis] for axis in AXES if row[axis]},
        flops=int(row["flops"]),
        idle=config.idle,
        alike=row["alike"] - 1,
        weight_seconds=row["weight"],
        inside_node_bytes=row["inside"],
        between_nodes_bytes=row["between"],
        variants=row["variants"] - 1,
        command=command_of(space.settings(row)),
        seconds=row["time"] if told else None,
        tokens_per_second=trained / row["time"] if told else None,
        model_flops_utilisation=row["utilisation"] if told else None,
        seconds_low=None if time is None else time.total.low,
        seconds_high=None if time is None else time.total.high,
        too_close=None if time is None or first is None else time is not first and first.too_close(time),
    )


def checked(space: Space, row: Row) -> Result:
    """What a plan answers to a row.

    Raises:
        ArithmeticError: the plan's figures are others, which no input may cause.

    """
    settings, question = space.settings(row), space.question
    form = settings.form[0]
    (result,) = rows.rows(question.model, question.device, settings, timed=row["time"] != MISSING)
    verdict = result.verdict
    assert verdict is not None
    most = stage_work.most_of_stages(question.model, question.device, form, settings)
    wanted = {
        "status": STATUSES.index(verdict.status),
        "required": verdict.required_bytes,
        "short": -(verdict.headroom_bytes or 0),
        "least": verdict.least_headroom_bytes,
        "sent": most.wire_bytes,
        "flops": most.executed,
    }
    require_equal(row["config"], row, wanted)
    if row["time"] != MISSING:
        seconds = result.time.total.seconds if result.time is not None else MISSING
        require_equal(row["config"], {"seconds": row["time"]}, {"seconds": seconds})
    return result
