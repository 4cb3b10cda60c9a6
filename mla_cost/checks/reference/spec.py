"""What one run of the reference executor is asked for: plain names and ints, nothing of torch's objects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
FORMS = ("explicit", "absorbed", "laga")
SCHEMES = {"explicit": ("ulysses", "kv-gather", "latent-gather"), "absorbed": ("latent-gather",)}
LAYERS = ("attention", "dense", "moe", "embedding", "head", "mtp_input")
ENDS = ("embedding", "head", "mtp_input")  # what a network has beside layers: divided by rows of the vocabulary
KERNELS = ("eager", "eager-bmm", "flash", "mem-efficient", "npu-fusion")
FUSED = ("flash", "mem-efficient", "npu-fusion")
# What remat can name -> the layers that have such a part.
REMAT = {
    "full": ("attention", "dense", "moe"),
    "core_attn": ("attention", "dense", "moe"),
    "mlp": ("dense",),
    "moe": ("moe",),
    "shared_experts": ("moe",),
}
SETTINGS = {
    "kernel": KERNELS,
    "dtype": tuple(DTYPES),
    "v_layout": ("view", "contiguous"),
    "attention_layout": ("sbnd", "bsht", "bnsd"),
    "softmax_dtype": ("activation", "fp32"),
    "mask": ("none", "tensor"),
    "names": ("rebound", "held"),
    "value_padding": (None, "none", "qk"),
    "norm": ("fused", "composite"),
    "fused_attention": ("stand-in", "sdpa"),
    "loss": ("native", "no-upcast", "in-place", "fused", "chunked"),
    "moe_style": ("fused", "torchtitan", "transformers"),
}


@dataclass(frozen=True)
class Dims:
    """Widths of one attention block. `q_lora_rank` None: the query comes straight from hidden."""

    hidden: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope: int
    rope: int
    value: int


# Typed from the published config.json of each model, apart from configs/, which the other side reads.
DIMS = {
    "deepseek-v3": Dims(hidden=7168, heads=128, q_lora_rank=1536, kv_lora_rank=512, nope=128, rope=64, value=128),
    "kimi-k2": Dims(hidden=7168, heads=64, q_lora_rank=1536, kv_lora_rank=512, nope=128, rope=64, value=128),
    "deepseek-v2-lite": Dims(hidden=2048, heads=16, q_lora_rank=None, kv_lora_rank=512, nope=128, rope=64, value=128),
    "tiny": Dims(hidden=32, heads=8, q_lora_rank=24, kv_lora_rank=16, nope=8, rope=4, value=8),
}


@dataclass(frozen=True)
class Spec:
    """One cell: a layer, the form of its attention with scheme and kernel, dims and degrees.

    `form="laga"` is the pair explicit + latent-gather. `scheme` None is the form's usual one. `value_padding` None is
    the kernel's own default (npu-fusion pads, the others do not). `mask="tensor"` makes attention causal; the fused
    kernels then mask inside and take no tensor. `fused_attention="sdpa"` runs torch's own fused backend for `flash`
    and `mem-efficient`, and raises where torch would not select it; "stand-in" only saves what a fused kernel saves.

    `layer` "attention" is the block alone. The others are divided over `tp` as well (with `megatron_sp`), the
    attention's down-projections where `sharded_down` says so and whole on every rank otherwise; `ffn` and
    `vocab` (padded) are the sizes before that division. `layer` "moe" is "dense" with `experts` of width `expert_ffn`
    in place of the MLP, divided over `ep` and each over `etp`, not over tp, and shared experts of `shared_ffn` together
    (0: none) that are divided over tp. An `ep` x `etp` beyond sp x tp adds data-parallel ranks, each with its own
    `micro_batch` sequences.

    `names="held"` is the style of docs/decisions/0014: nothing between the exchanges is bound twice, and whoever calls
    one block holds its output and the gradient handed in. `idle_mlp` is the width of an MLP that a block holds the
    weights of and never runs.

    `loss` is the head's: "chunked" takes its positions in `loss_chunks` parts, as equal as can be.

    `remat` names the parts that run again in backward, joined by "+"; "none" is nothing.
    """

    form: str = "explicit"
    scheme: str | None = None
    kernel: str = "eager"
    dims: Dims = DIMS["deepseek-v3"]
    seq_len: int = 16384
    sp: int = 8
    micro_batch: int = 1
    dtype: str = "bf16"
    v_layout: str = "view"
    attention_layout: str = "sbnd"
    softmax_dtype: str = "activation"
    mask: str = "none"
    names: str = "rebound"
    idle_mlp: int = 0
    value_padding: str | None = None
    norm: str = "fused"
    fused_attention: str = "stand-in"
    layers: int = 1  # blocks in a row, the output of one the input of the next
    layer: str = "attention"
    tp: int = 1
    sharded_down: bool = False
    ffn: int = 18432
    vocab: int = 129280
    loss: str = "native"
    loss_chunks: int = 8
    moe_style: str = "fused"
    ep: int = 1
    etp: int = 1
    experts: int = 256
    experts_per_token: int = 8
    expert_ffn: int = 2048
    shared_ffn: int = 2048
    remat: str = "none"

    def __post_init__(self) -> None:
        """Refuse what no program exists for, by name."""
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r} is not one of {', '.join(FORMS)}")
        for name, allowed in SETTINGS.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(map(str, allowed))}")
        self._check_layer()
        self._check_attention()
        self._check_remat()

    def _check_layer(self) -> None:
        """Refuse degrees that do not divide what they must."""
        if self.layer not in LAYERS:
            raise ValueError(f"layer {self.layer!r} is not one of {', '.join(LAYERS)}")
        if self.layer in ENDS and self.layers != 1:
            raise ValueError(f"a network has one {self.layer}: layers {self.layers} is for attention, dense and moe")
        if self.tp < 1:
            raise ValueError(f"tp {self.tp} is not a number of ranks")
        if self.layer == "attention" and self.tp != 1:
            raise ValueError(f"tp {self.tp} divides a layer, embedding or head: attention alone takes a rank's heads")
        if self.seq_len % (self.sp * self.tp):
            degrees = f"sp {self.sp}" if self.tp == 1 else f"sp {self.sp} x tp {self.tp}"
            raise ValueError(f"{degrees} does not divide seq_len {self.seq_len}")
        for name, size in self._divided():
            if size % self.tp:
                raise ValueError(f"tp {self.tp} does not divide {name} {size}")
        self._check_experts()

    def _divided(self) -> list[tuple[str, int]]:
        """Names and sizes of what tp divides in this layer."""
        if self.layer in ENDS:
            return [("vocab", self.vocab)]
        width = ("shared_ffn", self.shared_ffn) if self.layer == "moe" else ("ffn", self.ffn)
        latents = [("q_lora_rank", self.dims.q_lora_rank or 0), ("latent", self.dims.kv_lora_rank + self.dims.rope)]
        return [("heads", self.dims.heads), width, *(latents if self.sharded_down else [])]

    def _check_experts(self) -> None:
        """Refuse experts that cannot be chosen or divided, and ep groups that would cut across sp x tp."""
        if self.layer != "moe":
            for axis, ranks in (("ep", self.ep), ("etp", self.etp)):
                if ranks != 1:
                    raise ValueError(f"{axis} {ranks} divides the experts of layer moe: {self.layer} has none")
            return
        for axis, ranks, name, size in (
            ("ep", self.ep, "experts", self.experts),
            ("etp", self.etp, "expert_ffn", self.expert_ffn),
        ):
            if ranks < 1:
                raise ValueError(f"{axis} {ranks} is not a number of ranks")
            if size % ranks:
                raise ValueError(f"{axis} {ranks} does not divide {name} {size}")
        if not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} is not between 1 and experts {self.experts}")
        if self.ranks % (self.ep * self.etp) or self.ranks % (self.sp * self.tp):
            sharing = f"ep {self.ep}" if self.etp == 1 else f"ep {self.ep} x etp {self.etp}"
            raise ValueError(f"neither of {sharing} and sp {self.sp} x tp {self.tp} is a multiple of the other")

    def _check_attention(self) -> None:
        """Refuse a scheme or kernel that the form has no program for, and heads that sp does not divide."""
        maths, scheme = self.pair
        if scheme not in SCHEMES[maths]:
            raise ValueError(f"scheme {scheme!r} does not fit form {self.form}: {', '.join(SCHEMES[maths])} do")
        heads = self.dims.heads // self.tp
        if self.has_attention and scheme != "kv-gather" and heads % self.sp:
            whose = "heads" if self.tp == 1 else f"heads of a tp rank ({self.dims.heads} / {self.tp})"
            raise ValueError(f"sp {self.sp} does not divide {heads} {whose}")
        if self.fused_attention == "sdpa" and self.kernel == "npu-fusion":
            raise ValueError("torch's scaled_dot_product_attention does not run kernel npu-fusion")
        if maths == "absorbed" and self.kernel == "flash":
            raise ValueError("kernel flash does not accept the shared key of form absorbed; mem-efficient does")
        if maths != "absorbed" and self._pads_value and self.dims.value > self.dims.nope + self.dims.rope:
            raise ValueError(f"value_padding qk widens the value, and {self.dims.value} is wider than query and key")

    def _check_remat(self) -> None:
        """Refuse names that nothing is called, and parts that this layer does not have."""
        for name in self._remat:
            if name == "none":
                raise ValueError(f"remat {self.remat!r}: none stands alone")
            if name not in REMAT:
                raise ValueError(f"remat {name!r} is not one of none, {', '.join(REMAT)}, or several joined by +")
            if self.layer not in REMAT[name]:
                raise ValueError(f"remat {name} is a part of {', '.join(REMAT[name])}: layer {self.layer} has none")
        if "shared_experts" in self._remat and not self.shared_ffn:
            raise ValueError("remat shared_experts needs shared experts: shared_ffn is 0")

    @property
    def _remat(self) -> tuple[str, ...]:
        return () if self.remat == "none" else tuple(self.remat.split("+"))

    def recomputes(self, part: str) -> bool:
        """Whether the part is wrapped of its own: inside a layer that runs again as a whole, nothing else is."""
        return part in self._remat and (part == "full" or "full" not in self._remat)

    @property
    def _pads_value(self) -> bool:
        """Whether the kernel pads the value to the width of query and key."""
        usual = "qk" if self.kernel == "npu-fusion" else "none"
        return self.kernel in ("flash", "npu-fusion") and (self.value_padding or usual) == "qk"

    @property
    def pair(self) -> tuple[str, str]:
        """The maths and the scheme: laga is explicit maths over latent-gather."""
        if self.form == "laga":
            return "explicit", self.scheme or "latent-gather"
        return self.form, self.scheme or SCHEMES[self.form][0]

    @property
    def caller_holds(self) -> bool:
        """Whether the caller keeps the output and its gradient: of one block; in a stack they are the next one's."""
        return self.names == "held" and self.layer == "attention" and self.layers == 1

    @property
    def has_attention(self) -> bool:
        """Whether form, scheme and kernel say anything about this layer."""
        return self.layer in ("attention", "dense", "moe")

    @property
    def by_construction(self) -> bool:
        """Whether the saves of attention, experts or loss are stated by stand-ins instead of being torch's own."""
        fused = self.has_attention and self.kernel in FUSED and self.fused_attention == "stand-in"
        return fused or self.layer == "moe" or (self.layer == "head" and self.loss == "fused")

    @property
    def ranks(self) -> int:
        """The ranks that one run of this cell takes: sp x tp, times data-parallel ones where ep x etp asks for more."""
        return max(self.sp * self.tp, self.ep * self.etp)

    @property
    def dp(self) -> int:
        """Data-parallel ranks of each place in sp x tp, which ep asks for."""
        return self.ranks // (self.sp * self.tp)

    @property
    def alone(self) -> Spec:
        """The same cell on one rank, which has all sequences."""
        one = replace(self, sp=1, tp=1, ep=1, etp=1, sharded_down=False)
        return replace(one, micro_batch=self.micro_batch * self.dp)

    def with_sp(self, sp: int) -> Spec:
        """Return the same cell at another degree."""
        return replace(self, sp=sp)
