"""`python -m mla_cost.checks.reference`, usually under torchrun: see `mla_cost.checks.reference.device`."""

from mla_cost.checks.reference.device import main

if __name__ == "__main__":
    main()
