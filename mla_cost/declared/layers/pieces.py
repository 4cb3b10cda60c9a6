"""Pieces that more than one layer is made of."""

# What mixes tokens: the form's block, with the indexer of sparse attention where the layer has one of its own, or a
# mixer without MLA. Of the last two nothing is known but the bytes that the user says they keep.
MIXER = """
mixer(hidden):
    if mixer == other
        attended = other_mixer hidden
        return attended
    attended = forward hidden
    if indexer == own
        attended = with_indexer attended
    return attended
"""

# what tables call the norms of a layer
NORMS = {"g_attention": "input_norm", "g_mlp": "pre_mlp_norm"}
