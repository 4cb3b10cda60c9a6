"""What is priced when nothing is said. The only module outside the declarations that names forms and kernels."""

from typing import Final

MODEL = "deepseek-v3"
DEVICES = ("910b-64gb", "a100-80gb")
SCOPE: Final = "model"
FORMS = ("explicit", "absorbed", "laga")
BASELINE = "explicit"
PROFILE = "reference"
ATTENTION_KERNEL = "eager"
SEQ_LEN = 16384
SHARDING = "distributed"
OPTIMIZER = "adam"
# per cent of its pipeline's schedule that a stage may wait in what `search` and `fit` tell: what four micro-batches a
# stage leave, from where on GPipe's authors found bubbles negligible (Huang et al. 2019, arXiv:1811.06965, section 2.3)
MAX_IDLE = 20
# of a block, the largest up to this that divides heads and sequence (`resolve.usual_sp`); all ranks of a whole model
# are stated, so there a sequence stays on one unless it is said
SP = 8
# of visible memory, by scope: one block says nothing of a run's allocations
FRAGMENTATION_PERCENT = {"attention": 0, "model": 5}
# by scope, what a plan has where nothing was said: the kernel that trains there, of a whole model no degree that nobody
# named. A formula without numbers has no device to ask, and is of ATTENTION_KERNEL.
OF_SCOPE: Final[dict[str, dict[str, str | int]]] = {
    "attention": {"kernel": "auto"},
    "model": {"kernel": "auto", "sp": 1},
}
# words that stand for a declared name until a plan is resolved
ALSO: Final[dict[str, tuple[str, ...]]] = {"kernel": ("auto",)}
# values to show what a flag takes
EXAMPLES: Final = {"form": "laga", "scheme": "kv-gather", "kernel": "flash"}
