"""One plan priced: programs compiled and resolved, stages, traffic, verdict, what-ifs."""
