"""`python -m mla_cost`: the command line."""

from mla_cost.cli import main

main()
