"""What a published config.json states: the type of every key that is read, what is absent, and what stands instead.

Which keys the published configs of a family always have was read in the configs of DeepSeek-V2-Lite, V3, R1, V3.1 and
V3.2, Kimi-K2 to K2.7 and GLM-5 to 5.2 (the copies in ai-dynamo/aiconfigurator@095f58a51c4c, model_configs/, and
mlc-ai/pith-train@889a4088adf3 for V2-Lite), of MiniCPM3 and Kimi-Linear in those that the catalogue names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from mla_cost.errors import InputError, shown

KINDS: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    "a whole number": int,
    "true or false": bool,
    "text": str,
    "a list": (list, tuple),
    "a mapping": Mapping,
    "a whole number or a list": (int, list, tuple),
}
INDEXER: Final = ("index_n_heads", "index_head_dim", "index_topk", "index_kpool")


class Absence(NamedTuple):
    """A fact that a file may leave out. written: what to write where the model has no such part. instead: what is
    taken; empty where a plan asks for it.
    """

    keys: tuple[str, ...]
    written: str
    instead: str = ""


ABSENCES: Final[Mapping[str, Absence]] = {
    "q_lora_rank": Absence(
        ("q_lora_rank", "attention_q_lora_dim"),
        "null where the query comes straight from hidden",
        "no query latent, the query comes straight from hidden",
    ),
    "num_routed_experts": Absence(
        ("n_routed_experts", "num_routed_experts", "num_experts", "num_local_experts"),
        "0 where every layer is dense",
        "no experts, every layer is dense",
    ),
    "num_dense_layers": Absence(("first_k_dense_replace", "num_dense_layers"), "0 where every layer has experts"),
    "num_shared_experts": Absence(("n_shared_experts", "num_shared_experts"), "0 where there are none"),
    "num_mtp_layers": Absence(
        ("num_nextn_predict_layers", "num_mtp_layers"), "0 where there are none", "no MTP module"
    ),
    "indexer": Absence(("index_topk",), "null where attention is to all tokens", "attention to all tokens, no indexer"),
}
_EXPERTS: Final = ("num_routed_experts", "num_dense_layers", "num_shared_experts")
_MIXTURE: Final = ("q_lora_rank", *_EXPERTS)
# model_type: the facts that its published configs always state
ALWAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "deepseek_v2": _MIXTURE,
    "deepseek_v3": (*_MIXTURE, "num_mtp_layers"),
    "kimi_k2": (*_MIXTURE, "num_mtp_layers"),
    "deepseek_v32": (*_MIXTURE, "num_mtp_layers", "indexer"),
    "glm_moe_dsa": (*_MIXTURE, "num_mtp_layers", "indexer"),
    "longcat_flash": ("q_lora_rank", "num_routed_experts"),
    "minicpm3": ("q_lora_rank",),
    "kimi_linear": ("q_lora_rank", "num_routed_experts"),
}


def check_types(text: Mapping[str, Any], kinds: Mapping[str, str], file: str) -> None:
    """Nothing, where every key that is read has a value of its type, or null. kinds: words of `KINDS` by key.

    Raises:
        InputError: naming the key, its value and what it must be.

    """
    for key, words in kinds.items():
        value = text.get(key)
        if value is None:
            continue
        boolean = isinstance(value, bool)
        if not isinstance(value, KINDS[words]) or (boolean and words != "true or false"):
            raise InputError(f"must be {words}", file=file, field=key, value=value)


def require_always(text: Mapping[str, Any], known: Iterable[str], file: str) -> None:
    """Refuse a file that leaves out what the published configs of its family always state; null states it too.

    Raises:
        InputError: naming every key that is missing, what may have been meant for it, and what to write.

    """
    family = text.get("model_type")
    absent = [fact for fact in ALWAYS.get(family or "", ()) if not _written(text, fact)]
    if not absent:
        return
    near = [found for fact in absent for found in near_keys(text, ABSENCES[fact].keys, known)]
    missing = ", ".join(ABSENCES[fact].keys[0] for fact in absent)
    ways_out = "; ".join(f"{ABSENCES[fact].keys[0]}: {ABSENCES[fact].written}" for fact in absent)
    has = f" (it has {' and '.join(map(shown, near))}, which nothing reads)" if near else ""
    raise InputError(
        f"the published configs of {family} always state {missing}, and this file does not{has}; write it into the "
        f"file ({ways_out})",
        file=file,
        field=ABSENCES[absent[0]].keys[0],
    )


def assumed(text: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    """What is taken in place of a key that is not in the file, by the fact: a sentence that names the key."""
    found: dict[str, str] = {}
    for fact, absence in ABSENCES.items():
        near = [] if _written(text, fact) else near_keys(text, absence.keys, known)
        if not _written(text, fact) and (near or _expected(text, fact)):
            meant = f" ({' or '.join(map(shown, near))} may mean it)" if near else ""
            taken = f"; taken: {absence.instead}" if absence.instead else ""
            found[fact] = f"{absence.keys[0]} is not in the file{meant}{taken}"
    return found


def _written(text: Mapping[str, Any], fact: str) -> bool:
    return any(key in text for key in ABSENCES[fact].keys)


def _expected(text: Mapping[str, Any], fact: str) -> bool:
    """Whether a model like this may well have the part; what no key hints at is not spoken of."""
    if fact == "indexer":
        return any(text.get(key) is not None for key in INDEXER)
    if fact == "num_routed_experts":
        hints = ("moe_intermediate_size", "num_experts_per_tok", "n_shared_experts", "first_k_dense_replace")
        return any(text.get(key) is not None for key in hints)
    if fact in _EXPERTS:
        return any(text.get(key) is not None for key in ABSENCES["num_routed_experts"].keys)
    return True


def near_keys(text: Mapping[str, Any], keys: tuple[str, ...], known: Iterable[str]) -> list[str]:
    """The keys of the file that are one or two letters from one of `keys` and that nothing reads."""
    read = set(known)
    unread = (key for key in text if key not in read)
    return [name for name in unread if any(_close(name, key) for key in keys)]


def _close(name: str, key: str) -> bool:
    """One or two letters apart; of a short key one."""
    most = 2 if len(key) > 8 else 1
    return abs(len(name) - len(key)) <= most and distance(name, key) <= most


def distance(first: str, second: str) -> int:
    """Letters to add, take away, replace or swap with their neighbour to make one text of the other."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for at, letter in enumerate(first, 1):
        older, before, row = before, row, [at]
        for place, other in enumerate(second, 1):
            least = min(row[-1] + 1, before[place] + 1, before[place - 1] + (letter != other))
            if at > 1 and place > 1 and letter == second[place - 2] and first[at - 2] == other:
                least = min(least, older[place - 2] + 1)
            row.append(least)
    return row[-1]
