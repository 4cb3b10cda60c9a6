"""What a device reaches of what its sheet promises, as plain numbers ready for the rules.

Every figure comes from the device's file, `time:` there, with its spread: at the slow end of a band all figures are
slow together, at the fast end all are fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from mla_cost.inputs.config import DeviceConfig, Fact, TimeFact

End = Literal["slow", "middle", "fast"]
ENDS: Final[tuple[End, ...]] = ("slow", "middle", "fast")
MICRO: Final = 1e-6
# of what a smaller figure is the faster one
DURATIONS: Final = frozenset(
    {
        "launch_floor_us",
        "host_launch_us",
        "collective_latency_us",
        "step_latency_us",
        "network_latency_us",
        "gemm_depth_half",
        "grouped_gemm_rows_half",
        "attention_length_half",
    }
)
# The rate inside a node of each kind of collective, and of a dispatcher that is more than an all-to-all. Reductions to
# one rank after another (DeepSpeed's buckets) are a reduce-scatter, taken apart. Cycles that together use every
# link are an all-to-all to the links.
RATES: Final[Mapping[str, TimeFact]] = {
    "all_gather": "all_gather_share",
    "reduce_scatter": "reduce_scatter_share",
    "all_reduce": "all_reduce_share",
    "reduce": "reduce_scatter_share",
    "all_to_all": "all_to_all_share",
    "point_to_point": "point_to_point_share",
    "cycles": "all_to_all_share",
    "dispatch": "dispatch_share",
}


class Ceilings(NamedTuple):
    """One device at one end of its band. Seconds, flops a second and bytes a second; shares of a peak from 0 to 1.

    depth_half: the contracted width at which a product reaches half of its ceiling; rows_half: rows per expert, and
    length_half: key positions, likewise. weight_ratio, backward_ratio: a grouped product's weight gradients, and
    attention's backward, by the rate of forward. mesh: others to which a device of a node has a link of its own, 0
    behind a switch. staged: whether what crosses nodes and what stays inside take turns.
    """

    launch: float
    host: float
    units: float
    tile: float
    small_tile: float
    peak_bf16: float
    peak_fp32: float
    bandwidth: float
    gemm: float
    depth_half: float
    grouped: float
    rows_half: float
    input_ratio: float
    weight_ratio: float
    attention: float
    length_half: float
    backward_ratio: float
    memory: float
    operands: float
    rope: float
    permutation: float
    norm: float
    softmax: float
    copy: float
    loss: float
    inside: Mapping[str, float]
    latency: float
    step_latency: float
    mesh: float
    network: float
    network_latency: float
    domain: int
    staged: bool
    in_turn: bool
    estimated: tuple[str, ...]


_KNOWN: Final[dict[tuple[int, End], tuple[DeviceConfig, Ceilings]]] = {}
_MOST: Final = 256


def has_ceilings(device: DeviceConfig) -> bool:
    """Whether the device's file says what it reaches."""
    return bool(device.time)


def ceilings(device: DeviceConfig, end: End = "middle", nodes_of: int | None = None) -> Ceilings:
    """The figures of a device. nodes_of: devices in a node where they are not the device's own."""
    known = _KNOWN.get((id(device), end))
    if known is None or known[0] is not device:  # an id is free again once its device is gone
        if len(_KNOWN) >= _MOST:
            _KNOWN.clear()
        known = _KNOWN[id(device), end] = device, _made(device, end)
    found = known[1]
    return found if nodes_of is None else found._replace(domain=nodes_of)


def _made(device: DeviceConfig, end: End) -> Ceilings:
    at = _CeilingReader(device, end)
    inside = float(_number(device.intra_node_gb_s)) * 1e9
    peak = float(_number(device.peak_bf16_dense_tflops)) * 1e12
    link = device.further.get("link_gb_s")
    return Ceilings(
        launch=at("launch_floor_us") * MICRO,
        host=at("host_launch_us") * MICRO,
        units=at("compute_units"),
        tile=at("tile"),
        small_tile=at("small_tile_rate"),
        peak_bf16=peak,
        peak_fp32=at("peak_fp32_tflops") * 1e12,
        bandwidth=float(_number(device.memory_bandwidth_gb_s)) * 1e9,
        gemm=at("gemm_share"),
        depth_half=at("gemm_depth_half"),
        **_grouped(at),
        attention=at("attention_share"),
        length_half=at("attention_length_half"),
        backward_ratio=at("attention_backward_ratio"),
        memory=at("memory_share"),
        operands=at("gemm_memory_share", "memory_share"),
        rope=at("rope_share"),
        permutation=at("permutation_share"),
        norm=at("norm_share", "memory_share"),
        softmax=at("softmax_share", "memory_share"),
        copy=at("copy_share", "memory_share"),
        loss=at("loss_share"),
        inside={kind: inside * at(fact) for kind, fact in RATES.items()},
        latency=at("collective_latency_us") * MICRO,
        step_latency=at("step_latency_us") * MICRO,
        mesh=float(_number(device.devices_per_node)) - 1 if link is not None else 0.0,
        network=float(_number(device.inter_node_gb_s)) * 1e9 * at("network_share"),
        network_latency=at("network_latency_us") * MICRO,
        domain=device.linked_devices,
        staged=device.family == "ascend",
        in_turn=device.family == "cpu",
        estimated=tuple(name for name, fact in device.time.items() if not fact.verified),
    )


def _grouped(at: _CeilingReader) -> dict[str, Any]:
    """Of products by groups."""
    names = {"grouped": "share", "rows_half": "rows_half", "input_ratio": "input_ratio", "weight_ratio": "weight_ratio"}
    return {field: at(f"grouped_gemm_{fact}") for field, fact in names.items()}  # type: ignore[arg-type]


class _CeilingReader:
    def __init__(self, device: DeviceConfig, end: End) -> None:
        self.device, self.end = device, end

    def __call__(self, name: TimeFact, instead: TimeFact | None = None) -> float:
        """The figure at this end; of `instead` where the device does not state it."""
        fact = self.device.time[name if instead is None or name in self.device.time else instead]
        low, high = (_number(fact) if it is None else it for it in (fact.low, fact.high))
        if self.end == "middle":
            return float(_number(fact))
        worse = self.end == "slow"
        return float(high if worse is (name in DURATIONS) else low)


def _number(fact: Fact) -> Any:
    return fact.value if not isinstance(fact.value, tuple) else fact.value[0]
