"""Kernels against torch: the eager text line by line in every style, and fused attention with all it keeps."""

from __future__ import annotations

from itertools import product

import pytest

from mla_cost.declared.kernels import KERNELS
from mla_cost.language.rules.split import narrow
from mla_cost.pricing.key import Key
from mla_cost.pricing.run import ProgramRun
from tests.torch.rules.harness import Operand, check, each_value, layouts, torch, values

FEW = (values(), values(b=1), values(l=1), values(s=1, b=1), values(P=1, l=1), values(b=1, P=1, l=1))
QUERY, KEY, VALUE = Operand("q", "S b l k+r"), Operand("key", "S b l k+r"), Operand("value", "S b l v")
ABSORBED, SHARED = Operand("q", "S b l d_c+r"), Operand("key", "S b d_c+r")
LETTERS = {"sbnd": ("bnst", "sbnd"), "bnsd": ("bnst", "bnsd"), "bsht": ("bsnt", "bsnd")}
STYLES = [
    {"attention_layout": layout, "softmax_dtype": softmax, "mask": mask}
    for layout, (softmax, mask) in product(LETTERS, (("activation", "none"), ("fp32", "tensor")))
]


def run_kernel(machine, name, settings, query, key, value):
    """The kernel's own text on this machine."""
    run = ProgramRun(Key("explicit", "ulysses", name, machine.predicates, machine.dtype, **settings))
    run.machine = machine
    piece = KERNELS[name].piece(len(key.axes) == 3, settings.get("attention_layout", "sbnd"))
    return run._call(piece, [query, key, value])[0]


def eager(q, key, value, table, letters, softmax_dtype):
    """docs/decisions/0001, kernel `eager`."""
    scores_letters, output_letters = letters
    shared = "tbnd" if key.dim() == 4 else "tbd"
    scores = torch.einsum(f"sbnd,{shared}->{scores_letters}", q, key)
    scores = scores * 0.125
    if table is not None:
        scores = scores.masked_fill(table if scores_letters == "bnst" else table.unsqueeze(1), -torch.inf)
    if softmax_dtype == "fp32":
        probs = torch.softmax(scores, -1, dtype=torch.float32)
        probs = probs.to(q.dtype)
    else:
        probs = torch.softmax(scores, -1)
    out = torch.einsum(f"{scores_letters},{shared}->{output_letters}", probs, value)
    return out.permute([output_letters.index(letter) for letter in "sbnd"])


def tables(settings):
    """The mask, where one is asked for."""
    return [lambda size: torch.ones(size("S S"), dtype=torch.bool).triu(1)] * (settings["mask"] == "tensor")


def spelled(settings):
    return "-".join(settings.values())


@each_value(*FEW)
@pytest.mark.parametrize("settings", STYLES, ids=spelled)
def test_eager_with_keys_of_every_head(base, settings):
    def in_torch(_, q, key, value, table=None):
        return eager(q, key, value, table, LETTERS[settings["attention_layout"]], settings["softmax_dtype"])

    def in_rules(machine, q, key, value):
        return run_kernel(machine, "eager", settings, q, key, value)

    check(base, [QUERY, KEY, VALUE], in_torch, in_rules, tables=tables(settings))


@each_value(*FEW)
@pytest.mark.parametrize(
    ("kernel", "settings"),
    [("eager", settings) for settings in STYLES] + [("eager-bmm", settings) for settings in STYLES[:2]],
    ids=lambda given: given if isinstance(given, str) else spelled(given),
)
def test_eager_with_a_shared_key(base, kernel, settings):
    """The value is a view of the key: one storage, two gradients that meet."""
    letters = ("bsnt", "sbnd") if kernel == "eager-bmm" else LETTERS[settings["attention_layout"]]

    def in_torch(size, q, key, table=None):
        return eager(q, key, key[..., : size.d_c], table, letters, settings["softmax_dtype"])

    def in_rules(machine, q, key):
        value = narrow(machine, "value", key, 2, "d_c")
        return run_kernel(machine, kernel, settings, q, key, value)

    check(base, [ABSORBED, SHARED], in_torch, in_rules, tables=tables(settings))


@each_value(*FEW)
@pytest.mark.parametrize(
    ("kernel", "padding"),
    [
        (kernel.name, padding)
        for kernel in KERNELS.values()
        for padding in ("none", "qk")
        if kernel.fused and (padding == "none" or kernel.pads(shared=False))
    ],
)
def test_fused_with_keys_of_every_head(base, kernel, padding):
    """Against the stand-in, which states what a fused kernel saves (docs/decisions/0001)."""
    from mla_cost.checks.reference.fused import flash_attention, npu_fusion_attention

    op = npu_fusion_attention if kernel == "npu-fusion" else flash_attention

    def in_torch(size, q, key, value):
        if padding == "none":
            return op(q, key, value, 0.125, None)
        value = torch.nn.functional.pad(value, (0, q.size(-1) - size.v))
        return op(q, key, value, 0.125, None)[..., : size.v]

    def in_rules(machine, q, key, value):
        return run_kernel(machine, kernel, {"value_padding": padding}, q, key, value)

    check(base, [QUERY, KEY, VALUE], in_torch, in_rules)


@each_value(*FEW)
def test_fused_with_a_shared_key(base):
    """The key is copied to every head, and the value is a part of that copy."""
    from mla_cost.checks.reference.fused import flash_attention

    def in_torch(size, q, key):
        value = key[..., : size.d_c]
        width = value.size(-1)
        key = key.unsqueeze(2).expand(-1, -1, size.l, -1).contiguous()
        value = key[..., :width]
        return flash_attention(q, key, value, 0.125, None)

    def in_rules(machine, q, key):
        value = narrow(machine, "value", key, 2, "d_c")
        return run_kernel(machine, "mem-efficient", {}, q, key, value)

    check(base, [ABSORBED, SHARED], in_torch, in_rules)


@each_value(values(b=1), values(b=1, l=1), values(b=1, s=1))
def test_fused_against_the_kernel_that_torch_has_on_cpu(base):
    """One width, one sequence: then torch's own layout [b s n d] is ours, and nothing is by construction.

    That kernel takes operands whose last dim has stride one.
    """
    from mla_cost.checks.reference.fused import sdpa

    def in_torch(_, q, key, value):
        return sdpa(q, key, value, 0.125, None, "flash")

    def in_rules(machine, q, key, value):
        return run_kernel(machine, "flash", {}, q, key, value)

    def tried(operands):
        return (layout for layout in layouts(operands) if "last first" not in layout.operands)

    check(base, [QUERY, KEY, Operand("value", "S b l k+r")], in_torch, in_rules, tried=tried)
