"""Which tensor gets which scheme and method."""
