"""How numbers print: bytes in binary units, everything else with thousands separated."""

_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


def gib(amount: int | None) -> str:
    """Bytes in GiB with two decimals, none from a thousand on; a dash where there is no number."""
    if amount is None:
        return "-"
    return f"{amount / 2**30:,.2f}" if amount < 1000 * 2**30 else f"{amount / 2**30:,.0f}"


def sent(amount: int | None) -> str:
    """Bytes in GiB: three decimals below one, so that a block's exchanges keep their digits; else as `gib`."""
    return gib(amount) if amount is None or amount >= 2**30 else f"{amount / 2**30:,.3f}"


def readable(amount: int, *, sign: bool = False) -> str:
    """Bytes in the largest unit that leaves a number of at least one. sign: a plus before what is positive, too."""
    plus = "+" if sign else ""
    for power, unit in _UNITS:
        if abs(amount) >= 2**power:
            return f"{amount / 2**power:{plus},.2f} {unit}"
    return f"{amount:{plus}} B"


def signed(amount: int) -> str:
    """Bytes in GiB with a sign; a plain 0 where nothing changes."""
    return "0" if amount == 0 else f"{amount / 2**30:+,.2f}"
