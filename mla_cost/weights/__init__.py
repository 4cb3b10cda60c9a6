"""Parameters, and the states that training keeps for them."""
