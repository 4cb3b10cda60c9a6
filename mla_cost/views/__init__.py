"""Views read results and compute nothing."""
