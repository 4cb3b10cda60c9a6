"""Where a number comes from: formulas, terms, and what pictures draw."""
