"""What holds the figures against something else: the torch executor, published figures."""
