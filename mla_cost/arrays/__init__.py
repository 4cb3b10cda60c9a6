"""Programs at many points: polynomials as matrices, exact in double precision. Needs numpy, so `plan` never asks."""
