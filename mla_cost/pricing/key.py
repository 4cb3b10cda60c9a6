"""What the structure of a program depends on."""

from __future__ import annotations

from typing import NamedTuple

from mla_cost.declared.forms import FORMS
from mla_cost.language.dims import Predicates
from mla_cost.language.program import Form, Pair


class Key(NamedTuple):
    """Everything the structure of a program depends on. Equal keys share one compiled timeline."""

    form: str
    scheme: str
    kernel: str
    predicates: Predicates
    dtype: str
    v_layout: str = "view"
    value_padding: str = "none"
    attention_layout: str = "sbnd"
    softmax_dtype: str = "activation"
    mask: str = "none"
    names: str = "rebound"
    norm: str = "fused"
    layer: str = "attention"
    remat: str = "none"
    input_held: bool = True
    gradient_held: bool = False
    output_held: bool = False
    idle_mlp: str = "none"
    profile: str = "reference"
    dispatcher: str = "alltoall"
    shared_overlap: str = "off"
    rope_fusion: str = "on"
    attention_backend: str = "fused"
    cross_entropy: str = "native"
    down_projections: str = "replicated"
    mixer: str = "mla"
    indexer: str = "none"
    moe_style: str = "fused"

    def settings(self) -> dict[str, str]:
        """What program texts can ask about."""
        return {
            "v_layout": self.v_layout,
            "value_padding": self.value_padding,
            "softmax_dtype": self.softmax_dtype,
            "mask": self.mask,
            "names": self.names,
            "idle_mlp": self.idle_mlp,
            "norm": self.norm,
            "dispatcher": self.dispatcher,
            "shared_overlap": self.shared_overlap,
            "rope_fusion": self.rope_fusion,
            "attention_backend": self.attention_backend,
            "cross_entropy": self.cross_entropy,
            "down_projections": self.down_projections,
            "mixer": self.mixer,
            "indexer": self.indexer,
            "moe_style": self.moe_style,
        }


def form_of(name: str) -> Form:
    """The maths of a form; a named pair is the maths it is made of."""
    form = FORMS[name]
    if isinstance(form, Pair):
        return form_of(form.form)
    return form
