"""What a kernel holds inside one call, by device family. No dispatch mode sees it; each row has a source.

Eager softmax: the rule records three sizes where they arise, and a family says which of them its kernel allocates.
"""

from __future__ import annotations

from typing import NamedTuple


class SoftmaxWorkspace(NamedTuple):
    """The recorded sizes that a family's softmax kernels allocate.

    strided_input: forward copies a strided input. gradient_times_output: backward forms that product first.
    strided_gradient: backward copies a strided gradient (or the product of one, which is strided alike).
    """

    kinds: frozenset[str]
    basis: str
    source: str

    @property
    def words(self) -> str:
        """The rule in words."""
        parts = {
            "gradient_times_output": "softmax backward forms gradient x output (one S x S)",
            "strided_gradient": "softmax backward copies a strided gradient (one S x S where einsum hands it one)",
        }
        found = [text for kind, text in parts.items() if kind in self.kinds]
        return "; ".join(found) or "no workspace"


_CUDA = "aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out and host_softmax_backward, pytorch/pytorch"
SOFTMAX: dict[str, SoftmaxWorkspace] = {
    "cuda": SoftmaxWorkspace(
        frozenset({"strided_input", "gradient_times_output", "strided_gradient"}), "read in source, not measured", _CUDA
    ),
    "rocm": SoftmaxWorkspace(
        frozenset({"strided_input", "gradient_times_output", "strided_gradient"}),
        "inferred: built from the CUDA source",
        _CUDA,
    ),
    "ascend": SoftmaxWorkspace(
        frozenset({"strided_input", "strided_gradient"}),
        "inferred: aclnnSoftmaxBackward makes the gradient contiguous and forms no product",
        "ops-nn softmax_grad (aclnnSoftmaxBackward); one cell of arXiv 2607.17644, Table 2, needs it (absorbed at "
        "4096) and none refutes it: docs/decisions/0014",
    ),
    "cpu": SoftmaxWorkspace(
        frozenset({"strided_input", "strided_gradient"}),
        "measured with the CPU allocator",
        "aten/src/ATen/native/SoftMax.cpp, softmax_backward_cpu_out, pytorch/pytorch",
    ),
    "none": SoftmaxWorkspace(frozenset(), "left out", ""),
}
FUSED = "fused_backward"  # what a fused kernel holds in backward; its size is the kernel's own, on every family


def kinds_of(family: str) -> frozenset[str]:
    """Every kind of work that counts on a family."""
    return SOFTMAX[family].kinds | {FUSED}
