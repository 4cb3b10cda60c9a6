"""Foreign formats, one a file, each read into a ModelConfig."""
