"""LAGA: the explicit maths on a gathered latent (arXiv 2607.17644)."""

from mla_cost.language.program import Pair

FORM = Pair(
    name="laga",
    title="explicit maths on a gathered latent, each rank expanding its own heads",
    form="explicit",
    scheme="latent-gather",
    source="arXiv 2607.17644",
    known_as="latent_kv_head on Ascend",
)
