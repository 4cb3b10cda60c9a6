"""How long work takes on a device: rules over numbers or arrays, the ceilings they stand on, links, and the step."""
