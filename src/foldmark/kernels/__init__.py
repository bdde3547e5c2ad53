"""The fast twins of `exact`: same names, same argument order, bit for bit the same answer."""
