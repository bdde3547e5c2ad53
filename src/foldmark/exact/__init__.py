"""The oracle: Python's standard library only, slow, obvious, and independent of the fast path."""
