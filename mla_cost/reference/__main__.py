"""`python -m mla_cost.reference`, usually under torchrun: see `mla_cost.reference.device`."""

from mla_cost.reference.device import main

if __name__ == "__main__":
    main()
