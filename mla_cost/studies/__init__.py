"""Questions over many plans: sweep, search, longest, presets."""
