"""What the help of several commands says of a flag, with its default."""

from typing import Final

from mla_cost import defaults

MODEL: Final = f"A model of the catalogue, a model YAML or a config.json; {defaults.MODEL} by default."
DEVICES: Final = f"{' and '.join(defaults.DEVICES)} by default."
SEQ_LEN: Final = f"{defaults.SEQ_LEN:,} by default."
SP: Final = f"Ranks that share one sequence; {defaults.OF_MODEL['sp']} by default, {defaults.SP} at scope attention."
KERNEL: Final = (
    f"How attention is executed; by default {defaults.OF_MODEL['kernel']}, the one that trains, at scope attention "
    f"{defaults.ATTENTION_KERNEL}."
)
MTP: Final = "Multi-token-prediction modules; the model's own by default, 0 leaves them out."
