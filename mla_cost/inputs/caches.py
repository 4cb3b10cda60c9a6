"""Accounts of what a decoder keeps of every token, for models whose dims do not tell it: `configs/caches.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mla_cost.inputs.catalog import configs_directory
from mla_cost.inputs.config import validated
from mla_cost.inputs.yaml_files import load_mapping

Count = Annotated[int, Field(ge=1, le=2**24)]


class GroupedHeads(BaseModel):
    """Keys and values of some heads in every layer: grouped queries, or multi-head where each head has its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layers: Count
    kv_heads: Count
    head_dim: Count


class CacheAccount(BaseModel):
    """What one model keeps. entries: layers, tokens that share an entry, bytes of one, what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    title: str
    gqa: GroupedHeads | None = None
    entries: tuple[tuple[Count, Count, Count, str], ...] = ()
    per_sequence: Annotated[int, Field(ge=0, le=2**40)] = 0
    basis: Literal["stated", "derived", "assumed"]
    source: str
    notes: str = ""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.gqa is None) == (not self.entries):
            raise ValueError("an account has gqa or entries")
        return self


@cache
def accounts() -> dict[str, CacheAccount]:
    """Every account by its name.

    Raises:
        InputError: a file that is none.

    """
    path = str(configs_directory() / "caches.yaml")
    return {name: validated(CacheAccount, each, file=path, prefix=name) for name, each in load_mapping(path).items()}
