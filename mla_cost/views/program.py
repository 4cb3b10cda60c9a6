"""A program as text: one statement a line, the dims of its results beside it."""

from __future__ import annotations

import sys

from mla_cost.results import ProgramLine, ProgramListing


def show(listing: ProgramListing) -> None:
    """Print the program."""
    sys.stdout.write(text(listing))


def text(listing: ProgramListing) -> str:
    """The program as text, its dims in one column."""
    what = "" if listing.layer == "attention" else f"layer {listing.layer}, "
    style = f"scheme {listing.scheme}, kernel {listing.kernel}, profile {listing.profile}, remat {listing.remat}"
    rows = [("  " * line.depth + line.text, _beside(line)) for line in listing.lines]
    width = min(max(len(left) for left, _ in rows), 64)
    body = "".join(f"{left:{width}}  {right}".rstrip() + "\n" for left, right in rows)
    return f"{listing.form}: {what}{style}\nHolds for: {listing.holds_for}.\n\n{body}"


def _beside(line: ProgramLine) -> str:
    dims = " ".join(f"[{' '.join(of_one)}]" if of_one else "absent" for of_one in line.dims)
    return f"{dims}  # {line.note}" if line.note else dims
