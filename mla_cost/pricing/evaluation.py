"""A program evaluated at a point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mla_cost.declared.kernels import KERNELS
from mla_cost.language.dims import Predicates
from mla_cost.language.evaluate import Evaluation, ExactLimitError, account_of
from mla_cost.language.fused_workspace import CALL
from mla_cost.language.machine import FusedCall
from mla_cost.language.program import Kernel, ProgramError
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.resolve import Illegal, Point


def evaluation(point: Point) -> Evaluation:
    """The program of a point at its values.

    Raises:
        Illegal: no program exists, or a size leaves the range in which every evaluator is exact.

    """
    try:
        account = account_of(timeline(point.key))
        values = dict(point.values)
        for call in account.timeline.fused_calls:
            values["fused_workspace"] = fused_workspace(point.kernel, point.key.predicates, call, values)
        return Evaluation(account, values)
    except ProgramError as error:
        raise Illegal(f"{error}{_kernel_way_out(point)}") from None
    except ExactLimitError as error:
        raise too_large(error) from None


def _kernel_way_out(point: Point) -> str:
    others = [kernel.name for kernel in KERNELS.values() if kernel.shared_text is not None]
    return f"; kernels that take this form: {', '.join(others)}" if point.kernel.shared_text is None else ""


def too_large(error: ExactLimitError) -> Illegal:
    """The refusal of bytes that not every evaluator would give exactly."""
    return Illegal(f"{error}: bytes are exact below 2^53 only; make the plan smaller")


def fused_workspace(kernel: Kernel, predicates: Predicates, call: FusedCall, values: Mapping[str, Any]) -> Any:
    """What a fused kernel holds inside the backward of a call: bytes, a number or an array as the values are."""

    def dim(name: str) -> Any:
        return predicates.size(name).at(values)

    queries, batch, heads, qk = (dim(name) for name in call.query)
    key_heads = dim(call.key[2]) if len(call.key) == 4 else 1
    sizes = (batch, heads, key_heads, queries, dim(call.key[0]), qk, dim(call.value[-1]))
    return kernel.workspace.at(dict(zip(CALL, sizes, strict=True)))
