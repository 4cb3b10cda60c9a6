"""RMSNorm: as one fused kernel, and as plain torch composes it where it has no fused one (CPU, fake tensors)."""

from __future__ import annotations

from mla_cost.language.machine import Gradients, Machine, Tensor
from mla_cost.language.ops import Call, op
from mla_cost.language.program import DeclarationError
from mla_cost.language.rules.elementwise import cast
from mla_cost.language.rules.split import contiguous
from mla_cost.language.strides import Axes, Axis, like


@op("norm", kind="norm")
def normed(call: Call, tensor: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of the last axis, in one kernel or op by op by the setting `norm`."""
    if weight.dims != tensor.dims[-1:]:
        raise DeclarationError(f"its weight is [{' '.join(weight.dims)}], and what it norms ends in {tensor.dims[-1]}")
    rule = composite_norm if call.settings["norm"] == "composite" else norm
    return rule(call.machine, call.label, tensor, weight)


def norm(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """Normalise the last axis in one kernel. Keeps the input as given, a view pinning its storage, and fp32 roots.

    Backward makes the input's gradient, then the weight's.
    """
    result = machine.copy(tensor, label)
    statistics = machine.new(f"{label} statistics", tensor.dims[:-1], "fp32")
    name, dims, dtype = tensor.label, tensor.dims, tensor.dtype
    weight_name, weight_dims, weight_dtype = weight.label, weight.dims, weight.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        del gradients
        return [
            machine.new(f"gradient of {name}", dims, dtype),
            machine.new(f"gradient of {weight_name}", weight_dims, weight_dtype),
        ]

    machine.attach([result], [tensor, weight], backward, saved=[tensor, weight, statistics])
    return result


def composite_norm(machine: Machine, label: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """Normalise the last axis op by op, in fp32: keeps the input and the normalised input, both fp32, and fp32 roots.

    Source: aten/src/ATen/native/layer_norm.cpp, rms_norm_composite, pytorch/pytorch.
    """
    wide = cast(machine, f"{tensor.label} in fp32", tensor, "fp32")
    root = _root(machine, label, wide)
    normal = product_over(machine, f"{label} before its weight", wide, root, _row(root, wide))
    scaled = product_over(machine, f"{label} in fp32", normal, weight, _column(weight, normal))
    del wide, normal
    scaled = contiguous(machine, f"{label} in fp32, row-major", scaled)
    return cast(machine, label, scaled, tensor.dtype)


def _row(root: Tensor, whole: Tensor) -> Axes:
    """One number per row, spread over the last axis."""
    return (*root.axes, Axis(whole.dims[-1], None))


def _column(weight: Tensor, whole: Tensor) -> Axes:
    """One number per column, spread over every other axis."""
    return (*(Axis(dim, None) for dim in whole.dims[:-1]), *weight.axes)


def _root(machine: Machine, label: str, wide: Tensor) -> Tensor:
    """rsqrt(pow(wide, 2).mean(-1) + epsilon), the sum in place; what lies between lives until the root is made."""
    square = _square(machine, f"{label} squares", wide)
    mean = _mean(machine, f"{label} mean square", square)
    root = machine.new(f"{label} statistics", mean.dims, mean.dtype)
    name, dims = mean.label, mean.dims

    def backward(gradients: Gradients) -> list[Tensor | None]:
        """-0.5 * gradient * root^3, product by product."""
        del gradients
        cube = machine.new(f"{label} statistics cubed", dims, "fp32")
        halved = machine.new(f"half of the gradient of {label} statistics", dims, "fp32")
        made = machine.new(f"gradient of {name}", dims, "fp32")
        del cube, halved
        return [made]

    machine.attach([root], [mean], backward, saved=[root])
    return root


def _square(machine: Machine, label: str, wide: Tensor) -> Tensor:
    result = machine.elementwise(label, wide)
    name, axes, dtype = wide.label, wide.axes, wide.dtype

    def backward(gradients: Gradients) -> list[Tensor | None]:
        """Gradient * (2 * wide^1), product by product."""
        gradient = gradients[0]
        assert gradient is not None
        power = machine.new_as(f"{name} to the power of one", like(machine.predicates, axes), dtype)
        doubled = machine.new_as(f"{name} doubled", like(machine.predicates, axes), dtype)
        made = machine.new_as(f"gradient of {name}", like(machine.predicates, gradient.axes, axes), dtype)
        del power, doubled
        return [made]

    machine.attach([result], [wide], backward, saved=[wide])
    return result


def _mean(machine: Machine, label: str, square: Tensor) -> Tensor:
    result = machine.new(label, square.dims[:-1], square.dtype)
    name, last = square.label, square.dims[-1]

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        spread = (*gradient.axes, Axis(last, None))
        return [machine.new_as(f"gradient of {name}", like(machine.predicates, spread), gradient.dtype)]

    machine.attach([result], [square], backward)
    return result


def product_over(machine: Machine, label: str, tensor: Tensor, factor: Tensor, spread: Axes) -> Tensor:
    """A product with a factor that is spread over some axes.

    Backward makes both products at full size, the factor's first, and then sums the factor's to its own size and
    casts it to its own dtype.
    """
    predicates, dtype = machine.predicates, tensor.dtype
    axes = tensor.axes
    result = machine.new_as(label, like(predicates, axes, spread), dtype)
    names, back = (tensor.label, factor.label), (factor.dims, factor.dtype)
    summed = any(axis.stride is None and not predicates.is_one(axis.name) for axis in spread) or len(factor.axes) == 1

    def backward(gradients: Gradients) -> list[Tensor | None]:
        gradient = gradients[0]
        assert gradient is not None
        of_factor = machine.new_as(f"gradient of {names[1]}, unsummed", like(predicates, gradient.axes, axes), dtype)
        of_tensor = machine.new_as(f"gradient of {names[0]}", like(predicates, gradient.axes, spread), dtype)
        machine.returns()
        if summed:
            of_factor = machine.new(f"gradient of {names[1]}", back[0], dtype)
        if back[1] != dtype:
            of_factor = machine.new(f"gradient of {names[1]}", back[0], back[1])
        return [of_tensor, of_factor]

    machine.attach([result], [tensor, factor], backward, saved=[tensor, factor])
    return result
