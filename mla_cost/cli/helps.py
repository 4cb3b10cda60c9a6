"""What the help of several commands says of a flag, with its default."""

from typing import Final

from mla_cost.declared import defaults
from mla_cost.declared.schedules import SCHEDULES

MODEL: Final = f"A model of the catalogue, a model YAML or a config.json; {defaults.MODEL} by default."
DEVICES: Final = f"{' and '.join(defaults.DEVICES)} by default."
SEQ_LEN: Final = f"{defaults.SEQ_LEN:,} by default."
_OF_MODEL: Final = defaults.OF_SCOPE["model"]
SP: Final = (
    f"Ranks that share one sequence; {_OF_MODEL['sp']} by default, at scope attention the largest up to {defaults.SP} "
    "that divides heads and sequence."
)
KERNEL: Final = (
    f"How attention is executed; {_OF_MODEL['kernel']} by default: the one that trains the form on the device."
)
MTP: Final = "Multi-token-prediction modules; the model's own by default, 0 leaves them out."
SCHEDULE: Final = (
    f"In which order stages run micro-batches: {', '.join(SCHEDULES)}, or a table of passes; 1F1B by default, "
    "interleaved with virtual stages."
)
