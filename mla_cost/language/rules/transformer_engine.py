"""What Megatron-Core runs with Transformer Engine: linears that keep a shard, fused activations, routed rows, losses.

Read in source, not run: NVIDIA/Megatron-LM@d98e8a64ddf3 (`M:`, paths under megatron/core) and
NVIDIA/TransformerEngine@d0067d0da6cb (`T:`, paths under transformer_engine/pytorch), bf16. Every weight gradient of a
linear is written into its buffer by the product itself (gradient accumulation fusion), so no such tensor is made; what
autograd is handed instead is one standing tensor for every distinct shape (T: module/base.py:134-148;
M: tensor_parallel/layers.py:742-754).
"""

from __future__ import annotations

from mla_cost.language.dims import rank_share
from mla_cost.language.machine import Gradients, Machine, Standing, Tensor
from mla_cost.language.ops import op
from mla_cost.language.rules.elementwise import add, negate
from mla_cost.language.rules.exchange import EXPERT_TENSOR, EXPERTS, TENSOR, recorded, scatter, to_each
from mla_cost.language.rules.split import concat, contiguous, cut_up
from mla_cost.language.strides import Axis

Dims = tuple[str, ...]
STAND_IN = "stand-ins for weight gradients"
GATHER_BUFFER = "gather buffer of the output head"


# ---- linears


@op("linear", "column")
def column_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A weight divided by rows, over a sequence shard [u b in]: to [s b out].

    Keeps the shard. Forward gathers it into a tensor that dies with the product; backward gathers it again beside the
    input gradient, which is then reduced and scattered. T: module/linear.py:363-395, 565, 636, 875, 1000.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    product = _Product(machine, label, tensor, weight)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("norm_linear")
def norm_linear(machine: Machine, label: str, tensor: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm and a linear divided by rows in one module: [u b in] to [s b out].

    Copies an input that is not row-major (T: module/base.py:1639-1640; module/layernorm_linear.py:1727). Keeps the
    input, the normalised shard and fp32 roots; what is gathered is not kept (module/layernorm_linear.py:525-536).
    Backward gathers the normalised shard again, then goes through the norm.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    normal = machine.copy(tensor, f"{label} normed")
    roots = machine.new(f"{label} statistics", tensor.dims[:-1], "fp32")
    product = _Product(machine, label, normal, weight)
    result = product.forward()
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    scaled = (f"gradient of {scale.label}", scale.dims, scale.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        of_normal = product.backward(gradients[0])
        results: list[Tensor | None] = [machine.new(*made), machine.new(*scaled)]
        del of_normal
        return results

    machine.attach([result], [tensor, scale], backward, saved=[tensor, normal, roots, weight])
    return result


@op("linear", "duplicated")
def whole_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A linear whose input stands as it is: a weight that is whole on every rank, over this rank's positions.

    M: transformer/multi_latent_attention.py:526-531, 573-578 (parallel_mode `duplicated`). Keeps its input.
    """
    product = _Product(machine, label, tensor, weight, gathers=False)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("linear", "row")
def row_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A weight divided by columns: [s b in] to a shard [u b out], reduced and scattered from the whole.

    Keeps its input. Backward gathers the gradient. T: module/linear.py:580; module/base.py, grad_output_preprocess.
    """
    tensor = contiguous(machine, f"{label} input copy", tensor)
    product = _Product(machine, label, tensor, weight, gathers=False)
    result = _scattered(machine, label, product.forward())

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        whole = _gathered(machine, f"gradient of {label}", gradient.dims, gradient.dtype)
        return [product.backward(whole if machine.facts.rows_divided else gradient)]

    machine.attach([result], [tensor], backward, saved=[tensor, weight])
    return result


@op("gather_columns")
def gather_columns(machine: Machine, label: str, tensor: Tensor, dim: str) -> Tensor:
    """Every rank's columns [s b part] on every rank, [s b dim]: gathered, then joined into a second tensor.

    Backward copies this rank's columns of the gradient. M: tensor_parallel/mappings.py, _gather_along_last_dim and
    _split_along_last_dim.
    """
    gathered = machine.new(f"{label} gathered", ("t", *tensor.dims), tensor.dtype)
    recorded(machine, "all_gather", TENSOR, label, tensor.dims, tensor.dtype, tensor.dims)
    result = machine.new(label, (*tensor.dims[:-1], dim), tensor.dtype)
    del gathered
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    machine.attach([result], [tensor], lambda _: [machine.new(*made)])
    return result


@op("own_rows")
def own_rows(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """This rank's positions of [s b d]: [u b d], a view that pins the whole where that is row-major, else a copy.

    Backward gathers the gradient over tp. M: tensor_parallel/mappings.py, _split_along_first_dim.
    """
    first, *rest = tensor.axes
    view = machine.view(tensor, (Axis("u", first.stride), *rest))
    result = view if machine.is_contiguous(tensor) else machine.copy(view, label)
    result.label = label
    name, dims, dtype = tensor.label, result.dims, tensor.dtype
    machine.attach([result], [tensor], lambda _: [_gathered(machine, f"gradient of {name}", dims, dtype)])
    return result


@op("linear", "head")
def head_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """Megatron's own output layer, divided by rows: as `column_linear`, gathering into a buffer that stands.

    M: tensor_parallel/layers.py:604, 623-629, 671 (`get_global_memory_buffer`, name "mpu").
    """
    product = _Product(machine, label, tensor, weight, buffered=True)
    result = product.forward()
    machine.attach([result], [tensor], lambda gradients: [product.backward(gradients[0])], saved=[tensor, weight])
    return result


@op("joined_linear")
def joined_linear(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """The projection of a multi-token-prediction module, divided by rows: its output is gathered over tp and cut.

    M: transformer/multi_token_prediction.py:1342-1358. [u b h+h] to [u b h]; only the input is kept.
    """
    columns = column_linear(machine, f"{label} columns", tensor, weight)
    if not machine.facts.rows_divided:
        return _renamed(machine, label, columns)
    whole: Dims = (*columns.dims[:-1], "h")
    shard: Dims = tuple("u" if dim == "s" else dim for dim in whole)
    name, dims, dtype = columns.label, columns.dims, columns.dtype
    gathered = machine.new(f"{label} gathered", whole, dtype)
    recorded(machine, "all_gather", TENSOR, label, dims, dtype, dims)
    result = machine.new(label, shard, dtype)
    del gathered

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        again = _gathered(machine, f"gradient of {label}", shard, dtype)
        own = machine.new(f"gradient of {name}", dims, dtype)
        del again
        return [own]

    machine.attach([result], [columns], backward)
    return result


@op("grouped_linear", "fused")
def grouped_rows(machine: Machine, label: str, rows: Tensor, weight: Tensor) -> Tensor:
    """Rows [.. in] times each its expert's part of weight [c out in]. Keeps the rows, once.

    T: module/grouped_linear.py:900-936.
    """
    outer = weight.dims[1]
    result = machine.new(label, (*rows.dims[:-1], outer), rows.dtype)
    count = machine.facts.elements((*rows.dims, outer)) * 2
    machine.flops(count)
    _stands(machine, (outer,), (weight.dims[2],), weight.dtype)
    made = (f"gradient of {rows.label}", rows.dims, rows.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        machine.flops(count * 2)
        return [machine.new(*made)]

    machine.attach([result], [rows], backward, saved=[rows, weight])
    return result


class _Product:
    """The product of a linear and its backward, gathering its operand and scattering its gradient where it has to."""

    def __init__(
        self,
        machine: Machine,
        label: str,
        tensor: Tensor,
        weight: Tensor,
        *,
        gathers: bool = True,
        buffered: bool = False,
    ) -> None:
        self.machine = machine
        self.label = label
        self.name = tensor.label
        self.dims = tensor.dims
        self.dtype = tensor.dtype
        self.outer, self.inner = _sides(tensor, weight)
        self.gathers = gathers and machine.facts.rows_divided
        self.buffered = buffered
        self.whole = _whole(self.dims) if self.gathers else self.dims
        _stands(machine, self.outer, self.inner, weight.dtype)
        if buffered and self.gathers:
            machine.timeline.standing.append(Standing(GATHER_BUFFER, self.whole[:-1], self.whole[-1:], self.dtype))

    def _run(self, times: int) -> None:
        """Count the product so many times; what other tp ranks run as well, or rows that pad, no maths asks for."""
        needed = rank_share(self.machine.facts, self.whole, self.outer)
        every = self.machine.facts.elements((*self.whole, *self.outer)) * 2
        self.machine.flops(needed * times, (every - needed) * times)

    def _operand(self) -> Tensor | None:
        """The gathered operand, where it is a tensor of its own."""
        if not self.gathers:
            return None
        if self.buffered:
            recorded(self.machine, "all_gather", TENSOR, self.name, self.dims, self.dtype, self.dims)
            return None
        return _gathered(self.machine, self.name, self.dims, self.dtype)

    def forward(self) -> Tensor:
        operand = self._operand()
        rows = self.whole[: len(self.whole) - len(self.inner)]
        result = self.machine.new(self.label, (*rows, *self.outer), self.dtype)
        self._run(1)
        del operand
        return result

    def backward(self, gradient: Tensor | None) -> Tensor:
        """The gradient of what was given; the gathered operand lives until the weight's product has run."""
        machine = self.machine
        assert gradient is not None
        given = gradient
        if not machine.is_contiguous(gradient):
            given = machine.copy(gradient, f"gradient of {self.label} copy")
        operand = self._operand()
        made = machine.new(f"gradient of {self.name}", self.whole, self.dtype)
        self._run(2)
        if self.gathers:
            made = _scattered(machine, f"gradient of {self.name}", made)
        del given, operand
        return made


def _sides(tensor: Tensor, weight: Tensor) -> tuple[Dims, Dims]:
    """The dims of a weight that make its result's columns, and those it is contracted over."""
    for count in range(len(weight.dims) - 1, 0, -1):
        if tensor.dims[-count:] == weight.dims[-count:]:
            return weight.dims[:-count], weight.dims[-count:]
    raise ValueError(f"{tensor.label} [{' '.join(tensor.dims)}] does not meet {weight.label} [{' '.join(weight.dims)}]")


def _stands(machine: Machine, outer: Dims, inner: Dims, dtype: str) -> None:
    machine.timeline.standing.append(Standing(STAND_IN, outer, inner, dtype))


def _whole(dims: Dims) -> Dims:
    return tuple("s" if dim == "u" else dim for dim in dims)


def _gathered(machine: Machine, label: str, dims: Dims, dtype: str) -> Tensor | None:
    """All ranks' positions of a tensor with these dims; None where nothing divides them."""
    if not machine.facts.rows_divided:
        return None
    found = machine.new(f"{label} gathered", _whole(dims), dtype)
    recorded(machine, "all_gather", TENSOR, label, dims, dtype, dims)
    return found


def _scattered(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """The sum over tp ranks, this rank's positions."""
    if not machine.facts.rows_divided:
        return tensor
    dims = tuple("u" if dim == "s" else dim for dim in tensor.dims)
    found = machine.new(label, dims, tensor.dtype)
    recorded(machine, "reduce_scatter", TENSOR, label, tensor.dims, tensor.dtype, dims)
    return found


def _renamed(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """The same elements under the name of the whole width, where one rank holds all of it."""
    view = machine.view(tensor, machine.facts.row_major((*tensor.dims[:-1], "h")))
    view.label = label
    dims = tensor.dims
    machine.attach([view], [tensor], lambda gradients: [_as(machine, gradients[0], dims)])
    return view


def _as(machine: Machine, gradient: Tensor | None, dims: Dims) -> Tensor:
    assert gradient is not None
    return machine.view(gradient, machine.facts.row_major(dims))


# ---- rotary embedding


@op("rope", "in-place")
def rope_in_place(machine: Machine, label: str, query: Tensor) -> Tensor:
    """Fused rotation of the query where it lies, its gradient likewise; only tables are kept.

    M: fusions/fused_mla_yarn_rope_apply.py:335.
    """
    view = machine.view(query, query.axes)
    view.label = label
    machine.attach([view], [query], lambda gradients: [gradients[0]])
    return view


@op("rope_keys_values")
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


@op("rope", "tables")
def rope_with_tables(machine: Machine, label: str, tensor: Tensor) -> Tensor:
    """Unfused rotation: each call makes its cosine and sine [s r] anew, and the products keep them.

    M: models/common/embeddings/rope_utils.py:142-147. What else is made on the way is that of `rope`.
    """
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


# ---- activations


@op("swiglu")
def swiglu(machine: Machine, label: str, gate_up: Tensor, dim: str) -> Tensor:
    """Silu of the gate times the other half, in one kernel: keeps its input only.

    M: fusions/fused_bias_swiglu.py:235.
    """
    result = machine.new(label, (*gate_up.dims[:-1], dim), gate_up.dtype)
    made = (f"gradient of {gate_up.label}", gate_up.dims, gate_up.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [gate_up], backward, saved=[gate_up])
    return result


@op("swiglu", "weighted")
def weighted_swiglu(machine: Machine, label: str, gate_up: Tensor, weights: Tensor, dim: str) -> Tensor:
    """The same times each row's routing weight (fp32), which is kept too. M: fusions/fused_bias_swiglu.py:270.

    So weights apply before the second product, whose result nothing keeps (M: transformer/moe/experts.py:898-1036).
    """
    result = machine.new(label, (*gate_up.dims[:-1], dim), gate_up.dtype)
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (gate_up, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach([result], [gate_up, weights], backward, saved=[gate_up, weights])
    return result


# ---- experts


@op("add", "in-place")
def add_in_place(machine: Machine, label: str, first: Tensor, second: Tensor) -> Tensor:
    """The second added to the first where that lies: nothing new either way, and nothing is kept.

    M: transformer/moe/token_dispatcher.py:905-907, 2051.
    """
    view = machine.view(first, first.axes)
    view.label = label

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        return [gradient, machine.view(gradient, gradient.axes)]

    machine.attach([view], [first, second], backward)
    return view


@op("route")
def route(machine: Machine, label: str, hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden [u b h] to fp32 weights [u b e], zero where an expert is not chosen.

    Keeps hidden, fp32 scores [u b e] twice (for the choice, and again for the auxiliary loss), the int64 choice and
    its fp32 scores [u b K], and two fp32 sums per token. With moe_router_dtype fp32 both products of backward are made
    in fp32, of an fp32 copy of hidden, and cast. M: transformer/moe/moe_utils.py:917-943, 960, 1382, 1425-1435.
    """
    rows = hidden.dims[:-1]
    logits = machine.new(f"{label} logits", (*rows, "e"), "fp32")
    count = machine.facts.elements((*hidden.dims, "e")) * 2
    machine.flops(count)
    kept = [machine.new(f"{label} {what}", (*rows, "e"), "fp32") for what in ("scores", "scores for the loss")]
    kept += [machine.new(f"{label} {what}", (*rows, "K"), to) for what, to in (("choice", "int64"), ("chosen", "fp32"))]
    kept += [machine.new(f"{label} {what}", rows, "fp32") for what in ("sum", "sum for the loss")]
    result = machine.new(label, logits.dims, "fp32")
    shape = logits.dims
    del logits
    (name, rows_of, dtype), (w_name, w_dims, w_dtype) = ((it.label, it.dims, it.dtype) for it in (hidden, weight))

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        of_logits = machine.new(f"gradient of {label} logits", shape, "fp32")
        machine.flops(count * 2)
        copied = machine.new(f"{w_name} in fp32", w_dims, "fp32")
        of_hidden = machine.new(f"gradient of {name} in fp32", rows_of, "fp32")
        del copied
        copied = machine.new(f"{name} in fp32", rows_of, "fp32")
        of_weight = machine.new(f"gradient of {w_name} in fp32", w_dims, "fp32")
        del copied
        found = machine.new(f"gradient of {name}", rows_of, dtype)
        del of_hidden
        results: list[Tensor | None] = [found, machine.new(f"gradient of {w_name}", w_dims, w_dtype)]
        del of_weight, of_logits
        return results

    machine.attach([result], [hidden, weight], backward, saved=[hidden, *kept])
    return result


@op("rows_of")
def permute(machine: Machine, label: str, tokens: Tensor, weights: Tensor) -> list[Tensor]:
    """One row for every expert that a token chose, each with its weight, and the map of rows.

    Keeps the int32 map alone: per token, two numbers per expert and one more (T: permutation.py:519;
    triton/permutation.py:52). tokens [u b h]: all experts, rows [u b K h]. tokens [D h]: this rank's, rows [R h].
    """
    arrived = tokens.dims[0] == "D"
    where: Dims = ("R",) if arrived else (*tokens.dims[:-1], "K")
    rows = machine.new(label, (*where, tokens.dims[-1]), tokens.dtype)
    row_weights = machine.new(f"{label} weights", where, "fp32")
    columns = "c+c+1" if arrived else "e+e+1"
    row_map = machine.new(f"{label} map", (*tokens.dims[:-1], columns), "int32")
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in (tokens, weights)]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach([rows, row_weights], [tokens, weights], backward, saved=[row_map])
    return [rows, row_weights, row_map]


@op("tokens_of")
def unpermute(machine: Machine, label: str, rows: Tensor, row_map: Tensor) -> Tensor:
    """The rows of each token summed: keeps the map that `permute` made. T: permutation.py, unpermute without probs."""
    result = machine.new(label, (*row_map.dims[:-1], rows.dims[-1]), rows.dtype)
    made = (f"gradient of {rows.label}", rows.dims, rows.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [rows], backward, saved=[row_map])
    return result


@op("sort_rows")
def sort_rows(machine: Machine, label: str, given: list[Tensor]) -> list[Tensor]:
    """Rows (and their weights) ordered by expert, or back: a copy each way; keeps one int32 per row.

    Nothing where a rank has one expert (M: transformer/moe/token_dispatcher.py:755, 802). T: permutation.py:1250;
    triton/permutation.py:381.
    """
    if machine.facts.is_one("c"):
        return given
    results = [machine.copy(tensor, tensor.label) for tensor in given]
    row_map = machine.new(f"{label} order", given[0].dims[:-1], "int32")
    made = [(f"gradient of {tensor.label}", tensor.dims, tensor.dtype) for tensor in given]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*item) for item in made]

    machine.attach(results, given, backward, saved=[row_map])
    return results


@op("sum_in_fp32")
def sum_in_fp32(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows of all ranks of an expert [T R h], summed to this rank's [R h] in the dtype of the routing weights, fp32.

    Nothing where no rank shares an expert. Nothing is kept. M: transformer/moe/token_dispatcher.py:823-833.
    """
    if not machine.facts.experts_split:
        return rows
    dtype = rows.dtype
    wide = _cast(machine, f"{label} in fp32", rows, "fp32")
    del rows
    own = scatter(machine, f"{label} in fp32", wide, EXPERT_TENSOR)
    del wide
    return _cast(machine, label, own, dtype)


def _cast(machine: Machine, label: str, tensor: Tensor, dtype: str) -> Tensor:
    """A copy in another dtype, its gradient cast back; nothing is kept."""
    result = machine.new(label, tensor.dims, dtype)
    made = (f"gradient of {tensor.label}", tensor.dims, tensor.dtype)
    machine.attach([result], [tensor], lambda _: [machine.new(*made)])
    return result


@op("to_experts")
def rows_to_experts(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows [u b K ..] to the rows of this rank's experts [R ..], by all-to-all; nothing is kept."""
    tail = rows.dims[rows.dims.index("K") + 1 :]
    return _sent(machine, label, rows, ("R", *tail), tail)


@op("from_experts")
def rows_from_experts(machine: Machine, label: str, rows: Tensor) -> Tensor:
    """Rows of this rank's experts [R ..] back to their tokens [u b K ..], by all-to-all; nothing is kept."""
    tail = rows.dims[1:]
    return _sent(machine, label, rows, (machine.facts.rows, "b", "K", *tail), tail)


def _sent(machine: Machine, label: str, rows: Tensor, dims: Dims, tail: Dims) -> Tensor:
    """Nothing where one rank holds all experts: Megatron's all-to-all then returns its input."""
    if not machine.facts.experts_divided:
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
    result = machine.new(label, (machine.facts.rows, "b", tokens.dims[-1]), tokens.dtype)
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
    result = machine.new(label, (machine.facts.rows, "b", rows.dims[-1]), rows.dtype)
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


# ---- losses


@op("cross_entropy", "te-in-place")
def cross_entropy_in_place(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Transformer Engine's loss before NVIDIA/TransformerEngine@01bbe3eea: the gradient overwrites the bf16 logits.

    Keeps the logits' storage alone and makes nothing in backward. cross_entropy.py at 42b84005.
    """
    _reduced(machine, label, logits)
    result = machine.uncounted(label)
    held = machine.view(logits, logits.axes)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.view(held, held.axes)]

    machine.attach([result], [logits], backward, saved=[logits])
    return result


@op("cross_entropy", "te-fp32")
def cross_entropy_fp32(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Transformer Engine's loss since 01bbe3eea: an fp32 gradient is made in forward and kept.

    Backward casts it to the logits' dtype. T: cross_entropy.py:62; triton/cross_entropy.py:58.
    """
    gradient = machine.new(f"{label} gradient", logits.dims, "fp32")
    _reduced(machine, label, logits)
    result = machine.uncounted(label)
    made = (f"gradient of {logits.label}", logits.dims, logits.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [machine.new(*made)]

    machine.attach([result], [logits], backward, saved=[gradient])
    return result


@op("cross_entropy", "compiled")
def cross_entropy_compiled(machine: Machine, label: str, logits: Tensor) -> Tensor:
    """Megatron's own loss through torch.compile: fp32 probabilities are kept, as without it.

    Backward subtracts at the targets in a copy of them (the compiler takes `index_put` out of place) and casts the
    result to the logits' dtype. M: fusions/fused_cross_entropy.py:66-86; jit.py.
    """
    probabilities = machine.new(f"{label} probabilities", logits.dims, "fp32")
    _reduced(machine, label, logits)
    result = machine.uncounted(label)
    made = (f"gradient of {logits.label}", logits.dims, logits.dtype)

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        copied = machine.new(f"{label} probabilities copy", made[1], "fp32")
        found = machine.new(*made)
        del copied
        return [found]

    machine.attach([result], [logits], backward, saved=[probabilities])
    return result


def _reduced(machine: Machine, label: str, logits: Tensor) -> None:
    """Three fp32 numbers per position are gathered over the ranks that divide the vocabulary."""
    rows = logits.dims[:-1]
    losses = machine.new(f"{label} per position", rows, "fp32")
    if machine.facts.rows_divided:
        recorded(machine, "all_gather", TENSOR, f"statistics of {logits.label}", (*rows, "3"), "fp32", (*rows, "3"))
    del losses
