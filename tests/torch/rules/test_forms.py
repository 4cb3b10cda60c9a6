"""What the rules say together: the copy of the probabilities, V's pinned buffer, and whole blocks, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from mla_cost.declared.kernels import KERNELS
from mla_cost.declared.schemes import SCHEMES
from mla_cost.language.dims import predicates_of
from mla_cost.pricing.compile import timeline
from mla_cost.pricing.key import Key
from tests.torch.rules.harness import assert_same, spelled, torch, values

USUAL_SCHEME = {"explicit": "ulysses", "absorbed": "latent-gather", "laga": "latent-gather"}


def block(form: str, base: dict[str, int], kernel: str = "eager", scheme: str = "", **settings: Any) -> Any:
    """The timeline of one block."""
    scheme = scheme or USUAL_SCHEME[form]
    predicates = predicates_of(base, SCHEMES[scheme].divides_heads)
    return timeline(Key(form, scheme, kernel, predicates, "bf16", **settings))


# ---- the absorbed form's copy of the probabilities

SQUARES = [
    ("eager", "sbnd", {}, 2),  # the design's order: the probabilities and a copy of them
    ("eager", "sbnd", {"b": 1}, 2),
    ("eager", "bnsd", {}, 1),
    ("eager", "bsht", {}, 1),
    ("eager", "sbnd", {"l": 1}, 1),  # one head per rank
    ("eager", "sbnd", {"l": 1, "b": 1}, 1),
    ("eager-bmm", "sbnd", {}, 1),
    ("eager-bmm", "sbnd", {"b": 1}, 1),
]


@pytest.mark.parametrize(("kernel", "layout", "changed", "expected"), SQUARES)
def test_squares_that_the_absorbed_form_keeps(kernel, layout, changed, expected):
    base = values(**changed)
    kept = [a for a in block("absorbed", base, kernel, attention_layout=layout).allocations if a.saved]
    squares = [a.label for a in kept if sorted(a.dims) == sorted(("b", "l", "S", "S"))]
    assert squares == ["probabilities", "probabilities copy"][:expected]


@pytest.mark.parametrize(("kernel", "layout", "changed", "expected"), SQUARES)
def test_squares_that_torch_keeps(kernel, layout, changed, expected):
    """einsum, softmax and einsum of torch alone, on one shared key."""
    from mla_cost.checks.reference.measure import saved_storages

    base = values(**changed)
    positions, b, heads, width = base["s"] * base["P"], base["b"], base["l"], base["d_c"]
    scores, output = {"sbnd": ("bnst", "sbnd"), "bnsd": ("bnst", "bnsd"), "bsht": ("bsnt", "bsnd")}[layout]
    scores = "bsnt" if kernel == "eager-bmm" else scores

    def attend(q, key):
        probabilities = torch.softmax(torch.einsum(f"sbnd,tbd->{scores}", q, key) * 0.5, -1)
        return torch.einsum(f"{scores},tbd->{output}", probabilities, key)

    q = torch.ones(positions, b, heads, width, requires_grad=True)
    key = torch.ones(positions, b, width, requires_grad=True)
    square = b * heads * positions**2 * 4
    assert [storage.bytes for storage in saved_storages(attend, q, key)].count(square) == expected


@pytest.mark.parametrize("form", ["explicit", "laga"])
@pytest.mark.parametrize(
    ("layout", "changed", "expected"),
    [
        ("sbnd", {}, 1),
        ("bnsd", {}, 1),
        ("bsht", {"b": 1}, 1),
        ("bsht", {}, 2),  # the queries lie between sequence and head, which bmm wants as one
        ("bsht", {"l": 1}, 1),
    ],
)
def test_squares_that_keys_of_every_head_leave(form, layout, changed, expected):
    kept = [a for a in block(form, values(**changed), attention_layout=layout).allocations if a.saved]
    assert [a.label for a in kept if a.dims.count("S") == 2] == ["probabilities", "probabilities copy"][:expected]


# ---- explicit on one rank and on several

Named = list[tuple[str, str]]


def kept(base: dict[str, int], kernel: str, **settings: Any) -> Named:
    """Saved storages of the explicit form from the up-projection on, and what each is as large as."""
    found = [a for a in block("explicit", base, kernel, **settings).allocations if a.saved]
    after = [a.label for a in found].index("latent statistics")
    plain = {"S": "s", "n": "l"}
    return [(a.label, " ".join(plain.get(dim, dim) for dim in a.dims if dim != "P")) for a in found[after + 1 :]]


def test_fused_explicit_on_one_rank_pins_the_up_projection():
    assert kept(values(P=1), "flash") == [
        ("kv", "s b l k+v"),
        ("key", "s b l k+r"),
        ("o", "s b l v"),
        ("log-sum-exp", "b l s"),
    ]


def test_fused_explicit_on_several_ranks_keeps_o_twice_and_v_alone():
    """Bytes agree with one rank's where k = v; the storages do not."""
    assert kept(values(P=2), "flash") == [
        ("key", "s b l k+r"),
        ("value", "s b l v"),
        ("o", "s b l v"),
        ("log-sum-exp", "b l s"),
        ("o", "s b l v"),
    ]


def test_contiguous_values_matter_on_one_rank_only():
    one = kept(values(P=1), "flash", v_layout="contiguous")
    assert one[:2] == [("value", "s b l v"), ("key", "s b l k+r")]
    assert ("kv", "s b l k+v") not in one
    assert kept(values(P=2), "flash", v_layout="contiguous") == kept(values(P=2), "flash")


def test_eager_explicit_on_one_rank_and_on_several():
    """eager keeps no output of its own, so its one copy of o is made by the flattening or by the exchange."""
    assert kept(values(P=1), "eager") == [
        ("kv", "s b l k+v"),
        ("key", "s b l k+r"),
        ("probabilities", "b l s s"),
        ("o copy", "s b l v"),
    ]
    assert kept(values(P=2), "eager") == [
        ("key", "s b l k+r"),
        ("value", "s b l v"),
        ("probabilities", "b l s s"),
        ("o", "s b l v"),
    ]


# ---- whole blocks


def run_modules(form: str, base: dict[str, int], kernel: str, scheme: str) -> Any:
    """The recording of the reference modules at these values."""
    from mla_cost.checks.reference.fake import run_fake
    from mla_cost.checks.reference.spec import Dims, Spec

    dims = Dims(
        hidden=base["h"],
        heads=base["n"],
        q_lora_rank=base["d_q"] or None,
        kv_lora_rank=base["d_c"],
        nope=base["k"],
        rope=base["r"],
        value=base["v"],
    )
    spec = Spec(
        form=form,
        scheme=scheme or None,
        kernel=kernel,
        dims=dims,
        seq_len=base["s"] * base["P"],
        sp=base["P"],
        micro_batch=base["b"],
    )
    return run_fake(spec)


BLOCKS = [
    values(),
    values(b=1),
    values(s=1),
    values(l=1, b=1),
    values(P=1),
    values(P=1, b=1, l=1),
    values(r=0),
    values(r=0, P=1, b=1),
    values(d_q=0, b=1),
]
EAGER = [(form, "eager", "", base) for form in USUAL_SCHEME for base in BLOCKS]
OTHERS = [("explicit", "mem-efficient", ""), ("absorbed", "mem-efficient", ""), ("absorbed", "eager-bmm", "")]
OTHERS += [("laga", "flash", ""), ("explicit", "npu-fusion", ""), ("explicit", "flash", "kv-gather")]


def cell(given: Any) -> str:
    """A test id."""
    return spelled(given) or "usual" if isinstance(given, dict) else given or "usual"


@pytest.mark.parametrize(
    ("form", "kernel", "scheme", "base"),
    EAGER + [(*other, base) for other in OTHERS for base in (values(), values(P=1, b=1), values(l=1))],
    ids=cell,
)
def test_a_whole_block(form, kernel, scheme, base):
    if scheme and scheme not in SCHEMES:
        pytest.skip(f"no scheme {scheme} yet")
    ours = block(form, base, kernel, scheme, value_padding=KERNELS[kernel].value_padding)
    theirs = run_modules(form, base, kernel, scheme)
    assert_same(ours, theirs, base)
