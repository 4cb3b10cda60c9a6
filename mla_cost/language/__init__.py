"""The cost language: programs, rules, and the machine that runs them. Standard library only."""
