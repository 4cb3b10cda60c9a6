"""What frameworks call our forms and schemes: the words of their settings beside the names of our declarations."""

from typing import Final

from mla_cost.declared.shardings import SHARDINGS

# the one way in which frameworks train MLA densely: keys and values per head
TRAINED: Final = "explicit"
# Megatron-Core's cp_comm_type: NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py:1030-1045
CP_COMM_TYPES: Final = {
    "p2p": "ring", "a2a": "ulysses", "all_gather": "kv-all-gather", "allgather": "kv-all-gather", "a2a+p2p": "a2a-p2p",
}  # fmt: skip
# of them, what has an inner group: its ranks are the first of --hierarchical-context-parallel-sizes
HIERARCHICAL: Final = "a2a-p2p"
# MindSpeed's --context-parallel-algo: Ascend/MindSpeed-LLM@c77308a1 docs and examples/mcore
CONTEXT_PARALLEL_ALGORITHMS: Final = {
    "ulysses_cp_algo": "ulysses", "megatron_cp_algo": "ring", "hybrid_cp_algo": "usp",
    "kvallgather_cp_algo": "kv-gather",
}  # fmt: skip
# of them, what has an inner group: its ranks are --ulysses-degree-in-cp
HYBRID: Final = "usp"
# what data-parallel ranks share: DDP without --use-distributed-optimizer, that optimizer, and DeepSpeed's stages
PLAIN: Final = "ddp"
SHARED_STATES: Final = "distributed"
ZERO_STAGES: Final = {0: "ddp", 1: "zero1", 2: "zero2"}
# the optimizer that frameworks call by these names
ADAM: Final = frozenset({"adam", "adamw", "fusedadam", "torchadam", "adamw_torch", "adamw_torch_fused"})
# ranks that hold a part of weights, gradients and states; where no such row is declared, what holds weights whole
_FULLY_SHARDED: Final = ("fsdp2", "fsdp", "zero3")
FULLY_SHARDED: Final = next((name for name in _FULLY_SHARDED if name in SHARDINGS), "")
NEXT_TO_FULLY_SHARDED: Final = "zero2"
# flavors of torchtitan's deepseek_v3: pytorch/torchtitan@e347b1e5 torchtitan/models/deepseek_v3/__init__.py:78-150
FLAVORS: Final = {"16B": "deepseek-v2-lite", "236B": "deepseek-v2", "671B": "deepseek-v3"}
# torchtitan's words for schedules with one chunk a stage, and with several
SCHEDULES: Final = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
# sections of Megatron-Bridge's ConfigContainer and of NeMo's YAML that hold Megatron's fields, the first one wins
BRIDGE_SECTIONS: Final = ("model", "train", "ddp", "optimizer", "dataset", "dist", "data", "strategy", "tokenizer")
