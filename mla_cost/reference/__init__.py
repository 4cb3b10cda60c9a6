"""The torch reference executor: MLA written as plain `torch.nn` modules, and what running them costs.

An independent witness for the counting of `mla_cost`: it imports nothing of the rest of the package.
"""

from mla_cost.reference.measure import Recording, record, saved_storages

__all__ = ["Recording", "record", "saved_storages"]
