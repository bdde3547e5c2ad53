"""The built-in example: a small trained attention classifier, its int8 copy, held-out digits."""
