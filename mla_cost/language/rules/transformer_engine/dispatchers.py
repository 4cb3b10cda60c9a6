"""How rows reach the ranks of their experts and come back. `M:` and `T:` as in the package."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.exchange import EXPERTS, recorded, to_each

Dims = tuple[str, ...]


@op("to_experts")
def rows_to_experts(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows [u b K ..] to the rows of this rank's experts [R ..], by all-to-all; nothing is kept."""
    tail = rows.dims[rows.dims.index("K") + 1 :]
    return _sent(machine, label, rows, ("R", *tail), tail)


@op("from_experts")
def rows_from_experts(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows of this rank's experts [R ..] back to their tokens [u b K ..], by all-to-all; nothing is kept."""
    tail = rows.dims[1:]
    return _sent(machine, label, rows, (machine.predicates.rows, "b", "K", *tail), tail)


def _sent(machine: Machine, label: str, rows: Tensor, dims: Dims, tail: Dims) -> Tensor:
    """Nothing where one rank holds all experts: Megatron's all-to-all then returns its input."""
    if not machine.predicates.experts_divided:
        return rows
    result = machine.new(label, dims, rows.dtype)
    recorded(machine, "all_to_all", EXPERTS, label, rows.dims, rows.dtype, (to_each(rows.dims), *tail))
    name, back, dtype = rows.label, rows.dims, rows.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        made = machine.new(f"gradient of {name}", back, dtype)
        recorded(machine, "all_to_all", EXPERTS, f"gradient of {name}", dims, dtype, (to_each(dims), *tail))
        return [made]

    machine.attach([result], [rows], backward)
    return result


@op("dispatch", "deepep")
def deepep_dispatch(machine: Machine, label: str, tokens: Tensor, weights: Tensor) -> list[Tensor]:
    """A token once to every rank that holds an expert of its choice: tokens [D h] and their fp32 weights [D c].

    Staging buffers are DeepEP's own, outside torch. M: transformer/moe/fused_a2a.py, FusedDispatch;
    transformer/moe/token_dispatcher.py:1424-1455. Its handle, a few integers per token, is not counted.
    """
    arrived = machine.new(label, ("D", tokens.dims[-1]), tokens.dtype)
    arrived_weights = machine.new(f"{label} weights", ("D", "c"), "fp32")
    _tokens_cross(machine, label, ("D", tokens.dims[-1]), tokens.dtype)
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (tokens, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        _tokens_cross(machine, f"gradient of {label}", ("D", "h"), made[0][2])
        return results

    machine.attach([arrived, arrived_weights], [tokens, weights], backward)
    return [arrived, arrived_weights]


@op("combine", "deepep")
def deepep_combine(machine: Machine, label: str, tokens: Tensor) -> Tensor:
    """Tokens [D h] back to where they came from, summed: [u b h]. M: transformer/moe/fused_a2a.py, FusedCombine."""
    result = machine.new(label, (machine.predicates.rows, "b", tokens.dims[-1]), tokens.dtype)
    _tokens_cross(machine, label, tokens.dims, tokens.dtype)
    name, dims, dtype = tokens.label, tokens.dims, tokens.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        made = machine.new(f"gradient of {name}", dims, dtype)
        _tokens_cross(machine, f"gradient of {name}", dims, dtype)
        return [made]

    machine.attach([result], [tokens], backward)
    return result


@op("dispatch", "hybridep")
def hybridep_dispatch(machine: Machine, label: str, tokens: Tensor, weights: Tensor) -> list[Tensor]:
    """A token once to every rank that holds an expert of its choice, written there as rows [R h] with weights [R].

    What arrives lies in HybridEP's own buffer, outside torch, until it is permuted into the rows. Its handle, which
    dispatch and combine keep, comes last: int32 [u b E], int32 [u b e] and bool [u b e]; two bool maps over nodes, of
    2 nodes - 1 bytes per token, and counts per chunk of tokens are left out. M: transformer/moe/fused_a2a.py,
    HybridEPDispatch. deepseek-ai/DeepEP@94a9f8f csrc/hybrid_ep/executor/executor.cu:90-135; hybrid_ep.cu:313-316.
    """
    local, dtype = tokens.dims[:-1], tokens.dtype
    gathered = machine.new(f"{label} routing of all ranks", (*local, "E", "e"), "bool")
    recorded(machine, "all_gather", EXPERTS, f"routing of {tokens.label}", (*local, "e"), "bool", (*local, "e"))
    handle = [
        machine.new(f"{label} {what}", (*local, dim), to)
        for what, dim, to in (("ranks map", "E", "int32"), ("experts map", "e", "int32"), ("routing map", "e", "bool"))
    ]
    del gathered
    rows = machine.new(label, ("R", tokens.dims[-1]), dtype)
    row_weights = machine.new(f"{label} weights", ("R",), "fp32")
    _tokens_cross(machine, label, ("D", tokens.dims[-1]), dtype)
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (tokens, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        results: list[Tensor | None] = [machine.new(*item) for item in made]
        _tokens_cross(machine, f"gradient of {label}", ("D", "h"), dtype)
        return results

    machine.attach([rows, row_weights], [tokens, weights], backward, saved=handle)
    return [rows, row_weights, *handle]


@op("combine", "hybridep")
def hybridep_combine(machine: Machine, label: str, rows: Tensor, handle: list[Tensor]) -> Tensor:
    """Rows [R h] back to where their tokens came from, summed: [u b h]. Keeps the handle.

    M: transformer/moe/fused_a2a.py, HybridEPCombine.
    """
    result = machine.new(label, (machine.predicates.rows, "b", rows.dims[-1]), rows.dtype)
    _tokens_cross(machine, label, ("D", rows.dims[-1]), rows.dtype)
    made = (f"gradient of {rows.label}", rows.dims, rows.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        gradient = machine.new(*made)
        _tokens_cross(machine, made[0], ("D", "h"), made[2])
        return [gradient]

    machine.attach([result], [rows], backward, saved=handle)
    return result


def _tokens_cross(machine: Machine, label: str, handed: Dims, dtype: str) -> None:
    recorded(machine, "all_to_all", EXPERTS, label, handed, dtype, ("a", *handed[1:]))
