"""What is declared, one thing a file: forms, schemes, kernels, layers, profiles."""
