"""Rotary embedding: fused where the query lies, and unfused with tables. `M:` and `T:` as in the package."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, PersistentBuffer, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import add, negate
from mla_cost.language.rules.split import concat, cut_up

TABLES = "rotary tables of every layer"


@op("rope", "in-place", kind="rope")
def rope_in_place(machine: Machine, label: str, query: Tensor) -> Tensor:
    """Fused rotation of the query where it lies, its gradient likewise; only tables are kept, in every layer its own.

    M: fusions/fused_mla_yarn_rope_apply.py:335; models/common/embeddings/yarn_rotary_pos_embedding.py, `forward`, whose
    `lru_cache` holds angles of the latest 32 layers (earlier ones are counted too), and `_set_cos_sin_cache`.
    """
    _stand(machine, query, ("r+r",))  # angles in fp32; cosines and sines in bf16
    view = machine.view(query, query.axes)
    view.label = label
    turned = machine.bytes_of((*query.dims[:-1], "r"), query.dtype)  # the other columns stay where they are
    machine.runs("rope", [turned], [turned])

    def backward(gradients: Gradients) -> list[Tensor | None]:
        machine.runs("rope", [turned], [turned])
        return [gradients[0]]

    machine.attach([view], [query], backward)
    return view


@op("rope_keys_values", kind="rope")
def rope_keys_values(machine: Machine, parts: tuple[tuple[str, str], ...], kv: Tensor, shared: Tensor) -> list[Tensor]:
    """kv [s b n k+v] and the shared rope key [s b r] to keys [s b n k+r] and values [s b n v]: new, row-major.

    So values never pin kv. Only tables are kept. M: fusions/fused_mla_yarn_rope_apply.py:782-783, 811.
    """
    results = [machine.new(label, (*kv.dims[:-1], dim), kv.dtype) for label, dim in parts]
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (kv, shared)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach(results, [kv, shared], backward)
    return results


@op("rope", "tables", kind="rope")
def rope_with_tables(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Unfused rotation: each call makes its cosine and sine [s r] anew, and the products keep them.

    M: models/common/embeddings/rope_utils.py:142-147. What else is made on the way is that of `rope`. Angles stand as
    for the fused rotation, with no cosine and sine of this length beside them.
    """
    _stand(machine, tensor, ("r",))
    turned = _times_table(machine, f"{label} cosine", tensor)
    at = len(tensor.axes) - 1
    first, second = cut_up(machine, tensor, at, [(f"{label}, first", "r_half"), (f"{label}, second", "r_half")])
    rotated = concat(
        machine, f"{label} rotated half", [negate(machine, f"{label}, negated", second), first], tensor.dims[-1]
    )
    return add(machine, label, turned, _times_table(machine, f"{label} sine", rotated))


def _times_table(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    table = machine.new(f"{label} table", (tensor.dims[0], tensor.dims[-1]), tensor.dtype)
    result = machine.elementwise(f"{label} part", tensor)
    name, dtype = tensor.label, tensor.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [machine.elementwise(f"gradient of {name}", gradient, dtype)]

    machine.attach([result], [tensor], backward, saved=[table])
    return result


def _stand(machine: Machine, tensor: Tensor, inner: tuple[str, ...]) -> None:
    """Once for a layer, however often it rotates."""
    standing = PersistentBuffer(TABLES, tensor.dims[:1], inner, "fp32", each=True)
    if standing not in machine.timeline.persistent:
        machine.timeline.persistent.append(standing)
