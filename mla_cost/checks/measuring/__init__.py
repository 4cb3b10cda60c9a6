"""What a machine reaches, measured: micro-benchmarks of every class of work, and a device file made of them."""
