"""The one place where kernels round sizes up."""


def up(size: int, multiple: int) -> int:
    """The smallest multiple that is at least `size`."""
    return -(-size // multiple) * multiple
