"""Fast twins of the catalogue's procedures: the searches and iterations that no rule states.

Each takes blocks as the rows of a float32 array and works on every row as its exact twin does,
one rounding an operation, every sum in the same order.
"""
