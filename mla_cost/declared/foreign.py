"""What frameworks call our forms and schemes: the words of their settings beside the names of our declarations."""

from typing import Final

# the one way in which frameworks train MLA densely: keys and values per head
TRAINED: Final = "explicit"
# Megatron-Core's cp_comm_type: NVIDIA/Megatron-LM@d98e8a64 megatron/core/transformer/transformer_config.py:1030-1045
CP_COMM_TYPES: Final = {"p2p": "ring", "a2a": "ulysses", "all_gather": "kv-all-gather", "allgather": "kv-all-gather"}
# MindSpeed's --context-parallel-algo: Ascend/MindSpeed-LLM@c77308a1 docs and examples/mcore
CONTEXT_PARALLEL_ALGORITHMS: Final = {"ulysses_cp_algo": "ulysses", "megatron_cp_algo": "ring"}
# what data-parallel ranks share: DDP without --use-distributed-optimizer, that optimizer, and DeepSpeed's stages
PLAIN: Final = "ddp"
SHARED_STATES: Final = "distributed"
ZERO_STAGES: Final = {0: "ddp", 1: "zero1", 2: "zero2"}
# the optimizer that frameworks call by these names
ADAM: Final = frozenset({"adam", "adamw", "fusedadam", "torchadam", "adamw_torch", "adamw_torch_fused"})
