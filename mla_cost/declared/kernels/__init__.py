"""How softmax(q k) v is executed, one declaration per file: a new file here is found by itself."""

from importlib import import_module
from pathlib import Path

from mla_cost.language.program import Kernel

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in (import_module(f"mla_cost.declared.kernels.{name}").KERNEL for name in _FILES)
}
