"""The model set against the torch reference executor, cell by cell. Everything here needs torch, all else does not."""
