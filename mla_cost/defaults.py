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
SP = 8  # of a block; all ranks of a whole model are stated, so there a sequence stays on one unless it is said
# of visible memory, by scope: one block says nothing of a run's allocations
FRAGMENTATION_PERCENT = {"attention": 0, "model": 5}
# what a whole model has in place of a block's defaults: the kernel that trains there, no degree that nobody named
OF_MODEL: Final = {"kernel": "auto", "sp": 1}
