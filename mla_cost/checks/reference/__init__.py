"""The torch reference executor: MLA and the layer around it as plain `torch.nn` modules, and what running them costs.

An independent witness for the counting of `mla_cost`: it imports nothing of the rest of the package.
"""

import sys
from importlib.util import find_spec

if find_spec("torch") is None and sys.argv[:1] == ["-m"]:  # `python -m mla_cost.checks.reference` imports this first
    sys.exit("mla_cost.checks.reference needs torch: python3 -m pip install '.[reference]' in a checkout of mla-cost")

from mla_cost.checks.reference.fake import count_flops, run_fake
from mla_cost.checks.reference.forms import initialise, make_block
from mla_cost.checks.reference.layer import make_inputs, make_layer
from mla_cost.checks.reference.measure import Recording, record, saved_storages
from mla_cost.checks.reference.spec import DIMS, Dims, Spec

__all__ = [
    "DIMS",
    "Dims",
    "Recording",
    "Spec",
    "count_flops",
    "initialise",
    "make_block",
    "make_inputs",
    "make_layer",
    "record",
    "run_fake",
    "saved_storages",
]
